"""Where the rows of a call that failed hold what is no number."""
from __future__ import annotations

import numpy as np

from ..memory.tensor import kind_of
from ..system.errors import TrainingError
from ..system.text import one_line
from .data import DataLoader, Dataset
from .data.values import doubts


def not_finite(batch: tuple[np.ndarray, ...], data: Dataset, loader: DataLoader, epoch: int, row: int) -> str:
    """Where the inputs or labels of a call, which began at that row of the epoch, hold what is no number; "" where all
    are numbers."""
    names = (*(f"Input {one_line(name)}" for name in data.fields), "The label", *map(one_line, data.more))
    for name, fed in zip(names, batch, strict=False):
        if kind_of(fed.dtype) == "f" and not (finite := np.isfinite(fed)).all():
            first = np.unravel_index(int(np.argmin(finite)), fed.shape)
            what = f"of epoch {epoch + 1}"
            row += 0 if data.whole else int(first[0])
            if not loader.is_stream:
                row, what = int(loader.order(epoch)[row]), "of the data"
                row = row if data.rows is None else int(data.rows[row])
            return f"{name} holds {fed[first]} in row {row} {what}: mend that row, or leave it out."
    return ""


def with_doubts(error: TrainingError, data: Dataset) -> TrainingError:
    """The error with what in the data is no number, of which losses that are not finite may come."""
    fields = {f"Input {name}": f for name, f in data.fields.items()}
    if data.label is not None:
        fields["The label"] = data.label
    for what, f in fields.items():
        for sentence in doubts(what, f.array, data.rows, f.array.dtype):
            error.add_note(sentence)
    return error
