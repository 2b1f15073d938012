// What the fullest tile holds over the cycles, and what is live at the step that is picked.

VIEWS.Liveness = panel => {
  const again = () => {
    panel.replaceChildren();
    VIEWS.Liveness(panel);
  };
  const r = the(),
    m = r.memory,
    choice = ipuChoice(again),
    one = m.ipus[state.ipu];
  if (!one.fullest.length) {
    panel.append(card("Liveness", r.notes.join(" ") || "There is no step."));
    return;
  }
  const mine = r.steps.name.map((_, i) => i).filter(i => one.number < 0 || r.steps.ipu[i] === one.number);
  const withAlways = state.livenessAlways === true;
  const layers = m.kinds
    .map((k, c) => ({ name: k.name, colour: k.colour, always: k.always, values: mine.map(i => one.over[c][i]) }))
    .filter(l => withAlways || !l.always);
  const edges = edgesOf(mine);
  const heights = mine.map((_, k) => sum(layers.map(l => l.values[k])));
  if (state.step === null || !mine.includes(state.step)) state.step = mine[heights.indexOf(Math.max(...heights))];
  const zones = [];
  mine.forEach((i, k) => {
    const words = texts(r.steps.part[i]);
    if (!zones.length || zones[zones.length - 1][2] !== words) zones.push([edges[k], edges[k + 1], words]);
    else zones[zones.length - 1][1] = edges[k + 1];
  });
  const detail = h("div", { class: "two detail" });
  const chart = areas({
    label: "bytes on the fullest tile over the cycles: arrows pick a step",
    n: mine.length,
    edges,
    layers,
    top: topOf(m.bound, heights),
    zones,
    bound: m.bound,
    boundWords: `memory of a tile ${count(m.bound)}`,
    xTitle: "cycles, each part once",
    xWords: short,
    chosen: mine.indexOf(state.step),
    describe: k => [
      texts(r.steps.name[mine[k]]),
      `${count(heights[k])} bytes on tile ${one.fullest[mine[k]]}`,
      `${texts(r.steps.role[mine[k]])}, ${count(r.steps.cycles[mine[k]])} cycles`,
    ],
    pick: k => {
      state.step = mine[k];
      show();
    },
  });
  function show() {
    const i = state.step,
      tile = one.fullest[i],
      v = r.variables;
    const held = liveAt(one.number, i)
      .filter(n => withAlways || v.birth[n] >= 0)
      .map(n => [n, onTile(v, r.spreads, n, tile)]);
    const rows = m.kinds.map((k, c) => [[dot(k.colour), k.name], count(one.over[c][i]), percent(one.over[c][i] / m.bound)]);
    rows.push(["all", count(sum(one.over.map(o => o[i]))), percent(sum(one.over.map(o => o[i])) / m.bound)]);
    const grid = variablesOn("variables live at this step", held, "on that tile");
    detail.replaceChildren(
      card(
        `Step ${count(i)}`,
        null,
        h("p", {}, stepLink(i)),
        h(
          "p",
          { class: "soft" },
          `${texts(r.steps.role[i])}, ${texts(r.steps.part[i])}; ${count(r.steps.cycles[i])} cycles. Its fullest tile is `,
          link(`tile ${tile}`, () => go("memory", { tile, ipu: one.number })),
          ".",
        ),
        plain(["category", "bytes on it", "of the tile"], rows),
      ),
      card(
        "What is live",
        withAlways ? "All variables that are there while it runs." : "Variables that are there while it runs and not always.",
        grid.element,
      ),
    );
    say(`Step ${i}, ${texts(r.steps.name[i])}: ${held.length} variables live`);
  }
  panel.append(
    card(
      "Liveness",
      "What the fullest tile holds while each operator runs; an operator is as wide as its cycles. Click a step, or move with the arrow keys.",
      h(
        "div",
        { class: "choices" },
        choice,
        h("button", { type: "button", on: { click: () => chart.set(heights.indexOf(Math.max(...heights))) } }, "Fullest step"),
        switchOf("Include what is always live", withAlways, on => {
          state.livenessAlways = on;
          again();
        }),
      ),
      chart.element,
      legend(layers.map(l => [l.colour, l.name])),
    ),
    detail,
  );
  show();
};
