// Whether all tiles have as much to do: cycles of each tile by what it does, and the operators that keep others waiting.

// Phases in which a tile works by itself; the others are exchange and barriers, which all take together.
const WORK = ["compute", "transform", "reduce"];

// The largest number of a spread, and the sum over all tiles.
function extremes() {
  const known = new Map();
  return number => {
    if (!known.has(number)) {
      const runs = the().spreads[number];
      let most = 0,
        all = 0;
      for (let k = 0; k < runs.length; k += 2) {
        most = Math.max(most, runs[k + 1]);
        all += runs[k] * runs[k + 1];
      }
      known.set(number, [most, all]);
    }
    return known.get(number);
  };
}
const workOf = i => {
  const r = the(),
    v = r.steps;
  return sum(r.phases.map((p, k) => (WORK.includes(p.name) ? v.phases[k][i] * v.times[i] : 0)));
};

// Cycles of an update that each tile of an IPU works, in layers: parts(i) has the cycles of an operator's slowest tile by layer. Tiles that compute fewer
// points take less in proportion.
function tileCycles(mine, layers, parts) {
  const r = the(),
    v = r.steps,
    of = extremes(),
    tiles = r.memory.ipus[0].peak.length,
    weights = new Map();
  for (const i of mine) {
    const [most] = of(v.points[i]);
    if (!most) continue;
    if (!weights.has(v.points[i])) weights.set(v.points[i], new Float64Array(layers));
    const mineOf = weights.get(v.points[i]);
    for (const [k, n] of parts(i)) mineOf[k] += n / most;
  }
  const found = Array.from({ length: layers }, () => new Float64Array(tiles));
  for (const [spread, each] of weights) {
    const runs = r.spreads[spread];
    for (let at = 0, q = 0; q < runs.length; at += runs[q], q += 2)
      if (runs[q + 1])
        for (let t = at; t < at + runs[q]; t++) for (let k = 0; k < layers; k++) found[k][t] += runs[q + 1] * each[k];
  }
  return found;
}

// The operators of an IPU; -1: of all there is.
const ofIpu = ipu => {
  const v = the().steps,
    found = [];
  for (let i = 0; i < v.name.length; i++) if (ipu < 0 || v.ipu[i] === ipu) found.push(i);
  return found;
};

VIEWS.Balance = panel => {
  const r = the(),
    v = r.steps;
  if (!v.points.length) {
    panel.append(card("Balance", "This report does not say what each tile has to do; compile the model again."));
    return;
  }
  let by = "phases",
    at;
  const again = () => {
    const several = ipuChoice(again),
      { number } = r.memory.ipus[state.ipu],
      mine = ofIpu(number),
      field = by === "phases" ? null : GROUPINGS[by],
      groups = field && groupColours(field),
      phases = r.phases.map((p, k) => [p, k]).filter(([p]) => WORK.includes(p.name)),
      names = field ? groups.names : phases.map(([p]) => [p.colour, p.name]);
    const layers = tileCycles(
      mine,
      names.length,
      field
        ? i => [[groups.of(v[field][i]), workOf(i)]]
        : i => phases.map(([, k], layer) => [layer, v.phases[k][i] * v.times[i]]),
    );
    const tiles = layers.length ? layers[0].length : 0,
      total = Array.from({ length: tiles }, (_, t) => layers.reduce((a, layer) => a + layer[t], 0)),
      slowest = sum(mine.map(workOf)),
      mean = sum(total) / Math.max(1, tiles),
      most = largest(total);
    const detail = h("div", {});
    const show = t => {
      at = t;
      detail.replaceChildren(tileWork(mine, number, t, total[t]));
    };
    const chart = areas({
      label: "cycles that each tile works: arrows pick a tile",
      n: tiles,
      edges: Array.from({ length: tiles + 1 }, (_, t) => t),
      layers: names.map(([colour], k) => ({ colour, values: layers[k] })),
      top: Math.max(1, slowest) * 1.12,
      bound: slowest,
      boundWords: `slowest tile of each operator ${short(slowest)}`,
      yWords: short,
      xTitle: "tile",
      xWords: count,
      describe: t => [
        `tile ${t}: ${count(total[t])} cycles, ${percent(total[t] / Math.max(1, slowest))}`,
        ...names.map(([, name], k) => `${name} ${count(layers[k][t])}`).filter((_, k) => layers[k][t] > 0),
      ],
      pick: show,
      chosen: at,
    });
    panel.replaceChildren(
      card(
        "Cycles per tile",
        `Of ${r.one}, in phases in which tiles work by themselves. All wait for the slowest tile of each operator, ${count(slowest)} cycles in all` +
          `${slowest ? ` (${duration(slowest / r.chart.hz)})` : ""}: the mean tile works ${percent(mean / Math.max(1, slowest))} of them, the busiest ` +
          `${percent(most / Math.max(1, slowest))}. A tile with fewer points of an operator takes less in proportion.`,
        h(
          "div",
          { class: "choices" },
          choice(
            "Colours by",
            ["phases", "type", "role"].map(name => [name, name]),
            by,
            value => {
              by = value;
              again();
            },
          ),
          several,
        ),
        chart.element,
        legend(names),
      ),
      detail,
      unevenCard(mine, slowest),
    );
    show(at === undefined ? total.indexOf(most) : at);
    chart.set(at, true);
  };
  again();
};

// What a tile does: the operators that take it longest.
function tileWork(mine, ipu, tile, total) {
  const r = the(),
    v = r.steps,
    of = extremes(),
    here = new Map(),
    found = [];
  for (const i of mine) {
    if (!here.has(v.points[i])) here.set(v.points[i], elementsAt(r.spreads[v.points[i]], tile));
    const points = here.get(v.points[i]),
      all = workOf(i);
    if (points && all) found.push([i, (all * points) / of(v.points[i])[0], all]);
  }
  return card(
    `Tile ${tile}`,
    `${count(total)} cycles of ${count(found.length)} operators that it has a part of.`,
    bigTable({
      label: `operators of tile ${tile}`,
      count: found.length,
      start: [1, -1],
      height: 280,
      words: k => stepName(found[k][0]),
      columns: [
        { ...ofNames("operator", 320, k => stepName(found[k][0])), show: k => stepLink(found[k][0]) },
        { name: "cycles here", width: 110, value: k => found[k][1], show: k => count(found[k][1]) },
        { name: "slowest tile", width: 110, value: k => found[k][2], show: k => count(found[k][2]) },
        {
          name: "of it",
          width: 80,
          value: k => found[k][1] / found[k][2],
          show: k => percent(found[k][1] / found[k][2]),
        },
        { name: "type", width: 140, left: true, value: k => texts(v.op[found[k][0]]) },
      ],
    }).element,
    h(
      "p",
      {},
      link("What is in its memory", () => go("memory", { tile, ipu })),
    ),
  );
}

// The operators for which the mean tile waits longest.
function unevenCard(mine, slowest) {
  const r = the(),
    v = r.steps,
    of = extremes(),
    tiles = r.memory.ipus[0].peak.length,
    even = i => {
      const [most, all] = of(v.points[i]);
      return most ? all / most / tiles : 0;
    },
    found = mine.filter(i => workOf(i) > 0).map(i => [i, workOf(i), even(i)]);
  return card(
    "What keeps tiles waiting",
    "Cycles that the mean tile has nothing to do while the slowest works.",
    bigTable({
      label: "operators by what tiles wait",
      count: found.length,
      start: [1, -1],
      height: 340,
      words: k => `${stepName(found[k][0])} ${texts(v.op[found[k][0]])} ${texts(v.partition[found[k][0]])}`,
      columns: [
        { ...ofNames("operator", 300, k => stepName(found[k][0])), show: k => stepLink(found[k][0]) },
        {
          name: "mean waits",
          width: 105,
          value: k => found[k][1] * (1 - found[k][2]),
          show: k => count(found[k][1] * (1 - found[k][2])),
        },
        {
          name: "share",
          width: 75,
          value: k => found[k][1] * (1 - found[k][2]),
          show: k => percent((found[k][1] * (1 - found[k][2])) / Math.max(1, slowest)),
        },
        { name: "slowest tile", width: 110, value: k => found[k][1], show: k => count(found[k][1]) },
        {
          name: "even",
          width: 70,
          value: k => found[k][2],
          show: k => percent(found[k][2]),
          help: "work of the mean tile of the chip over that of the slowest",
        },
        { name: "tiles", width: 70, value: k => v.tiles[found[k][0]], show: k => count(v.tiles[found[k][0]]) },
        {
          name: "partition",
          width: 200,
          left: true,
          value: k => texts(v.partition[found[k][0]]),
          title: k => texts(v.partition[found[k][0]]),
        },
      ],
    }).element,
  );
}
