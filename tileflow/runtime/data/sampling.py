"""Rows drawn by weights, with replacement, and weights that follow from the labels."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...system.errors import DataError
from ...system.text import one_line
from .classes import CHUNK
from .draws import Draws


class WeightedSampler:
    """The rows of an epoch drawn with replacement, each with a probability in proportion to its weight (PyTorch's
    WeightedRandomSampler): as many as there are, by (seed, epoch) alone."""

    def __init__(self, weights: np.ndarray, seed: int) -> None:
        """weights: float64 [rows], of which one is above 0."""
        self._reached = np.cumsum(weights)
        self._seed, self._epoch = seed, 0

    def __len__(self) -> int:
        return len(self._reached)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        places = Draws(self._seed, self._epoch)(len(self)) * self._reached[-1]
        return iter(np.minimum(np.searchsorted(self._reached, places, side="right"), len(self) - 1).tolist())


def counted(labels: np.ndarray, classes: int, what: str, ignore_index: int | None = None) -> np.ndarray:
    """How often each class occurs among class numbers (DataError where these are something else); probabilities count
    in parts."""
    counts = np.zeros(classes)
    for start in range(0, len(labels), CHUNK):
        part = np.asarray(labels[start:start + CHUNK]).reshape(-1)
        part = part if ignore_index is None else part[part != ignore_index]
        if part.dtype.kind not in "biu" and not np.array_equal(part, np.trunc(part)):
            raise DataError(f"{what} takes class numbers; the labels are other numbers.")
        if part.size and not 0 <= part.min() <= part.max() < classes:
            raise DataError(f"{what} takes class numbers from 0 to {classes - 1}; the labels go from {part.min()} to "
                            f"{part.max()}.")
        counts += np.bincount(part.astype(np.int64), minlength=classes)
    return counts


def balanced(counts: np.ndarray, names: tuple[str, ...] | None) -> tuple[float, ...]:
    """Weights of classes that even out how often they occur: labels / (classes * labels of the class), scikit-learn's
    `balanced`.

    Raises:
        DataError: a class has no labels.
    """
    if not counts.all():
        missing = int(np.argmin(counts))
        called = f" ({one_line(names[missing])})" if names is not None and missing < len(names) else ""
        raise DataError("Weights by how often classes occur (balanced) need each to occur, and class "
                        f"{missing}{called} of {len(counts)} has no "
                        "rows; give the weights as numbers.")
    return tuple((counts.sum() / (len(counts) * counts)).tolist())
