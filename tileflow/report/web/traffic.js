// Who sends how much to whom: by ranges of tiles, and by what makes tensors and what reads them.

const RANGES = 16;

// Of each operator's inputs the operator that made it before, or -1.
function producers() {
  const v = the().steps,
    made = new Map(),
    found = [];
  for (let i = 0; i < v.name.length; i++) {
    const of = new Map();
    for (const n of v.inputs[i]) of.set(n, made.has(n) ? made.get(n) : -1);
    found.push(of);
    for (const n of v.outputs[i]) made.set(n, i);
  }
  return found;
}

// A spread by ranges of tiles: its sums, and how many tiles have any of it.
function byRanges(tiles) {
  const known = new Map(),
    wide = Math.ceil(tiles / RANGES);
  return number => {
    if (!known.has(number)) {
      const sums = new Float64Array(RANGES),
        some = new Float64Array(RANGES),
        runs = the().spreads[number];
      for (let at = 0, q = 0; q < runs.length; q += 2) {
        for (let left = runs[q], t = at; left > 0;) {
          const k = Math.floor(t / wide),
            here = Math.min(left, (k + 1) * wide - t);
          sums[k] += here * runs[q + 1];
          if (runs[q + 1]) some[k] += here;
          t += here;
          left -= here;
        }
        at += runs[q];
      }
      known.set(number, { sums, some, all: sum([...sums]), tiles: sum([...some]) });
    }
    return known.get(number);
  };
}

// Bytes of an update, each tile of an operator counted with what its worst tile is sent: rows send, columns receive. flows: [sender, receiver, bytes] by
// type; what no operator made is called by its kind.
function trafficOf(mine, field) {
  const r = the(),
    v = r.steps,
    tiles = r.memory.ipus[0].peak.length,
    spread = byRanges(tiles),
    made = producers(),
    matrix = Array.from({ length: RANGES }, () => new Float64Array(RANGES)),
    flows = new Map();
  let total = 0;
  for (const i of mine) {
    const to = spread(v.on[i]),
      pairs = v.sent[i];
    for (let k = 0; k < pairs.length; k += 2) {
      const n = pairs[k],
        from = n < 0 ? to : spread(r.variables.spread[n]),
        each = pairs[k + 1] * v.times[i],
        bytes = each * to.tiles;
      if (!bytes) continue;
      total += bytes;
      const rows = n < 0 ? to.some : from.sums,
        all = n < 0 ? to.tiles : from.all;
      for (let a = 0; a < RANGES; a++)
        if (rows[a]) for (let b = 0; b < RANGES; b++) matrix[a][b] += ((each * rows[a]) / (all || 1)) * to.some[b];
      const maker = n < 0 ? -1 : made[i].get(n),
        sender =
          n < 0
            ? "partial results"
            : maker >= 0
              ? texts(v[field][maker])
              : texts(r.variables.kind[n]) === "activations"
                ? "inputs"
                : texts(r.variables.kind[n]),
        key = JSON.stringify([sender, texts(v[field][i])]);
      const one = flows.get(key) || [sender, texts(v[field][i]), 0, 0];
      one[2] += bytes;
      one[3]++;
      flows.set(key, one);
    }
  }
  return { matrix, flows: [...flows.values()], total, wide: Math.ceil(tiles / RANGES), tiles };
}

VIEWS.Exchange = panel => {
  const r = the();
  if (!r.steps.points.length) {
    panel.append(card("Exchange", "This report does not say what operators receive; compile the model again."));
    return;
  }
  let field = "op";
  const again = () => {
    const several = ipuChoice(again),
      mine = ofIpu(r.memory.ipus[state.ipu].number),
      found = trafficOf(mine, field),
      wait = sum(mine.map(i => r.steps.phases[r.phases.findIndex(p => p.name === "exchange")][i] * r.steps.times[i]));
    const flows = found.flows;
    panel.replaceChildren(
      card(
        "Exchange between tiles",
        `${size(found.total)} of ${r.one}, in ${count(wait)} cycles of exchange (${duration(wait / r.chart.hz)}). Rows send and columns receive, ${count(found.wide)} tiles each: every ` +
          "tile of an operator is counted with what its worst tile is sent, and tensors come from the tiles that hold them, in proportion. " +
          "Streaming memory and other IPUs are not in it. Click a square, or move with the arrow keys.",
        h("div", { class: "choices" }, several),
        heat(found),
      ),
      card(
        "Who sends to whom",
        "What made a tensor sends it to what reads it. Weights and other states are called by their kind, inputs is what comes from the host or " +
          "another IPU, partial results pass between the tiles of an operator.",
        choice(
          "Called by",
          [
            ["op", "type"],
            ["source", "layer"],
            ["role", "role"],
          ],
          field,
          value => {
            field = value;
            again();
          },
        ),
        bigTable({
          label: "who sends to whom",
          count: flows.length,
          start: [2, -1],
          height: 380,
          words: k => `${flows[k][0]} ${flows[k][1]}`,
          columns: [
            ofNames("from", 250, k => flows[k][0]),
            ofNames("to", 250, k => flows[k][1]),
            { name: "bytes", width: 110, value: k => flows[k][2], show: k => size(flows[k][2]) },
            {
              name: "share",
              width: 80,
              value: k => flows[k][2],
              show: k => percent(flows[k][2] / Math.max(1, found.total)),
            },
            { name: "tensors", width: 80, value: k => flows[k][3], show: k => count(flows[k][3]) },
          ],
        }).element,
      ),
    );
  };
  again();
};

// The squares, the darker the more; each has its words, so that no colour must be read.
function heat({ matrix, wide, tiles, total }) {
  const used = Math.ceil(tiles / wide),
    most = largest(matrix.map(row => largest(row))),
    range = k => `${count(k * wide)}–${count(Math.min(tiles, (k + 1) * wide) - 1)}`,
    words = (a, b) =>
      `tiles ${range(a)} send tiles ${range(b)} ${size(matrix[a][b])}, ${percent(matrix[a][b] / Math.max(1, total))}`,
    HIGH = 26,
    TOPS = 46,
    height = TOPS + used * HIGH + 6;
  let at = 0,
    place = null;
  const cursor = s("rect", { class: "chosen", height: HIGH - 2 });
  const said = h("p", { class: "soft", role: "status" });
  const chart = drawing(
    "bytes from ranges of tiles to ranges of tiles: arrows move",
    height,
    width => {
      const left = 92,
        each = Math.max(8, (width - left - RIGHT) / used);
      place = { left, each };
      move();
      return [
        s("text", { class: "tick", x: 0, y: 14 }, "sends ↓ receives →"),
        Array.from({ length: used }, (_, k) => [
          s("text", { class: "tick", x: left - 8, y: TOPS + k * HIGH + 17, "text-anchor": "end" }, range(k)),
          each > 36 || k % 3 === 0
            ? s(
                "text",
                { class: "tick", x: left + (k + 0.5) * each, y: TOPS - 8, "text-anchor": "middle" },
                each > 84 ? range(k) : count(k * wide),
              )
            : null,
        ]),
        matrix.slice(0, used).map((row, a) =>
          Array.from({ length: used }, (_, b) => {
            const share = most ? row[b] / most : 0;
            return s(
              "g",
              {
                class: "cell",
                on: {
                  click: () => pick(a * used + b),
                  mousemove: event => showTip(event, [words(a, b)]),
                  mouseleave: hideTip,
                },
              },
              s("rect", {
                x: left + b * each,
                y: TOPS + a * HIGH,
                width: Math.max(1, each - 1.5),
                height: HIGH - 2,
                "fill-opacity": (0.06 + 0.94 * share).toFixed(3),
              }),
              each > 62
                ? s(
                    "text",
                    {
                      class: share > 0.72 ? "in" : "out", // about even contrast, light and dark
                      x: left + (b + 0.5) * each,
                      y: TOPS + a * HIGH + 16,
                      "text-anchor": "middle",
                    },
                    axisSize(Math.round(row[b])),
                  )
                : null,
            );
          }),
        ),
        cursor,
      ];
    },
    { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": used * used - 1, class: "heat" },
  );
  function move() {
    const a = Math.floor(at / used),
      b = at % used;
    if (place)
      for (const [name, value] of Object.entries({
        x: place.left + b * place.each,
        y: TOPS + a * HIGH,
        width: Math.max(1, place.each - 1.5),
      }))
        cursor.setAttribute(name, value);
    chart.picture.setAttribute("aria-valuenow", at);
    chart.picture.setAttribute("aria-valuetext", words(a, b));
    said.textContent = words(a, b).replace(/^t/, "T") + ".";
  }
  function pick(k) {
    at = k;
    move();
  }
  chart.picture.addEventListener("keydown", event => {
    const a = Math.floor(at / used),
      b = at % used,
      next = {
        ArrowRight: [a, b + 1],
        ArrowLeft: [a, b - 1],
        ArrowDown: [a + 1, b],
        ArrowUp: [a - 1, b],
        Home: [0, 0],
        End: [used - 1, used - 1],
      }[event.key];
    if (!next) return;
    event.preventDefault();
    pick(Math.min(used - 1, Math.max(0, next[0])) * used + Math.min(used - 1, Math.max(0, next[1])));
  });
  requestAnimationFrame(move);
  return [chart.element, said];
}
