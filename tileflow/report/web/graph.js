// The graph of operators: from left to right by how many must run before, joined by the tensors that pass. Drawn is only what is seen.

const NODE = { wide: 176, tall: 26, across: 226, down: 40 };
const MOST_NODES = 2500,
  MOST_EDGES = 4000;

// Columns of operators, each sorted by where their inputs come from: { column, row, columns, before, after, high }.
function layered() {
  const v = the().steps,
    n = v.name.length,
    made = new Map(),
    column = new Int32Array(n),
    row = new Float64Array(n),
    columns = [],
    before = [],
    after = Array.from({ length: n }, () => []);
  for (let i = 0; i < n; i++) {
    const from = new Set();
    for (const k of v.inputs[i]) if (made.has(k)) from.add(made.get(k));
    for (const k of v.outputs[i]) made.set(k, i);
    before.push([...from]);
    for (const k of from) {
      after[k].push(i);
      column[i] = Math.max(column[i], column[k] + 1);
    }
  }
  for (let i = 0; i < n; i++) {
    if (!before[i].length && after[i].length) column[i] = Math.min(...after[i].map(k => column[k])) - 1; // what waits for nothing stands where it is needed
    while (columns.length <= column[i]) columns.push([]);
    columns[column[i]].push(i);
  }
  for (const one of columns) {
    const wish = new Map(one.map(i => [i, before[i].length ? sum(before[i].map(k => row[k])) / before[i].length : 0]));
    one.sort((a, b) => wish.get(a) - wish.get(b) || a - b);
    one.forEach((i, k) => {
      row[i] = k - (one.length - 1) / 2;
    });
  }
  return { column, row, columns, before, after, high: largest(columns.map(one => one.length)) };
}

VIEWS.Graph = panel => {
  const r = the(),
    v = r.steps,
    n = v.name.length;
  if (!n) {
    panel.append(card("Graph", "There are no operators."));
    return;
  }
  const g = layered(),
    groups = groupColours("op"),
    HEIGHT = 560,
    detail = h("div", {}),
    seen = h("p", { class: "soft", role: "status" });
  let width = 1100,
    kx = 1, // pixels for each, of what it has at full size
    ky = 1,
    left = -20, // at full size: what lies at the left edge, and in the middle of the height
    middle = 0,
    at = state.step !== null && state.step < n ? state.step : 0,
    matches = [];
  const chart = drawing(
    "graph of operators: arrows go along tensors and within a column, plus and minus zoom, Enter opens the operator",
    HEIGHT,
    w => {
      width = w;
      return draw();
    },
    { role: "application", tabindex: 0, class: "trace graph" },
  );
  const picture = chart.picture,
    X = i => (g.column[i] * NODE.across - left) * kx,
    Y = i => HEIGHT / 2 + (g.row[i] * NODE.down - middle) * ky;

  function draw() {
    const first = Math.max(0, Math.floor(left / NODE.across) - 1),
      last = Math.min(g.columns.length - 1, Math.ceil((left + width / kx) / NODE.across)),
      high = HEIGHT / 2 / ky / NODE.down + 1,
      wide = Math.max(1.5, NODE.wide * kx),
      tall = Math.max(1.5, NODE.tall * ky),
      labelled = kx > 0.55 && ky > 0.5,
      shown = [];
    let many = 0;
    for (let c = first; c <= last; c++) {
      const one = g.columns[c],
        half = (one.length - 1) / 2,
        from = Math.max(0, Math.ceil(middle / NODE.down - high + half)),
        to = Math.min(one.length - 1, Math.floor(middle / NODE.down + high + half)),
        step = Math.max(
          1,
          Math.floor(1.5 / (NODE.down * ky)),
          Math.ceil(((to - from + 1) * (last - first + 1)) / (4 * MOST_NODES)),
        );
      many += Math.max(0, to - from + 1);
      for (let k = from; k <= to; k += step) shown.push(one[k]);
    }
    const squares = groups.names.map(() => []),
      lines = [],
      cells = new Set();
    for (const i of shown) {
      const px = X(i),
        py = Y(i) - tall / 2,
        cell = `${Math.round(px)} ${Math.round(py)}`;
      if (cells.has(cell)) continue; // several on one place are drawn once
      cells.add(cell);
      squares[groups.of(v.op[i])].push(
        `M${px.toFixed(1)},${py.toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}h${(-wide).toFixed(1)}Z`,
      );
      if (lines.length < MOST_EDGES)
        for (const k of [...g.before[i], ...g.after[i].filter(k => X(k) > width)])
          lines.push(edge(g.column[k] < g.column[i] ? [k, i] : [i, k]));
    }
    const names =
      labelled &&
      shown.slice(0, 400).map(i => {
        const room = Math.floor((wide - 12) / 7),
          layer = groups.of(v.op[i]),
          name = stepName(i);
        return s(
          "text",
          { class: inkOn(groups.names[layer][0]), x: X(i) + 6, y: Y(i) + 4 },
          name.length > room ? "…" + name.slice(1 - room) : name,
        );
      });
    const found =
      matches.length && matches.length < n
        ? matches.filter(i => g.column[i] >= first && g.column[i] <= last).slice(0, MOST_NODES)
        : [];
    seen.textContent = `${count(many)} of ${count(n)} operators are in sight, ${count(g.columns.length)} one after the other.`;
    return [
      lines.length && s("path", { class: "edges", d: lines.join("") }),
      s("path", {
        class: "edges near",
        d: [...g.before[at].map(k => edge([k, at])), ...g.after[at].map(k => edge([at, k]))].join("") || "M0,0",
      }),
      squares.map((d, k) => d.length && s("path", { d: d.join(""), fill: groups.names[k][0] })),
      names,
      found.map(i =>
        s("rect", { class: "match", x: X(i) - 2, y: Y(i) - tall / 2 - 2, width: wide + 4, height: tall + 4 }),
      ),
      s("rect", { class: "chosen", x: X(at) - 1, y: Y(at) - tall / 2 - 1, width: wide + 2, height: tall + 2 }),
    ];
  }
  function edge([from, to]) {
    const a = X(from) + NODE.wide * kx,
      b = X(to),
      bend = Math.max(4, (b - a) / 2);
    return `M${a.toFixed(1)},${Y(from).toFixed(1)}C${(a + bend).toFixed(1)},${Y(from).toFixed(1)} ${(b - bend).toFixed(1)},${Y(to).toFixed(1)} ${b.toFixed(1)},${Y(to).toFixed(1)}`;
  }
  function zoom(factor, px = width / 2, py = HEIGHT / 2) {
    const x = left + px / kx,
      y = middle + (py - HEIGHT / 2) / ky;
    kx = Math.min(1.6, Math.max(Math.min(1, (width - 30) / (g.columns.length * NODE.across)), kx * factor));
    ky = Math.min(1.6, Math.max(Math.min(1, (HEIGHT - 30) / (g.high * NODE.down)), ky * factor));
    left = x - px / kx;
    middle = y - (py - HEIGHT / 2) / ky;
    hideTip();
    chart.again();
  }
  function all() {
    kx = Math.min(1, (width - 30) / (g.columns.length * NODE.across));
    ky = Math.min(1, (HEIGHT - 30) / (g.high * NODE.down));
    left = -15 / kx;
    middle = 0;
    chart.again();
  }
  // Moves the picture so that an operator can be seen, which is then the one that is picked.
  function pick(i, centre) {
    at = i;
    const px = X(i),
      py = Y(i);
    if (centre || px < 20 || px + NODE.wide * kx > width - 20)
      left = g.column[i] * NODE.across - (width / kx - NODE.wide) / 2;
    if (centre || py < 30 || py > HEIGHT - 30) middle = g.row[i] * NODE.down;
    const list = steps =>
      steps.length
        ? [
            steps.slice(0, 30).map((k, q) => [q ? ", " : "", stepLink(k)]),
            steps.length > 30 ? ` and ${count(steps.length - 30)} more` : "",
          ]
        : "none";
    detail.replaceChildren(
      card(
        stepName(i),
        `${texts(v.op[i])}, ${texts(v.role[i])}, in ${texts(v.part[i])}; ${count(v.all[i])} cycles of ${r.one}, mostly ${texts(v.limit[i])}.`,
        h("p", {}, h("b", {}, "After "), list(g.before[i])),
        h("p", {}, h("b", {}, "Before "), list(g.after[i])),
        h(
          "p",
          {},
          link("All about this operator", () => go("operators", { step: i })),
        ),
      ),
    );
    say(
      `${stepName(i)}, ${texts(v.op[i])}, ${count(v.all[i])} cycles; ${g.before[i].length} before, ${g.after[i].length} after`,
    );
    chart.again();
  }
  const beside = by => {
    const one = g.columns[g.column[at]],
      k = one.indexOf(at) + by;
    return one[Math.min(one.length - 1, Math.max(0, k))];
  };
  picture.addEventListener("keydown", event => {
    const act = {
      ArrowRight: () => pick(g.after[at].length ? g.after[at][0] : at),
      ArrowLeft: () => pick(g.before[at].length ? g.before[at][0] : at),
      ArrowDown: () => pick(beside(1)),
      ArrowUp: () => pick(beside(-1)),
      Home: () => pick(0),
      End: () => pick(n - 1),
      "+": () => zoom(1.5),
      "=": () => zoom(1.5),
      "-": () => zoom(1 / 1.5),
      0: all,
      Enter: () => go("operators", { step: at }),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const under = event => {
    const box = picture.getBoundingClientRect(),
      px = ((event.clientX - box.left) / box.width) * width,
      py = ((event.clientY - box.top) / box.height) * HEIGHT,
      one = g.columns[Math.floor((left + px / kx) / NODE.across)] || [],
      k = Math.round((middle + (py - HEIGHT / 2) / ky) / NODE.down + (one.length - 1) / 2),
      i = one[k];
    return i !== undefined &&
      px <= X(i) + Math.max(4, NODE.wide * kx) &&
      Math.abs(py - Y(i)) <= Math.max(4, (NODE.tall * ky) / 2)
      ? i
      : -1;
  };
  dragged(picture, (dx, dy) => {
    left -= (dx / picture.getBoundingClientRect().width) * (width / kx);
    middle -= dy / ky;
    hideTip();
    chart.again();
  });
  picture.addEventListener("mousemove", event => {
    const i = event.buttons ? -1 : under(event);
    if (i < 0) hideTip();
    else
      showTip(event, [stepName(i), `${texts(v.op[i])}, ${texts(v.role[i])}`, `${count(v.all[i])} cycles of ${r.one}`]);
  });
  picture.addEventListener("mouseleave", hideTip);
  picture.addEventListener("click", event => {
    const i = under(event);
    if (i >= 0) pick(i);
  });
  picture.addEventListener(
    "wheel",
    event => {
      event.preventDefault();
      const box = picture.getBoundingClientRect();
      zoom(
        event.deltaY > 0 ? 0.8 : 1.25,
        ((event.clientX - box.left) / box.width) * width,
        ((event.clientY - box.top) / box.height) * HEIGHT,
      );
    },
    { passive: false },
  );
  const said = h("span", { class: "soft" });
  const field = h("input", { type: "search", placeholder: "Find operators", "aria-label": "Find operators" });
  function find() {
    const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    matches = [];
    if (wanted.length)
      for (let i = 0; i < n; i++) {
        const text = `${stepName(i)} ${texts(v.source[i])} ${texts(v.op[i])} ${texts(v.role[i])}`.toLowerCase();
        if (wanted.every(w => text.includes(w))) matches.push(i);
      }
    said.textContent = wanted.length ? `${count(matches.length)} found; Enter goes to the next` : "";
    chart.again();
  }
  field.addEventListener("input", find);
  field.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !matches.length) return;
    event.preventDefault();
    kx = ky = Math.max(kx, 0.9);
    pick(matches[(matches.indexOf(at) + 1) % matches.length], true);
  });
  const button = (words, label, act) =>
    h("button", { type: "button", "aria-label": label, title: label, on: { click: act } }, words);
  panel.append(
    card(
      "Graph",
      "Each operator stands to the right of all that it waits for. Zoom with the wheel or + and −, drag to move; arrow keys go along tensors and within a column, Enter opens an operator.",
      h(
        "div",
        { class: "choices" },
        field,
        said,
        button("+", "zoom in", () => zoom(1.5)),
        button("−", "zoom out", () => zoom(1 / 1.5)),
        button("All", "show all", all),
        seen,
      ),
      chart.element,
      legend(groups.names),
    ),
    detail,
  );
  requestAnimationFrame(() => pick(at, at > 0));
};
