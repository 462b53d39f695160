// Charts: colours, theme, and drawing only what comes into view.

const { few: FEW, many: MANY } = DATA.palette; // colour-blind safe; the longer one for more than eight things
const SYMBOLS = [
  ["circle", "●"], ["square", "■"], ["diamond", "◆"], ["triangle-up", "▲"], ["cross", "✚"], ["x", "✖"],
  ["triangle-down", "▼"], ["star", "★"], ["pentagon", "⬟"], ["hexagon", "⬢"], ["triangle-left", "◀"],
  ["triangle-right", "▶"],
];
const SCALE = { // light and dark ends are the page's own, so that cells never shout
  light: [[0, "#f7fbff"], [0.35, "#c3d9ee"], [0.7, "#5a9bd0"], [1, "#0b4a82"]],
  dark: [[0, "#15202b"], [0.35, "#1f4468"], [0.7, "#3b86bf"], [1, "#b6dcf7"]],
};

function palette(labels) {
  const real = labels.filter((label) => label >= 0);
  const colours = real.length > FEW.length ? MANY : FEW;
  const chosen = new Map(real.map((label, i) => [label, colours[i % colours.length]]));
  return (label) => chosen.get(label) || "#8a8f98";
}

function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

function escaped(text) { // Plotly reads a little markup in its labels
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function narrow() {
  return window.innerWidth < 704;
}

function axis(extra = {}) {
  return {
    gridcolor: colour("grid"), zeroline: false, linecolor: colour("line"), tickcolor: colour("line"),
    ticks: "outside", ticklen: 4, automargin: true, fixedrange: narrow(), ...extra,
    title: { text: extra.title || "", standoff: 8, font: { size: 13, color: colour("soft") } },
  };
}

function layout(extra = {}) {
  return {
    paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"), showlegend: false, hovermode: "closest",
    font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    margin: { l: 52, r: narrow() ? 8 : 16, t: 16, b: 44 }, dragmode: narrow() ? false : "zoom",
    hoverlabel: {
      bgcolor: colour("panel"), bordercolor: colour("line"), align: "left",
      font: { color: colour("ink"), size: 13, family: "system-ui, sans-serif" },
    },
    ...extra,
  };
}

// Every chart on the page; one whose place has left the page is forgotten.
const charts = new Map();

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) draw(entry.target);
  }
}, { rootMargin: "400px" });

let plotting = false; // Plotly is the last script of the page

function startCharts() {
  plotting = true;
  for (const place of charts.keys()) observer.observe(place);
}

function draw(place) {
  const chart = charts.get(place);
  if (!chart) return;
  observer.unobserve(place);
  const { data, layout: shape } = chart.make();
  const name = chart.name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const save = (format) => Plotly.downloadImage(place, { format, filename: name, width: 1000, height: 560 });
  const config = {
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover", doubleClick: "reset",
    modeBarButtons: [[
      { name: "PNG", title: "Save as PNG", icon: Plotly.Icons.camera, click: () => save("png") },
      { name: "SVG", title: "Save as SVG", icon: Plotly.Icons.disk, click: () => save("svg") },
    ], ["zoom2d", "pan2d", "resetScale2d"]],
  };
  Plotly.react(place, data, shape, config).then(() => {
    if (!chart.drawn && chart.click) place.on("plotly_click", chart.click);
    chart.drawn = true;
    place.dataset.drawn = "yes";
  });
}

function redraw() {
  for (const [place, chart] of charts) {
    if (!place.isConnected) forget(place);
    else if (chart.drawn) draw(place);
  }
}

function forget(place) {
  observer.unobserve(place);
  if (plotting) Plotly.purge(place);
  charts.delete(place);
}

function figure(name, make, caption, options = {}) {
  const place = el("div", { class: options.low ? "chart low" : "chart", role: "img", "aria-label": name });
  if (options.height) place.style.height = options.height;
  charts.set(place, { name, make, click: options.click, drawn: false });
  if (plotting) observer.observe(place);
  const node = el("figure", {}, place, caption && el("figcaption", {}, caption));
  node.redraw = () => charts.get(place)?.drawn && draw(place);
  return node;
}
