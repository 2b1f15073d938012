"""Whatever hooks change of a callback is in its state, or said to be of no account: else resumed runs would differ."""
from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from tileflow import callbacks
from tileflow.callbacks import Callback
from tileflow.runtime.callbacks.metrics_file import MetricsFile
from tileflow.runtime.callbacks.plateaus import PlateauSchedules
from tileflow.runtime.callbacks.reporter import Reports
from tileflow.runtime.callbacks.statistics import StatisticsLog

GIVEN = [cls for cls in vars(callbacks).values() if isinstance(cls, type) and issubclass(cls, Callback)] + [
    MetricsFile, PlateauSchedules, Reports, StatisticsLog]
MUTATORS = {"append", "extend", "add", "update", "pop", "clear", "insert", "remove", "setdefault"}


def changed(cls: type[Callback]) -> set[str]:
    """Attributes of its own that any method but the constructor and `restore` changes."""
    found: set[str] = set()
    for one in cls.__mro__:
        if not issubclass(one, Callback) or one is Callback:
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
            if isinstance(node, ast.FunctionDef) and node.name not in ("__init__", "__post_init__", "restore"):
                found |= set(_changed_in(node))
    return found


def _changed_in(function: ast.FunctionDef) -> list[str]:
    found = []
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [t for target in node.targets
                       for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            targets = [node.func.value]
        for target in targets:
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.append(target.attr)
    return found


def forgotten(cls: type[Callback]) -> set[str]:
    """What hooks change and no checkpoint keeps."""
    kept = set(cls.remembered) | set(cls.transient)
    for one in cls.__mro__:
        if "state" in vars(one) and one is not Callback:
            kept |= {n.attr for n in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one.state))))
                     if isinstance(n, ast.Attribute)}
            assert "restore" in vars(one), f"{one.__name__} has a state that nobody restores"
    return changed(cls) - kept


@pytest.mark.parametrize("cls", GIVEN, ids=lambda cls: cls.__name__)
def test_every_callback_keeps_what_it_changes(cls: type[Callback]) -> None:
    assert forgotten(cls) == set()


class Forgets(Callback):
    def __init__(self) -> None:
        self.calls, self.seen = 0, list[int]()

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.calls += 1
        self.seen.append(batch)


class Keeps(Forgets):
    remembered = ("calls", "seen")


class HalfKept(Forgets):
    def state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def restore(self, state: Any) -> None:
        self.calls = state["calls"]


def test_one_that_forgets_is_found() -> None:
    assert forgotten(Forgets) == {"calls", "seen"}
    assert forgotten(HalfKept) == {"seen"}
    assert forgotten(Keeps) == set()


def test_the_trainer_names_no_callback() -> None:
    """It knows their base, the handle and the list of them."""
    text = Path(ROOT / "tileflow" / "runtime" / "trainer.py").read_text()
    known = {line.split()[1] for line in text.splitlines() if line.startswith("from .callbacks")}
    assert known == {".callbacks.logs", ".callbacks.run", ".callbacks.several"}
    for cls in GIVEN:
        assert cls is Callback or cls.__name__ not in text
