// The views, each a function that fills its panel from the report that is chosen.

const VIEWS = {};

VIEWS.Summary = panel => {
  const r = the();
  const figures = h("div", { class: "figures" }, r.figures.map(([value, words, share]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, words),
    share !== null && h("div", { class: "meter" }, h("i", { class: share > 1 ? "bad" : null, style: { width: 100 * Math.min(1, share) + "%" } })))));
  const of = p => p.cycles / r.all_phases;
  const phases = card("Where the cycles go", ["Supersteps do not overlap: the fullest tile of each phase decides, and phases add up.", ...r.limits].join(" "),
    bar(r.phases.map(p => [p.colour, of(p), `${p.name} ${count(p.cycles)} cycles, ${percent(of(p))}`]), "bar tall"),
    legend(r.phases.map(p => [p.colour, `${p.name} ${percent(of(p))}${p.words ? ": " + p.words : ""}`])), slowest(r));
  const memory = card("Bytes per tile", null, memorySummary(r));
  const error = r.error && h("section", { class: "card error" }, h("h2", {}, "Out of tile memory"), h("pre", {}, r.error));
  panel.append(...[error, figures, phases, memory, r.frontier.length && frontier(r), machine(r)].filter(Boolean));
};

function slowest(r) {
  const v = r.steps, order = v.all.map((_, i) => i).sort((a, b) => v.all[b] - v.all[a] || a - b).slice(0, 12).filter(i => v.all[i] > 0);
  const most = order.length ? v.all[order[0]] : 1;
  return h("div", { class: "slowest" }, order.map(i => [h("span", { class: "name", title: texts(v.name[i]) }, stepLink(i)), h("span", { class: "soft" }, texts(v.role[i])),
    bar(r.phases.map((p, k) => [p.colour, v.phases[k][i] * v.times[i] / most, `${p.name} ${count(v.phases[k][i] * v.times[i])}`]), "bar open"),
    h("span", { class: "number" }, `${short(v.all[i])}  ${percent(v.all[i] / Math.max(1, r.cycles))}`)]));
}

function memorySummary(r) {
  const m = r.memory, one = m.ipus[m.first], tiles = one.peak.length, worst = one.worst_tile;
  const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], k.words, count(one.categories[c][worst]), count(sum(one.categories[c]) / tiles), count(largest(one.categories[c]))]);
  rows.push([[dot("transparent"), "free"], "", count(Math.max(0, m.bound - one.peak[worst])), count(Math.max(0, m.bound - one.mean)), count(Math.max(0, m.bound - Math.min(...one.peak)))]);
  const where = one.number < 0 ? `Tile ${worst}` : `Tile ${worst} of IPU ${one.number}`;
  return [h("p", { class: "soft" }, `${where} is the fullest: ${count(one.worst)} of ${count(m.bound)} bytes (${percent(one.worst / m.bound)}); the mean is ${count(one.mean)} (${percent(one.mean / m.bound)}).`),
    h("div", { class: "two" }, plain(["category", "kind", "fullest tile", "mean", "largest"], rows, 2), histogram(one.peak, m.bound))];
}

function histogram(peak, bound) {
  const top = Math.max(topOf(bound, peak), 1), bins = 26, counts = new Array(bins).fill(0);
  for (const b of peak) counts[Math.min(bins - 1, Math.floor(b / top * bins))]++;
  const most = Math.max(1, ...counts);
  return drawing("how many tiles hold how many bytes", 250, width => {
    const x = v => LEFT + v / top * (width - LEFT - RIGHT), y = v => 250 - BOTTOM - v / (most * 1.08) * (250 - TOP - BOTTOM);
    return [axes(width, 250, x, y, ticks(0, top, width / 130, true).map(v => [v, axisSize(v)]), ticks(0, most, 4).map(v => [v, count(v)]), "tiles by bytes"),
      counts.map((n, i) => n && s("rect", { class: "column", x: x(i * top / bins), width: Math.max(1, x(top / bins) - x(0) - 1.5), y: y(n), height: y(0) - y(n) },
        s("title", {}, `${count(n)} tiles with ${size(i * top / bins)} to ${size((i + 1) * top / bins)}`))),
      bound <= top && s("line", { class: "bound", x1: x(bound), x2: x(bound), y1: TOP, y2: 250 - BOTTOM })];
  }).element;
}

function frontier(r) {
  const bound = r.memory.bound, least = Math.min(...r.frontier.map(p => p.cycles));
  const near = r.frontier.filter(p => p.best || (p.bytes <= 1.5 * bound && p.cycles <= 4 * least)), points = near.length > 1 ? near : r.frontier;
  const span = values => { const a = Math.min(...values), b = Math.max(...values), pad = (b - a || b || 1) * 0.08; return [Math.max(0, a - pad), b + pad]; };
  const [x0, x1] = span(points.map(p => p.bytes)), [y0, y1] = span(points.map(p => p.cycles));
  const best = [...points].sort((a, b) => a.bytes - b.bytes || a.cycles - b.cycles).reduce((kept, p) => { if (!kept.length || p.cycles < kept[kept.length - 1].cycles) kept.push(p); return kept; }, []);
  return card("Cycles against memory", `Every program that the search tried (${count(r.frontier.length)}); the line joins those that no other beats in both. Filled: the one taken; dashed: does not fit.`,
    drawing("cycles against bytes on the fullest tile", 340, width => {
      const x = v => LEFT + (v - x0) / (x1 - x0) * (width - LEFT - RIGHT), y = v => 340 - BOTTOM - (v - y0) / (y1 - y0) * (340 - TOP - BOTTOM);
      const line = best.map((p, i) => i ? `H${x(p.bytes)}V${y(p.cycles)}` : `M${x(p.bytes)},${y(p.cycles)}`).join("");
      return [axes(width, 340, x, y, ticks(x0, x1, width / 140, true).map(v => [v, axisSize(v)]), ticks(y0, y1, 4).map(v => [v, short(v)]), "bytes on the fullest tile"),
        bound >= x0 && bound <= x1 && s("line", { class: "bound", x1: x(bound), x2: x(bound), y1: TOP, y2: 340 - BOTTOM }), s("path", { class: "front", d: line }),
        points.map(p => s("circle", { class: p.best ? "best" : p.fits ? "point" : "point no", cx: x(p.bytes), cy: y(p.cycles), r: p.best ? 6.5 : 4.5 },
          s("title", {}, `${p.label}: ${count(p.cycles)} cycles, ${count(p.bytes)} bytes${p.fits ? "" : ", does not fit"}`)))];
    }).element);
}

function machine(r) {
  const guessed = r.constants.filter(c => c[2] === "estimate").length;
  return card("Machine and options", `${r.chip}. ${guessed} of ${r.constants.length} constants are estimates.`,
    h("div", { class: "two wide" }, plain(["constant", "value", "", "source"], r.constants, 4), plain(["option", "value"], r.options, 2)));
}

VIEWS.Insights = panel => {
  for (const found of the().insights) {
    const left = i => !found.rows.every(row => /^[\d,.]+( ?(%|×|[KMGT]?i?B))?$/.test(row.cells[i])) || i === 0;
    const rows = found.rows.map(row => h("tr", {}, row.cells.map((cell, i) => h("td", { class: left(i) ? "l" : null },
      i === 0 && row.goto ? link(cell, () => go(row.goto[0], row.goto[1])) : cell)),
      h("td", { class: "share" }, h("div", { class: "meter" }, h("i", { class: row.share > 1 ? "bad" : null, style: { width: 100 * Math.min(1, row.share) + "%" } })))));
    panel.append(card(found.title, found.text, h("div", { class: "scroll" }, h("table", { class: "plain insight" }, h("thead", {}, h("tr", {}, found.columns.map((c, i) =>
      h("th", { scope: "col", class: left(i) ? "l" : null }, c)), h("td", {}))), h("tbody", {}, rows)))));
  }
};

// Which IPU memory is shown of; of a program on one there is nothing to choose.
function ipuChoice(again) {
  const all = the().memory.ipus;
  if (state.ipu === null || state.ipu >= all.length) state.ipu = the().memory.first;
  if (all.length < 2) return null;
  return h("label", { class: "choice" }, "IPU ", h("select", { "aria-label": "IPU", on: { change: event => { state.ipu = Number(event.target.value); state.tile = null; again(); } } },
    all.map((one, i) => h("option", { value: i, selected: i === state.ipu }, `${one.number}`))));
}
const switchOf = (words, on, act) => h("label", { class: "choice" }, h("input", { type: "checkbox", checked: on, on: { change: event => act(event.target.checked) } }), words);

VIEWS.Memory = panel => {
  const again = () => { panel.replaceChildren(); VIEWS.Memory(panel); };
  const m = the().memory, choice = ipuChoice(again), one = m.ipus[state.ipu], tiles = one.peak.length;
  if (state.tile === null || state.tile >= tiles) state.tile = one.worst_tile;
  const withAlways = state.memoryAlways !== false;
  const layers = m.kinds.map((k, c) => ({ name: k.name, colour: k.colour, always: k.always, values: one.categories[c] })).filter(l => withAlways || !l.always);
  const heights = Array.from({ length: tiles }, (_, t) => sum(layers.map(l => l.values[t])));
  const detail = h("div", { class: "two detail" });
  const chart = areas({ label: "bytes per tile by category: arrows pick a tile", n: tiles, edges: Array.from({ length: tiles + 1 }, (_, i) => i), layers, top: topOf(m.bound, heights),
    bound: m.bound, boundWords: `memory of a tile ${count(m.bound)}`, xTitle: "tile", xWords: count, chosen: state.tile,
    describe: t => [`tile ${t}: ${count(heights[t])} bytes`, `${percent(one.peak[t] / m.bound)} of its memory at most, ${count(Math.max(0, m.bound - one.peak[t]))} free`],
    pick: t => { state.tile = t; field.value = t; show(); } });
  const field = h("input", { type: "number", min: 0, max: tiles - 1, value: state.tile, "aria-label": "Tile", on: { change: event => {
    state.tile = Math.max(0, Math.min(tiles - 1, Math.round(Number(event.target.value)) || 0));
    field.value = state.tile;
    chart.set(state.tile, true);
    show();
  } } });
  function show() {
    const t = state.tile, step = one.peak_step[t], v = the().variables;
    const held = v.name.length ? liveAt(one.number, step).map(i => [i, onTile(v, the().spreads, i, t)]).filter(p => p[1] > 0) : [];
    const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], count(one.categories[c][t]), percent(one.categories[c][t] / m.bound)]);
    rows.push([[dot("transparent"), "free"], count(Math.max(0, m.bound - one.peak[t])), percent(Math.max(0, 1 - one.peak[t] / m.bound))]);
    const grid = bigTable({ label: `variables on tile ${t}`, count: held.length, start: [2, -1], height: 420, words: k => texts(v.name[held[k][0]]),
      columns: [{ name: "variable", width: 260, left: true, value: k => texts(v.name[held[k][0]]), show: k => variableLink(held[k][0]), title: k => texts(v.name[held[k][0]]) },
        { name: "kind", width: 110, left: true, value: k => texts(v.kind[held[k][0]]) },
        { name: "bytes here", width: 122, value: k => held[k][1], show: k => count(held[k][1]) },
        { name: "on all tiles", width: 110, value: k => v.bytes[held[k][0]], show: k => size(v.bytes[held[k][0]]) },
        { name: "there", width: 160, left: true, value: k => v.birth[held[k][0]], show: k => lifetime(v, held[k][0]) }] });
    detail.replaceChildren(
      card(`Tile ${t}`, null, h("p", { class: "soft" }, `${count(one.peak[t])} of ${count(m.bound)} bytes when it is fullest: `, step < 0 ? "with what is always there" : ["while ", stepLink(step), " runs"], "."),
        plain(["category", "bytes", "of the tile"], rows)),
      card("What is on it then", v.name.length ? "Variables; code, temporaries and exchange buffers come on top." : the().notes.join(" "), v.name.length ? grid.element : null));
    say(`Tile ${t}: ${count(one.peak[t])} bytes`);
  }
  panel.append(card("Bytes per tile", "Each tile at its fullest moment, by category. Click a tile, or move with the arrow keys.",
    h("div", { class: "choices" }, choice, h("label", { class: "choice" }, "Tile ", field),
      h("button", { type: "button", on: { click: () => chart.set(one.worst_tile) } }, "Fullest tile"),
      switchOf("Include what is always live", withAlways, on => { state.memoryAlways = on; again(); })),
    chart.element, legend(layers.map(l => [l.colour, l.name]))), detail);
  show();
};

VIEWS.Liveness = panel => {
  const again = () => { panel.replaceChildren(); VIEWS.Liveness(panel); };
  const r = the(), m = r.memory, choice = ipuChoice(again), one = m.ipus[state.ipu];
  if (!one.fullest.length) { panel.append(card("Liveness", r.notes.join(" ") || "There is no step.")); return; }
  const mine = r.steps.name.map((_, i) => i).filter(i => one.number < 0 || r.steps.ipu[i] === one.number);
  const withAlways = state.livenessAlways === true;
  const layers = m.kinds.map((k, c) => ({ name: k.name, colour: k.colour, always: k.always, values: mine.map(i => one.over[c][i]) })).filter(l => withAlways || !l.always);
  const edges = [0];
  for (const i of mine) edges.push(edges[edges.length - 1] + Math.max(r.steps.cycles[i], 0));
  if (!edges[mine.length]) mine.forEach((_, k) => { edges[k + 1] = k + 1; });
  const heights = mine.map((_, k) => sum(layers.map(l => l.values[k])));
  if (state.step === null || !mine.includes(state.step)) state.step = mine[heights.indexOf(Math.max(...heights))];
  const zones = [];
  mine.forEach((i, k) => { const words = texts(r.steps.part[i]); if (!zones.length || zones[zones.length - 1][2] !== words) zones.push([edges[k], edges[k + 1], words]); else zones[zones.length - 1][1] = edges[k + 1]; });
  const detail = h("div", { class: "two detail" });
  const chart = areas({ label: "bytes on the fullest tile over the cycles: arrows pick a step", n: mine.length, edges, layers, top: topOf(m.bound, heights), zones,
    bound: m.bound, boundWords: `memory of a tile ${count(m.bound)}`, xTitle: "cycles, each part once", xWords: short, chosen: mine.indexOf(state.step),
    describe: k => [texts(r.steps.name[mine[k]]), `${count(heights[k])} bytes on tile ${one.fullest[mine[k]]}`, `${texts(r.steps.role[mine[k]])}, ${count(r.steps.cycles[mine[k]])} cycles`],
    pick: k => { state.step = mine[k]; show(); } });
  function show() {
    const i = state.step, tile = one.fullest[i], v = r.variables;
    const held = liveAt(one.number, i).filter(n => withAlways || v.birth[n] >= 0).map(n => [n, onTile(v, r.spreads, n, tile)]);
    const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], count(one.over[c][i]), percent(one.over[c][i] / m.bound)]);
    rows.push(["all", count(sum(one.over.map(o => o[i]))), percent(sum(one.over.map(o => o[i])) / m.bound)]);
    const grid = bigTable({ label: "variables live at this step", count: held.length, start: [2, -1], height: 420, words: k => texts(v.name[held[k][0]]),
      columns: [{ name: "variable", width: 260, left: true, value: k => texts(v.name[held[k][0]]), show: k => variableLink(held[k][0]), title: k => texts(v.name[held[k][0]]) },
        { name: "kind", width: 105, left: true, value: k => texts(v.kind[held[k][0]]) },
        { name: "on that tile", width: 125, value: k => held[k][1], show: k => count(held[k][1]) },
        { name: "on all tiles", width: 115, value: k => v.bytes[held[k][0]], show: k => size(v.bytes[held[k][0]]) },
        { name: "there", width: 160, left: true, value: k => v.birth[held[k][0]], show: k => lifetime(v, held[k][0]) }] });
    detail.replaceChildren(card(`Step ${count(i)}`, null, h("p", {}, stepLink(i)),
      h("p", { class: "soft" }, `${texts(r.steps.role[i])}, ${texts(r.steps.part[i])}; ${count(r.steps.cycles[i])} cycles. Its fullest tile is `,
        link(`tile ${tile}`, () => go("memory", { tile, ipu: one.number })), "."), plain(["category", "bytes on it", "of the tile"], rows)),
    card("What is live", withAlways ? "All variables that are there while it runs." : "Variables that are there while it runs and not always.", grid.element));
    say(`Step ${i}, ${texts(r.steps.name[i])}: ${held.length} variables live`);
  }
  panel.append(card("Liveness", "What the fullest tile holds while each operator runs; an operator is as wide as its cycles. Click a step, or move with the arrow keys.",
    h("div", { class: "choices" }, choice, h("button", { type: "button", on: { click: () => chart.set(heights.indexOf(Math.max(...heights))) } }, "Fullest step"),
      switchOf("Include what is always live", withAlways, on => { state.livenessAlways = on; again(); })),
    chart.element, legend(layers.map(l => [l.colour, l.name]))), detail);
  show();
};

VIEWS.Variables = panel => {
  const r = the(), v = r.variables, n = v.name.length;
  if (!n) { panel.append(card("Variables", r.notes.join(" ") || "There are none.")); return; }
  const several = r.memory.ipus.length > 1, detail = h("div", {});
  const spread = i => v.tiles[i] ? v.largest[i] * v.tiles[i] / Math.max(1, v.bytes[i]) : 0;
  const columns = [
    { name: "variable", width: 270, left: true, value: i => texts(v.name[i]), title: i => texts(v.name[i]) },
    { name: "kind", width: 120, left: true, value: i => texts(v.kind[i]), show: i => [dot(r.kinds[texts(v.kind[i])]), texts(v.kind[i])] },
    { name: "layer", width: 165, left: true, value: i => texts(v.layer[i]), title: i => texts(v.layer[i]) },
    { name: "shape", width: 150, left: true, value: i => texts(v.shape[i]), title: i => texts(v.shape[i]) },
    { name: "type", width: 80, left: true, value: i => texts(v.dtype[i]) },
    ...(several ? [{ name: "IPU", width: 60, value: i => v.ipu[i] }] : []),
    { name: "bytes", width: 110, value: i => v.bytes[i], show: i => count(v.bytes[i]) },
    { name: "copies", width: 70, value: i => v.copies[i], help: "micro-batches of it that are there at once" },
    { name: "tiles", width: 75, value: i => v.tiles[i], show: i => count(v.tiles[i]) },
    { name: "fullest tile", width: 105, value: i => v.largest[i], show: i => count(v.largest[i]) },
    { name: "uneven", width: 80, value: spread, show: i => spread(i) ? spread(i).toFixed(2) : "", help: "bytes on its fullest tile over the mean of its tiles: 1 is even" },
    { name: "there", width: 160, left: true, value: i => v.birth[i], show: i => lifetime(v, i) }];
  const kinds = [...new Set(v.kind)].map(texts), types = [...new Set(v.dtype)].map(texts);
  const grid = bigTable({ label: "variables", columns, count: n, start: [columns.findIndex(c => c.name === "bytes"), -1], height: 520, current: state.variable,
    words: i => `${texts(v.name[i])} ${texts(v.layer[i])} ${texts(v.shape[i])} ${texts(v.dtype[i])} ${texts(v.kind[i])}`, pick: show });
  function show(i) {
    state.variable = i;
    const bytes = perTile(v, r.spreads, i), users = r.steps.name.map((_, k) => k).filter(k => r.steps.inputs[k].includes(i)), makers = r.steps.name.map((_, k) => k).filter(k => r.steps.outputs[k].includes(i));
    const list = found => found.length ? [found.slice(0, 40).map((k, at) => [at ? ", " : "", stepLink(k)]), found.length > 40 ? ` and ${count(found.length - 40)} more` : ""] : "none";
    detail.replaceChildren(card(texts(v.name[i]), `${texts(v.kind[i])} of ${texts(v.layer[i])}: ${texts(v.shape[i])} ${texts(v.dtype[i])}, ${count(v.bytes[i])} bytes on ${count(v.tiles[i])} tiles; ${lifetime(v, i)}${v.off[i] ? ", in streaming memory for the rest" : ""}.`,
      areas({ label: "its bytes per tile", height: 170, n: bytes.length, edges: Array.from({ length: bytes.length + 1 }, (_, t) => t), layers: [{ colour: r.kinds[texts(v.kind[i])], values: bytes }],
        top: Math.max(1, largest(bytes)) * 1.1, xTitle: "tile", xWords: count, describe: t => [`tile ${t}`, `${count(bytes[t])} bytes`] }).element,
      h("p", {}, h("b", {}, "Made by "), list(makers)), h("p", {}, h("b", {}, "Read by "), list(users)),
      v.heir[i] >= 0 && h("p", {}, h("b", {}, "Its memory goes on to "), variableLink(v.heir[i]))));
    say(`${texts(v.name[i])}: ${count(v.bytes[i])} bytes`);
  }
  panel.append(card("Variables", `Every tensor in tile memory${several ? "; one that is on several IPUs is listed for each" : ""}.`,
    filters(grid, "variables", state.text.variables, [["all kinds", kinds, i => texts(v.kind[i])], ["all types", types, i => texts(v.dtype[i])]]), grid.element), detail);
  state.text.variables = "";
  if (state.variable !== null && state.variable < n) show(state.variable);
};

VIEWS.Operators = panel => {
  const r = the(), v = r.steps, n = v.name.length, detail = h("div", {}), total = Math.max(1, sum(v.all));
  const small = i => bar(r.phases.map((p, k) => [p.colour, v.phases[k][i] / Math.max(1, v.cycles[i]), `${p.name} ${count(v.phases[k][i])}`]), "bar small");
  const several = r.memory.ipus.length > 1, over = v.fits.filter(fits => !fits).length;
  const columns = [
    { name: "operator", width: 280, left: true, value: i => texts(v.name[i]), title: i => texts(v.name[i]) },
    { name: "role", width: 90, left: true, value: i => texts(v.role[i]) },
    { name: "part", width: 80, left: true, value: i => texts(v.part[i]) },
    ...(several ? [{ name: "IPU", width: 55, value: i => v.ipu[i] }] : []),
    { name: "partition", width: 190, left: true, value: i => texts(v.partition[i]), show: i => h("code", {}, texts(v.partition[i])), title: i => texts(v.partition[i]) },
    { name: "limit", width: 85, left: true, value: i => texts(v.limit[i]) },
    { name: "cycles", width: 100, value: i => v.all[i], show: i => count(v.all[i]), help: "of an update" },
    { name: "share", width: 70, value: i => v.all[i], show: i => percent(v.all[i] / total) },
    { name: "phases", width: 95, value: i => v.phases[0][i] / Math.max(1, v.cycles[i]), show: small, help: "sorts by the share of the first phase" },
    { name: "times", width: 65, value: i => v.times[i], show: i => count(v.times[i]) },
    { name: "tiles", width: 65, value: i => v.tiles[i], show: i => count(v.tiles[i]) },
    { name: "MFLOPs", width: 80, value: i => v.flops[i], show: i => (v.flops[i] / 1e6).toPrecision(3), help: "useful, of one execution" },
    { name: "of peak", width: 75, value: i => v.use[i], show: i => percent(v.use[i]) },
    { name: "temporaries", width: 110, value: i => v.temp[i], show: i => count(v.temp[i]) + (v.fits[i] ? "" : " !") },
    { name: "tile bytes", width: 95, value: i => v.bytes[i], show: i => count(v.bytes[i]), help: "on the fullest tile while it runs" },
    ...r.phases.map((p, k) => ({ name: p.name, width: 90, value: i => v.phases[k][i] * v.times[i], show: i => count(v.phases[k][i] * v.times[i]) }))];
  const grid = bigTable({ label: "operators", columns, count: n, start: [columns.findIndex(c => c.name === "cycles"), -1], height: 560, current: state.step,
    words: i => `${texts(v.name[i])} ${texts(v.source[i])} ${texts(v.role[i])} ${texts(v.part[i])} ${texts(v.limit[i])} ${texts(v.partition[i])} ${texts(v.vertex[i])}`, pick: show });
  function show(i) {
    state.step = i;
    const named = list => list.length ? list.map((k, at) => [at ? ", " : "", variableLink(k)]) : "none";
    detail.replaceChildren(card(texts(v.name[i]), `${texts(v.op[i])} of ${texts(v.source[i]) || "no layer"}, ${texts(v.role[i])}, in ${texts(v.part[i])}${several ? ` on IPU ${v.ipu[i]}` : ""}; ${count(v.times[i])} times an ${r.unit}.`,
      h("p", {}, h("b", {}, "Why this plan "), texts(v.why[i])),
      h("p", {}, h("b", {}, "Plan "), h("code", {}, texts(v.partition[i])), ` on ${count(v.tiles[i])} tiles by ${texts(v.vertex[i])} vertices; `, `${count(v.temp[i])} bytes of temporaries, ${count(v.received[i])} received, ${count(v.code[i])} of code on a tile.`),
      h("p", {}, h("b", {}, "Reads "), named(v.inputs[i])), h("p", {}, h("b", {}, "Makes "), named(v.outputs[i])),
      plain(["phase", "cycles once", "cycles of an " + r.unit, "share"], r.phases.map((p, k) => [[dot(p.colour), p.name], count(v.phases[k][i]), count(v.phases[k][i] * v.times[i]), percent(v.phases[k][i] / Math.max(1, v.cycles[i]))])),
      h("p", {}, link("What is live while it runs", () => go("liveness", { step: i })))));
    say(`${texts(v.name[i])}: ${count(v.all[i])} cycles`);
  }
  const roles = [...new Set(v.role)].map(texts), limits = [...new Set(v.limit)].map(texts), parts = [...new Set(v.part)].map(texts);
  panel.append(card("Operators", `Cycles on the slowest tile. ${over ? `${over} marked ! found no plan within the bound and take the one with least memory. ` : ""}Click an operator for its plan.`,
    filters(grid, "operators", state.text.operators, [["all roles", roles, i => texts(v.role[i])], ["all limits", limits, i => texts(v.limit[i])], ["all parts", parts, i => texts(v.part[i])]]), grid.element), detail);
  state.text.operators = "";
  if (state.step !== null && state.step < n) show(state.step);
};
