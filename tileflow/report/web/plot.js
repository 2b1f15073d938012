// Charts over tiles and over time: stacked layers as areas, an axis each, a bound, and a cursor that mouse and arrows move.

const LEFT = 78,
  RIGHT = 16,
  TOP = 20,
  BOTTOM = 36;

function ticks(low, high, about, binary) {
  const raw = (high - low || 1) / about;
  let step = 2 ** Math.ceil(Math.log2(raw));
  if (!binary) {
    const power = 10 ** Math.floor(Math.log10(raw));
    step = [1, 2, 5, 10].map(m => m * power).find(v => v >= raw * 0.999);
  }
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high * 1.0001; k++) found.push(k * step);
  return found;
}

function axes(width, height, x, y, xs, ys, title) {
  return [
    ys.map(([v, words]) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
      s("text", { class: "tick", x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, words),
    ]),
    xs.map(([v, words]) => s("text", { class: "tick", x: x(v), y: height - BOTTOM + 17, "text-anchor": "middle" }, words)),
    s("text", { class: "tick", x: width - RIGHT, y: height - 3, "text-anchor": "end" }, title),
  ];
}

// A drawing that is made anew when its room changes. draw(width) gives the svg's elements; the height is fixed.
function drawing(label, height, draw, attributes = {}) {
  const picture = s("svg", { role: "img", "aria-label": label, ...attributes });
  let width = 0;
  const again = () => {
    width = Math.max(320, Math.round(picture.parentElement ? picture.parentElement.clientWidth : 0) || 1100);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    picture.replaceChildren(...draw(width).flat(Infinity).filter(Boolean));
  };
  new ResizeObserver(() => {
    if (picture.clientWidth && Math.abs(picture.clientWidth - width) > 1) again();
  }).observe(picture);
  requestAnimationFrame(again);
  return { element: h("div", { class: "drawing" }, picture), picture, again };
}

// Layers over items 0..n-1. edges: where each item begins and the last ends, on the axis of x. layers: { colour, values }. pick(i): an item was picked;
// keep(i): it was picked with Shift, or by Enter. yWords: of the other axis, bytes where there are none.
// describe(i): lines of the tooltip. lines: more curves, { colour, values, dash }.
function areas({
  label,
  height = 300,
  n,
  edges,
  layers,
  lines = [],
  top,
  bound,
  boundWords,
  xTitle,
  xWords,
  xTicks,
  yWords,
  describe,
  pick,
  keep,
  chosen,
  zones = [],
}) {
  let at = chosen === undefined ? -1 : chosen,
    place = null;
  const total = i => sum(layers.map(l => l.values[i] || 0));
  const describeAll = i => describe(i).join(", ");
  const cursor = s("g", { class: "cursor" });
  const chart = drawing(
    label,
    height,
    width => {
      const low = edges[0],
        high = edges[n] > low ? edges[n] : low + 1;
      const x = v => LEFT + ((v - low) / (high - low)) * (width - LEFT - RIGHT),
        y = v => height - BOTTOM - (v / (top || 1)) * (height - TOP - BOTTOM);
      place = { x, y, low, high, width };
      const columns = []; // [left, right, item]: items of one pixel are drawn as the fullest of them
      for (let i = 0; i < n;) {
        const left = x(edges[i]);
        let k = i,
          best = i,
          most = total(i);
        while (k + 1 < n && x(edges[k + 1]) - left < 0.8) {
          k++;
          const t = total(k);
          if (t > most) {
            most = t;
            best = k;
          }
        }
        columns.push([left, Math.max(x(edges[k + 1]), left + 0.3), best]);
        i = k + 1;
      }
      const below = new Float64Array(n);
      const paths = layers.map(layer => {
        let up = "",
          down = "";
        for (const [left, right, i] of columns) {
          const base = y(below[i]),
            level = y(below[i] + (layer.values[i] || 0));
          up += `${up ? "L" : "M"}${left.toFixed(1)},${level.toFixed(1)}H${right.toFixed(1)}`;
          down = `L${right.toFixed(1)},${base.toFixed(1)}H${left.toFixed(1)}` + down;
        }
        for (const [, , i] of columns) below[i] += layer.values[i] || 0;
        return s("path", { d: up + down + "Z", fill: paint(layer.colour) });
      });
      const curves = lines.map(line =>
        s("path", {
          class: "curve",
          stroke: line.colour,
          "stroke-dasharray": line.dash,
          d: columns
            .map(([left, right, i], k) => `${k ? "L" : "M"}${left.toFixed(1)},${y(line.values[i] || 0).toFixed(1)}H${right.toFixed(1)}`)
            .join(""),
        }),
      );
      const shades = zones.map(([from, to, words], k) => [
        k % 2 ? s("rect", { class: "zone", x: x(from), y: TOP, width: Math.max(0, x(to) - x(from)), height: height - TOP - BOTTOM }) : null,
        x(to) - x(from) > 9 * words.length + 8
          ? s("text", { class: "tick", x: (x(from) + x(to)) / 2, y: TOP - 6, "text-anchor": "middle" }, words)
          : null,
      ]);
      const limit =
        bound === undefined
          ? []
          : bound <= top
            ? [
                s("line", { class: "bound", x1: LEFT, x2: width - RIGHT, y1: y(bound), y2: y(bound) }),
                s("text", { class: "bound-words", x: width - RIGHT - 4, y: y(bound) - 6, "text-anchor": "end" }, boundWords),
              ]
            : [s("text", { class: "bound-words", x: width - RIGHT - 4, y: TOP + 12, "text-anchor": "end" }, boundWords + " lies above")];
      move();
      return [
        shades,
        axes(
          width,
          height,
          x,
          y,
          (xTicks || ticks(low, high, Math.max(3, width / 140))).map(v => [v, xWords(v)]),
          ticks(0, top, 4, !yWords).map(v => [v, (yWords || axisSize)(v)]),
          xTitle,
        ),
        paths,
        curves,
        limit,
        cursor,
      ];
    },
    pick ? { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": Math.max(0, n - 1) } : {},
  );
  const picture = chart.picture;
  function move() {
    if (!place || at < 0 || at >= n) {
      cursor.replaceChildren();
      return;
    }
    const left = place.x(edges[at]),
      right = place.x(edges[at + 1]),
      middle = (left + right) / 2;
    cursor.replaceChildren(
      s("rect", { x: left, y: TOP, width: Math.max(1.5, right - left), height: height - TOP - BOTTOM, class: "picked" }),
      s("path", { class: "arrow", d: `M${middle - 6},${height - BOTTOM + 1}h12l-6,-8z` }),
    );
    picture.setAttribute("aria-valuenow", at);
    picture.setAttribute("aria-valuetext", describeAll(at));
  }
  function item(event) {
    const box = picture.getBoundingClientRect(),
      px = ((event.clientX - box.left) / box.width) * place.width;
    return itemAt(edges, n, place.low + ((px - LEFT) / (place.width - LEFT - RIGHT)) * (place.high - place.low));
  }
  const set = (i, quiet) => {
    at = i;
    move();
    if (pick && !quiet) pick(i);
  };
  picture.addEventListener("mousemove", event => {
    const i = item(event);
    if (i < 0) hideTip();
    else showTip(event, describe(i));
  });
  picture.addEventListener("mouseleave", hideTip);
  if (pick) {
    picture.addEventListener("click", event => {
      const i = item(event);
      if (i < 0) return;
      set(i);
      if (event.shiftKey && keep) keep(i);
    });
    picture.addEventListener("keydown", event => {
      const next = steered(event.key, at, n);
      if (next !== undefined) {
        set(next);
        say(describeAll(at));
      } else if (event.key === "Enter" && keep && at >= 0) keep(at);
      else return;
      event.preventDefault();
    });
  }
  return { element: chart.element, set };
}

// Dragging: moved(dx, dy) in pixels of the screen, since the last time. Where it ends is no click.
function dragged(picture, moved) {
  let grip = null,
    far = 0;
  picture.addEventListener("pointerdown", event => {
    grip = [event.clientX, event.clientY];
    far = 0;
  });
  picture.addEventListener("pointermove", event => {
    if (!event.buttons) grip = null;
    if (!grip) return;
    const [dx, dy] = [event.clientX - grip[0], event.clientY - grip[1]];
    far += Math.abs(dx) + Math.abs(dy);
    if (far <= 3) return;
    grip = [event.clientX, event.clientY];
    moved(dx, dy);
  });
  picture.addEventListener("click", event => far > 3 && event.stopImmediatePropagation(), true);
}

// The item that a key leads to from another, of n; undefined for keys that lead nowhere.
function steered(key, at, n) {
  if (!n) return undefined;
  const far = Math.max(1, Math.round(n / 20));
  const next = {
    ArrowRight: at + 1,
    ArrowUp: at + 1,
    ArrowLeft: at - 1,
    ArrowDown: at - 1,
    PageUp: at + far,
    PageDown: at - far,
    Home: 0,
    End: n - 1,
  }[key];
  return next === undefined ? undefined : Math.min(n - 1, Math.max(0, next));
}
// The item that a place on the axis belongs to; -1 outside.
function itemAt(edges, n, v) {
  if (!n || v < edges[0] || v > edges[n]) return -1;
  let a = 0,
    b = n - 1;
  while (a < b) {
    const m = (a + b + 1) >> 1;
    if (edges[m] <= v) a = m;
    else b = m - 1;
  }
  return a;
}
// Where steps begin on an axis of cycles, and where the last ends; steps that take none are as wide as each other.
function edgesOf(steps) {
  const cycles = the().steps.cycles,
    edges = [0];
  for (const i of steps) edges.push(edges[edges.length - 1] + Math.max(cycles[i], 0));
  if (!edges[steps.length])
    steps.forEach((_, k) => {
      edges[k + 1] = k + 1;
    });
  return edges;
}

// Where an axis of bytes ends: above the bound, unless all values are so far below it that nothing could be seen.
const topOf = (bound, values) => {
  const most = largest(values);
  return most > 0 && most < 0.4 * bound ? 1.25 * most : 1.08 * Math.max(bound, most);
};
