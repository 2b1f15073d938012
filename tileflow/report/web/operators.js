// Every operator, and why the one that is picked has its plan.

VIEWS.Operators = panel => {
  const r = the(),
    v = r.steps,
    n = v.name.length,
    detail = h("div", {}),
    total = r.all_phases;
  const small = i =>
    bar(
      r.phases.map((p, k) => [p.colour, v.phases[k][i] / Math.max(1, v.cycles[i]), `${p.name} ${count(v.phases[k][i])}`]),
      "bar small",
    );
  const several = r.memory.ipus.length > 1,
    over = v.fits.filter(fits => !fits).length;
  const columns = [
    ofNames("operator", 280, i => texts(v.name[i])),
    ofNames("type", 120, i => texts(v.op[i])),
    { name: "role", width: 90, left: true, value: i => texts(v.role[i]) },
    { name: "part", width: 80, left: true, value: i => texts(v.part[i]) },
    ...(several ? [{ name: "IPU", width: 55, value: i => v.ipu[i] }] : []),
    {
      name: "partition",
      width: 190,
      left: true,
      value: i => texts(v.partition[i]),
      show: i => h("code", {}, texts(v.partition[i])),
      title: i => texts(v.partition[i]),
    },
    { name: "limit", width: 85, left: true, value: i => texts(v.limit[i]) },
    { name: "cycles", width: 100, value: i => v.all[i], show: i => count(v.all[i]), help: "of " + r.one },
    { name: "share", width: 70, value: i => v.all[i], show: i => percent(v.all[i] / total), help: "of all cycles, what tiles wait for the host included" },
    {
      name: "phases",
      width: 95,
      value: i => v.phases[0][i] / Math.max(1, v.cycles[i]),
      show: small,
      help: "sorts by the share of the first phase",
    },
    { name: "times", width: 65, value: i => v.times[i], show: i => count(v.times[i]) },
    { name: "tiles", width: 65, value: i => v.tiles[i], show: i => count(v.tiles[i]) },
    { name: "FLOPs", width: 80, value: i => v.flops[i], show: i => short(v.flops[i]), help: "useful, of one execution" },
    { name: "of peak", width: 75, value: i => v.use[i], show: i => percent(v.use[i]) },
    { name: "temporaries", width: 110, value: i => v.temp[i], show: i => count(v.temp[i]) + (v.fits[i] ? "" : " !") },
    { name: "tile bytes", width: 95, value: i => v.bytes[i], show: i => count(v.bytes[i]), help: "on the fullest tile while it runs" },
    ...r.phases.map((p, k) => ({
      name: p.name,
      width: 90,
      value: i => v.phases[k][i] * v.times[i],
      show: i => count(v.phases[k][i] * v.times[i]),
    })),
    ...(r.energy
      ? [
          {
            name: "energy",
            width: 140,
            value: i => r.energy.most[i],
            show: i => joules(r.energy.least[i], r.energy.most[i]),
            help: "at least and at most, of " + r.one + "; sorts by the most",
          },
        ]
      : []),
  ];
  const grid = bigTable({
    label: "operators",
    columns,
    count: n,
    start: [columns.findIndex(c => c.name === "cycles"), -1],
    height: 560,
    current: state.step,
    words: i =>
      `${texts(v.name[i])} ${texts(v.op[i])} ${texts(v.source[i])} ${texts(v.role[i])} ${texts(v.part[i])} ${texts(v.limit[i])} ${texts(v.partition[i])} ${texts(v.vertex[i])}`,
    pick: show,
  });
  function show(i) {
    state.step = i;
    const named = list => (list.length ? list.map((k, at) => [at ? ", " : "", variableLink(k)]) : "none");
    detail.replaceChildren(
      card(
        texts(v.name[i]),
        `${texts(v.op[i])} of ${texts(v.source[i]) || "no layer"}, ${texts(v.role[i])}, in ${texts(v.part[i])}${several ? ` on IPU ${v.ipu[i]}` : ""}; ${count(v.times[i])} times ${r.one}.`,
        h("p", {}, h("b", {}, "Why this plan "), texts(v.why[i])),
        h(
          "p",
          {},
          h("b", {}, "Plan "),
          h("code", {}, texts(v.partition[i])),
          ` on ${count(v.tiles[i])} tiles by ${texts(v.vertex[i])} vertices; `,
          `${count(v.temp[i])} bytes of temporaries, ${count(v.received[i])} received, ${count(v.code[i])} of code on a tile.`,
        ),
        h("p", {}, h("b", {}, "Reads "), named(v.inputs[i])),
        h("p", {}, h("b", {}, "Makes "), named(v.outputs[i])),
        plain(
          ["phase", "cycles once", "cycles of " + r.one, "share"],
          r.phases.map((p, k) => [
            [dot(p.colour), p.name],
            count(v.phases[k][i]),
            count(v.phases[k][i] * v.times[i]),
            percent(v.phases[k][i] / Math.max(1, v.cycles[i])),
          ]),
        ),
        h(
          "p",
          {},
          link("What is live while it runs", () => go("liveness", { step: i })),
        ),
      ),
    );
    say(`${texts(v.name[i])}: ${count(v.all[i])} cycles`);
  }
  const roles = [...new Set(v.role)].map(texts),
    types = [...new Set(v.op)].map(texts).sort(),
    limits = [...new Set(v.limit)].map(texts),
    parts = [...new Set(v.part)].map(texts);
  const narrowed = h("p", { class: "soft" });
  if (state.group) {
    const [field, key, name] = state.group;
    grid.filter("", i => v[field][i] === key);
    narrowed.append(
      `Only the group ${name}. `,
      link("Show all", () => {
        grid.filter("");
        narrowed.replaceChildren();
      }),
    );
    state.group = null;
  }
  panel.append(
    card(
      "Operators",
      `Cycles on the slowest tile. ${over ? `${over} marked ! found no plan within the bound and take the one with least memory. ` : ""}Click an operator for its plan.`,
      filters(grid, "operators", state.text.operators, [
        ["all types", types, i => texts(v.op[i])],
        ["all roles", roles, i => texts(v.role[i])],
        ["all limits", limits, i => texts(v.limit[i])],
        ["all parts", parts, i => texts(v.part[i])],
      ]),
      narrowed,
      grid.element,
    ),
    detail,
  );
  state.text.operators = "";
  if (state.step !== null && state.step < n) show(state.step);
};
