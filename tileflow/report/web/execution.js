// Who works when: the schedule of an update as bars, an IPU a band. Wheel and keys zoom, dragging pans; near enough, the operators of a run and their phases come out.

VIEWS.Execution = panel => {
  const r = the(),
    c = r.chart,
    v = r.steps,
    whole = Math.max(1, c.cycles);
  const RUN = 26,
    OP = 20,
    PHASE = 10,
    BAND = RUN + OP + PHASE + 18,
    HEAD = 8,
    HOST = c.host.length ? RUN + 8 : 0,
    height = HEAD + BAND * c.ipus.length + HOST + 34;
  let from = 0,
    to = whole,
    width = 1100,
    picked = -1;
  const range = c.ipus.map(ipu => [c.ipu.indexOf(ipu), c.ipu.lastIndexOf(ipu)]);
  const seen = h("p", { class: "soft", role: "status" }),
    detail = h("div", {});
  const chart = drawing(
    "what each IPU does over the cycles: plus and minus zoom, arrows move, full stop and comma go from operator to operator",
    height,
    w => {
      width = w;
      return draw();
    },
    { role: "application", tabindex: 0, class: "trace" },
  );
  const picture = chart.picture;
  const x = t => LEFT + ((t - from) / (to - from)) * (width - LEFT - RIGHT);
  const clip = (a, b) => [Math.max(LEFT, x(a)), Math.min(width - RIGHT, x(b))];

  function block(a, b, y, tall, colour, words, lines, act) {
    const [left, right] = clip(a, b);
    if (right - left < 0.15) return null;
    const wide = right - left,
      room = Math.floor((wide - 8) / 7.7);
    return s(
      "g",
      { class: "block", on: { mousemove: event => showTip(event, lines), click: act } },
      s("rect", { x: left, y, width: Math.max(0.4, wide - (wide > 3 ? 0.8 : 0)), height: tall, fill: wide > 4 ? paint(colour) : colour }),
      room >= 4 && tall > 14
        ? s("text", { class: `in ${inkOn(colour)}`, x: left + 4, y: y + tall / 2 + 4 }, words.length > room ? "…" + words.slice(1 - room) : words)
        : null,
    );
  }
  function draw() {
    const found = [],
      xs = ticks(from, to, width / 140);
    let budget = 4000;
    c.ipus.forEach((ipu, row) => {
      const y = HEAD + BAND * row,
        [first, last] = range[row];
      found.push(
        s("rect", { class: "band", x: LEFT, y, width: width - LEFT - RIGHT, height: RUN + OP + PHASE + 4 }),
        s("text", { class: "tick", x: LEFT - 8, y: y + 18, "text-anchor": "end" }, c.ipus.length > 1 || ipu ? `IPU ${ipu}` : "runs"),
        s("text", { class: "tick faint", x: LEFT - 8, y: y + RUN + 15, "text-anchor": "end" }, "operators"),
        s("text", { class: "tick faint", x: LEFT - 8, y: y + RUN + OP + 12, "text-anchor": "end" }, "phases"),
      );
      let end = -1; // bars of one pixel are drawn as one
      for (let k = first; k >= 0 && k <= last && budget > 0; k++) {
        const a = c.start[k],
          b = a + c.length[k];
        if (b < from || a > to) continue;
        const [left, right] = clip(a, b);
        if (right - left < 0.6 && left < end) continue;
        end = left + 0.6;
        const kind = c.kinds[c.kind[k]],
          part = texts(c.part[k]),
          micro = c.micro[k] < 0 ? "" : ` ${c.micro[k]}`;
        found.push(
          block(
            a,
            b,
            y,
            RUN,
            kind.colour,
            `${part}${micro && " #" + c.micro[k]}`,
            [`${part}: ${kind.name}`, ...(micro ? [`micro-batch${micro}`] : []), `${count(c.length[k])} cycles from ${count(a)}`],
            () => zoomTo(a, b),
          ),
        );
        budget--;
        if (right - left > 12 && c.first[k] >= 0) budget = inner(found, k, y, budget);
      }
    });
    if (HOST) {
      const y = HEAD + BAND * c.ipus.length;
      let end = -1;
      found.push(
        s("rect", { class: "band", x: LEFT, y, width: width - LEFT - RIGHT, height: RUN }),
        s("text", { class: "tick", x: LEFT - 8, y: y + 18, "text-anchor": "end" }, "host I/O"),
      );
      for (const [name, start, cycles] of c.host) {
        if (start + cycles < from || start > to || (x(start + cycles) - Math.max(LEFT, x(start)) < 0.6 && x(start) < end)) continue;
        end = x(start) + 0.6;
        found.push(
          block(
            start,
            Math.max(start + cycles, start + (1.2 * (to - from)) / (width - LEFT - RIGHT)), // short ones are seen, too
            y,
            RUN,
            "var(--host)",
            texts(name),
            [texts(name), `${count(cycles)} cycles from ${count(start)}`],
            null,
          ),
        );
      }
    }
    seen.textContent = `Cycles ${count(from)} to ${count(to)} of ${count(whole)}, ${duration(from / c.hz)} to ${duration(to / c.hz)}.`;
    return [
      xs.map(t => [
        s("line", { class: "grid", x1: x(t), x2: x(t), y1: HEAD, y2: height - 34 }),
        s("text", { class: "tick", x: x(t), y: height - 18, "text-anchor": "middle" }, short(t)),
        s("text", { class: "tick faint", x: x(t), y: height - 4, "text-anchor": "middle" }, duration(t / c.hz)),
      ]),
      found,
    ];
  }
  // The operators of a run, and the phases of those that are wide enough; runs of narrow ones are one bar.
  function inner(found, k, y, budget) {
    let t = c.start[k],
      merged = null;
    const flush = () => {
      if (merged) {
        found.push(
          block(
            merged.a,
            merged.b,
            y + RUN + 2,
            OP - 2,
            "var(--many)",
            `${merged.n} operators`,
            [`${count(merged.n)} operators`, `${count(merged.b - merged.a)} cycles`],
            null,
          ),
        );
        budget--;
        merged = null;
      }
    };
    for (let i = c.first[k]; i <= c.last[k] && budget > 0; i++) {
      const a = t,
        b = t + v.cycles[i];
      t = b;
      if (b <= from || a >= to || b === a) continue;
      const wide = x(b) - x(a);
      if (wide < 2.2) {
        if (merged) {
          merged.b = b;
          merged.n++;
        } else merged = { a, b, n: 1 };
        if (x(merged.b) - x(merged.a) > 24) flush();
        continue;
      }
      flush();
      const top = v.phases.map((p, q) => [p[i], q]).sort((p, q) => q[0] - p[0])[0][1],
        name = texts(v.name[i]);
      found.push(
        block(
          a,
          b,
          y + RUN + 2,
          OP - 2,
          i === picked ? "var(--accent)" : "var(--op)",
          name,
          [
            name,
            `${texts(v.role[i])}, ${count(v.cycles[i])} cycles, mostly ${r.phases[top].name}`,
            `partition ${texts(v.partition[i])} on ${count(v.tiles[i])} tiles`,
          ],
          () => show(i),
        ),
      );
      budget--;
      let at = a;
      r.phases.forEach((p, q) => {
        const n = v.phases[q][i];
        if (n && x(at + n) - x(at) > 0.5) {
          found.push(block(at, at + n, y + RUN + OP + 2, PHASE, p.colour, "", [`${p.name}: ${count(n)} cycles`, name], () => show(i)));
          budget--;
        }
        at += n;
      });
    }
    flush();
    return budget;
  }
  function show(i) {
    picked = i;
    detail.replaceChildren(
      card(
        texts(v.name[i]),
        `${texts(v.role[i])}, ${count(v.cycles[i])} cycles. ${texts(v.why[i])}`,
        h(
          "p",
          {},
          link("All about this operator", () => go("operators", { step: i })),
        ),
      ),
    );
    say(`${texts(v.name[i])}: ${count(v.cycles[i])} cycles`);
    chart.again();
  }
  // To the next operator that takes cycles, or the one before, so that it can be seen.
  function walk(by) {
    let i = picked < 0 ? 0 : picked + by;
    while (i >= 0 && i < v.name.length && !v.cycles[i]) i += by;
    const k = c.first.findIndex((first, q) => first >= 0 && first <= i && i <= c.last[q] && c.ipu[q] === v.ipu[i]);
    if (k < 0) return;
    let a = c.start[k];
    for (let q = c.first[k]; q < i; q++) a += v.cycles[q];
    const b = a + v.cycles[i];
    if (a < from || b > to || x(b) - x(a) < 4) zoomTo(a - 9 * (b - a), b + 9 * (b - a));
    show(i);
  }
  function zoomTo(a, b) {
    const least = Math.min(whole, 20),
      span = Math.min(whole, Math.max(least, b - a)),
      middle = (a + b) / 2;
    from = Math.max(0, Math.min(whole - span, middle - span / 2));
    to = from + span;
    hideTip();
    chart.again();
  }
  const zoom = (factor, at = (from + to) / 2) => {
    const span = (to - from) * factor,
      share = (at - from) / (to - from);
    zoomTo(at - span * share, at - span * share + span);
  };
  const pan = share => zoomTo(from + (to - from) * share, to + (to - from) * share);
  const cycle = event => {
    const box = picture.getBoundingClientRect();
    return from + ((((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT)) * (to - from);
  };
  picture.addEventListener(
    "wheel",
    event => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 1000);
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, cycle(event));
    },
    { passive: false },
  );
  dragged(picture, dx => {
    const moved = (((dx / picture.getBoundingClientRect().width) * width) / (width - LEFT - RIGHT)) * (to - from);
    zoomTo(from - moved, to - moved);
  });
  picture.addEventListener("mouseleave", hideTip);
  picture.addEventListener("keydown", event => {
    const act = {
      "+": () => zoom(0.6),
      "=": () => zoom(0.6),
      "-": () => zoom(1 / 0.6),
      0: () => zoomTo(0, whole),
      ArrowLeft: () => pan(-0.2),
      ArrowRight: () => pan(0.2),
      ".": () => walk(1),
      ",": () => walk(-1),
      Enter: () => picked >= 0 && go("operators", { step: picked }),
      Home: () => zoomTo(0, to - from),
      End: () => zoomTo(whole - (to - from), whole),
    }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  const button = (words, label, act) => h("button", { type: "button", "aria-label": label, title: label, on: { click: act } }, words);
  const rows = r.ipus.map(([name, share, ...rest]) => [name, percent(share), ...rest.map(count)]);
  panel.append(
    card(
      "Execution",
      [
        "One " +
          r.unit +
          " over time. Zoom with the wheel or + and −, drag or use the arrows to move; a run opens into its operators, and these into their phases. 0 shows all; full stop and comma go from operator to operator, Enter opens it.",
        ...c.advice,
      ].join(" "),
      h(
        "div",
        { class: "choices" },
        button("+", "zoom in", () => zoom(0.5)),
        button("−", "zoom out", () => zoom(2)),
        button("←", "earlier", () => pan(-0.3)),
        button("→", "later", () => pan(0.3)),
        button("All", "show all", () => zoomTo(0, whole)),
        seen,
      ),
      chart.element,
      legend([["", "Runs:"], ...c.kinds.map(k => [k.colour, k.name])]),
      legend([["", "Phases:"], ...r.phases.map(p => [p.colour, p.name])]),
    ),
    detail,
    rows.length
      ? card(
          "IPUs",
          null,
          h(
            "div",
            { class: "scroll" },
            plain(
              [
                "",
                "working",
                "cycles",
                "bytes, fullest tile",
                "always live",
                "stashed, all tiles",
                `sent ${r.one}`,
                `streamed ${r.one}`,
              ],
              rows,
            ),
          ),
        )
      : "",
  );
};
