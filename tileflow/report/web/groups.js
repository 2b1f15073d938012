// Operators together: by type, role, layer, vertex, limit or part, each group with its cycles and what they are spent on.

const GROUPINGS = { type: "op", role: "role", layer: "source", vertex: "vertex", limit: "limit", part: "part" };

// By group: its name, its operators, and sums over an update. Largest first.
function grouped(field) {
  const r = the(),
    v = r.steps,
    found = new Map();
  for (let i = 0; i < v.name.length; i++) {
    const key = v[field][i];
    let one = found.get(key);
    if (!one)
      found.set(
        key,
        (one = {
          key,
          name: texts(key) || "none",
          n: 0,
          cycles: 0,
          flops: 0,
          used: 0,
          phases: r.phases.map(() => 0),
          sent: 0,
          energy: [0, 0],
        }),
      );
    one.n++;
    one.cycles += v.all[i];
    one.flops += v.flops[i] * v.times[i];
    one.used += v.use[i] * v.all[i];
    r.phases.forEach((_, k) => (one.phases[k] += v.phases[k][i] * v.times[i]));
    one.sent += received(i) * v.times[i];
    if (r.energy) {
      one.energy[0] += r.energy.least[i];
      one.energy[1] += r.energy.most[i];
    }
  }
  return [...found.values()].sort((a, b) => b.cycles - a.cycles || (a.name < b.name ? -1 : 1));
}
// Bytes that the worst tile is sent for one execution of an operator.
function received(i) {
  let total = 0;
  const pairs = the().steps.sent[i];
  for (let k = 1; k < pairs.length; k += 2) total += pairs[k];
  return total;
}
// Colours of the largest groups, by key; what is left is "others", the last of the names.
function groupColours(field) {
  const found = grouped(field),
    most = found.slice(0, found.length > DATA.series.length ? DATA.series.length - 1 : DATA.series.length),
    place = new Map(most.map((one, k) => [one.key, k])),
    names = most.map((one, k) => [DATA.series[k], one.name]);
  if (found.length > most.length) names.push(["var(--many)", "others"]);
  return { names, of: key => (place.has(key) ? place.get(key) : most.length) };
}

// A field that chooses one of several words, and what is done then.
const choice = (label, words, chosen, act) =>
  h(
    "label",
    { class: "choice" },
    label,
    " ",
    h(
      "select",
      { "aria-label": label, on: { change: event => act(event.target.value) } },
      words.map(([value, name]) => h("option", { value, selected: value === chosen }, name)),
    ),
  );

VIEWS.Groups = panel => {
  const r = the(),
    holder = h("div", {});
  const show = field => {
    const found = grouped(field);
    holder.replaceChildren(
      bigTable({
        label: "groups of operators",
        count: found.length,
        start: null,
        height: 520,
        words: k => found[k].name,
        pick: k => {
          state.group = [field, found[k].key, found[k].name];
          go("operators", { text: "" });
        },
        columns: [
          ofNames("group", 230, k => found[k].name),
          { name: "operators", width: 85, value: k => found[k].n, show: k => count(found[k].n) },
          {
            name: "cycles",
            width: 110,
            value: k => found[k].cycles,
            show: k => count(found[k].cycles),
            help: "of " + r.one,
          },
          { name: "time", width: 85, value: k => found[k].cycles, show: k => duration(found[k].cycles / r.chart.hz) },
          { name: "share", width: 75, value: k => found[k].cycles, show: k => percent(found[k].cycles / r.all_phases) },
          {
            name: "phases",
            width: 190,
            value: k => found[k].phases[0] / Math.max(1, found[k].cycles),
            show: k =>
              bar(
                r.phases.map((p, q) => [
                  p.colour,
                  found[k].phases[q] / Math.max(1, found[k].cycles),
                  `${p.name} ${percent(found[k].phases[q] / Math.max(1, found[k].cycles))}`,
                ]),
                "bar small",
              ),
            help: "sorts by the share of the first phase",
          },
          {
            name: "FLOPs",
            width: 85,
            value: k => found[k].flops,
            show: k => short(found[k].flops),
            help: "useful, of " + r.one,
          },
          {
            name: "of peak",
            width: 75,
            value: k => found[k].used / Math.max(1, found[k].cycles),
            show: k => percent(found[k].used / Math.max(1, found[k].cycles)),
          },
          {
            name: "received",
            width: 95,
            value: k => found[k].sent,
            show: k => size(found[k].sent),
            help: "by the worst tile of each operator, of " + r.one,
          },
          ...(r.energy
            ? [
                {
                  name: "energy",
                  width: 140,
                  value: k => found[k].energy[1],
                  show: k => joules(...found[k].energy),
                  help: "at least and at most, of " + r.one + "; sorts by the most",
                },
              ]
            : []),
        ],
      }).element,
    );
  };
  show("op");
  panel.append(
    card(
      "Operators together",
      "Cycles of " + r.one + ". Click a group, or pick it with Enter, for its operators.",
      choice(
        "Group by",
        Object.keys(GROUPINGS).map(name => [GROUPINGS[name], name]),
        "op",
        show,
      ),
      holder,
      legend(r.phases.map(p => [p.colour, p.name])),
    ),
  );
};
