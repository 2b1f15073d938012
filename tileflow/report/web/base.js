// What all views share: the data, making elements, figures as people read them, the tooltip, and what is selected.

const DATA = JSON.parse(document.getElementById("data").textContent);
const REPORTS = DATA.reports;
const state = { report: 0, ipu: null, tile: null, tiles: [], step: null, variable: null, text: {}, group: null };
const the = () => REPORTS[state.report];
const texts = number => the().texts[number];

// An element: attributes, `on` for events, `style` by properties (never as text), then its inner elements and texts. Names out of models only ever become texts.
function make(namespace, tag, attributes, inner) {
  const element = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const one of inner.flat(Infinity)) if (one !== null && one !== undefined && one !== false) element.append(one);
  return element;
}
const h = (tag, attributes, ...inner) => make(null, tag, attributes, inner);
const s = (tag, attributes, ...inner) => make("http://www.w3.org/2000/svg", tag, attributes, inner);

const count = n => Math.round(n).toLocaleString("en-US");
const percent = share => (100 * share).toFixed(1) + " %";
function scaled(n, base, units, digits) {
  let i = 0;
  while (Math.abs(n) >= base && i < units.length - 1) {
    n /= base;
    i++;
  }
  return (i ? digits(n) : String(Math.round(n * 100) / 100)) + units[i];
}
const short = n =>
  n && Math.abs(n) < 0.01
    ? n.toFixed(Math.min(20, 2 - Math.floor(Math.log10(Math.abs(n)))))
    : scaled(n, 1000, ["", " k", " M", " G", " T", " P"], v => String(Number(v.toPrecision(3))));
const size = n => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], v => v.toFixed(1));
const axisSize = n => size(n).replace(".0 ", " ");
const duration = t => {
  const [unit, many] = t >= 1 || t === 0 ? ["s", 1] : t >= 1e-3 ? ["ms", 1e3] : t >= 1e-6 ? ["µs", 1e6] : ["ns", 1e9];
  return Number((t * many).toPrecision(4)) + " " + unit;
};
// A range of energy, with the unit that suits its end: 17.4 to 208 mJ.
const joules = (least, most) => {
  const [unit, many] = most >= 1 ? ["J", 1] : most >= 1e-3 ? ["mJ", 1e3] : most >= 1e-6 ? ["µJ", 1e6] : ["nJ", 1e9];
  const [low, high] = [least, most].map(v => String(Number((v * many).toPrecision(3))));
  return (low === high ? low : low + " to " + high) + " " + unit;
};
// Whether words on a colour are dark or light: a class of the style.
const inkOn = colour => {
  const [red, green, blue] = [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16));
  return colour[0] === "#" ? (0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "dark" : "light") : "plain";
};
const sum = values => values.reduce((a, b) => a + b, 0);
const largest = values => {
  let most = 0;
  for (const v of values) if (v > most) most = v;
  return most;
};

// Patterns in a colour's own ink, by number, for readers who do not tell colours apart: as CSS layers them, and as paths of
// squares of 6 with their width.
const lines = (angle, wide, every) => ink => `repeating-linear-gradient(${angle}deg, ${ink} 0 ${wide}px, transparent ${wide}px ${every}px)`;
const UP = "M0,6L6,0M-1,1L1,-1M5,7L7,5",
  DOWN = "M0,0L6,6M-1,5L1,7M5,-1L7,1";
const PATTERNS = [
  [[], "", 0],
  [[lines(135, 1.2, 4)], UP, 1.2],
  [[lines(45, 1.2, 4)], DOWN, 1.2],
  [[lines(0, 1.2, 4)], "M0,3H6", 1.2],
  [[lines(90, 1.2, 4)], "M3,0V6", 1.2],
  [[lines(135, 1.2, 4), lines(45, 1.2, 4)], UP + DOWN, 1.2],
  [[ink => `radial-gradient(${ink} 1.2px, transparent 1.4px) 0 0/4px 4px`], "M3,3h.01", 2.6],
  [[lines(0, 1.2, 4), lines(90, 1.2, 4)], "M0,3H6M3,0V6", 1.2],
  [[lines(135, 3, 6)], UP, 3],
];
const patternOf = colour => (colour[0] === "#" ? (DATA.patterns[colour] ?? parseInt(colour.slice(1), 16) % PATTERNS.length) : 0);
const patternInk = colour => (inkOn(colour) === "dark" ? "#0000005a" : "#ffffff70");
const background = colour => [...PATTERNS[patternOf(colour)][0].map(layer => layer(patternInk(colour))), colour].join(", ");
const painted = s("defs", {});
document.body.append(s("svg", { class: "unseen", "aria-hidden": "true" }, painted));
// What fills a shape with a colour and its pattern.
function paint(colour) {
  const [, path, width] = PATTERNS[patternOf(colour)];
  if (!path) return colour;
  const id = "paint-" + colour.slice(1);
  if (!document.getElementById(id))
    painted.append(
      s(
        "pattern",
        { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
        s("rect", { width: 6, height: 6, fill: colour }),
        s("path", { d: path, stroke: patternInk(colour), "stroke-width": width, "stroke-linecap": "round", fill: "none" }),
      ),
    );
  return `url(#${id})`;
}
const dot = colour => h("i", { class: "dot", style: { background: background(colour) } });
const card = (title, words, ...inner) =>
  h("section", { class: "card" }, title && h("h2", {}, title), words && h("p", { class: "soft" }, words), inner);
const legend = items =>
  h(
    "div",
    { class: "legend" },
    items.map(([colour, words]) => h("span", {}, colour && dot(colour), words)),
  );
function plain(columns, rows, left = 1) {
  const cell = (tag, value, i) => h(tag, { class: i < left ? "l" : null, scope: tag === "th" ? "col" : null }, value);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "plain" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c, i) => cell("th", c, i)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(row =>
          h(
            "tr",
            {},
            row.map((c, i) => cell("td", c, i)),
          ),
        ),
      ),
    ),
  );
}
// One bar of [colour, share, words, label]; the words are a tooltip and are read out, the label stands in it where there is room.
function bar(pieces, cls = "bar") {
  return h(
    "span",
    {
      class: cls,
      role: "img",
      "aria-label": pieces
        .filter(p => p[1] > 0)
        .map(p => p[2])
        .join(", "),
    },
    pieces
      .filter(p => p[1] > 0)
      .map(([colour, share, words, label]) =>
        h("i", { title: words, class: inkOn(colour), style: { background: background(colour), width: 100 * share + "%" } }, label && share > 0.08 ? label : null),
      ),
  );
}

const tip = h("div", { id: "tip", hidden: true });
function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, i) => h(i ? "div" : "b", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(),
    x = event.clientX + 14,
    y = event.clientY + 14;
  tip.style.left = Math.max(4, x + box.width > innerWidth ? event.clientX - box.width - 12 : x) + "px";
  tip.style.top = Math.max(4, y + box.height > innerHeight ? event.clientY - box.height - 12 : y) + "px";
}
const hideTip = () => {
  tip.hidden = true;
};
const status = h("div", { class: "unseen", role: "status", "aria-live": "polite" });
const say = words => {
  status.textContent = words;
};

// Elements per tile of a variable, as an array of bytes.
function perTile(variables, spreads, number) {
  const runs = spreads[variables.spread[number]],
    each = variables.each[number],
    found = [];
  for (let i = 0; i < runs.length; i += 2) for (let k = 0; k < runs[i]; k++) found.push(runs[i + 1] * each);
  return found;
}
function elementsAt(runs, tile) {
  for (let i = 0, at = 0; i < runs.length; i += 2) {
    at += runs[i];
    if (tile < at) return runs[i + 1];
  }
  return 0;
}
const onTile = (variables, spreads, number, tile) => elementsAt(spreads[variables.spread[number]], tile) * variables.each[number];
// Bytes on one tile of any variable, by its number: each spread is looked at once.
function onTileOf(tile) {
  const r = the(),
    v = r.variables,
    known = new Map();
  return number => {
    const spread = v.spread[number];
    if (!known.has(spread)) known.set(spread, elementsAt(r.spreads[spread], tile));
    return known.get(spread) * v.each[number];
  };
}
// Whether a step is in one of the stays: first and last steps, again and again.
function there(stays, step) {
  for (let i = 0; i < stays.length; i += 2) if (stays[i] <= step && step <= stays[i + 1]) return true;
  return false;
}
// The variables that count on an IPU at a step; -1: those that are always there. One that hands its memory on at a step does not count in it.
function liveAt(ipu, step) {
  const v = the().variables,
    found = [];
  for (let i = 0; i < v.name.length; i++) {
    if (ipu >= 0 && v.ipu[i] !== ipu) continue;
    if (v.birth[i] < 0 || (there(v.stays[i], step) && !(v.heir[i] >= 0 && v.death[i] === step))) found.push(i);
  }
  return found;
}
const lifetime = (v, i) =>
  v.birth[i] < 0
    ? "always"
    : v.stays[i].length > 2
      ? `steps ${v.stays[i].map(count).reduce((a, n, k) => a + (k % 2 ? " to " : ", ") + n)}`
      : v.birth[i] === v.death[i]
        ? `step ${count(v.birth[i])}`
        : `steps ${count(v.birth[i])} to ${count(v.death[i])}`;
const stepName = i => (i < 0 ? "always" : texts(the().steps.name[i]));
const link = (words, act) => h("button", { class: "link", type: "button", on: { click: act } }, words);
// A name that keeps its end where there is no room for all of it: that is where it differs from others.
const ending = name => h("bdi", { dir: "ltr" }, name);
// A column of such names.
const ofNames = (name, width, value) => ({ name, width, left: true, value, show: i => ending(value(i)), title: value });
const stepLink = i => (i < 0 ? "always" : link(ending(stepName(i)), () => go("operators", { step: i })));
const variableLink = i => link(ending(texts(the().variables.name[i])), () => go("variables", { variable: i }));

// The views by name, each a function that fills its panel from the report that is chosen.
const VIEWS = {};
