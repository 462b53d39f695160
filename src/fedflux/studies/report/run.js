// One run from its scores down to its command.

const SCORE_WORDS = {
  known: "Known association: each client's test part, scored by the model of the cluster its training data was put in.",
  test: "Test phase: the same clients treated as unseen and unlabelled; only their test features choose the model.",
  unseen: "Unseen clients: held out of training, then asked without labels; only their test features choose the model.",
};

function runSection(run) {
  const labels = run.clusters.rows.map((row) => row.cluster);
  const view = { run, colourOf: palette(labels), picked: null };
  const figures = [];
  const add = (...given) => { const node = figure(...given); figures.push(node); return node; };
  const redrawAll = () => figures.forEach((node) => node.redraw());
  return [
    ...runHead(run), runCards(run), clusterKey(view, redrawAll),
    ...accuracyPart(view, add), ...mapPart(view, add), ...membersPart(view), ...whyPart(run), ...sharingPart(view, add), ...samplesPart(view),
    ...placementPart(view, add), ...unseenPart(view, add), ...costPart(view, add), ...settingsPart(run),
  ].filter(Boolean);
}

function runHead(run) {
  const place = DATA.runs.indexOf(run);
  const step = (by, words) => {
    const next = DATA.runs[place + by];
    return el("button", { type: "button", disabled: !next, onclick: () => next && openRun(next.id) }, words);
  };
  const choices = DATA.runs.map((other) => [other.id, other.name]);
  const { row } = run;
  return [
    el("h2", { id: "run-title", tabindex: "-1" }, run.name),
    el("p", {}, `${row.algorithm} on ${dataName(run)}, ${shiftWords(row)}, ` +
      `seed ${row.seed}; ${plural(run.clients.count, "client")}, ${plural(run.costs.rounds, "round")}. ` +
      "One run, one seed: no spread can be told from it."),
    ...(DATA.runs.length > 1 ? verdictOf(run) : []), // of one run alone it stands on top
    DATA.runs.length > 1 && el("div", { class: "controls" }, select("Run", choices, openRun, run.id),
      step(-1, "Previous"), step(1, "Next")),
  ];
}

function card(name, value, hint) {
  return el("li", {}, el("span", { class: "name" }, name), el("span", { class: "value" }, value),
    hint && el("span", { class: "hint" }, hint));
}

function runCards(run) {
  const { scores, clustering, costs, timings } = run;
  const measured = run.score === "accuracy" ? "" : `${run.score}; `;
  const worst = (name) => {
    const values = name === "unseen" ? run.unseen && run.unseen.scores : run.clients[name];
    const lowest = values ? values.indexOf(scores[`${name}_worst`]) : -1;
    return lowest < 0 ? "" : ` (${clientName(run, name === "unseen" ? run.clients.count + lowest : lowest, 24)})`;
  };
  const spread = (name) => `${measured}mean over clients; worst ${share(scores[`${name}_worst`])}${worst(name)}, ` +
    `10 % quantile ${share(scores[`${name}_quantile10`])}`;
  const concept = run.no_test_phase || String(run.row.shift).includes("pygx");
  const noTest = concept ? "none: features cannot show P(Y|X)" : "this method has none";
  const truth = there(clustering.clusters_true)
    ? `${clustering.clusters_true} true; pairs right ${share(100 * clustering.pairs_right)}, ` +
      `ARI ${number(clustering.ari, 2)}`
    : "the data tells no true ones";
  const clusterless = clustering.clusters_found === 1 ? "one model for all clients" : "every client has a model of its own";
  const found = there(clustering.clusters_found) ? String(clustering.clusters_found) : NONE;
  const ways = `${bytes(costs.bytes_up)} up, ${bytes(costs.bytes_down)} down, all rounds`;
  return el("ul", { class: "cards" },
    card("Known association", share(scores.known), there(scores.known) ? spread("known") : "not evaluated"),
    card("Test phase", share(scores.test), there(scores.test) ? spread("test") : noTest),
    there(scores.unseen) && card("Unseen clients", share(scores.unseen), spread("unseen")),
    run.grouped_by === "truth" ? card("Clusters found", "none", clusterless) : card("Clusters found", found, truth),
    card("Traffic", bytes(costs.bytes_up + costs.bytes_down), ways),
    card("Time", seconds(timings.seconds), [run.ran_on.device, run.ran_on.engine].filter(Boolean).join(", engine ")));
}

function clusterKey(view, redrawAll) {
  const { run } = view;
  const buttons = run.clusters.rows.map((row) => el("button", {
    type: "button", "aria-pressed": "false", title: "Pick out this cluster in every chart",
    onclick: (event) => {
      view.picked = view.picked === row.cluster ? null : row.cluster;
      for (const other of buttons) other.setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", String(view.picked !== null));
      redrawAll();
    },
  }, el("span", { class: "dot", style: { background: view.colourOf(row.cluster) } }),
  clusterName(row.cluster, run.grouped_by) + (aloneIn(run, row.cluster) ? `: ${aloneIn(run, row.cluster)}` : ` (${row.size})`)));
  const words = run.grouped_by === "truth"
    ? "This method makes no clusters, so colours are the true ones. Press one to pick it out."
    : "Colours of the found clusters in all charts below; the number of clients in brackets. Press one to pick it out.";
  const more = run.clusters.count - run.clusters.rows.length;
  return el("div", {}, el("p", { class: "what" }, words, more > 0 && ` ${more} more clusters are not listed.`),
    el("ul", { class: "key" }, buttons.map((button) => el("li", {}, button))));
}

function accuracyPart(view, add) {
  const { curves, clients, scores, clustering } = view.run;
  const parts = [];
  if (curves) {
    const what = `${capital(view.run.score)} on each client's validation part after every round, by the model the client has then.`;
    const caption = curves.bands
      ? `${clients.count} clients: the grey bands hold 80 % and 50 % of them; thick lines are cluster means.`
      : "Thin lines are clients, thick lines cluster means." +
        (there(clustering.cluster_round) ? " Before clustering, all clients share one model." : "") +
        ((view.run.drifts || []).length ? " Dashed: clients' patterns change." : "");
    parts.push(...section(`${capital(view.run.score)} by round`, what, add(`${capital(view.run.score)} by round`, () => accuracyChart(view), caption)));
  }
  if (there(scores.known)) {
    const some = clients.test && !there(scores.test) ? " Clients without an open dot have no test phase." : "";
    const caption = (clients.test ? `Filled: known association. Open: test phase.${some}` : "Known association.") +
      (clients.shown < clients.count ? ` The first ${clients.shown} of ${clients.count} clients.` : "");
    parts.push(...section("Every client at the end", `${SCORE_WORDS.known} ${clients.test ? SCORE_WORDS.test : ""}`,
      add(`${capital(view.run.score)} of every client`, () => clientChart(view), caption,
        hasNames(view.run) ? { height: "23rem" } : { low: true })));
  }
  return parts;
}

function mapPart(view, add) {
  const { map } = view.run;
  if (!map) return [];
  const kinds = map.truth ? unique(map.truth).sort((a, b) => a - b) : [];
  const shape = shapeOf(view);
  const shapes = el("ul", { class: "key shapes", "aria-label": "Shapes of the true clusters" },
    kinds.map((kind) => el("li", {}, `${shape(kind)[1]} true cluster ${kind}`)));
  const what = "What clients sent about their data, in the two directions in which they differ most (principal components " +
    "of the scaled descriptors). Clients of one distribution lie together. " +
    `Colour: found cluster${map.truth ? "; shape: true cluster" : ""}.`;
  const left = map.count - map.client.length;
  const caption = left > 0 ? `${map.client.length} of ${map.count} clients are drawn.` : null;
  const many = el("p", { class: "what" }, `Shapes repeat after ${SYMBOLS.length} true clusters; hover tells them.`);
  return section("Descriptor map", what, kinds.length <= SYMBOLS.length ? shapes : many,
    add("Descriptor map", () => mapChart(view), caption, { height: "27rem" }));
}

function samplesPart(view) {
  const { samples, grouped_by: groupedBy } = view.run;
  if (!samples) return [];
  const source = (image) => `data:image/png;base64,${DATA.images[image]}`;
  const picture = (client, [label, image]) => el("figure", {},
    el("img", { src: source(image), alt: `${clientName(view.run, client)}, label ${className(view.run, label)}`, loading: "lazy" }),
    el("figcaption", {}, shortened(className(view.run, label), 9)));
  const strip = ([client, images]) => el("div", { class: "strip" },
    el("span", { class: "who" }, clientName(view.run, client)), images.map((image) => picture(client, image)));
  const groups = samples.groups.map(({ cluster, clients }) => el("div",
    { class: "group", style: { borderColor: view.colourOf(cluster) } },
    el("h4", {}, clusterName(cluster, groupedBy)), clients.map(strip)));
  const left = [
    samples.groups_left_out > 0 && `${plural(samples.groups_left_out, "more cluster")} not shown.`,
    samples.images_left_out > 0 && `${plural(samples.images_left_out, "image")} left out to keep this file small.`,
  ].filter(Boolean).join(" ");
  const what = `Training images as the clients hold them, one a class for at most ${samples.per_client} classes, ` +
    `the client's own label below. ${left}`;
  return section("What the clusters look like", what, el("div", { class: "album" }, groups));
}

const PLACED_BY = {
  distances: {
    how: () => "the nearest cluster by their test features is chosen.",
    title: "Distances of clients to clusters",
    shades: "The stronger the colour, the nearer. Dot: the cluster chosen.",
  },
  posterior: {
    how: (run) => `each scores its own test ${recordsOf(run)} under every cluster's class mixture and tells its posterior ` +
      "over clusters. The clusters' models answer it in these shares.",
    title: "Posterior of clients over clusters",
    shades: "The stronger the colour, the likelier. Dot: the likeliest cluster.",
  },
};

function placementFigure(view, add, placements, title, more) {
  const { clients, values } = placements;
  const caption = `${PLACED_BY[placements.by].shades}${more}` +
    (clients.length < placements.count ? ` The first ${clients.length} of ${placements.count} clients.` : "") +
    (values[0].length < placements.clusters ? ` The first ${values[0].length} of ${placements.clusters} clusters.` : "");
  const height = Math.min(5 + 1.6 * Math.max(clients.length, 3), 48);
  return add(title, () => placementChart(view, placements), caption, { height: `${height}rem` });
}

function placementWords(placements, first) {
  const percent = (count, of) => `${count} of ${of} (${share((100 * count) / of, 0)})`;
  const { novel, judged } = placements;
  const words = [
    ...first(percent),
    there(novel) && judged > 0 && `${percent(novel, judged)} ${novel === 1 ? "is" : "are"} like no cluster (novel)`,
    there(novel) && judged < placements.count &&
      `of ${placements.count - judged} nothing tells whether they are novel (not calibrated)`,
  ].filter(Boolean).join("; ");
  return words ? ` ${words[0].toUpperCase()}${words.slice(1)}.` : "";
}

function placementPart(view, add) {
  const { placements } = view.run;
  if (!placements) return [];
  const { count, own, right, by } = placements;
  const what = `Clients are treated as unseen and unlabelled; ${PLACED_BY[by].how(view.run)}` + placementWords(placements, (percent) => [
    there(own) && `${percent(own, count)} go to the cluster that holds their training data`,
    there(right) && `${percent(right, count)} go to one where their true cluster is the most frequent`,
  ]);
  const missing = count < view.run.clients.count && view.run.no_test_phase ? " Clients without a test phase are left out." : "";
  const ring = `${missing} Ring: the cluster that holds the client's training data.`;
  return section("Test-time assignment", what, placementFigure(view, add, placements, PLACED_BY[by].title, ring));
}

function unseenPart(view, add) {
  const { unseen } = view.run;
  if (!unseen) return [];
  const { placements } = unseen;
  const strange = (unseen.new || []).filter(Boolean).length;
  const what = SCORE_WORDS.unseen +
    (strange ? ` ${plural(strange, "of them has", "of them have")} a distribution that no training client has.` : "") +
    (placements ? placementWords(placements, (percent) => [
      there(placements.right) && placements.comparable > 0 && `of those whose distribution somebody trained on, ` +
        `${percent(placements.right, placements.comparable)} go to a cluster where it is the most frequent`,
    ]) : "");
  const title = placements && `${PLACED_BY[placements.by].title}, held out of training`;
  return section("Held-out clients", what, unseenTable(view.run),
    placements && placementFigure(view, add, placements, title, ""));
}

function sharingPart(view, add) {
  const { sharing } = view.run;
  if (!sharing) return [];
  const groups = sharing.groups.length > 1 && `Groups of clusters whose members pulled apart share a ${sharing.whole ? "model" : "trunk"} each: ${
    sharing.groups.map((group) => `{${group.join(", ")}}`).join(" and ")}.`;
  const gone = sharing.dropped.length > 0 && `Members could do without, and trained no more: ${sharing.dropped.join("; ")}.`;
  const what = ["Models of several kinds are trained for every cluster; members' validation parts say how much of each answers.",
    groups, gone].filter(Boolean).join(" ");
  return section("What clusters share", what, add("Parts in the answers by round", () => sharingChart(view),
    "Each kind's part in the answers to members, on average over them.", { low: true }));
}

function costPart(view, add) {
  const { costs, timings, curves } = view.run;
  if (!curves) return [];
  const sent = costs.bytes_up + costs.bytes_down > 0;
  const phases = Object.entries(timings.phases).filter(([, value]) => value > 0);
  const traffic = `${bytes(costs.bytes_up)} up and ${bytes(costs.bytes_down)} down in all; on average ` +
    `${bytes(costs.up_per_member)} up and ${bytes(costs.down_per_member)} down for one client in one round.`;
  const time = phases.map(([phase, value]) => `${phase} ${seconds(value)}`).join(", ");
  const what = `${sent ? traffic : "Nothing is sent."}${time ? ` Time: ${time}.` : ""}`;
  return section("Cost", what, el("div", { class: "pair" },
    sent && add("Bytes by round", () => bytesChart(view), "Bytes sent by and to all clients of a round.", { low: true }),
    add("Seconds by round", () => secondsChart(view), "Wall-clock seconds by phase.", { low: true })));
}
