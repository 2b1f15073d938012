// The figures first: cycles by phase, memory, what tuning tried, the machine.

VIEWS.Summary = panel => {
  const r = the();
  const figures = h(
    "div",
    { class: "figures" },
    r.figures.map(([value, words, share]) =>
      h(
        "div",
        { class: "figure" },
        h("b", {}, value),
        h("span", {}, words),
        share !== null &&
          h("div", { class: "meter" }, h("i", { class: share > 1 ? "bad" : null, style: { width: 100 * Math.min(1, share) + "%" } })),
      ),
    ),
  );
  const of = p => p.cycles / r.all_phases;
  const phases = card(
    "Where the cycles go",
    "Supersteps do not overlap: the slowest tile decides each phase, and phases add up, with what tiles wait for the host.",
    r.limits.map(sentence => h("p", { class: "soft" }, sentence)),
    bar(
      r.shares.map(p => [p.colour, of(p), `${p.name} ${count(p.cycles)} cycles, ${percent(of(p))}`, p.name]),
      "bar tall",
    ),
    legend(r.shares.map(p => [p.colour, `${p.name} ${percent(of(p))}${p.words ? ": " + p.words : ""}`])),
    slowest(r),
  );
  const memory = card("Bytes per tile", null, memorySummary(r));
  const error = r.error && h("section", { class: "card error" }, h("h2", {}, "Out of tile memory"), h("pre", {}, r.error));
  panel.append(...[error, figures, phases, memory, r.energy && energy(r), r.frontier.length && frontier(r), machine(r)].filter(Boolean));
};

function slowest(r) {
  const v = r.steps,
    order = v.all
      .map((_, i) => i)
      .sort((a, b) => v.all[b] - v.all[a] || a - b)
      .slice(0, 12)
      .filter(i => v.all[i] > 0);
  const most = order.length ? v.all[order[0]] : 1;
  return h(
    "div",
    { class: "slowest" },
    order.map(i => [
      h("span", { class: "name", title: texts(v.name[i]) }, stepLink(i)),
      h("span", { class: "soft" }, texts(v.role[i])),
      bar(
        r.phases.map((p, k) => [p.colour, (v.phases[k][i] * v.times[i]) / most, `${p.name} ${count(v.phases[k][i] * v.times[i])}`]),
        "bar open",
      ),
      h("span", { class: "number" }, `${short(v.all[i])}  ${percent(v.all[i] / r.all_phases)}`),
    ]),
  );
}

function memorySummary(r) {
  const m = r.memory,
    one = m.ipus[m.first],
    tiles = one.peak.length,
    worst = one.worst_tile;
  const rows = m.kinds.map((k, c) => [
    [dot(k.colour), k.name],
    k.words,
    count(one.categories[c][worst]),
    count(sum(one.categories[c]) / tiles),
    count(largest(one.categories[c])),
  ]);
  rows.push([
    [dot("transparent"), "free"],
    "",
    count(Math.max(0, m.bound - one.peak[worst])),
    count(Math.max(0, m.bound - one.mean)),
    count(Math.max(0, m.bound - Math.min(...one.peak))),
  ]);
  const where = one.number < 0 ? `Tile ${worst}` : `Tile ${worst} of IPU ${one.number}`;
  return [
    h(
      "p",
      { class: "soft" },
      `${where} is the fullest: ${count(one.worst)} of ${count(m.bound)} bytes (${percent(one.worst / m.bound)}); the mean ${one.number < 0 ? "is" : "of that IPU is"} ${count(one.mean)} (${percent(one.mean / m.bound)}).`,
    ),
    h("div", { class: "two" }, plain(["category", "kind", "fullest tile", "mean", "largest"], rows, 2), histogram(one.peak, m.bound)),
  ];
}

function histogram(peak, bound) {
  const top = Math.max(topOf(bound, peak), 1),
    bins = 26,
    counts = new Array(bins).fill(0);
  for (const b of peak) counts[Math.min(bins - 1, Math.floor((b / top) * bins))]++;
  const most = Math.max(1, ...counts);
  return drawing("how many tiles hold how many bytes", 250, width => {
    const x = v => LEFT + (v / top) * (width - LEFT - RIGHT),
      y = v => 250 - BOTTOM - (v / (most * 1.08)) * (250 - TOP - BOTTOM);
    return [
      axes(
        width,
        250,
        x,
        y,
        ticks(0, top, width / 130, true).map(v => [v, axisSize(v)]),
        ticks(0, most, 4).map(v => [v, count(v)]),
        "tiles by bytes",
      ),
      counts.map(
        (n, i) =>
          n &&
          s(
            "rect",
            { class: "column", x: x((i * top) / bins), width: Math.max(1, x(top / bins) - x(0) - 1.5), y: y(n), height: y(0) - y(n) },
            s("title", {}, `${count(n)} tiles with ${size((i * top) / bins)} to ${size(((i + 1) * top) / bins)}`),
          ),
      ),
      bound <= top && s("line", { class: "bound", x1: x(bound), x2: x(bound), y1: TOP, y2: 250 - BOTTOM }),
    ];
  }).element;
}

function frontier(r) {
  const bound = r.memory.bound,
    least = Math.min(...r.frontier.map(p => p.cycles));
  const near = r.frontier.filter(p => p.best || (p.bytes <= 1.5 * bound && p.cycles <= 4 * least)),
    points = near.length > 1 ? near : r.frontier;
  const span = values => {
    const a = Math.min(...values),
      b = Math.max(...values),
      pad = (b - a || b || 1) * 0.08;
    return [Math.max(0, a - pad), b + pad];
  };
  const [x0, x1] = span(points.map(p => p.bytes)),
    [y0, y1] = span(points.map(p => p.cycles));
  const best = [...points]
    .sort((a, b) => a.bytes - b.bytes || a.cycles - b.cycles)
    .reduce((kept, p) => {
      if (!kept.length || p.cycles < kept[kept.length - 1].cycles) kept.push(p);
      return kept;
    }, []);
  return card(
    "Cycles against memory",
    `Every program that the search tried (${count(r.frontier.length)}); the line joins those that no other beats in both. Filled: the one taken; dashed: does not fit.`,
    h(
      "details",
      {},
      h("summary", {}, "The points as a table"),
      plain(
        ["tried", "cycles", "bytes", ""],
        points.map(p => [p.label, count(p.cycles), count(p.bytes), p.best ? "taken" : p.fits ? "fits" : "does not fit"]),
      ),
    ),
    drawing("cycles against bytes on the fullest tile", 340, width => {
      const x = v => LEFT + ((v - x0) / (x1 - x0)) * (width - LEFT - RIGHT),
        y = v => 340 - BOTTOM - ((v - y0) / (y1 - y0)) * (340 - TOP - BOTTOM);
      const line = best.map((p, i) => (i ? `H${x(p.bytes)}V${y(p.cycles)}` : `M${x(p.bytes)},${y(p.cycles)}`)).join("");
      return [
        axes(
          width,
          340,
          x,
          y,
          ticks(x0, x1, width / 140, true).map(v => [v, axisSize(v)]),
          ticks(y0, y1, 4).map(v => [v, short(v)]),
          "bytes on the fullest tile",
        ),
        bound >= x0 && bound <= x1 && s("line", { class: "bound", x1: x(bound), x2: x(bound), y1: TOP, y2: 340 - BOTTOM }),
        s("path", { class: "front", d: line }),
        [...points]
          .sort((p, q) => p.best - q.best)
          .map(p =>
            s(
              "circle",
              { class: p.best ? "best" : p.fits ? "point" : "point no", cx: x(p.bytes), cy: y(p.cycles), r: p.best ? 6.5 : 4.5 },
              s("title", {}, `${p.label}: ${count(p.cycles)} cycles, ${count(p.bytes)} bytes${p.fits ? "" : ", does not fit"}`),
            ),
          ),
      ];
    }).element,
  );
}

function energy(r) {
  return card(
    "Energy",
    "At least and at most, for hardly anything of it is published of a chip.",
    r.energy.sentences.map(sentence => h("p", { class: "soft" }, sentence)),
    plain(
      ["category", "of " + r.one],
      r.energy.categories.map(([name, least, most]) => [name, joules(least, most)]),
    ),
  );
}

function machine(r) {
  const guessed = r.constants.filter(c => c[2] === "estimate").length;
  return card(
    "Machine and options",
    `${r.chip}. ${guessed} of ${r.constants.length} constants are estimates.`,
    h("div", { class: "two wide" }, plain(["constant", "value", "", "source"], r.constants, 4), plain(["option", "value"], r.options, 2)),
  );
}
