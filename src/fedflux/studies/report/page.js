// The page: theme, navigation, and which run is shown (kept in the address, so that links to a run work).

function remembered(key, value) { // a page opened from disk may be refused storage
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* then the choice lasts as long as the page */ }
  return null;
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(theme === "dark"));
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", theme === "dark" ? "Use light colours" : "Use dark colours");
  redraw();
}

function startTheme() {
  setTheme(remembered("fedflux-theme") || (systemDark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    remembered("fedflux-theme", theme);
    setTheme(theme);
  });
  systemDark.addEventListener("change", () => {
    if (!remembered("fedflux-theme")) setTheme(systemDark.matches ? "dark" : "light");
  });
}

let current = null;

function runFromAddress() {
  const id = decodeURIComponent(location.hash.replace(/^#run=/, ""));
  return DATA.runs.find((run) => run.id === id) || null;
}

function showRun(run, jump) {
  current = run;
  const place = document.getElementById("run");
  place.replaceChildren(...runSection(run));
  for (const chart of [...charts.keys()]) if (!chart.isConnected) forget(chart);
  for (const row of document.querySelectorAll("tr[data-row]")) {
    row.classList.toggle("chosen", row.dataset.row === run.id);
  }
  if (jump) {
    const title = document.getElementById("run-title");
    title.scrollIntoView();
    title.focus({ preventScroll: true });
  }
}

function openRun(id) {
  const address = `#run=${encodeURIComponent(id)}`;
  if (location.hash === address) showRun(runFromAddress(), true);
  else location.hash = address;
}

function start() {
  startTheme();
  document.getElementById("overview").append(...overviewSection());
  document.getElementById("runs").append(...runsSection());
  document.getElementById("parts").append(...[
    ["overview", "Overview"], ["runs", "All runs"], ["run", "Chosen run"],
  ].map(([id, words]) => el("a", { href: `#${id}` }, words)));
  const first = DATA.runs.find((run) => run.id === DATA.opens);
  const chosen = runFromAddress();
  showRun(chosen || first, Boolean(chosen));
  window.addEventListener("hashchange", () => {
    const run = runFromAddress();
    if (run) showRun(run, true);
    else if (!location.hash) showRun(first, false); // back to where the page was opened
  });
  window.addEventListener("beforeprint", () => {
    for (const place of charts.keys()) draw(place);
  });
  document.addEventListener("DOMContentLoaded", startCharts);
}

start();
