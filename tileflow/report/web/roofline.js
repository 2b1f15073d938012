// What bounds each operator: FLOP/s over the FLOPs for each byte that its tiles are sent, under the roofs of the chip.

VIEWS.Roofline = panel => {
  const r = the(),
    v = r.steps,
    roofs = r.roofs,
    HEIGHT = 440,
    groups = groupColours("op");
  if (!v.points.length || !roofs.peaks.length) {
    panel.append(
      card(
        "Roofline",
        v.points.length
          ? "No operator computes anything."
          : "This report does not say what operators receive; compile the model again.",
      ),
    );
    return;
  }
  // Operators that compute, longest first: [operator, FLOPs for a byte (0: it is sent nothing), FLOP/s].
  const found = [];
  for (let i = 0; i < v.name.length; i++) {
    if (!v.flops[i] || !v.cycles[i]) continue;
    const bytes = received(i) * v.tiles[i];
    found.push([i, bytes ? v.flops[i] / bytes : 0, (v.flops[i] * r.chart.hz) / v.cycles[i]]);
  }
  found.sort((a, b) => v.all[b[0]] - v.all[a[0]] || a[0] - b[0]);
  const sent = found.filter(one => one[1]),
    highest = largest(roofs.peaks.map(p => p[0])),
    least = Math.min(...roofs.peaks.map(p => p[0])),
    knee = highest / roofs.bytes;
  let x0 = knee / 30,
    x1 = knee * 30,
    y0 = least / 1000;
  for (const [, x, y] of sent) {
    x0 = Math.min(x0, x);
    x1 = Math.max(x1, x);
    y0 = Math.min(y0, y);
  }
  x0 = Math.max(x0, knee / 1e5) / 1.5;
  x1 = Math.min(x1, knee * 1e5) * 1.5;
  y0 = Math.max(y0, highest / 1e5) / 1.5;
  const y1 = highest * 2.2;
  const decades = (low, high) => {
    const marks = [];
    for (let k = Math.ceil(Math.log10(low)); k <= Math.log10(high); k++) marks.push(10 ** k);
    return marks;
  };
  const detail = h("p", { class: "soft", role: "status" }),
    cursor = s("circle", { class: "chosen", r: 8, visibility: "hidden" });
  let at = -1,
    place = null;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const words = k => {
    const [i, x, y] = found[k];
    return [
      stepName(i),
      `${texts(v.op[i])}, ${texts(v.role[i])}: ${short(y)}FLOP/s, ${percent(v.use[i])} of its peak`,
      x ? `${short(x)} FLOPs for each byte received` : "its tiles are sent nothing",
      `${count(v.all[i])} cycles of ${r.one}, ${percent(v.all[i] / r.all_phases)}; limit ${texts(v.limit[i])}`,
    ];
  };
  const chart = drawing(
    "FLOP/s over FLOPs for a byte: arrows go from operator to operator, the longest first",
    HEIGHT,
    width => {
      const aside = 74, // room for those that are sent nothing
        right = width - RIGHT - aside,
        x = value => LEFT + (Math.log(value / x0) / Math.log(x1 / x0)) * (right - LEFT),
        y = value => HEIGHT - BOTTOM - (Math.log(value / y0) / Math.log(y1 / y0)) * (HEIGHT - TOP - BOTTOM);
      const put = ([, a, b]) => [a ? clamp(x(a), LEFT, right) : right + aside / 2, clamp(y(b), TOP, HEIGHT - BOTTOM)];
      place = { put, points: found.map(put) };
      const seen = new Set(),
        paths = groups.names.map(() => []);
      for (let k = found.length - 1; k >= 0; k--) {
        const [px, py] = place.points[k],
          layer = groups.of(v.op[found[k][0]]),
          key = `${layer} ${Math.round(px)} ${Math.round(py)}`,
          half = clamp(2.5 + 30 * (v.all[found[k][0]] / r.all_phases), 2.5, 9);
        if (seen.has(key) && half < 4) continue;
        seen.add(key);
        paths[layer].push(
          `M${(px - half).toFixed(1)},${py.toFixed(1)}a${half},${half} 0 1 0 ${2 * half},0a${half},${half} 0 1 0 ${-2 * half},0Z`,
        );
      }
      const slope = (bytes, cls, label, under) => {
        const from = Math.max(x0, y0 / bytes),
          to = Math.min(x1, highest / bytes);
        return (
          to > from && [
            s("line", { class: cls, x1: x(from), y1: y(from * bytes), x2: x(to), y2: y(to * bytes) }),
            s(
              "text",
              {
                class: "bound-words",
                x: x(from) + 10,
                y: clamp(y(from * bytes) + (under ? 16 : -16), TOP + 12, HEIGHT),
                "text-anchor": "start",
              },
              label,
            ),
          ]
        );
      };
      move();
      return [
        axes(
          width,
          HEIGHT,
          x,
          y,
          decades(x0, x1).map(value => [value, short(value)]),
          decades(y0, y1).map(value => [value, short(value)]),
          "FLOPs for each byte that tiles are sent",
        ),
        s("text", { class: "tick", x: LEFT - 8, y: 12, "text-anchor": "end" }, "FLOP/s"),
        s("line", { class: "grid", x1: right + 6, x2: right + 6, y1: TOP, y2: HEIGHT - BOTTOM }),
        s(
          "text",
          { class: "tick", x: right + 6 + aside / 2, y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" },
          "nothing sent",
        ),
        paths.map((d, k) => d.length && s("path", { class: "dots", d: d.join(""), fill: groups.names[k][0] })),
        roofs.peaks.map(([flops, name]) => [
          s("line", {
            class: "roof",
            x1: x(clamp(flops / roofs.bytes / roofs.shared, x0, x1)),
            x2: width - RIGHT,
            y1: y(flops),
            y2: y(flops),
          }),
          s("text", { class: "bound-words", x: width - RIGHT - 4, y: y(flops) - 5, "text-anchor": "end" }, name),
        ]),
        slope(roofs.bytes, "roof", `exchange ${short(roofs.bytes)}B/s`, true),
        roofs.shared > 1 && slope(roofs.bytes * roofs.shared, "roof dashed", "sent to neighbours alike"),
        cursor,
      ];
    },
    { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": Math.max(0, found.length - 1) },
  );
  const picture = chart.picture;
  function move() {
    if (!place || at < 0) return;
    const [px, py] = place.points[at];
    cursor.setAttribute("cx", px);
    cursor.setAttribute("cy", py);
    cursor.setAttribute("visibility", "visible");
    picture.setAttribute("aria-valuenow", at);
    picture.setAttribute("aria-valuetext", words(at).join(", "));
  }
  function pick(k) {
    at = k;
    move();
    detail.replaceChildren(stepLink(found[k][0]), ` ${words(k).slice(1).join("; ")}.`);
  }
  function nearest(event) {
    const box = picture.getBoundingClientRect(),
      scale = picture.viewBox.baseVal.width / box.width,
      px = (event.clientX - box.left) * scale,
      py = (event.clientY - box.top) * scale;
    let best = -1,
      far = 14 * 14;
    place.points.forEach(([a, b], k) => {
      const d = (a - px) ** 2 + (b - py) ** 2;
      if (d < far) {
        far = d;
        best = k;
      }
    });
    return best;
  }
  picture.addEventListener("mousemove", event => {
    const k = place ? nearest(event) : -1;
    if (k < 0) hideTip();
    else showTip(event, words(k));
  });
  picture.addEventListener("mouseleave", hideTip);
  picture.addEventListener("click", event => {
    const k = place ? nearest(event) : -1;
    if (k >= 0) pick(k);
  });
  picture.addEventListener("keydown", event => {
    const next = steered(event.key, at, found.length);
    if (next !== undefined) pick(next);
    else if (event.key === "Enter" && at >= 0) go("operators", { step: found[at][0] });
    else return;
    event.preventDefault();
  });
  const idle = sum(v.all.filter((_, i) => !v.flops[i]));
  panel.append(
    card(
      "Roofline",
      `Each operator by its useful FLOP/s and by the FLOPs that it does for each byte that its tiles are sent; larger dots take more cycles. Under the slope exchange bounds it, under ` +
        `the level part the vertices. Operators that compute nothing are not here; they take ${percent(idle / r.all_phases)} of the cycles.`,
      chart.element,
      legend(groups.names),
      detail,
    ),
  );
};
