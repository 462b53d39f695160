// The overview: headline figures and, for every set of comparable runs, summaries, differences and the paper's figures.

const METRICS = {
  known: "Known association",
  test: "Test phase",
  known_worst: "Known association, worst client",
  test_worst: "Test phase, worst client",
  unseen: "Unseen clients",
  unseen_worst: "Unseen clients, worst client",
};

function withSpread(mean, deviation) {
  if (!there(mean)) return NONE;
  return number(mean) + (there(deviation) ? ` ± ${number(deviation)}` : "");
}

function algorithmColour(name) {
  const { algorithms } = DATA.overview;
  return palette([...algorithms.keys()])(algorithms.indexOf(name));
}

function algorithmCell(row) {
  return [el("span", { class: "dot", style: { background: algorithmColour(row.algorithm) } }), ` ${row.algorithm}`];
}

const ALGORITHM_COLUMN = { key: "algorithm", title: "Algorithm", head: true, class: "nowrap", cell: algorithmCell };
const SHIFT_COLUMN = { key: "shift", title: "Shift", class: "nowrap", text: (row) => shiftName(row.shift) };

function overviewSection() {
  const { runs, unfinished, damaged, overview } = DATA;
  const sum = (of) => runs.reduce((total, run) => total + (of(run) || 0), 0);
  const values = (key) => unique(runs.map((run) => String(run.row[key])));
  const levels = unique(runs.map((run) => levelOf(run.row)).filter(there)).sort();
  const shifts = unique(overview.blocks.flatMap((block) => block.shifts));
  const shifted = `${shifts.length > 1 ? "shifts" : "shift"} ${shifts.map(shiftName).join(", ")}`;
  const about = shifts.every((shift) => shift === "none") ? "not shifted"
    : shifted + (levels.length ? `; ${levels.length > 1 ? "levels" : "level"} ${levels.join(", ")}` : "");
  const traffic = sum((run) => run.costs.bytes_up) + sum((run) => run.costs.bytes_down);
  const time = seconds(sum((run) => run.timings.seconds));
  const seeds = plural(values("seed").length, "seed");
  const others = [[unfinished, "more unfinished"], [damaged, "damaged"]].filter(([list]) => list.length)
    .map(([list, words]) => `; ${list.length} ${words}`).join("");
  const cards = el("ul", { class: "cards" },
    card("Runs", String(runs.length), seeds + others),
    card("Data", unique(runs.map(dataName)).join(", "), about),
    ...(runs.length > 1 ? headline(values("algorithm")) : []), // one run's own cards tell the rest
    card("Spent", bytes(traffic), `moved in ${time} of computing, all runs`));
  return [...verdicts(), cards, ...overview.blocks.flatMap(blockPart), unfinishedPart(), damagedPart()].filter(Boolean);
}

function verdicts() { // what it came to, before anything else
  if (DATA.runs.length === 1) return verdictOf(DATA.runs[0]);
  return DATA.overview.blocks.map(comparedInWords).filter(Boolean).slice(0, 3)
    .map((words) => el("p", { class: "verdict" }, words));
}

function verdictOf(run) {
  const without = run.no_test_phase && `No test phase: ${run.no_test_phase}.`;
  return [
    run.verdict && el("p", { class: "verdict" }, run.verdict),
    without && el("p", { class: "note" }, without),
    run.missing && el("p", { class: "note" }, run.missing),
  ].filter(Boolean);
}

function comparedInWords(block) { // the oracle is told the truth and competes with nobody
  const lines = block.overall.filter((one) => there(one.known_mean) && one.algorithm !== "oracle");
  if (lines.length < 2) return null;
  const [best, second] = [...lines].sort((a, b) => b.known_mean - a.known_mean);
  const { reference } = DATA.overview;
  const other = best.algorithm === reference ? second.algorithm : best.algorithm;
  const pair = block.paired.find((one) => one.score === "known" && one.algorithm === other);
  const where = DATA.overview.blocks.length > 1 ? `${blockName(block)}: ` : "";
  const means = `${where}${best.algorithm} has the highest known association, ${share(best.known_mean)}`;
  if (!pair) return `${means}, before ${second.algorithm} with ${share(second.known_mean)}.`;
  const over = pair.pairs === 1 ? "in one pair of runs" : `on average over ${pair.pairs} pairs of runs`;
  const sure = !there(pair.p_holm) ? "too few to tell from chance"
    : pair.mark ? `${pair.mark} than ${reference} (p ${pair.p_holm < 0.001 ? "< 0.001" : `= ${number(pair.p_holm, 3)}`})`
      : "not told apart from chance";
  return `${means}. Difference ${other} − ${reference}: ${signed(pair.mean)} points ${over}, ${sure}.`;
}

function blockName(block) {
  return block.group.startsWith(block.dataset) ? block.group : [block.dataset, block.group].filter(Boolean).join(": ");
}

function headline(algorithms) { // the best are named only where all runs may be compared with one another
  const { blocks } = DATA.overview;
  if (blocks.length !== 1) {
    const words = `${algorithms.join(", ")}; ${blocks.length} sets of comparable runs`;
    return [card("Algorithms", String(algorithms.length), words)];
  }
  const lines = blocks[0].overall;
  const cards = [];
  for (const score of ["known", "test"]) {
    const key = `${score}_mean`;
    const told = lines.filter((one) => there(one[key])).sort((a, b) => b[key] - a[key]);
    const [line] = told.length < lines.length && isPlain(blocks[0]) ? [] : told; // no best where some have none
    const name = lines.length > 1 ? `Best ${METRICS[score].toLowerCase()}` : METRICS[score];
    if (line) cards.push(card(name, share(line[key]), `${line.algorithm}: ${line.scope}`));
  }
  const [line] = lines.filter((one) => there(one.pairs_right_mean) && one.algorithm !== "oracle") // it is told the truth
    .sort((a, b) => b.pairs_right_mean - a.pairs_right_mean);
  if (line) {
    const words = `rightly together or apart, ${line.algorithm}`;
    cards.push(card("Client pairs right", share(100 * line.pairs_right_mean), words));
  }
  return cards;
}

function blockPart(block) {
  if (block.runs < 2) return [];
  const named = blockName(block);
  const repeated = block.repeated
    ? ` ${plural(block.repeated, "run")} repeat another's cell; of those the last counts in the tables.` : "";
  return [
    el("h2", {}, DATA.overview.blocks.length > 1 ? named : "Comparison"),
    el("p", { class: "what" }, `${plural(block.runs, "run")} with the same settings (${named}). ${SCORE_WORDS.known} ` +
      `${SCORE_WORDS.test} Means are over clients, in percent.${repeated}`),
    ...comparisonPart(block), ...summaryPart(block), ...pairedPart(block), ...paperPart(block),
    ...costsPart(block),
  ];
}

function isPlain(block) {
  return block.shifts.every((shift) => shift === "none");
}

function summaryPart(block) {
  const seeds = "± is the deviation over seeds.";
  if (isPlain(block)) {
    return section("By algorithm", `Mean over seeds; ${seeds} A worst client is the lowest of a run. The best is bold.`,
      summaryTable(block.by_shift, []));
  }
  const parts = section("By shift",
    `Mean over the levels named, then over seeds; ${seeds} A worst client is the lowest of a run, averaged the same way. ` +
    "The best of a shift is bold.", summaryTable(block.by_shift, [SHIFT_COLUMN]));
  if (block.shifts.length < 2) return parts;
  return [...parts,
    ...section("Over all shifts", `Every shift weighs the same. ${seeds}`, summaryTable(block.overall, []))];
}

function summaryTable(lines, more) {
  const peers = (row, key) => lines.filter((line) => line.shift === row.shift && there(line[key]));
  const best = (row, key) => there(row[key]) && peers(row, key).length > 1 &&
    peers(row, key).every((line) => !(line[key] > row[key]));
  const mean = (score) => {
    const key = `${score}_mean`;
    const title = METRICS[score].replace(" client", "").replace(/ association| phase/, "");
    const cell = (row) => el("span", { class: best(row, key) && "best" }, withSpread(row[key], row[`${score}_std`]));
    return { key, title, num: true, hint: METRICS[score], cell };
  };
  const clusters = (row) => (!there(row.clusters_found_mean) ? NONE : number(row.clusters_found_mean) +
    (there(row.clusters_true_mean) ? ` of ${number(row.clusters_true_mean)}` : ""));
  const right = (row) => number(there(row.pairs_right_mean) ? 100 * row.pairs_right_mean : null);
  return table([
    ALGORITHM_COLUMN, ...more, mean("known"), mean("known_worst"), mean("test"), mean("test_worst"),
    ...(lines.some((line) => there(line.unseen_mean)) ? [mean("unseen"), mean("unseen_worst")] : []),
    lines.some((line) => there(line.pairs_right_mean)) && { key: "pairs_right_mean", title: "Pairs right", num: true,
      text: right, hint: "client pairs rightly put together or apart, %" },
    { key: "clusters_found_mean", title: "Clusters", num: true, hint: "found of true, mean over runs", text: clusters },
    { key: "scope", title: "Mean over", class: "small words" },
  ].filter(Boolean), lines, { label: "Summary" });
}

function pairedPart(block) {
  if (!block.paired.length) return [];
  const { reference } = DATA.overview;
  const verdicts = { better: `better than ${reference}`, worse: `worse than ${reference}`, "": "not told apart" };
  const tints = { better: "yes", worse: "no", "": null };
  const verdict = (row) => (there(row.p_holm) ? verdicts[row.mark] : `too few pairs (${row.pairs})`);
  const p = (row) => (there(row.p_holm) && row.p_holm < 0.001 ? "< 0.001" : number(row.p_holm, 3));
  const interval = (row) => (there(row.low) ? `${signed(row.low)} to ${signed(row.high)}` : NONE);
  const columns = [
    ALGORITHM_COLUMN,
    { key: "score", title: "Score", text: (row) => METRICS[row.score] },
    { key: "mean", title: "Difference", num: true, text: (row) => signed(row.mean) },
    { key: "low", title: "95 % interval", num: true, text: interval },
    { key: "pairs", title: "Pairs", num: true },
    { key: "p_holm", title: "p (Holm)", num: true, text: p },
    { key: "mark", title: "Verdict", class: "nowrap", cell: (row) => el("span", { class: tints[row.mark] }, verdict(row)) },
  ];
  return section(`Difference to ${reference}`,
    "Percentage points, run by run over the same shift, level and seed (pairs). Interval: t, over these cells; it says " +
    "nothing of other shifts or levels. p: exact Wilcoxon signed-rank test, corrected by Holm over the algorithms; it " +
    "takes six pairs.", table(columns, block.paired, { label: `Difference to ${reference}` }));
}

function costsPart(block) {
  const lines = block.overall.filter((line) => there(line.training_passes_mean));
  if (!lines.length) return [];
  const count = (key, title, hint) =>
    ({ key: `${key}_mean`, title, num: true, hint, text: (row) => number(row[`${key}_mean`], 2) });
  const traffic = (key, title) =>
    ({ key: `${key}_mean`, title, num: true, text: (row) => bytes(row[`${key}_mean`]) });
  const columns = [
    ALGORITHM_COLUMN,
    count("models_down", "Models down", "models a client receives in a round"),
    count("models_up", "Models up", "models a client sends in a round"),
    count("forward_passes", "Forward passes", "over the client's own training data, besides training and evaluation"),
    count("training_passes", "Training passes", "over the client's own training data"),
    traffic("bytes_down", "Down, a run"), traffic("bytes_up", "Up, a run"),
  ];
  return section("Costs", "Counted while running: what one client sends, receives and computes in a round it takes part " +
    "in, on average, and the traffic of a whole run.", table(columns, lines, { label: "Costs" }));
}

function paperPart(block) {
  if (!block.paper.length) return [];
  const word = (score) => METRICS[score].split(" ")[0];
  const own = (score) => {
    const value = (row) => (row.own ? row.own[`${score}_mean`] : null);
    const text = (row) => withSpread(value(row), row.own && row.own[`${score}_std`]);
    return { key: `own_${score}`, title: `${word(score)}, ours`, num: true, value, text };
  };
  const paper = (score) => ({
    key: score, title: `${word(score)}, paper`, num: true, text: (row) => withSpread(row[score], row[`${score}_std`]),
  });
  const scope = (row) => (row.own ? row.own.scope : null);
  const columns = [
    { key: "algorithm", title: "Algorithm", head: true, class: "nowrap" },
    { ...SHIFT_COLUMN, text: (row) => (row.shift === null ? "several" : shiftName(row.shift)) },
    own("known"), paper("known"), own("test"), paper("test"),
    { key: "own_scope", title: "Ours is", class: "small words", value: scope, text: (row) => scope(row) || NONE },
    { key: "scope", title: "The paper's is", class: "small words" },
  ];
  const [beside, others] = [block.paper.filter((row) => row.own), block.paper.filter((row) => !row.own)];
  const theirs = columns.filter((column) => !column.key.startsWith("own"));
  return section("Beside the paper",
    "The paper prints means over levels, most of them over shifts too: compare two figures only where both are a mean " +
    "over the same. It does not say what its ± is over.",
    beside.length > 0 && table(columns, beside, { label: "Our figures beside the paper's" }),
    others.length > 0 && el("details", {},
      el("summary", {}, `Figures of the paper that no run here matches (${others.length})`),
      table(theirs, others, { label: "Other figures of the paper" })));
}
