"""Metrics of numbers: mean absolute error, root of the mean squared error, R squared; means over the columns, as in scikit-learn."""
from __future__ import annotations

import math

import numpy as np

from .base import Metric, Part
from .view import OutputMeaning


class _Columns(Metric):
    """Base: sums for each column of the output."""

    def __init__(self, view: OutputMeaning) -> None:
        self.view, self.count = view, 0
        self.error: np.ndarray | float = 0.0

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        values, wanted = self.view.read(output.astype(np.float64), labels.astype(np.float64))
        return np.array(len(wanted), np.int64), *(self.sums(values, wanted) if len(wanted) else ())

    def add(self, *part: np.ndarray) -> None:
        count, *sums = part
        if sums:
            self.fold(int(count), *sums)
        self.count += int(count)

    def sums(self, values: np.ndarray, wanted: np.ndarray) -> Part:
        """What rows, one at least, say: the sum of errors for each column first."""
        raise NotImplementedError

    def fold(self, count: int, error: np.ndarray) -> None:
        self.error = self.error + error

    def value(self) -> float:
        return self.score() if self.count else math.nan

    def score(self) -> float:
        raise NotImplementedError


class MeanAbsoluteError(_Columns):
    """The mean of |output - target|."""

    def sums(self, values: np.ndarray, wanted: np.ndarray) -> Part:
        return (np.abs(values - wanted).sum(axis=0),)

    def score(self) -> float:
        return float(np.mean(self.error / self.count))


class RootMeanSquaredError(_Columns):
    """The root of the mean of (output - target)^2, of each column; then the mean over columns."""

    def sums(self, values: np.ndarray, wanted: np.ndarray) -> Part:
        return (((values - wanted) ** 2).sum(axis=0),)

    def score(self) -> float:
        return float(np.mean(np.sqrt(self.error / self.count)))


class R2(_Columns):
    """1 - sum (output - target)^2 / sum (target - mean target)^2, of each column; then the mean over columns.

    A column of equal targets scores 1 where it is met exactly and 0 otherwise; NaN for fewer than two rows. The spread is updated batch by
    batch about the mean so far (Chan, Golub and LeVeque), so that no digits cancel.
    """

    def __init__(self, view: OutputMeaning) -> None:
        super().__init__(view)
        self.mean: np.ndarray | float = 0.0
        self.spread: np.ndarray | float = 0.0

    def sums(self, values: np.ndarray, wanted: np.ndarray) -> Part:
        mean = wanted.mean(axis=0)
        return ((values - wanted) ** 2).sum(axis=0), mean, ((wanted - mean) ** 2).sum(axis=0)

    def fold(self, count: int, error: np.ndarray, mean: np.ndarray | float = 0.0,
             spread: np.ndarray | float = 0.0) -> None:
        super().fold(count, error)
        total, distance = self.count + count, mean - self.mean
        self.spread = self.spread + spread + distance * distance * (self.count * count / total)
        self.mean = self.mean + distance * (count / total)

    def score(self) -> float:
        if self.count < 2:
            return math.nan
        error, spread = np.asarray(self.error), np.asarray(self.spread)
        alike = np.where(error == 0, 1.0, 0.0)
        return float(np.mean(np.where(spread == 0, alike, 1.0 - error / np.where(spread == 0, 1.0, spread))))
