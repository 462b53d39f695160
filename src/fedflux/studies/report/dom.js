// Elements, numbers and tables. Text of runs only ever becomes text nodes, so none of it can be taken for markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NONE = "–";
const SHIFTS = {
  px: "P(X)", py: "P(Y)", pygx: "P(Y|X)", pxgy: "P(X|Y)", none: "none", dirichlet: "Dirichlet", quantity: "quantity",
};

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function there(value) {
  return value !== null && value !== undefined;
}

function number(value, decimals = 1) {
  return there(value) ? value.toFixed(decimals).replace("-", "−") : NONE;
}

function share(value, decimals = 1) {
  return there(value) ? `${number(value, decimals)}\u00a0%` : NONE;
}

function signed(value, decimals = 1) {
  return there(value) ? (value >= 0 ? "+" : "") + number(value, decimals) : NONE;
}

function bytes(count) {
  if (!there(count)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit ? count.toFixed(1) : Math.round(count)}\u00a0${units[unit]}`;
}

function seconds(value) {
  if (!there(value)) return NONE;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)}\u00a0s`;
  return value < 6000 ? `${(value / 60).toFixed(1)}\u00a0min` : `${(value / 3600).toFixed(1)}\u00a0h`;
}

function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

function shiftName(shift) {
  return String(shift).split("+").map((part) => SHIFTS[part] || part).join(" + ");
}

function clusterName(label, groupedBy = "found") {
  if (label < 0) return "no cluster";
  return groupedBy === "truth" ? `true cluster ${label}` : `cluster ${label}`;
}

function dataName(run) { // a file or folder of one's own says more than how it was read
  const { data_dir: place } = run.config;
  const own = ["npz", "csv", "folder"].includes(run.row.dataset);
  if (own && place) return String(place).replace(/[\\/]+$/, "").split(/[\\/]/).pop();
  return own && !place ? "own data" : run.row.dataset;
}

function levelOf(row) { // where nothing is shifted there is no level, whatever the settings hold
  return row.shift === "none" ? null : row.level;
}

function shiftWords(row) {
  if (row.shift === "none") return "not shifted";
  return `shift ${shiftName(row.shift)}${there(row.level) ? `, level ${row.level}` : ""}`;
}

function capital(words) {
  return words ? words[0].toUpperCase() + words.slice(1) : words;
}

function shortened(words, most, kept = 1) { // `kept`: how much of what stays is of the beginning
  const letters = [...words];
  if (letters.length <= most) return words;
  const first = Math.ceil((most - 1) * kept);
  const last = letters.slice(letters.length - (most - 1 - first));
  return `${letters.slice(0, first).join("").trimEnd()}…${last.join("").trimStart()}`;
}

const cutNames = new WeakMap(); // by run: names of clients by the letters there is room for

function namesCut(run, most) { // cut where they stay different: at the end, in the middle, at the beginning
  if (!cutNames.has(run)) cutNames.set(run, new Map());
  const known = cutNames.get(run);
  if (!known.has(most)) {
    const ways = [1, 0.5, 0].map((kept) => run.client_names.map((name) => shortened(name, most, kept)));
    const differ = (names) => new Set(names).size;
    known.set(most, ways.reduce((best, names) => (differ(names) > differ(best) ? names : best)));
  }
  return known.get(most);
}

// Clients and classes as the data calls them; those that it only numbers say what the number is of.
function clientName(run, client, most = Infinity) {
  const held = run.unseen && run.unseen.names && client >= run.clients.count;
  const name = held ? run.unseen.names[client - run.clients.count] : (run.client_names || [])[client];
  if (!there(name) || /^\d+$/.test(name)) return `client ${name ?? client}`;
  return held || most === Infinity ? shortened(name, most) : namesCut(run, most)[client];
}

function plainName(run, client, most = Infinity) { // where a heading says already that it is of clients
  return clientName(run, client, most).replace(/^client (?=\d+$)/, "");
}

function className(run, label) {
  return (run.class_names || [])[label] ?? String(label);
}

function aloneIn(run, cluster) { // the name of a cluster's only client, where clients have names
  const row = run.client_names && run.grouped_by === "found" && run.clusters.rows.find((one) => one.cluster === cluster);
  return row && row.size === 1 ? clientName(run, row.members[0], 16) : null;
}

function recordsOf(run) {
  return run.images ? "images" : "records";
}

function unique(values) {
  return [...new Set(values)];
}

// A column is {key, title, hint, num, class, head: whether it names the row, value: what rows are ordered by,
// text or cell: what is shown}; what is left out follows from row[key].
function table(columns, rows, options = {}) {
  const order = { key: null, up: true };
  const body = el("tbody");
  const heads = columns.map((column) => {
    const button = el("button", { type: "button", title: column.hint, onclick: () => sortBy(column) }, column.title);
    return el("th", { scope: "col", class: column.num && "num", "aria-sort": "none" }, button);
  });
  let shown = rows;

  function compare(a, b, column) {
    const value = column.value || ((row) => row[column.key]);
    const [left, right] = [value(a), value(b)];
    if (!there(left) || !there(right)) return there(left) ? -1 : there(right) ? 1 : 0;
    const way = order.up ? 1 : -1;
    if (typeof left === "number" && typeof right === "number") return way * (left - right);
    return way * String(left).localeCompare(String(right), "en", { numeric: true });
  }

  function sortBy(column) {
    order.up = order.key === column.key ? !order.up : !column.num;
    order.key = column.key;
    heads.forEach((head, i) => {
      const here = columns[i].key === order.key;
      head.setAttribute("aria-sort", here ? (order.up ? "ascending" : "descending") : "none");
    });
    draw();
  }

  function draw() {
    const column = columns.find((c) => c.key === order.key);
    const sorted = column ? [...shown].sort((a, b) => compare(a, b, column)) : shown;
    body.replaceChildren(...sorted.map((row) => {
      const cells = columns.map((c) => {
        const content = c.cell ? c.cell(row) : c.text ? c.text(row) : there(row[c.key]) ? String(row[c.key]) : NONE;
        const name = [c.num && "num", c.class].filter(Boolean).join(" ") || null;
        return el(c.head ? "th" : "td", { class: name, scope: c.head && "row" }, content);
      });
      return el("tr", { "data-row": options.rowId ? options.rowId(row) : null }, cells);
    }));
    if (options.drawn) options.drawn(body);
  }

  draw();
  const caption = options.caption ? el("caption", {}, options.caption) : null;
  const inner = el("table", { class: options.class }, caption, el("thead", {}, el("tr", {}, heads)), body);
  const node = el("div", {
    class: rows.length > 25 ? "scroll tall" : "scroll", tabindex: "0", role: "region",
    "aria-label": options.label || options.caption || "Table",
  }, inner);
  node.show = (chosen) => { shown = chosen; draw(); };
  return node;
}

function select(label, choices, onchange, chosen) {
  const options = choices.map(([value, words]) => el("option", { value, selected: value === chosen }, words));
  const node = el("select", { onchange: (event) => onchange(event.target.value) }, options);
  return el("label", {}, label, node);
}

function section(title, what, ...content) {
  return [el("h3", {}, title), what && el("p", { class: "what" }, what), ...content];
}
