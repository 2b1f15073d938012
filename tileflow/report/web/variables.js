// Every tensor in tile memory, and where the one that is picked lies.

/* Variables with their bytes on a tile: `held` are pairs of number and bytes, `here` is that column's name. */
function variablesOn(label, held, here) {
  const v = the().variables;
  return bigTable({
    label,
    count: held.length,
    start: [2, -1],
    height: 420,
    words: k => texts(v.name[held[k][0]]),
    columns: [
      {
        name: "variable",
        width: 190,
        left: true,
        value: k => texts(v.name[held[k][0]]),
        show: k => variableLink(held[k][0]),
        title: k => texts(v.name[held[k][0]]),
      },
      { name: "kind", width: 95, left: true, value: k => texts(v.kind[held[k][0]]) },
      { name: here, width: 105, value: k => held[k][1], show: k => count(held[k][1]) },
      { name: "on all tiles", width: 95, value: k => v.bytes[held[k][0]], show: k => size(v.bytes[held[k][0]]) },
      {
        name: "there",
        width: 130,
        left: true,
        value: k => v.birth[held[k][0]],
        show: k => lifetime(v, held[k][0]),
        title: k => lifetime(v, held[k][0]),
      },
    ],
  });
}

VIEWS.Variables = panel => {
  const r = the(),
    v = r.variables,
    n = v.name.length;
  if (!n) {
    panel.append(card("Variables", r.notes.join(" ") || "There are none."));
    return;
  }
  const several = r.memory.ipus.length > 1,
    detail = h("div", {});
  const spread = i => (v.tiles[i] ? (v.largest[i] * v.tiles[i]) / Math.max(1, v.bytes[i]) : 0);
  const columns = [
    ofNames("variable", 270, i => texts(v.name[i])),
    { name: "kind", width: 120, left: true, value: i => texts(v.kind[i]), show: i => [dot(r.kinds[texts(v.kind[i])]), texts(v.kind[i])] },
    ofNames("layer", 165, i => texts(v.layer[i])),
    { name: "shape", width: 150, left: true, value: i => texts(v.shape[i]), title: i => texts(v.shape[i]) },
    { name: "type", width: 80, left: true, value: i => texts(v.dtype[i]) },
    ...(several ? [{ name: "IPU", width: 60, value: i => v.ipu[i] }] : []),
    { name: "bytes", width: 110, value: i => v.bytes[i], show: i => count(v.bytes[i]) },
    { name: "copies", width: 70, value: i => v.copies[i], help: "micro-batches of it that are there at once" },
    { name: "tiles", width: 75, value: i => v.tiles[i], show: i => count(v.tiles[i]) },
    { name: "fullest tile", width: 105, value: i => v.largest[i], show: i => count(v.largest[i]) },
    {
      name: "uneven",
      width: 80,
      value: spread,
      show: i => (spread(i) ? spread(i).toFixed(2) : ""),
      help: "bytes on its fullest tile over the mean of its tiles: 1 is even",
    },
    { name: "there", width: 160, left: true, value: i => v.birth[i], show: i => lifetime(v, i), title: i => lifetime(v, i) },
  ];
  const kinds = [...new Set(v.kind)].map(texts),
    types = [...new Set(v.dtype)].map(texts);
  const grid = bigTable({
    label: "variables",
    columns,
    count: n,
    start: [columns.findIndex(c => c.name === "bytes"), -1],
    height: 520,
    current: state.variable,
    words: i => `${texts(v.name[i])} ${texts(v.layer[i])} ${texts(v.shape[i])} ${texts(v.dtype[i])} ${texts(v.kind[i])}`,
    pick: show,
  });
  function show(i) {
    state.variable = i;
    const bytes = perTile(v, r.spreads, i),
      users = r.steps.name.map((_, k) => k).filter(k => r.steps.inputs[k].includes(i)),
      makers = r.steps.name.map((_, k) => k).filter(k => r.steps.outputs[k].includes(i));
    const list = found =>
      found.length
        ? [
            found.slice(0, 40).map((k, at) => [at ? ", " : "", stepLink(k)]),
            found.length > 40 ? ` and ${count(found.length - 40)} more` : "",
          ]
        : "none";
    detail.replaceChildren(
      card(
        texts(v.name[i]),
        `${texts(v.kind[i])} of ${texts(v.layer[i])}: ${texts(v.shape[i])} ${texts(v.dtype[i])}, ${count(v.bytes[i])} bytes on ${count(v.tiles[i])} tiles; ${lifetime(v, i)}${v.off[i] ? ", in streaming memory for the rest" : ""}.`,
        areas({
          label: "its bytes per tile",
          height: 170,
          n: bytes.length,
          edges: Array.from({ length: bytes.length + 1 }, (_, t) => t),
          layers: [{ colour: r.kinds[texts(v.kind[i])], values: bytes }],
          top: Math.max(1, largest(bytes)) * 1.1,
          xTitle: "tile",
          xWords: count,
          describe: t => [`tile ${t}`, `${count(bytes[t])} bytes`],
        }).element,
        h("p", {}, h("b", {}, "Made by "), list(makers)),
        h("p", {}, h("b", {}, "Read by "), list(users)),
        v.heir[i] >= 0 && h("p", {}, h("b", {}, "Its memory goes on to "), variableLink(v.heir[i])),
      ),
    );
    say(`${texts(v.name[i])}: ${count(v.bytes[i])} bytes`);
  }
  panel.append(
    card(
      "Variables",
      `Every tensor in tile memory${several ? "; one that is on several IPUs is listed for each" : ""}.`,
      filters(grid, "variables", state.text.variables, [
        ["all kinds", kinds, i => texts(v.kind[i])],
        ["all types", types, i => texts(v.dtype[i])],
      ]),
      grid.element,
    ),
    detail,
  );
  state.text.variables = "";
  if (state.variable !== null && state.variable < n) show(state.variable);
};
