// The charts of one run. `view` is {run, colourOf, picked}: colours by cluster, and the cluster that is picked out.

function weight(view, label) {
  return view.picked === null || view.picked === label ? 1 : 0.12;
}

function groupOf(view, client) {
  const label = view.run.clients.group[client];
  return label === undefined ? -1 : label;
}

function aboutClient(view, client) {
  const { found, truth } = view.run.clients;
  const words = [`<b>${escaped(clientName(view.run, client, 40))}</b>`];
  if (found[client] !== undefined) words.push(clusterName(found[client]));
  if (truth && truth[client] !== undefined) words.push(`true cluster ${truth[client]}`);
  return words.join(" · ");
}

const MOST_DRIFTS = 8; // more are drawn without a word each

function accuracyChart(view) {
  const { curves, clustering, grouped_by: groupedBy } = view.run;
  const data = [];
  const line = (y, more) => ({ x: curves.rounds, y, type: "scatter", mode: "lines", connectgaps: true, ...more });
  if (curves.bands) {
    for (const [low, high, opacity] of [["0.1", "0.9", 0.12], ["0.25", "0.75", 0.2]]) {
      const fill = faded("#8a8f98", opacity);
      data.push(line(curves.bands[low], { line: { width: 0 }, hoverinfo: "skip" }));
      data.push(line(curves.bands[high], {
        line: { width: 0 }, fill: "tonexty", fillcolor: fill, customdata: curves.bands[low],
        hovertemplate: `${high * 100 - low * 100} % of clients: %{customdata:.1f} to %{y:.1f} %<extra></extra>`,
      }));
    }
  }
  (curves.clients || []).forEach((scores, client) => {
    const label = groupOf(view, client);
    data.push(line(scores, {
      line: { width: 1, color: view.colourOf(label) }, opacity: 0.55 * weight(view, label),
      mode: curves.rounds.length === 1 ? "markers" : "lines",
      hovertemplate: `${aboutClient(view, client)}<br>round %{x}: %{y:.1f} %<extra></extra>`,
    }));
  });
  const sizes = new Map(view.run.clusters.rows.map((row) => [row.cluster, row.size]));
  for (const [key, scores] of Object.entries(curves.clusters)) {
    const label = Number(key);
    const members = sizes.has(label) ? ` (mean of ${plural(sizes.get(label), "client")})` : "";
    data.push(line(scores, {
      mode: "lines+markers", line: { width: 3, color: view.colourOf(label) }, marker: { size: 6 },
      opacity: weight(view, label),
      hovertemplate: `<b>${clusterName(label, groupedBy)}</b>${members}<br>round %{x}: %{y:.1f} %<extra></extra>`,
    }));
  }
  const at = clustering.cluster_round;
  const drifts = view.run.drifts || [];
  const upright = (x, dash) => ({
    type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("soft"), width: 1, dash },
  });
  const words = (x, y, text) => ({
    x, y, yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false, text,
    font: { size: 12, color: colour("soft") },
  });
  return {
    data,
    layout: layout({
      xaxis: axis({ title: "round", dtick: curves.rounds.length <= 12 ? 1 : undefined }),
      yaxis: axis({ title: `validation ${view.run.score}, %` }), margin: { l: 52, r: narrow() ? 8 : 16, t: 24, b: 44 },
      shapes: [...(there(at) ? [upright(at, "dot")] : []), ...drifts.map((x) => upright(x - 0.5, "dash"))],
      annotations: [
        ...(there(at) ? [words(at, 1, "clustered here")] : []),
        ...(drifts.length <= MOST_DRIFTS ? drifts.map((x) => words(x - 0.5, 0, "drift")) : []),
      ],
    }),
  };
}

function clientChart(view) {
  const { clients } = view.run;
  const order = [...clients.group.keys()].sort((a, b) => groupOf(view, a) - groupOf(view, b) || a - b);
  const places = [...order.keys()];
  const ticks = nameTicks(view.run, order, narrow() ? 30 : 60);
  const colours = order.map((client) => faded(view.colourOf(groupOf(view, client)), weight(view, groupOf(view, client))));
  const about = order.map((client) => aboutClient(view, client));
  const dots = (scores, words, marker) => ({
    x: places, y: order.map((client) => scores[client]), type: "scatter", mode: "markers", text: about, marker,
    hovertemplate: `%{text}<br>${words}: %{y:.1f} %<extra></extra>`,
  });
  const [ring, dot] = order.length > 40 ? [9, 5] : [14, 8];
  const data = [];
  if (clients.known && clients.test) {
    const x = places.flatMap((place) => [place, place, null]);
    const y = order.flatMap((client) => [clients.known[client], clients.test[client], null]);
    data.push({ x, y, type: "scatter", mode: "lines", line: { color: colour("line"), width: 2 }, hoverinfo: "skip" });
  }
  if (clients.test) {
    data.push(dots(clients.test, "test phase", { size: ring, color: colour("paper"), line: { width: 2, color: colours } }));
  }
  if (clients.known) data.push(dots(clients.known, "known association", { size: dot, color: colours }));
  return {
    data,
    layout: layout({
      xaxis: axis({
        title: "client, by cluster", ...ticks, range: [-0.7, order.length - 0.3], showgrid: false,
        tickangle: hasNames(view.run) ? -90 : 0, tickfont: { size: narrow() ? 9 : 12 },
      }),
      yaxis: axis({ title: `test ${view.run.score}, %` }),
    }),
  };
}

function hasNames(run) { // that are more than numbers
  return Boolean(run.client_names && run.client_names.some((name) => !/^\d+$/.test(name)));
}

function nameTicks(run, clients, most, called = plainName) { // a name each where they fit, else every so many
  const step = Math.ceil(clients.length / most);
  const tickvals = [...clients.keys()].filter((place) => place % step === 0);
  const ticktext = tickvals.map((place) => escaped(called(run, clients[place], narrow() ? 12 : 20)));
  return { tickmode: "array", tickvals, ticktext };
}

function shapeOf(view) {
  const { map } = view.run;
  const kinds = map.truth ? unique(map.truth).sort((a, b) => a - b) : [];
  return (kind) => SYMBOLS[Math.max(0, kinds.indexOf(kind)) % SYMBOLS.length];
}

const PLACES = [["top center", 0, 1], ["bottom center", 0, -1], ["middle right", 1, 0], ["middle left", -1, 0]];

// A name beside every point that has room for it, at the first side where it covers no other point and no other name.
function readableLabels(run) {
  const { map } = run;
  const size = { wide: narrow() ? 250 : 1000, high: 330 }; // of the plot, about, in pixels
  const scaled = (values, pixels) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return values.map((value) => ((value - low) / (high - low || 1)) * pixels * 0.9);
  };
  const [x, y] = [scaled(map.x, size.wide), scaled(map.y, size.high)];
  const boxes = x.map((_, i) => [x[i] - 8, y[i] - 8, x[i] + 8, y[i] + 8]);
  const inside = (box) => box[0] > -0.04 * size.wide && box[2] < 0.94 * size.wide;
  const free = (box, own) => inside(box) && !boxes.some((other, k) => k !== own &&
    box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  return map.client.map((client, i) => {
    const text = plainName(run, client, 16);
    const half = 3.4 * text.length;
    for (const [place, right, up] of PLACES) {
      const [cx, cy] = [x[i] + right * (half + 9), y[i] + up * 17];
      const box = [cx - half, cy - 7, cx + half, cy + 7];
      if (free(box, i)) {
        boxes.push(box);
        return [escaped(text), place];
      }
    }
    return ["", "top center"];
  });
}

function mapChart(view) {
  const { map } = view.run;
  const shape = shapeOf(view);
  const rows = map.client.keys();
  const about = map.client.map((client, i) => {
    const truth = map.truth ? ` · true cluster ${map.truth[i]}` : "";
    return `<b>${escaped(clientName(view.run, client, 40))}</b> · ${clusterName(map.found[i])}${truth}`;
  });
  const labels = map.client.length <= 40 ? readableLabels(view.run) : null;
  return {
    data: [{
      x: map.x, y: map.y, type: "scatter", mode: labels ? "markers+text" : "markers", customdata: about,
      text: labels ? labels.map(([text]) => text) : undefined,
      textposition: labels ? labels.map(([, place]) => place) : undefined,
      textfont: { size: 11, color: colour("soft") }, cliponaxis: false,
      hovertemplate: "%{customdata}<extra></extra>",
      marker: {
        size: map.client.length > 200 ? 8 : 13, symbol: [...rows].map((i) => shape(map.truth ? map.truth[i] : 0)[0]),
        color: map.found.map(view.colourOf), opacity: map.found.map((label) => 0.9 * weight(view, label)),
        line: { width: 1, color: colour("paper") },
      },
    }],
    layout: layout({
      xaxis: axis({ title: `first component (${number(100 * map.explained[0], 0)} % of the variance)` }),
      yaxis: axis({ title: `second component (${number(100 * map.explained[1], 0)} %)` }),
    }),
  };
}

// Clients by clusters. Distances are drawn the stronger the nearer, probabilities the stronger the likelier.
function placementChart(view, placements) {
  const { clients } = view.run;
  const columns = placements.values[0].map((_, k) => k);
  const places = [...placements.clients.keys()];
  const names = placements.clients.map((client) => escaped(clientName(view.run, client, 40)));
  const far = placements.by === "distances";
  const shade = far ? nearness(placements.values) : (p) => (there(p) ? p : null);
  const told = (value) => (!there(value) ? NONE : far ? Number(value).toPrecision(3) : share(100 * value));
  const words = placements.values.map((row, i) => row.map((value, k) => {
    const marks = [];
    if (placements.chosen[i] === k) marks.push(far ? "chosen" : "likeliest");
    if (clients.found[placements.clients[i]] === k) marks.push("holds its training data");
    const who = `<b>${names[i]}</b> · cluster ${k}<br>`;
    return `${who}${far ? "distance" : "probability"} ${told(value)}${marks.length ? `<br>${marks.join(", ")}` : ""}`;
  }));
  const fit = names.length > 28 ? Math.max(0.45, 28 / names.length) : 1; // rows get lower than a full mark
  const dots = (of, marker) => ({
    x: of.map((k) => (columns.includes(k) ? k : null)), y: places, type: "scatter", mode: "markers", marker,
    hoverinfo: "skip",
  });
  const own = placements.clients.map((client) => clients.found[client] ?? null);
  return {
    data: [
      {
        z: placements.values.map((row) => row.map(shade)), x: columns, y: places, type: "heatmap", text: words,
        colorscale: SCALE[isDark() ? "dark" : "light"], reversescale: far, xgap: 1, ygap: 1, showscale: false,
        ...(far ? {} : { zmin: 0, zmax: 1 }),
        hovertemplate: "%{text}<extra></extra>",
      },
      dots(own, { symbol: "circle-open", size: 15 * fit, color: "#e69f00", line: { width: 2.5, color: "#e69f00" } }),
      dots(placements.chosen, { symbol: "circle", size: 7 * fit, color: "#d55e00", line: { width: 1, color: "#ffffff" } }),
    ],
    layout: layout({
      xaxis: axis({
        title: "cluster", dtick: Math.ceil(columns.length / (narrow() ? 8 : 40)), showgrid: false, side: "top",
        range: [-0.5, columns.length - 0.5],
      }),
      yaxis: axis({
        range: [names.length - 0.5, -0.5], showgrid: false, ...nameTicks(view.run, placements.clients, 60, clientName),
      }),
      margin: { l: 70, r: 8, t: 68, b: 10 },
    }),
  };
}

function nearness(distances) { // distances as they are, or their logarithms where they differ much
  const flat = distances.flat().filter(there);
  const low = Math.max(Math.min(...flat), 1e-12);
  const log = Math.max(...flat) / low > 30;
  return (d) => (there(d) ? (log ? Math.log10(Math.max(d, low)) : d) : null);
}

function sharingChart(view) {
  const { rounds, parts } = view.run.sharing;
  const data = Object.entries(parts).map(([name, y], place) => ({
    x: rounds, y, type: "bar", name, marker: { color: FEW[[0, 5, 2][place]] },
    hovertemplate: `round %{x}: %{y:.0%} ${name}<extra></extra>`,
  }));
  return {
    data,
    layout: layout({
      barmode: "stack", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: axis({ title: "round", dtick: rounds.length <= 12 ? 1 : undefined }),
      yaxis: axis({ title: "part in the answers", tickformat: ".0%", range: [0, 1] }), margin: { l: 60, r: 8, t: 30, b: 44 },
    }),
  };
}

function bytesChart(view) {
  const { costs, curves } = view.run;
  const x = curves.rounds;
  const bars = (y, name, tint) => ({
    x, y, type: "bar", name, marker: { color: tint }, customdata: y.map(bytes),
    hovertemplate: `round %{x}: %{customdata} ${name}<extra></extra>`,
  });
  return {
    data: [bars(costs.up_by_round, "up", FEW[0]), bars(costs.down_by_round, "down", FEW[5])],
    layout: layout({
      barmode: "group", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: axis({ title: "round", dtick: x.length <= 12 ? 1 : undefined }),
      yaxis: axis({ title: "bytes, all clients", exponentformat: "SI" }), margin: { l: 60, r: 8, t: 30, b: 44 },
    }),
  };
}

function secondsChart(view) {
  const { timings, curves } = view.run;
  const tints = { training: FEW[2], descriptor: FEW[1], clustering: FEW[3] };
  return {
    data: Object.entries(timings.by_round).filter(([, y]) => y.some((value) => value > 0)).map(([phase, y]) => ({
      x: curves.rounds, y, type: "bar", name: phase, marker: { color: tints[phase] },
      hovertemplate: `round %{x}: %{y:.3~g} s ${phase}<extra></extra>`,
    })),
    layout: layout({
      barmode: "stack", showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: axis({ title: "round", dtick: curves.rounds.length <= 12 ? 1 : undefined }),
      yaxis: axis({ title: "seconds" }), margin: { l: 60, r: 8, t: 30, b: 44 },
    }),
  };
}
