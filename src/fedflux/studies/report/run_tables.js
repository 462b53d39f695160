// The tables of one run: who sits where, why clusters differ, and how the run was made.

function membersPart(view) {
  const { run } = view;
  const byTruth = run.grouped_by === "truth";
  const mix = (row) => row.truth.map(([kind, count]) => `${kind} × ${count}`).join(", ");
  const columns = [
    { key: "cluster", title: byTruth ? "True cluster" : "Cluster", head: true, class: "nowrap", cell: (row) => [
      el("span", { class: "dot", style: { background: view.colourOf(row.cluster) } }),
      ` ${row.cluster < 0 ? "none" : row.cluster}`] },
    { key: "size", title: "Size", num: true },
    { key: "members", title: "Clients", class: "words", value: (row) => plainName(run, row.members[0]),
      cell: (row) => memberNames(run, row) },
    !byTruth && run.clients.truth && { key: "truth", title: "True clusters", hint: "true cluster × clients of it",
      value: (row) => row.truth.length, cell: (row) => el("span", { class: row.truth.length > 1 ? "no" : "" }, mix(row)) },
    { key: "known", title: "Known, %", num: true, text: (row) => number(row.known), hint: SCORE_WORDS.known },
    run.clients.test &&
      { key: "test", title: "Test, %", num: true, text: (row) => number(row.test), hint: SCORE_WORDS.test },
  ].filter(Boolean);
  const left = run.clusters.count - run.clusters.rows.length;
  const what = (byTruth ? "The method makes no clusters; rows are the true ones. " : "") +
    "Accuracies are means over a cluster's clients." +
    (left > 0 ? ` The first ${run.clusters.rows.length} of ${run.clusters.count} clusters.` : "");
  const members = table(columns, run.clusters.rows, { label: "Clusters and their clients" });
  return section("Who sits where", what, members, clientTable(run));
}

const MOST_MEMBERS = { named: 8, numbered: 40 };

function memberNames(run, row) { // all that are known are behind a press
  const names = row.members.map((client) => plainName(run, client));
  const most = run.client_names ? MOST_MEMBERS.named : MOST_MEMBERS.numbered;
  const left = row.size - Math.min(most, names.length);
  const shown = names.slice(0, most).join(", ");
  if (!left) return shown;
  if (names.length <= most) return `${shown} and ${left} more`;
  const unknown = row.size - names.length;
  return el("details", { class: "more" }, el("summary", {}, `${shown} and ${left} more`),
    names.slice(most).join(", ") + (unknown ? ` and ${unknown} more` : ""));
}

const NOT_CALIBRATED = "not calibrated"; // a verdict that nothing was there to learn from

function placedBy(placements) { // by client: where it was put, and what was said of it
  const judged = placements && there(placements.novel);
  return new Map((placements ? placements.clients : []).map((client, i) => [client, {
    placed: placements.chosen[i],
    ...(judged && there(placements.confidence[i]) && {
      novel: there(placements.is_novel[i]) ? (placements.is_novel[i] ? "yes" : "no") : NOT_CALIBRATED,
      score: placements.score[i], sure: placements.confidence[i],
    }),
  }]));
}

function placementColumns(placements, title) {
  const judged = placements && there(placements.novel);
  const sure = "probability of the cluster, given that the client belongs to one of them";
  return [
    placements && { key: "placed", title, num: true },
    judged && { key: "sure", title: "Confidence, %", num: true, text: (row) => number(row.sure), hint: sure },
    judged && { key: "novel", title: "Novel", class: "nowrap", hint: "whether its data are like no cluster's" },
    judged && { key: "score", title: "Novelty score", num: true, hint: "p-value of being like some cluster" },
  ];
}

function clientTable(run) {
  const { clients, placements } = run;
  const said = placedBy(placements);
  const rows = clients.found.map((found, client) => ({
    client, found, truth: clients.truth && clients.truth[client], known: clients.known && clients.known[client],
    test: clients.test && clients.test[client], ...said.get(client),
  }));
  const columns = [
    { key: "client", title: "Client", head: true, class: "client", value: (row) => plainName(run, row.client),
      text: (row) => plainName(run, row.client) },
    { key: "found", title: "Cluster", num: true },
    clients.truth && { key: "truth", title: "True cluster", num: true },
    clients.known && { key: "known", title: "Known, %", num: true, text: (row) => number(row.known) },
    clients.test && { key: "test", title: "Test, %", num: true, text: (row) => number(row.test) },
    ...placementColumns(placements, "Placed at test time"),
  ].filter(Boolean);
  const shown = clients.shown < clients.count ? `the first ${clients.shown} of ${clients.count}` : `all ${clients.count}`;
  return el("details", {}, el("summary", {}, `Client by client (${shown})`), table(columns, rows, { label: "Clients" }));
}

function unseenTable(run) {
  const { unseen } = run;
  const { placements, truth, scores } = unseen;
  const said = placedBy(placements);
  const rows = unseen.clients.map((client, i) => ({
    client, truth: truth && truth[i], strange: unseen.new && unseen.new[i],
    score_of: scores && scores[i], ...said.get(client),
  }));
  const own = (row) => (there(row.truth) ? `${row.truth}${row.strange ? " (new)" : ""}` : NONE);
  const columns = [
    { key: "client", title: "Client", head: true, class: "client", value: (row) => plainName(run, row.client),
      text: (row) => plainName(run, row.client) },
    truth && { key: "truth", title: "True cluster", num: true, text: own,
      hint: "new: a distribution that no training client has" },
    scores && { key: "score_of", title: "Unseen, %", num: true, text: (row) => number(row.score_of),
      hint: SCORE_WORDS.unseen },
    ...placementColumns(placements, "Placed in cluster"),
  ].filter(Boolean);
  const caption = rows.length < unseen.count ? `The first ${rows.length} of ${unseen.count} clients` : null;
  return table(columns, rows, { label: "Clients that were held out of training", caption });
}

function whyPart(run) {
  const { why } = run;
  if (!why || !why.pairs.length) return [];
  const named = (cluster) => cluster + (aloneIn(run, cluster) ? ` (${aloneIn(run, cluster)})` : "");
  const clusters = (row) => row.clusters.map(named).join(" and ");
  const words = (row) => row.words.replace(/^clusters \d+ and \d+(?: differ in [^:]*)?: /, "");
  const columns = [
    { key: "clusters", title: "Clusters", head: true, class: run.client_names ? "pairs" : "nowrap",
      value: clusters, text: clusters },
    { key: "shift", title: "Shift", class: "nowrap" },
    { key: "words", title: "In words", class: "words", text: words },
  ];
  const kind = (shift) => (shift === "none" ? "no single test tells apart" : shift);
  const said = why.kinds.map(([shift, count]) => `${kind(shift)} ${count}×`).join(", ");
  const left = why.count > why.pairs.length ? ` The first ${why.pairs.length} of ${why.count} pairs are listed.` : "";
  return section("Why clusters differ", `Told from the descriptors alone: ${said}.${left}`,
    table(columns, why.pairs, { label: "Why clusters differ" }));
}

function copyButton(text) {
  const button = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return button;
}

function settingsPart(run) {
  const list = (values) => el("dl", { class: "settings" }, Object.entries(values)
    .filter(([, value]) => there(value))
    .map(([key, value]) => el("div", {}, el("dt", {}, key.replace(/_/g, " ")), el("dd", {}, String(value)))));
  const dated = run.timings.events.map((event) => [event.time, event.event]);
  const events = [...dated, ...run.round_events.map((words) => [null, words])];
  return section("How to repeat it", "The command that makes this run again.",
    el("div", { class: "command" }, el("pre", { tabindex: "0" }, run.command), copyButton(run.command)),
    el("details", {}, el("summary", {}, "All settings"), list({ ...run.config, level: levelOf(run.row) })),
    Object.keys(run.ran_on).length > 0 && el("details", {}, el("summary", {}, "What it ran on"), list(run.ran_on)),
    events.length > 0 && el("details", {}, el("summary", {}, "What happened"), el("ul", { class: "events" },
      events.map(([time, words]) => el("li", {}, time && el("time", {}, time.replace("T", " ").slice(0, 19)), words)))));
}
