// Several tiles side by side: what each holds when it is fullest, and how the variables on them differ.

const MOST_COMPARED = 8;

// Adds the tile that is picked to those that are compared.
function keepTile(again) {
  const known = state.tiles.some(([ipu, tile]) => ipu === state.ipu && tile === state.tile);
  if (!known) state.tiles = [...state.tiles, [state.ipu, state.tile]].slice(-MOST_COMPARED);
  say(`${state.tiles.length} tiles are compared`);
  again();
}

function tilesCard(again) {
  const r = the(),
    m = r.memory,
    v = r.variables;
  state.tiles = state.tiles.filter(([i, t]) => i < m.ipus.length && t < m.ipus[i].peak.length);
  if (!state.tiles.length) return null;
  const tiles = state.tiles.map(([i, t]) => ({ i, t, one: m.ipus[i], step: m.ipus[i].peak_step[t], laid: layoutOf(m.ipus[i], t) }));
  const name = c => (m.ipus.length > 1 ? `IPU ${c.one.number}, tile ${c.t}` : `tile ${c.t}`);
  const drop = c =>
    h(
      "button",
      {
        type: "button",
        class: "drop",
        "aria-label": `leave out ${name(c)}`,
        on: {
          click: () => {
            state.tiles = state.tiles.filter(([i, t]) => i !== c.i || t !== c.t);
            again();
          },
        },
      },
      "×",
    );
  const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], ...tiles.map(one => count(one.one.categories[c][one.t]))]);
  rows.push(["all", ...tiles.map(c => count(c.one.peak[c.t]))]);
  rows.push(["free", ...tiles.map(c => count(Math.max(0, m.bound - c.one.peak[c.t])))]);
  if (tiles.some(c => c.laid)) rows.push(["gaps", ...tiles.map(c => (c.laid ? count(c.laid.extent - c.one.peak[c.t]) : "not laid out"))]);
  rows.push(["fullest while", ...tiles.map(c => stepLink(c.step))]);
  const held = new Map();
  tiles.forEach((c, column) => {
    for (const i of v.name.length ? liveAt(c.one.number, c.step) : []) {
      const bytes = onTile(v, r.spreads, i, c.t);
      if (!bytes) continue;
      if (!held.has(i)) held.set(i, new Array(tiles.length).fill(0));
      held.get(i)[column] = bytes;
    }
  });
  const found = [...held],
    apart = k => Math.max(...found[k][1]) - Math.min(...found[k][1]);
  const grid = bigTable({
    label: "variables on these tiles",
    count: found.length,
    start: [2, -1],
    height: 420,
    words: k => texts(v.name[found[k][0]]),
    columns: [
      {
        name: "variable",
        width: 260,
        left: true,
        value: k => texts(v.name[found[k][0]]),
        show: k => variableLink(found[k][0]),
        title: k => texts(v.name[found[k][0]]),
      },
      { name: "kind", width: 105, left: true, value: k => texts(v.kind[found[k][0]]) },
      { name: "differs by", width: 100, value: apart, show: k => count(apart(k)) },
      ...tiles.map((c, column) => ({ name: name(c), width: 120, value: k => found[k][1][column], show: k => count(found[k][1][column]) })),
    ],
  });
  return card(
    "Tiles side by side",
    "Each when it is fullest.",
    plain(["category", ...tiles.map(c => [name(c), " ", drop(c)])], rows),
    v.name.length ? grid.element : null,
  );
}
