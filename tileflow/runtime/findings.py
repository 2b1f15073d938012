"""What an evaluation finds besides numbers: which classes are taken for which, and the rows with the greatest loss."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..metrics import Confusion, OutputMeaning

MOST_CLASSES = 1024
"""Of more classes there is no matrix."""
WORST = 24
ELEMENTS = 1 << 16
"""Of an input's row; a longer one is not kept."""


@dataclass(frozen=True)
class Row:
    """A row of the test data. label, predicted: class numbers, or numbers; input: the first input's, None where it is
    long."""

    number: int
    loss: float
    label: float | None
    predicted: float | None
    input: np.ndarray | None


@dataclass
class Findings:
    """Of one pass over test data."""

    view: OutputMeaning | None
    worst: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        of_classes = self.view is not None and self.view.task in ("classes", "binary")
        self._matrix = Confusion(self.view) if self.view is not None and of_classes else None

    @property
    def confusion(self) -> np.ndarray | None:
        """int64 [labels, predicted classes], of all labels that count; None where there are no classes, or too many."""
        return self._matrix.counts if self._matrix is not None and self._matrix.counts.size else None

    def update(self, first: int, batch: Sequence[np.ndarray], output: np.ndarray, losses: np.ndarray,
               labels: np.ndarray | None) -> None:
        """A batch, whose first row has the number `first`. losses: one of each row."""
        view, predicted = self.view, None
        if self._matrix is not None and labels is not None and (
                output.size == len(output) if self._matrix.view.task == "binary"
                else output.shape[self._matrix.view.axis] <= MOST_CLASSES):
            self._matrix.update(output, labels > 0.5 if self._matrix.view.task == "binary" else labels)
        if labels is not None and labels.shape == output.shape and view is not None and view.task == "classes":
            labels = labels.argmax(axis=view.axis)
        if view is not None and output.ndim == 2 and (view.task != "classes" or view.axis in (1, -1)):
            if view.task == "classes":
                predicted = view.chosen(output)
            elif output.shape[1] == 1:
                predicted = (view.chosen(output) if view.task == "binary" else output)[:, 0]
        if len(losses) == len(output):
            self._keep(first, batch, losses, labels, predicted)

    def _keep(self, first: int, batch: Sequence[np.ndarray], losses: np.ndarray, labels: np.ndarray | None,
              predicted: np.ndarray | None) -> None:
        """The worst of those that were kept and of these; of equal ones the first."""
        finite = np.where(np.isnan(losses), -np.inf, losses)
        least = self.worst[-1].loss if len(self.worst) >= WORST else -np.inf
        order = np.argsort(-finite, kind="stable")[:WORST]
        for i in order[finite[order] > least]:
            small = batch[0][i].size <= ELEMENTS
            self.worst.append(Row(first + int(i), float(losses[i]), _one(labels, i), _one(predicted, i),
                                  batch[0][i].copy() if small else None))
        self.worst = sorted(self.worst, key=lambda row: (-row.loss, row.number))[:WORST]


def _one(values: np.ndarray | None, i: int) -> float | None:
    """A row's number; None where it has several."""
    return float(values[i].reshape(-1)[0]) if values is not None and values[i].size == 1 else None
