"""The page of a run, and the curves of its figures."""
from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

from ..options.options import Options
from ..report.curves import Line, history_lines, standalone
from ..report.run_page import FILE, Example, RunPage, render
from ..runtime.callbacks.loggers import JSON_LOG
from ..runtime.evaluate import Evaluator
from ..runtime.findings import Finding
from ..runtime.trainer import Trainer
from ..system.errors import CheckpointError
from ..system.files import atomic_write_bytes
from ..system.reading import open_regular
from ..system.text import one_line
from ..system.version import VERSION
from .history import History

UPDATE = re.compile(rb'\{"update":(\d{1,18}),"loss":(-?[0-9.e+-]{1,30}|null),')
CLASSES = 64
"""Of more classes nobody reads a matrix."""
LARGEST = 64 << 20
"""Bytes of a log of which losses are drawn."""


class Curves(str):
    """An SVG picture, which notebooks show."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a file, all or nothing."""
        atomic_write_bytes(path, self.encode(errors="replace"))
        return Path(path)


def plotted(history: History, title: str) -> Curves:
    """The losses and accuracies of a run over its epochs."""
    return Curves(standalone(title, history_lines(_lists(history), ["loss", "test_loss", "accuracy", "test_accuracy"]),
                             "epoch"))


def _lists(history: History) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in history.items()}


def write_page(trainer: Trainer, history: History, options: Options, classes: tuple[str, ...] | None,
               reason: str) -> Path:
    """Write report.html into the run's folder."""
    run, path, evaluator = trainer.run_handle, trainer.folder / FILE, trainer.evaluator
    if trainer.test is not None:
        evaluator.find(trainer.test)                            # of the weights that the run ended with
        evaluator.close()
    findings = evaluator.findings
    updates = list(range(1, len(trainer.rates) + 1))
    names = tuple(classes or ())
    ended = "all its epochs are done" if run.stopped is None else f"it ended early: {run.stopped}"
    page = RunPage(
        title=f"Run {one_line(trainer.folder.name)}", history=_lists(history),
        said=f"{len(history['epoch'])} epochs, {run.updates:,} updates; {ended}. tileflow {VERSION}, "
             f"{time.strftime('%Y-%m-%d %H:%M')}",
        losses=_losses(trainer.folder / JSON_LOG), rates=Line("learning rate", updates, trainer.rates),
        facts=_facts(trainer, history),
        settings={"minimised": f"{trainer.model.loss_name}: {reason}", "data (SHA-256)": trainer.data_digest,
                  **{name: own for name, (_, own) in Options().diff(options).items()}}, classes=names,
        confusion=None if findings is None or findings.confusion is None or len(findings.confusion) > CLASSES
        else findings.confusion,
        worst=[] if findings is None else [_example(row, names, evaluator) for row in findings.worst])
    atomic_write_bytes(path, render(page).encode(errors="replace"), follow=False)
    return path


def _facts(trainer: Trainer, history: History) -> dict[str, str]:
    """What stands at the top."""
    found = {}
    for name in ("loss", "test_loss"):
        if len(column := history[name]) and math.isfinite(column[-1]):
            found[name.replace("_", " ")] = f"{column[-1]:.4f}"
    for name in ("accuracy", "test_accuracy"):
        if len(column := history[name]) and math.isfinite(column[-1]):
            found[name.replace("_", " ")] = f"{column[-1]:.2%}"
    seconds = sum(e.seconds for e in trainer.history)
    return found | {"training": f"{seconds:.1f} s", "rows": f"{len(trainer.train):,}"}


def _losses(log: Path) -> Line:
    """The loss of each update, from the run's log; nothing where that cannot be read."""
    xs, ys = [], []
    try:
        with open_regular(log) as file:
            for line in file.read(LARGEST).splitlines():
                if found := UPDATE.match(line):
                    xs.append(int(found[1]))
                    ys.append(_finite(found[2]))
    except (OSError, CheckpointError):
        pass
    return Line("loss", xs, ys)


def _finite(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _example(row: Finding, classes: tuple[str, ...], evaluator: Evaluator) -> Example:
    """A row in words."""
    view = None if evaluator.findings is None else evaluator.findings.view
    by_class = view is not None and view.task == "classes"

    def word(value: float | None) -> str:
        if value is None:
            return ""
        number = int(value) if by_class or value in (0, 1) else None
        if number is None:
            return f"{value:.6g}"
        return classes[number] if by_class and 0 <= number < len(classes) else str(number)
    return Example(row.number, row.loss, word(row.label), word(row.predicted), row.input)
