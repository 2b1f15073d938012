"""What an evaluation finds besides numbers: which classes are taken for which, and the rows with the greatest loss."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..metrics import OutputMeaning

CLASSES = 64
"""Of more classes nobody reads a matrix."""
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
    """Of one pass over test data. confusion: int64 [labels, predicted classes], where there are few classes and one
    label for each row."""

    view: OutputMeaning | None
    confusion: np.ndarray | None = None
    worst: list[Row] = field(default_factory=list)

    def update(self, first: int, batch: Sequence[np.ndarray], output: np.ndarray, losses: np.ndarray,
               labels: np.ndarray | None) -> None:
        """A batch, whose first row has the number `first`. losses: one of each row."""
        view, predicted = self.view, None
        if view is not None and output.ndim == 2 and (view.task != "classes" or view.axis in (1, -1)):
            if view.task == "classes":
                predicted = view.chosen(output)
                if labels is not None and labels.ndim == 1 and output.shape[1] <= CLASSES:
                    self._count(labels, predicted, output.shape[1])
            elif output.shape[1] == 1:
                predicted = (view.chosen(output) if view.task == "binary" else output)[:, 0]
                if view.task == "binary" and labels is not None:
                    self._count(np.reshape(labels, -1) > 0.5, predicted, 2)
        if len(losses) == len(output):
            self._keep(first, batch, losses, labels, predicted)

    def _count(self, labels: np.ndarray, predicted: np.ndarray, classes: int) -> None:
        if self.confusion is None:
            self.confusion = np.zeros((classes, classes), np.int64)
        counts = (labels >= 0) & (labels < classes)
        pairs = labels[counts].astype(np.int64) * classes + predicted[counts].astype(np.int64)
        self.confusion += np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)

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
