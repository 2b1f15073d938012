"""What an evaluation finds besides numbers: which classes are taken for which, and the rows with the greatest loss."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..metrics import Confusion, OutputMeaning, Part

MOST_CLASSES = 1024
"""Of more classes there is no matrix."""
WORST = 24
ELEMENTS = 1 << 16
"""Of an input's row; a longer one is not kept."""


@dataclass(frozen=True)
class Finding:
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
    worst: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        of_classes = self.view is not None and self.view.task in ("classes", "binary")
        self._matrix = Confusion(self.view) if self.view is not None and of_classes else None

    @property
    def confusion(self) -> np.ndarray | None:
        """int64 [labels, predicted classes], of all labels that count; None where there are no classes, or too many."""
        return self._matrix.counts if self._matrix is not None and self._matrix.counts.size else None

    def parts(self, batch: Sequence[np.ndarray], output: np.ndarray, losses: np.ndarray,
              labels: np.ndarray | None) -> list[Part]:
        """What a batch has to say: of the matrix, and of its worst rows. losses: one of each row."""
        view, predicted, matrix = self.view, None, Part()
        if self._matrix is not None and labels is not None and (
                output.size == len(output) if self._matrix.view.task == "binary"
                else output.shape[self._matrix.view.axis] <= MOST_CLASSES):
            matrix = self._matrix.part(output, labels > 0.5 if self._matrix.view.task == "binary" else labels)
        if labels is not None and labels.shape == output.shape and view is not None and view.task == "classes":
            labels = labels.argmax(axis=view.axis)
        if view is not None and output.ndim == 2 and (view.task != "classes" or view.axis in (1, -1)):
            if view.task == "classes":
                predicted = view.chosen(output)
            elif output.shape[1] == 1:
                predicted = (view.chosen(output) if view.task == "binary" else output)[:, 0]
        return [matrix, self._worst(batch, losses, labels, predicted) if len(losses) == len(output) else Part()]

    def _worst(self, batch: Sequence[np.ndarray], losses: np.ndarray, labels: np.ndarray | None,
               predicted: np.ndarray | None) -> Part:
        """The worst of a batch that may be among the worst of all: their places, losses, labels, predictions and, where
        short, inputs."""
        finite = np.where(np.isnan(losses), -np.inf, losses)
        order = np.argsort(-finite, kind="stable")[:WORST]
        order = order[finite[order] > self._least]
        kept = batch[0][order] if batch[0][:1].size <= ELEMENTS else batch[0][:0]
        return order, losses[order], _ones(labels, order), _ones(predicted, order), kept

    @property
    def _least(self) -> float:
        """What a loss must be greater than to be among the worst."""
        return self.worst[-1].loss if len(self.worst) >= WORST else -np.inf

    def add(self, first: int, parts: Sequence[Part]) -> None:
        """The next batch, whose first row has the number `first`, has these parts; of equal losses the first stay."""
        matrix, worst = parts
        if matrix and self._matrix is not None:
            self._matrix.add(*matrix)
        if not worst:
            return
        places, losses, labels, predicted, kept = worst
        least = self._least
        for at, (place, loss) in enumerate(zip(places.tolist(), losses.tolist(), strict=True)):
            if loss > least:
                self.worst.append(Finding(first + place, loss, _told(labels, at), _told(predicted, at),
                                          kept[at].copy() if len(kept) else None))
        self.worst = sorted(self.worst, key=lambda row: (-row.loss, row.number))[:WORST]


def _ones(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray:
    """A number of each of these rows, float64; empty where there is none, or rows have several."""
    return np.zeros(0) if values is None or values[:1].size != 1 else values[rows].reshape(-1).astype(np.float64)


def _told(numbers: np.ndarray, at: int) -> float | None:
    return float(numbers[at]) if len(numbers) else None
