"""The log of a run's gradients and weights (option `statistics`): a row per tensor in a table, and a page to choose a loss scale by sight."""
from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...optim.scaling import USED_SCALE
from ...report.statistics import Tensor, render
from ...system.errors import OptionError
from ...system.files import atomic_write_bytes
from ...system.text import one_line
from ..training_model import TrainingModel
from .appended import AppendedFile
from .logs import Logs

LOG, PAGE = "statistics.csv", "statistics.html"
COLUMNS = [f.name for f in fields(Tensor)]
AT_ONCE = 1 << 20
"""Elements that are looked at together, so that a log of large weights needs little memory."""


def figures(update: int, kind: str, name: str, array: np.ndarray, divisor: float, scale: float) -> Tensor:
    """The figures of `array / (divisor * scale)`; in float16 it would be `array / divisor`."""
    counts = dict.fromkeys(("zeros", "underflow", "subnormal", "overflow", "not_finite"), 0)
    squares, largest, smallest = 0.0, 0.0, np.inf
    exponents: dict[int, int] = {}
    flat = array.reshape(-1)
    for first in range(0, flat.size, AT_ONCE):
        scaled = np.abs(flat[first:first + AT_ONCE].astype(np.float64)) / divisor
        finite = scaled[np.isfinite(scaled)]
        some = finite[finite > 0]
        with np.errstate(over="ignore"):
            half = some.astype(np.float16)
        tiny = (half > 0) & (some < 2.0 ** -14)
        found: dict[str, Any] = {"zeros": finite.size - some.size, "underflow": np.count_nonzero(half == 0), "subnormal": np.count_nonzero(tiny),
                                 "overflow": np.count_nonzero(np.isinf(half)), "not_finite": scaled.size - finite.size}
        for what, n in found.items():
            counts[what] += int(n)
        own = some / scale
        squares += float(np.square(own).sum())
        if own.size:
            largest, smallest = max(largest, float(own.max())), min(smallest, float(own.min()))
            for e, n in zip(*np.unique(np.frexp(own)[1] - 1, return_counts=True), strict=True):
                exponents[int(e)] = exponents.get(int(e), 0) + int(n)
    return Tensor(update, kind, name, flat.size, float(np.sqrt(squares)), largest, 0.0 if smallest == np.inf else smallest, **counts,
                  loss_scale=scale if kind == "gradient" else 1.0, exponents=dict(sorted(exponents.items())))


def measured(model: TrainingModel) -> list[Tensor]:
    """The gradients of the last update that a model did and its weights after it. Within no call.

    Raises:
        OptionError: the optimizer adds gradients to its velocity, so that they are nowhere.
    """
    return list(model.source.session.turn.hold(lambda: list(_measured(model))))


def _measured(model: TrainingModel) -> Iterator[Tensor]:
    engine, session = model.engine, model.source.session
    if model.optimizer.combined:
        raise OptionError("Option statistics needs gradients by themselves, and use_combined_accum adds them to the velocity; leave one of them out.")
    scale = float(session[USED_SCALE]) if model.scaling.automatic != "off" else model.loss_scale
    post = model.program.batching.per_update if not _is_running_mean(model) else 1
    names = [s.name for s in model.program.states.values() if s.kind == "parameter"]
    update = session.updates
    for name, gradient in engine.gradients():
        if name in names:
            yield figures(update, "gradient", name, gradient, float(post), scale)
    for name in names:
        yield figures(update, "weight", name, session[name], 1.0, 1.0)


def _is_running_mean(model: TrainingModel) -> bool:
    return any(s.role == "micro_batch" for s in model.program.accumulators())


class StatisticsLog(AppendedFile):
    """Two files in a run's folder, a table and a page: the figures of every gradient and weight after every so many
    updates."""

    transient: ClassVar[tuple[str, ...]] = (*AppendedFile.transient, "newest")

    def __init__(self, every: int) -> None:
        super().__init__(LOG, ",".join(COLUMNS).encode() + b"\n")
        self.every = every
        self.newest: Sequence[Tensor] = ()
        """What was measured last."""

    def next_update(self, updates: int) -> int:
        return updates - updates % self.every + self.every

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """The gradients that are still there are those of the call's last update."""
        if self.run.updates % self.every:
            return
        self.newest = self.run.tensors = measured(self.run.model)
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for t in self.newest:
            rows.writerow([*(getattr(t, name) for name in COLUMNS[:-1]), " ".join(f"{e}:{n}" for e, n in t.exponents.items())])
        self.put(text.getvalue().encode(errors="replace"))

    def write(self) -> None:
        """Bring the rows to the disk, and draw what was measured last."""
        fresh = bool(self.waiting)
        super().write()
        if fresh and self.newest:
            title = f"Gradients and weights of {one_line(self.run.folder.name)}"
            atomic_write_bytes(self.run.folder / PAGE, render(self.newest, title).encode(), follow=False)


def read(path: Path) -> list[Tensor]:
    """The rows of a log."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> Tensor:
    kinds = {f.name: str(f.type) for f in fields(Tensor)}
    pairs = (pair.split(":") for pair in row.pop("exponents").split())
    make = {"int": int, "float": float, "str": str}
    return Tensor(**{name: make[kinds[name]](text) for name, text in row.items()}, exponents={int(e): int(n) for e, n in pairs})
