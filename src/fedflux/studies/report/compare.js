// The chart that compares algorithms: a dot a run, by shift.

function comparisonPart(block) {
  const runs = DATA.runs.filter(({ row }) => row.dataset === block.dataset && row.group === block.group);
  const offered = Object.keys(METRICS).filter((score) => runs.some((run) => there(run.row[score])));
  if (!offered.length) return [];
  let [score] = offered;
  const open = (event) => { if (event.points[0].customdata?.id) openRun(event.points[0].customdata.id); };
  const node = figure("Comparison of algorithms", () => comparisonChart(block, runs, score),
    "A dot is one run; a bar is the mean of an algorithm's dots for that shift. Press a dot to open its run.",
    { click: open });
  const choose = (value) => { score = value; node.redraw(); };
  const key = comparedAlgorithms(runs).map((algorithm) => el("li", {}, algorithmCell({ algorithm })));
  return [
    el("div", { class: "controls" }, select("Score", offered.map((name) => [name, METRICS[name]]), choose, score)),
    el("ul", { class: "key shapes" }, key), node,
  ];
}

function comparedAlgorithms(runs) {
  return DATA.overview.algorithms.filter((name) => runs.some((run) => run.row.algorithm === name));
}

function comparisonChart(block, runs, score) {
  const names = comparedAlgorithms(runs);
  const width = Math.min(0.8 / names.length, 0.25);
  const data = [];
  names.forEach((name, place) => {
    for (const [at, shift] of block.shifts.entries()) {
      const here = runs.filter(({ row }) => row.algorithm === name && row.shift === shift && there(row[score]));
      if (here.length) data.push(...cellTraces(here, name, score, at + (place + 0.5 - names.length / 2) * width, width));
    }
  });
  const ticks = {
    tickvals: [...block.shifts.keys()], ticktext: block.shifts.map((shift) => escaped(shiftName(shift))),
    range: [-0.5, block.shifts.length - 0.5], showgrid: false,
  };
  return {
    data,
    layout: layout({ xaxis: axis(ticks), yaxis: axis({ title: `${METRICS[score].toLowerCase()}, %` }) }),
  };
}

function cellTraces(runs, name, score, centre, width) { // dots stand side by side in the order of level and seed
  const sorted = [...runs].sort((a, b) => a.row.level - b.row.level || a.row.seed - b.row.seed);
  const aside = (i) => (sorted.length < 2 ? 0 : (i / (sorted.length - 1) - 0.5) * width * 0.6);
  const mean = sorted.reduce((sum, run) => sum + run.row[score], 0) / sorted.length;
  const about = ({ row }) => `<b>${escaped(name)}</b> · ${escaped(shiftWords(row))}, ` +
    `seed ${row.seed}`;
  return [
    {
      x: sorted.map((_, i) => centre + aside(i)), y: sorted.map((run) => run.row[score]), type: "scatter",
      mode: "markers", customdata: sorted.map((run) => ({ id: run.id, words: about(run) })),
      marker: { size: 8, color: algorithmColour(name), opacity: 0.75, line: { width: 1, color: colour("paper") } },
      hovertemplate: "%{customdata.words}<br>%{y:.1f} %<extra></extra>",
    },
    {
      x: [centre - width * 0.4, centre + width * 0.4], y: [mean, mean], type: "scatter", mode: "lines",
      hoverinfo: "skip", line: { width: 3, color: algorithmColour(name) },
    },
  ];
}
