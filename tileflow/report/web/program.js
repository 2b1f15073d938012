// The program as a tree: the schedule of an update, and in each run the operators of its part.

VIEWS.Program = panel => {
  const r = the(),
    total = Math.max(1, r.cycles),
    parts = new Map(r.parts.map(p => [p[0], p]));
  const root = h("ul", { role: "tree", class: "tree", "aria-label": "schedule of an update", on: { keydown: key } });
  const SHOWN = 300;

  function line(words, notes, cycles) {
    return h(
      "span",
      { class: "line" },
      h("span", { class: "words" }, words),
      notes && h("span", { class: "soft" }, notes),
      h("span", { class: "number" }, !cycles ? "" : `${count(cycles)} cycles`),
      h("span", { class: "meter" }, h("i", { style: { width: 100 * Math.min(1, (cycles || 0) / total) + "%" } })),
    );
  }
  function item(words, notes, cycles, level, inner, open) {
    const group = inner && h("ul", { role: "group" });
    const found = h(
      "li",
      { role: "treeitem", tabindex: -1, "aria-level": level, "aria-expanded": inner ? "false" : null },
      h(
        "div",
        {
          class: "row",
          on: {
            click: event => {
              if (!event.target.closest("button")) {
                focus(found);
                toggle(found);
              }
            },
          },
        },
        line(words, notes, cycles),
      ),
      group,
    );
    if (inner) {
      found.fill = () => {
        group.replaceChildren(...inner(level + 1));
        found.fill = null;
      };
      if (open) toggle(found, true);
    }
    return found;
  }
  function toggle(found, open = found.getAttribute("aria-expanded") !== "true") {
    if (!found.hasAttribute("aria-expanded")) return;
    if (open && found.fill) found.fill();
    found.setAttribute("aria-expanded", open);
  }
  function operators(part) {
    return level => {
      const [, first, last] = parts.get(part),
        found = [];
      for (let i = first; i <= last && found.length < SHOWN; i++) {
        if (texts(r.steps.part[i]) === part)
          found.push(item(stepLink(i), `${texts(r.steps.role[i])}, ${texts(r.steps.partition[i])}`, r.steps.cycles[i], level, null));
      }
      if (last - first + 1 > SHOWN)
        found.push(
          item(
            link(`${count(last - first + 1 - SHOWN)} operators more`, () => go("operators", { text: part })),
            "",
            null,
            level,
            null,
          ),
        );
      return found;
    };
  }
  const LONGEST = 400;
  function branch(step, level) {
    const words = !step.part ? step.words : step.part.startsWith(step.words) ? step.part : `${step.words} ${step.part}`;
    const inner = step.steps.length
      ? deeper => step.steps.slice(0, LONGEST).map(one => branch(one, deeper))
      : step.part && parts.has(step.part)
        ? operators(step.part)
        : null;
    return item(words, step.notes, step.cycles, level, inner, level < 2 && step.steps.length > 0 && step.steps.length < 40);
  }
  function focus(found) {
    for (const one of root.querySelectorAll("[tabindex='0']")) one.tabIndex = -1;
    found.tabIndex = 0;
    found.focus();
  }
  function key(event) {
    const at = event.target.closest("[role=treeitem]");
    if (!at || event.target !== at) return;
    const seen = [...root.querySelectorAll("[role=treeitem]")].filter(one => one.offsetParent !== null),
      k = seen.indexOf(at),
      open = at.getAttribute("aria-expanded");
    if (event.key === "ArrowDown") focus(seen[Math.min(seen.length - 1, k + 1)]);
    else if (event.key === "ArrowUp") focus(seen[Math.max(0, k - 1)]);
    else if (event.key === "Home") focus(seen[0]);
    else if (event.key === "End") focus(seen[seen.length - 1]);
    else if (event.key === "ArrowRight") {
      if (open === "false") toggle(at, true);
      else if (open === "true" && k + 1 < seen.length) focus(seen[k + 1]);
    } else if (event.key === "ArrowLeft") {
      if (open === "true") toggle(at, false);
      else {
        const up = at.parentElement.closest("[role=treeitem]");
        if (up) focus(up);
      }
    } else if (event.key === "Enter" || event.key === " ") {
      const inner = at.querySelector(":scope > .row button");
      if (inner) inner.click();
      else toggle(at);
    } else return;
    event.preventDefault();
  }
  root.append(...r.tree.map(step => branch(step, 1)));
  if (root.firstElementChild) root.firstElementChild.tabIndex = 0;
  panel.append(
    card(
      "Program",
      `What one ${r.unit} is made of: repeats, what runs side by side, and the parts that run. Open a run for its operators; cycles are those of one execution of the line, everything in it included.`,
      root,
    ),
  );
};
