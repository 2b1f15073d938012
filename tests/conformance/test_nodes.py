"""ONNX's own node tests against the table of those that pass (`nodes.txt`), which only moves upwards.

They run in `make check`, for reading them alone takes seconds; those of one operator run with

    python -m pytest "tests/conformance/test_nodes.py::test_every_case[Resize]"
"""
from __future__ import annotations

import importlib.util
from collections.abc import Iterable

import pytest
import table
from table import COMMAND, Row

ROWS = table.read()


def check(rows: Iterable[Row]) -> None:
    """What passes in the table passes, and nothing else does."""
    from cases import cases, outcome
    away = set() if importlib.util.find_spec("PIL") else {"ImageDecoder"}                # which Pillow decodes for
    found = {row.name: (row, outcome(row.name)) for row in rows if row.name in cases() and row.operator not in away}
    lost = [f"{name}: {now}" for name, (row, now) in found.items() if row.passes and now != "pass"]
    assert not lost, f"{len(lost)} cases passed before:\n" + "\n".join(lost)
    won = sorted({row.operator for row, now in found.values() if not row.passes and now == "pass"})
    assert not won, f"More cases pass than the table says. Write it anew: {COMMAND} {' '.join(won)}"


@pytest.mark.exhaustive
def test_the_table_is_of_the_installed_onnx() -> None:
    from cases import cases, version
    head = table.TABLE.read_text(encoding="utf-8").partition("\n")[0]
    if f"onnx {version()} " not in head:
        pytest.skip(f"the table is of another version of onnx ({head}); only the cases of both are compared")
    assert ROWS.keys() == cases().keys(), f"write the table anew: {COMMAND}"
    assert head.startswith(f"# {sum(r.passes for r in ROWS.values())} of {len(ROWS)} ")


def test_no_value_is_wrong_and_nothing_fails() -> None:
    """What does not pass is refused with a reason, or is listed with one (`cases.APART`)."""
    assert not [row for row in ROWS.values() if not row.passes and not row.outcome.startswith(("unsupported: ", "apart: "))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("operator", sorted({row.operator for row in ROWS.values()}))
def test_every_case(operator: str) -> None:
    check(row for row in ROWS.values() if row.operator == operator)
