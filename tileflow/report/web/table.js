// A table of any length: only the rows that are seen exist. Heads sort, arrows move the row that is current, Enter picks it.

const ROW = 30;
let tables = 0;

// columns: { name, width (pixels), left, value(i): what it sorts by, show(i): what stands there, title(i) }. count: rows. start: [column, direction].
// pick(i): a row was picked. words(i): what a filter searches.
function bigTable({ label, columns, count: rows, start, pick, words, height = 460, current = null }) {
  const id = `t${tables++}`,
    body = h("tbody", {});
  let order = Array.from({ length: rows }, (_, i) => i),
    sorted = start || null,
    cursor = -1,
    chosen = current,
    search = "",
    keep = null;
  const heads = columns.map((c, k) =>
    h(
      "th",
      { class: c.left ? "l" : null, scope: "col", role: "columnheader", "aria-sort": "none" },
      h("button", { type: "button", class: "sort", title: c.help, on: { click: () => sortBy(k) } }, c.name),
    ),
  );
  const table = h(
    "table",
    { class: "rows", role: "presentation" },
    h(
      "colgroup",
      {},
      columns.map(c => h("col", { style: { width: c.width + "px" } })),
    ),
    h("thead", {}, h("tr", { role: "row" }, heads)),
    body,
  );
  table.style.minWidth = columns.reduce((a, c) => a + c.width, 0) + "px";
  const box = h(
    "div",
    {
      class: "big",
      role: "grid",
      tabindex: 0,
      "aria-label": label,
      style: { maxHeight: height + "px" },
      on: { scroll: draw, keydown: key },
    },
    table,
  );
  const said = h("p", { class: "soft found", role: "status" });

  function sortBy(k) {
    const first = columns[k].left ? 1 : -1;
    sorted = [k, sorted && sorted[0] === k ? -sorted[1] : first];
    arrange();
  }
  function arrange() {
    order = [];
    const wanted = search.toLowerCase().split(/\s+/).filter(Boolean);
    for (let i = 0; i < rows; i++) {
      if (keep && !keep(i)) continue;
      if (wanted.length) {
        const text = words(i).toLowerCase();
        if (!wanted.every(w => text.includes(w))) continue;
      }
      order.push(i);
    }
    if (sorted) {
      const [k, direction] = sorted,
        keys = new Map(order.map(i => [i, columns[k].value(i)]));
      order.sort((a, b) => {
        const x = keys.get(a),
          y = keys.get(b);
        return x < y ? -direction : x > y ? direction : a - b;
      });
    }
    heads.forEach((head, k) =>
      head.setAttribute("aria-sort", sorted && sorted[0] === k ? (sorted[1] > 0 ? "ascending" : "descending") : "none"),
    );
    cursor = chosen === null ? -1 : order.indexOf(chosen);
    box.setAttribute("aria-rowcount", order.length + 1);
    said.textContent = order.length === rows ? `${count(rows)} rows` : `${count(order.length)} of ${count(rows)} rows`;
    box.scrollTop = 0;
    draw();
  }
  function draw(everything) {
    const all = everything === true,
      seen = Math.ceil((box.clientHeight || height) / ROW);
    const from = all ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW) - 8),
      to = Math.min(order.length, all ? 200 : from + seen + 16);
    const gap = n =>
      n > 0 && h("tr", { "aria-hidden": "true", class: "gap" }, h("td", { colspan: columns.length, style: { height: n * ROW + "px" } }));
    const lines = order.slice(from, to).map((i, k) =>
      h(
        "tr",
        {
          id: `${id}-${i}`,
          role: "row",
          "aria-rowindex": from + k + 2,
          "aria-selected": i === chosen ? "true" : "false",
          class: from + k === cursor ? "at" : null,
          "data-row": i,
          on: { click: () => choose(from + k) },
        },
        columns.map(c =>
          h("td", { class: c.left ? "l" : null, role: "gridcell", title: c.title ? c.title(i) : null }, c.show ? c.show(i) : c.value(i)),
        ),
      ),
    );
    body.replaceChildren(...[gap(from), ...lines, gap(all ? 0 : order.length - to)].filter(Boolean));
    if (cursor >= from && cursor < to) box.setAttribute("aria-activedescendant", `${id}-${order[cursor]}`);
    else box.removeAttribute("aria-activedescendant");
  }
  function reveal() {
    const top = cursor * ROW,
      room = box.clientHeight - ROW - 6;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top > box.scrollTop + room - ROW) box.scrollTop = top - room + ROW;
    draw();
  }
  function choose(k) {
    cursor = k;
    chosen = order[k];
    if (pick) pick(chosen);
    draw();
  }
  function key(event) {
    if (event.target !== box) return;
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 2);
    const moved = {
      ArrowDown: cursor + 1,
      ArrowUp: cursor - 1,
      PageDown: cursor + page,
      PageUp: cursor - page,
      Home: 0,
      End: order.length - 1,
    }[event.key];
    if (moved !== undefined && order.length) {
      cursor = Math.min(order.length - 1, Math.max(0, moved));
      reveal();
    } else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) choose(cursor);
    else return;
    event.preventDefault();
  }
  arrange();
  new ResizeObserver(() => draw()).observe(box);
  if (cursor >= 0) requestAnimationFrame(reveal);
  return {
    element: h("div", {}, box, said),
    grid: box,
    draw,
    filter(text, test) {
      search = text;
      keep = test || null;
      arrange();
    },
    choose(i) {
      const k = order.indexOf(i);
      if (k >= 0) {
        choose(k);
        reveal();
      }
    },
  };
}

// A field that filters a table, and fields that choose from the values of a column: choices is [[label, values, of(i)], …].
function filters(grid, name, text, choices = []) {
  const field = h("input", { type: "search", placeholder: "Filter by words", "aria-label": `Filter ${name}`, value: text || "" });
  const selects = choices.map(([label, values]) =>
    h(
      "select",
      { "aria-label": label },
      h("option", { value: "" }, label),
      values.map(v => h("option", { value: v }, v)),
    ),
  );
  const act = () => grid.filter(field.value, i => selects.every((select, k) => !select.value || choices[k][2](i) === select.value));
  field.addEventListener("input", act);
  selects.forEach(select => select.addEventListener("change", act));
  if (text) act();
  return h("div", { class: "filters" }, field, selects);
}
