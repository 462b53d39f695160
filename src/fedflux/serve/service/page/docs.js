// The interface, from openapi.json: a card a route.

const make = (tag, text, kind) => {
  const one = document.createElement(tag);
  one.textContent = text;
  if (kind) one.className = kind;
  return one;
};

const card = (path, method, told) => {
  const section = make("section", "", "card");
  section.append(make("h2", `${method.toUpperCase()} ${path}`));
  section.append(make("p", told.description ?? told.summary ?? ""));
  const body = told.requestBody?.content?.["application/json"]?.schema;
  if (body) {
    const more = make("details", "");
    more.append(make("summary", "body"), make("pre", JSON.stringify(body, null, 2)));
    section.append(more);
  }
  return section;
};

const schema = await (await fetch("/openapi.json")).json();
const routes = Object.entries(schema.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, told]) => card(path, method, told)),
);
document.getElementById("routes").replaceChildren(...routes);
