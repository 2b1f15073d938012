"""The table of ONNX's node tests: which pass, and why the others do not. It only moves upwards.

    python tests/conformance/table.py               # run all cases and write the table; what would move down is listed, and kept
    python tests/conformance/table.py Resize GRU    # the cases of these operators only
    python tests/conformance/table.py --lower       # down as well, say for another version of onnx
"""
from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("nodes.txt")
COMMAND = "python tests/conformance/table.py"
BLOCK = 16
"""Cases that a process runs before it reports."""


@dataclass(frozen=True)
class Row:
    """A case: its name, the operator it is about, and what comes of it ("pass", or why not)."""

    name: str
    operator: str
    outcome: str

    @property
    def passes(self) -> bool:
        return self.outcome == "pass"


def read() -> dict[str, Row]:
    """The table by name."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    rows = [Row(*line.split("  ", 2)) for line in lines if line and not line.startswith("#")]
    return {row.name: row for row in rows}


def write(rows: Iterable[Row], onnx_version: str) -> None:
    """Write the table."""
    rows = sorted(rows, key=lambda row: row.name)
    passing = sum(row.passes for row in rows)
    head = f"# {passing} of {len(rows)} node tests of onnx {onnx_version} pass. Made by: {COMMAND}\n"
    TABLE.write_text(head + "".join(f"{row.name}  {row.operator}  {row.outcome}\n" for row in rows), encoding="utf-8")


def _run(names: list[str]) -> list[Row]:
    from cases import operator_of, outcome
    return [Row(name, operator_of(name), outcome(name)) for name in names]


def main(arguments: list[str]) -> None:
    """Run the cases and write what came of them."""
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    from cases import cases, operator_of, version
    before, operators = read(), {a for a in arguments if not a.startswith("-")}
    names = sorted(n for n in cases() if not operators or operator_of(n) in operators)
    blocks = [names[i:i + BLOCK] for i in range(0, len(names), BLOCK)]
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        found = {row.name: row for rows in pool.map(_run, blocks) for row in rows}
    known = {n: row for n, row in before.items() if n in cases()}
    down = [row for n, row in found.items() if n in known and known[n].passes and not row.passes]
    up = [row for n, row in found.items() if row.passes and not (n in known and known[n].passes)]
    for row in down:
        print(f"down  {row.name}: {row.outcome}")
    if "--lower" not in arguments:
        found.update({row.name: known[row.name] for row in down})
    write((known | found).values(), version())
    print(f"{len(up)} up, {len(down)} down{'' if not down or '--lower' in arguments else ' (kept as passing)'};",
          *(f"{n} {kind}" for kind, n in Counter(row.outcome.partition(":")[0] for row in found.values()).most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])
