// Click a column's head to sort the operators by it; type into the field to filter them.
const table = document.querySelector("table.ops"), body = table.tBodies[0], rows = [...body.rows];

table.tHead.addEventListener("click", event => {
  const head = event.target.closest("th");
  if (!head) return;
  const direction = head.dataset.direction === "-1" ? 1 : -1, column = head.cellIndex;
  for (const cell of table.tHead.rows[0].cells) delete cell.dataset.direction;
  head.dataset.direction = direction;
  const key = row => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  rows.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * direction);
  body.append(...rows);
});

document.querySelector("input[type=search]").addEventListener("input", event => {
  const words = event.target.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
});
