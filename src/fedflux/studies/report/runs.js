// The table of all runs with its filters, and the lists of unfinished and damaged ones.

const LEVEL_COLUMN = { key: "level", title: "Level", num: true, value: levelOf, text: (row) => String(levelOf(row) ?? NONE) };
const FILTERS = ["algorithm", "dataset", "shift"];

function runColumns() {
  const score = (key, title, hint) => ({ key, title, num: true, hint, text: (row) => number(row[key]) });
  const clusters = (row) => (!there(row.clusters_found) ? NONE
    : row.clusters_found + (there(row.clusters_true) ? ` of ${row.clusters_true}` : ""));
  const any = (key) => DATA.runs.some((run) => there(run.row[key]));
  const right = (row) => number(there(row.pairs_right) ? 100 * row.pairs_right : null);
  const link = (row) => el("a", { href: `#run=${encodeURIComponent(row.id)}` }, row.name);
  return [
    { key: "name", title: "Run", head: true, cell: link },
    { key: "algorithm", title: "Algorithm" },
    { key: "dataset", title: "Dataset" },
    SHIFT_COLUMN,
    DATA.runs.some((run) => there(levelOf(run.row))) && LEVEL_COLUMN,
    { key: "seed", title: "Seed", num: true },
    score("known", "Known, %", SCORE_WORDS.known),
    score("known_worst", "worst", "Known association of the worst client"),
    ...(any("test") ? [
      score("test", "Test, %", SCORE_WORDS.test),
      score("test_worst", "worst", "Test phase of the worst client"),
    ] : []),
    ...(any("unseen") ? [
      score("unseen", "Unseen, %", SCORE_WORDS.unseen),
      score("unseen_worst", "worst", "Accuracy of the worst client that was held out"),
    ] : []),
    { key: "clusters_found", title: "Clusters", num: true, hint: "found of true", text: clusters },
    any("pairs_right") && { key: "pairs_right", title: "Pairs right, %", num: true, text: right },
    { key: "bytes", title: "Bytes", num: true, text: (row) => bytes(row.bytes) },
    { key: "seconds", title: "Time", num: true, text: (row) => seconds(row.seconds) },
  ].filter(Boolean);
}

function runsSection() {
  const rows = DATA.runs.map(({ row, id, name }) => (
    { ...row, id, name, bytes: (row.bytes_up || 0) + (row.bytes_down || 0) }));
  const chosen = { words: "" };
  const mark = (body) => {
    for (const row of body.children) row.classList.toggle("chosen", current !== null && row.dataset.row === current.id);
  };
  const node = table(runColumns(), rows, { class: "runs", label: "All runs", rowId: (row) => row.id, drawn: mark });
  const count = el("p", { class: "what", role: "status" });

  function apply() {
    const words = chosen.words.toLowerCase().split(/\s+/);
    const fits = (row) => FILTERS.every((key) => !chosen[key] || String(row[key]) === chosen[key]) &&
      words.every((word) => searched(row).includes(word));
    const found = rows.filter(fits);
    node.show(found);
    count.textContent = found.length < rows.length ? `${found.length} of ${rows.length} runs.`
      : `${plural(rows.length, "run")}. Press a heading to sort, a name to open the run.`;
  }

  apply();
  const controls = runFilters(rows, (key, value) => { chosen[key] = value; apply(); });
  return [el("h2", {}, "All runs"), rows.length > 3 && controls, count, node].filter(Boolean);
}

function searched(row) {
  const words = [row.name, row.algorithm, row.dataset, row.shift, shiftName(row.shift), row.group];
  return `${words.join(" ")} ${there(levelOf(row)) ? `level ${row.level} ` : ""}seed ${row.seed}`.toLowerCase();
}

function runFilters(rows, choose) {
  const selects = FILTERS.map((key) => {
    const values = unique(rows.map((row) => String(row[key])));
    const choices = values.map((value) => [value, key === "shift" ? shiftName(value) : value]);
    const title = key[0].toUpperCase() + key.slice(1);
    return values.length > 1 && select(title, [["", "all"], ...choices], (value) => choose(key, value), "");
  });
  const input = el("input", {
    type: "search", placeholder: "name, seed, …", oninput: (event) => choose("words", event.target.value.trim()),
  });
  return el("div", { class: "controls" }, el("label", { class: "grow" }, "Filter", input), selects);
}

function unfinishedPart() {
  if (!DATA.unfinished.length) return null;
  const columns = [
    { key: "name", title: "Run", head: true },
    { key: "algorithm", title: "Algorithm" },
    SHIFT_COLUMN,
    LEVEL_COLUMN,
    { key: "seed", title: "Seed", num: true },
    { key: "rounds_done", title: "Rounds done", num: true, text: (row) => `${row.rounds_done} of ${row.rounds ?? "?"}` },
    { key: "command", title: "Command", class: "words", cell: (row) => el("code", {}, row.command) },
  ];
  return el("div", {}, el("h2", {}, "Unfinished"),
    el("p", { class: "what" }, "These runs have no result yet and count nowhere else."),
    table(columns, DATA.unfinished, { label: "Unfinished runs" }));
}

function damagedPart() {
  if (!DATA.damaged.length) return null;
  const columns = [
    { key: "name", title: "Folder", head: true },
    { key: "reason", title: "Reason", class: "words" },
  ];
  return el("div", {}, el("h2", {}, "Damaged"),
    el("p", { class: "what" }, "The files of these runs are not as a run leaves them; they count nowhere else."),
    table(columns, DATA.damaged, { label: "Damaged runs" }));
}
