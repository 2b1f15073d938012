// What stands out, as tables whose rows open what they name.

VIEWS.Insights = panel => {
  for (const found of the().insights) {
    const left = i => !found.rows.every(row => /^[\d,.]+( ?(%|×|[KMGT]?i?B))?$/.test(row.cells[i])) || i === 0;
    const rows = found.rows.map(row =>
      h(
        "tr",
        {},
        row.cells.map((cell, i) =>
          h("td", { class: left(i) ? "l" : null }, i === 0 && row.goto ? link(cell, () => go(row.goto[0], row.goto[1])) : cell),
        ),
        h(
          "td",
          { class: "share" },
          h(
            "div",
            { class: "meter" },
            h("i", { class: row.share > 1 ? "bad" : null, style: { width: 100 * Math.min(1, row.share) + "%" } }),
          ),
        ),
      ),
    );
    panel.append(
      card(
        found.title,
        found.text,
        h(
          "div",
          { class: "scroll" },
          h(
            "table",
            { class: "plain insight" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                found.columns.map((c, i) => h("th", { scope: "col", class: left(i) ? "l" : null }, c)),
                h("td", {}),
              ),
            ),
            h("tbody", {}, rows),
          ),
        ),
      ),
    );
  }
};
