// The page's frame: which report, which view, the keys that move between views. A view is made when it is first seen.

const TABS = Object.keys(VIEWS).filter(name => name !== "Comparison" || DATA.comparison);
const order = [
  "Comparison",
  "Summary",
  "Insights",
  "Memory",
  "Liveness",
  "Variables",
  "Program",
  "Operators",
  "Groups",
  "Balance",
  "Exchange",
  "Roofline",
  "Graph",
  "Execution",
].filter(name => TABS.includes(name));
const keyOf = name => name.toLowerCase();
const buttons = order.map(name =>
  h(
    "button",
    {
      type: "button",
      role: "tab",
      id: `tab-${keyOf(name)}`,
      "aria-controls": `panel-${keyOf(name)}`,
      "aria-selected": "false",
      tabindex: -1,
      on: { click: () => open(name) },
    },
    name,
  ),
);
const panels = order.map(name =>
  h("div", { role: "tabpanel", id: `panel-${keyOf(name)}`, "aria-labelledby": `tab-${keyOf(name)}`, tabindex: -1, hidden: true }),
);
const made = new Set();

function fill(name) {
  const panel = panels[order.indexOf(name)];
  if (made.has(name)) return;
  made.add(name);
  panel.replaceChildren();
  VIEWS[name](panel);
}
function open(name, focus = true) {
  const at = order.indexOf(name);
  state.tab = name;
  buttons.forEach((button, i) => {
    button.setAttribute("aria-selected", i === at);
    button.tabIndex = i === at ? 0 : -1;
  });
  panels.forEach((panel, i) => {
    panel.hidden = i !== at;
  });
  hideTip();
  fill(name);
  if (focus) buttons[at].focus({ preventScroll: true });
  if (location.hash.slice(1) !== keyOf(name)) history.replaceState(null, "", "#" + keyOf(name));
}
// To a view, with something picked in it: a step, a variable, a tile, or a text to filter by.
function go(key, what = {}) {
  const name = order.find(one => keyOf(one) === key);
  if (what.step !== undefined) state.step = what.step;
  if (what.variable !== undefined) state.variable = what.variable;
  if (what.tile !== undefined) {
    state.tile = what.tile;
    const i = the().memory.ipus.findIndex(one => one.number === what.ipu);
    state.ipu = i >= 0 ? i : null;
  }
  if (what.text !== undefined) {
    state.text[key] = what.text;
    state.step = null;
  }
  made.delete(name);
  open(name);
  scrollTo({ top: 0 });
}
function head() {
  const r = the();
  document.title = DATA.comparison ? DATA.comparison.title : r.title;
  const which =
    REPORTS.length < 2
      ? null
      : h(
          "div",
          { class: "which", role: "radiogroup", "aria-label": "report" },
          REPORTS.map((one, i) =>
            h(
              "label",
              {},
              h("input", { type: "radio", name: "report", checked: i === state.report, on: { change: () => choose(i) } }),
              `${"AB"[i]}: ${DATA.comparison.names[i]}`,
            ),
          ),
        );
  document.getElementById("head").replaceChildren(
    h(
      "div",
      {},
      h("h1", {}, r.title),
      h(
        "div",
        { class: "soft" },
        r.lines.map((line, i) => [i ? h("br") : "", line]),
      ),
      which,
    ),
    h("div", { class: r.fits ? "badge" : "badge bad" }, r.fits ? "fits in tile memory" : "out of tile memory"),
  );
  document.getElementById("said").replaceChildren(...r.notes.map(note => h("p", { class: "note" }, note)));
}
function choose(i) {
  Object.assign(state, { report: i, ipu: null, tile: null, tiles: [], step: null, variable: null });
  made.clear();
  head();
  open(state.tab, false);
}
const strip = h(
  "div",
  {
    role: "tablist",
    "aria-label": "views",
    class: "tabs",
    on: {
      keydown: event => {
        const at = order.indexOf(state.tab),
          next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: order.length - 1 }[event.key];
        if (next === undefined) return;
        event.preventDefault();
        open(order[(next + order.length) % order.length]);
      },
    },
  },
  buttons,
);
document.getElementById("views").replaceChildren(strip, ...panels);
document.body.append(tip, status);
head();
open(order.find(name => keyOf(name) === location.hash.slice(1)) || order[0], false);
addEventListener("hashchange", () => {
  const name = order.find(one => keyOf(one) === location.hash.slice(1));
  if (name && name !== state.tab) open(name, false);
});
addEventListener("keydown", event => {
  if (event.key === "Escape") hideTip();
});
// What is printed is all views, each with what it shows first.
addEventListener("beforeprint", () => {
  panels.forEach((panel, i) => {
    panel.hidden = false;
    fill(order[i]);
  });
});
addEventListener("afterprint", () => open(state.tab, false));
