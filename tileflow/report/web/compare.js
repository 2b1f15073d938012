// Two reports side by side: A and B, what differs most first.

VIEWS.Comparison = panel => {
  const c = DATA.comparison,
    [a, b] = REPORTS;
  const change = n => (n > 0 ? "+" : n < 0 ? "−" : "") + count(Math.abs(n));
  const share = (x, y) =>
    x === null || y === null ? "" : x === y ? "same" : x ? `${y > x ? "+" : "−"}${Math.abs((100 * (y - x)) / x).toFixed(1)} %` : "new";
  const tone = (n, worse = 1) => h("span", { class: n * worse > 0 ? "worse" : n * worse < 0 ? "better" : "soft" }, change(n));
  panel.append(
    card(
      "A and B",
      `A is ${c.names[0]}, B is ${c.names[1]}. What differs most comes first.`,
      plain(
        ["", "A", "B", "change", ""],
        c.totals.map(([name, x, y, words, worse]) => [
          name,
          words[0],
          words[1],
          x === y
            ? h("span", { class: "soft" }, "same")
            : h("span", { class: (y - x) * worse > 0 ? "worse" : worse ? "better" : "soft" }, share(x, y)),
          "",
        ]),
      ),
      c.options.length ? h("div", {}, h("h3", {}, "Options that differ"), plain(["option", "A", "B"], c.options, 3)) : null,
    ),
  );
  const two = (rows, title) =>
    card(
      title,
      null,
      plain(
        ["", "A", "B", "B − A", "change"],
        rows.map(([name, x, y]) => [name, count(x), count(y), tone(y - x), share(x, y)]),
      ),
    );
  panel.append(h("div", { class: "two" }, two(c.phases, "Cycles by phase"), two(c.categories, "Bytes on the fullest tile")));
  const tiles = Math.max(...REPORTS.map(r => r.memory.ipus[r.memory.first].peak.length)),
    peaks = REPORTS.map(r => r.memory.ipus[r.memory.first].peak);
  panel.append(
    card(
      "Bytes per tile",
      "Each tile at its fullest moment.",
      areas({
        label: "bytes per tile of A and B",
        n: tiles,
        edges: Array.from({ length: tiles + 1 }, (_, i) => i),
        layers: [{ colour: "var(--shade)", values: peaks[0] }],
        lines: [
          { colour: "var(--a)", values: peaks[0] },
          { colour: "var(--b)", values: peaks[1] },
        ],
        top: topOf(Math.max(a.memory.bound, b.memory.bound), [...peaks[0], ...peaks[1]]),
        bound: a.memory.bound,
        boundWords: `memory of a tile ${count(a.memory.bound)}`,
        xTitle: "tile",
        xWords: count,
        describe: t => [`tile ${t}`, `A ${count(peaks[0][t] || 0)}`, `B ${count(peaks[1][t] || 0)}`],
      }).element,
      legend([
        ["var(--a)", "A: " + c.names[0]],
        ["var(--b)", "B: " + c.names[1]],
      ]),
    ),
  );
  panel.append(
    card(
      "Liveness",
      "Bytes on the fullest tile while each operator runs, over the cycles of each part once.",
      overTime(REPORTS, ["var(--a)", "var(--b)"]),
      legend([
        ["var(--a)", "A: " + c.names[0]],
        ["var(--b)", "B: " + c.names[1]],
      ]),
    ),
  );
  const differences = (title, words, rows, unit, roles) => {
    const value = n => (n === null ? "none" : count(n)),
      delta = i => (rows[i][3] || 0) - (rows[i][2] || 0);
    const grid = bigTable({
      label: title,
      count: rows.length,
      start: [4, -1],
      height: 420,
      words: i => `${rows[i][0]} ${rows[i][1]}`,
      columns: [
        { name: unit, width: 380, left: true, value: i => rows[i][0], title: i => rows[i][0] },
        { name: "kind", width: 120, left: true, value: i => rows[i][1] },
        { name: "A", width: 120, value: i => (rows[i][2] === null ? -1 : rows[i][2]), show: i => value(rows[i][2]) },
        { name: "B", width: 120, value: i => (rows[i][3] === null ? -1 : rows[i][3]), show: i => value(rows[i][3]) },
        { name: "B − A", width: 130, value: i => Math.abs(delta(i)), show: i => tone(delta(i)), help: "sorts by how much" },
        {
          name: "change",
          width: 120,
          value: i => delta(i) / Math.max(1, rows[i][2] || 0),
          show: i => share(rows[i][2], rows[i][3]),
          help: "of A; sorts by gain and loss",
        },
      ],
    });
    return card(
      title,
      words,
      filters(grid, title.toLowerCase(), "", [["all kinds", [...new Set(rows.map(row => row[1]))], i => rows[i][1]]]),
      grid.element,
    );
  };
  panel.append(
    differences("Operators that differ", "Cycles of an update; operators are matched by their names.", c.operators, "operator"),
    differences(
      "Variables that differ",
      "Bytes on all tiles; weights and states are matched by their names, other tensors by their layer and what makes them.",
      c.variables,
      "variable",
    ),
  );
};

// Bytes on the fullest tile of each report over its cycles, as curves.
function overTime(reports, colours) {
  const curves = reports.map(r => {
    const one = r.memory.ipus[r.memory.first];
    const points = [];
    let at = 0;
    one.fullest.forEach((_, i) => {
      if (one.number >= 0 && r.steps.ipu[i] !== one.number) return;
      points.push([at, at + r.steps.cycles[i], sum(one.over.map(values => values[i]))]);
      at += r.steps.cycles[i];
    });
    return points;
  });
  const end = Math.max(1, ...curves.map(points => (points.length ? points[points.length - 1][1] : 0)));
  const bound = Math.max(...reports.map(r => r.memory.bound));
  const top = topOf(
    bound,
    curves.map(points => largest(points.map(p => p[2]))),
  );
  const height = 260;
  return drawing("bytes on the fullest tile over the cycles, of A and B", height, width => {
    const x = v => LEFT + (v / end) * (width - LEFT - RIGHT);
    const y = v => height - BOTTOM - (v / (top || 1)) * (height - TOP - BOTTOM);
    const path = points => {
      let text = "";
      let left = -1;
      let most = 0;
      for (const [from, to, bytes] of points) {
        most = Math.max(most, bytes);
        if (x(to) - left < 0.7 && left >= 0) continue;
        text += `${text ? "L" : "M"}${x(from).toFixed(1)},${y(most).toFixed(1)}H${x(to).toFixed(1)}`;
        left = x(to);
        most = 0;
      }
      return text;
    };
    const marks = [ticks(0, end, width / 140).map(v => [v, short(v)]), ticks(0, top, 4, true).map(v => [v, axisSize(v)])];
    return [
      axes(width, height, x, y, ...marks, "cycles, each part once"),
      curves.map((points, i) => points.length > 0 && s("path", { class: "curve", stroke: colours[i], d: path(points) })),
      bound <= top && s("line", { class: "bound", x1: LEFT, x2: width - RIGHT, y1: y(bound), y2: y(bound) }),
    ];
  }).element;
}
