"""The notebook of examples/: its cells run in their order, in one namespace, and the last expression of each is a value
that a notebook can show."""
from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    """The code of a notebook's cells."""
    found = json.loads(path.read_text("utf-8"))
    assert found["nbformat"] == 4
    return ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]


def run(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The names that the cells leave, and what each shows (None: nothing)."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, text in enumerate(cells(path), 1):
        body = ast.parse(text).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"{path.name}, code cell {number}", "exec"), names)
        shown.append(None if last is None
                     else eval(compile(ast.Expression(last.value), f"{path.name}, code cell {number}", "eval"), names))
    return names, shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_is_stored_without_what_it_showed(path: Path) -> None:
    """Outputs would be of another day; code compiles."""
    found = json.loads(path.read_text("utf-8"))
    assert not [cell for cell in found["cells"] if cell.get("outputs") or cell.get("execution_count")]
    assert all(compile(text, path.name, "exec") for text in cells(path))


@pytest.mark.exhaustive
def test_the_first_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, shown = run(ROOT / "examples" / "first.ipynb")
    accuracies, plot, shape, loss, (cycles, peak) = (x for x in shown if x is not None)
    assert accuracies[-1] > 0.9
    assert plot._repr_svg_().startswith("<svg")
    assert shape == (4, 10)
    assert np.isfinite(loss)
    assert cycles > 0 < peak
    assert names["result"].stopped is None
    assert (tmp_path / "runs/notebook/report.html").exists()
