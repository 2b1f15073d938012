// Where everything lies in the memory of a tile: addresses over the cycles, and a table of what lies there at the step that is picked, gaps included.

function addressCard(one, tile, again) {
  const r = the(),
    m = r.memory,
    laid = layoutOf(one, tile);
  if (!laid && canLayOut())
    return card(
      "Addresses",
      "Of so many operators that takes a moment.",
      h(
        "button",
        {
          type: "button",
          on: {
            click: () => {
              layoutOf(one, tile, true);
              again();
            },
          },
        },
        `Lay out tile ${tile}`,
      ),
    );
  if (!laid) return null;
  const mine = r.steps.name.map((_, i) => i).filter(i => one.number < 0 || r.steps.ipu[i] === one.number),
    edges = edgesOf(mine),
    place = new Map(mine.map((step, k) => [step, k])),
    n = laid.start.length,
    top = topOf(m.bound, [laid.extent]);
  // The item of the first of these steps at or after one, and of the last at or before it.
  const after = step => (place.has(step) ? place.get(step) : mine.findIndex(i => i >= step)),
    before = step => (place.has(step) ? place.get(step) : mine.findLastIndex(i => i <= step));
  const from = laid.first.map(step => (step < 0 ? 0 : after(step))),
    to = laid.last.map(step => (step < 0 ? mine.length - 1 : before(step)));
  const holder = h("div", {}),
    words = i => (laid.variable[i] < 0 ? m.kinds[laid.kind[i]].name : texts(r.variables.name[laid.variable[i]]));
  let at = Math.max(0, place.has(one.peak_step[tile]) ? place.get(one.peak_step[tile]) : 0),
    room = null;
  const height = 300,
    cursor = s("g", { class: "cursor" });
  const chart = drawing(
    `addresses on tile ${tile} over the cycles: arrows pick a step`,
    height,
    width => {
      const high = edges[mine.length] || 1,
        x = v => LEFT + (v / high) * (width - LEFT - RIGHT),
        y = v => height - BOTTOM - (v / top) * (height - TOP - BOTTOM);
      room = { x, y, high, width };
      const paths = m.kinds.map(() => []);
      for (let i = 0; i < n; i++) {
        if (from[i] < 0 || to[i] < from[i]) continue;
        const left = x(edges[from[i]]),
          right = Math.max(left + 0.3, x(edges[to[i] + 1])),
          low = y(laid.start[i]),
          up = y(laid.start[i] + laid.bytes[i]);
        paths[laid.kind[i]].push(`M${left.toFixed(1)},${low.toFixed(1)}V${up.toFixed(1)}H${right.toFixed(1)}V${low.toFixed(1)}Z`);
      }
      move();
      return [
        axes(
          width,
          height,
          x,
          y,
          ticks(0, high, Math.max(3, width / 140)).map(v => [v, short(v)]),
          ticks(0, top, 4, true).map(v => [v, axisSize(v)]),
          "cycles, each part once",
        ),
        paths.map((d, c) => d.length && s("path", { d: d.join(""), fill: paint(m.kinds[c].colour) })),
        m.bound <= top
          ? s("line", { class: "bound", x1: LEFT, x2: width - RIGHT, y1: y(m.bound), y2: y(m.bound) })
          : s("text", { class: "bound-words", x: width - RIGHT - 4, y: TOP + 12, "text-anchor": "end" }, `memory of a tile ${count(m.bound)} lies above`),
        cursor,
      ];
    },
    { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": Math.max(0, mine.length - 1) },
  );
  const picture = chart.picture;
  function move() {
    if (!room || !mine.length) return;
    const left = room.x(edges[at]);
    cursor.replaceChildren(
      s("rect", {
        class: "picked",
        x: left,
        y: TOP,
        width: Math.max(1.5, room.x(edges[at + 1]) - left),
        height: height - TOP - BOTTOM,
      }),
    );
    picture.setAttribute("aria-valuenow", at);
    picture.setAttribute("aria-valuetext", stepName(mine[at]));
  }
  // What lies there while an item runs, lowest first, with the gaps between: [address, bytes, block or -1 for a gap].
  function stack(k) {
    const found = [];
    let end = 0;
    for (let i = 0; i < n; i++) {
      if (from[i] < 0 || from[i] > k || to[i] < k) continue;
      if (laid.start[i] > end) found.push([end, laid.start[i] - end, -1]);
      found.push([laid.start[i], laid.bytes[i], i]);
      end = Math.max(end, laid.start[i] + laid.bytes[i]);
    }
    if (end < m.bound) found.push([end, m.bound - end, -2]);
    return found;
  }
  function show() {
    const rows = stack(at),
      lost = sum(rows.filter(row => row[2] === -1).map(row => row[1]));
    const name = k =>
      rows[k][2] === -1 ? (rows[k][1] < r.align ? "rounded up" : "gap") : rows[k][2] === -2 ? "free above" : words(rows[k][2]);
    const grid = bigTable({
      label: `addresses at step ${mine[at]}`,
      count: rows.length,
      start: [0, 1],
      height: 300,
      words: name,
      columns: [
        { name: "address", width: 100, value: k => rows[k][0], show: k => count(rows[k][0]) },
        { name: "bytes", width: 100, value: k => rows[k][1], show: k => count(rows[k][1]) },
        {
          name: "what",
          width: 300,
          left: true,
          value: name,
          show: k => (rows[k][2] >= 0 && laid.variable[rows[k][2]] >= 0 ? variableLink(laid.variable[rows[k][2]]) : name(k)),
          title: name,
        },
        {
          name: "category",
          width: 120,
          left: true,
          value: k => (rows[k][2] < 0 ? "" : m.kinds[laid.kind[rows[k][2]]].name),
          show: k => (rows[k][2] < 0 ? "" : [dot(m.kinds[laid.kind[rows[k][2]]].colour), m.kinds[laid.kind[rows[k][2]]].name]),
        },
      ],
    });
    holder.replaceChildren(
      h("p", { class: "soft lost" }, mine.length ? ["While ", stepLink(mine[at]), ` runs, ${count(lost)} bytes are gaps.`] : ""),
      grid.element,
    );
  }
  const set = k => {
    at = k;
    move();
    show();
    say(`${stepName(mine[at])}: ${count(sum(stack(at).filter(row => row[2] === -1).map(row => row[1])))} bytes are gaps`);
  };
  function under(event) {
    const box = picture.getBoundingClientRect(),
      px = ((event.clientX - box.left) / box.width) * room.width,
      k = itemAt(edges, mine.length, ((px - LEFT) / (room.width - LEFT - RIGHT)) * room.high);
    const address = ((height - BOTTOM - (event.clientY - box.top)) / (height - TOP - BOTTOM)) * top;
    return [k, k < 0 ? undefined : stack(k).find(([start, bytes]) => start <= address && address < start + bytes)];
  }
  picture.addEventListener("mousemove", event => {
    const [k, row] = under(event);
    if (k < 0 || !row) hideTip();
    else
      showTip(event, [
        row[2] < 0 ? "free" : words(row[2]),
        `${count(row[1])} bytes from ${count(row[0])} on`,
        stepName(mine[k]),
      ]);
  });
  picture.addEventListener("mouseleave", hideTip);
  picture.addEventListener("click", event => {
    const [k] = under(event);
    if (k >= 0) set(k);
  });
  picture.addEventListener("keydown", event => {
    const next = steered(event.key, at, mine.length);
    if (next === undefined) return;
    event.preventDefault();
    set(next);
  });
  show();
  const gaps = laid.extent - one.peak[tile];
  return card(
    `Addresses of tile ${tile}`,
    `Laid out, it takes ${count(laid.extent)} of ${count(m.bound)} bytes: ${count(gaps)} more than it holds at most, for gaps that nothing fits into while its ` +
      `neighbours keep their places${laid.extent > m.bound && one.peak[tile] <= m.bound ? "; only without them it would fit" : ""}. ` +
      "Up is the address; an operator is as wide as its cycles. Click a step, or move with the arrow keys.",
    chart.element,
    holder,
  );
}
