// Bytes of each tile at its fullest moment, and what is on the tile that is picked.

// Which IPU memory is shown of; of a program on one there is nothing to choose.
function ipuChoice(again) {
  const all = the().memory.ipus;
  if (state.ipu === null || state.ipu >= all.length) state.ipu = the().memory.first;
  if (all.length < 2) return null;
  return h(
    "label",
    { class: "choice" },
    "IPU ",
    h(
      "select",
      {
        "aria-label": "IPU",
        on: {
          change: event => {
            state.ipu = Number(event.target.value);
            state.tile = null;
            again();
          },
        },
      },
      all.map((one, i) => h("option", { value: i, selected: i === state.ipu }, `${one.number}`)),
    ),
  );
}
const switchOf = (words, on, act) =>
  h("label", { class: "choice" }, h("input", { type: "checkbox", checked: on, on: { change: event => act(event.target.checked) } }), words);

VIEWS.Memory = panel => {
  const again = () => {
    panel.replaceChildren();
    VIEWS.Memory(panel);
  };
  const m = the().memory,
    choice = ipuChoice(again),
    one = m.ipus[state.ipu],
    tiles = one.peak.length;
  if (state.tile === null || state.tile >= tiles) state.tile = one.worst_tile;
  const withAlways = state.memoryAlways !== false;
  const layers = m.kinds
    .map((k, c) => ({ name: k.name, colour: k.colour, always: k.always, values: one.categories[c] }))
    .filter(l => withAlways || !l.always);
  const heights = Array.from({ length: tiles }, (_, t) => sum(layers.map(l => l.values[t])));
  const detail = h("div", { class: "two detail" }),
    below = h("div", {});
  const chart = areas({
    label: "bytes per tile by category: arrows pick a tile",
    n: tiles,
    edges: Array.from({ length: tiles + 1 }, (_, i) => i),
    layers,
    top: topOf(m.bound, heights),
    bound: m.bound,
    boundWords: `memory of a tile ${count(m.bound)}`,
    xTitle: "tile",
    xWords: count,
    chosen: state.tile,
    describe: t => [
      `tile ${t}: ${count(heights[t])} bytes`,
      `${percent(one.peak[t] / m.bound)} of its memory at most, ${count(Math.max(0, m.bound - one.peak[t]))} free`,
    ],
    pick: t => {
      state.tile = t;
      field.value = t;
      show();
    },
    keep: () => {
      keepTile(again);
      panel.querySelector("svg[role=slider]").focus({ preventScroll: true });
    },
  });
  const field = h("input", {
    type: "number",
    min: 0,
    max: tiles - 1,
    value: state.tile,
    "aria-label": "Tile",
    on: {
      change: event => {
        state.tile = Math.max(0, Math.min(tiles - 1, Math.round(Number(event.target.value)) || 0));
        field.value = state.tile;
        chart.set(state.tile, true);
        show();
      },
    },
  });
  function show() {
    const t = state.tile,
      step = one.peak_step[t],
      v = the().variables;
    const held = v.name.length
      ? liveAt(one.number, step)
          .map(i => [i, onTile(v, the().spreads, i, t)])
          .filter(p => p[1] > 0)
      : [];
    const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], count(one.categories[c][t]), percent(one.categories[c][t] / m.bound)]);
    rows.push([[dot("transparent"), "free"], count(Math.max(0, m.bound - one.peak[t])), percent(Math.max(0, 1 - one.peak[t] / m.bound))]);
    const grid = variablesOn(`variables on tile ${t}`, held, "bytes here");
    detail.replaceChildren(
      card(
        `Tile ${t}`,
        null,
        h(
          "p",
          { class: "soft" },
          `${count(one.peak[t])} of ${count(m.bound)} bytes when it is fullest: `,
          step < 0 ? "with what is always there" : ["while ", stepLink(step), " runs"],
          ".",
        ),
        plain(["category", "bytes", "of the tile"], rows),
      ),
      card(
        "What is on it then",
        v.name.length ? "Variables; code, temporaries and exchange buffers come on top." : the().notes.join(" "),
        v.name.length ? grid.element : null,
      ),
    );
    const lay = () => below.replaceChildren(...[addressCard(one, t, lay)].filter(Boolean));
    lay();
    say(`Tile ${t}: ${count(one.peak[t])} bytes`);
  }
  panel.append(
    card(
      "Bytes per tile",
      "Each tile at its fullest moment, by category. Click a tile, or move with the arrow keys; with Shift, or by Enter, it stays to be compared.",
      h(
        "div",
        { class: "choices" },
        choice,
        h("label", { class: "choice" }, "Tile ", field),
        h("button", { type: "button", on: { click: () => chart.set(one.worst_tile) } }, "Fullest tile"),
        h("button", { type: "button", on: { click: () => keepTile(again) } }, "Compare this tile"),
        switchOf("Include what is always live", withAlways, on => {
          state.memoryAlways = on;
          again();
        }),
      ),
      chart.element,
      legend(layers.map(l => [l.colour, l.name])),
    ),
    ...[tilesCard(again)].filter(Boolean),
    detail,
    below,
  );
  show();
};
