"""Metrics of numbers: mean absolute error, root of the mean squared error, R squared; means over the columns, as in scikit-learn."""
from __future__ import annotations

import math

import numpy as np

from .view import OutputMeaning


class _Columns:
    """Base: sums for each column of the output."""

    def __init__(self, view: OutputMeaning) -> None:
        self.view, self.count = view, 0
        self.error: np.ndarray | float = 0.0

    def update(self, output: np.ndarray, labels: np.ndarray) -> None:
        values, wanted = self.view.read(output.astype(np.float64), labels.astype(np.float64))
        self.add(values, wanted)
        self.count += len(wanted)

    def add(self, values: np.ndarray, wanted: np.ndarray) -> None:
        raise NotImplementedError

    def value(self) -> float:
        return self.score() if self.count else math.nan

    def score(self) -> float:
        raise NotImplementedError


class MeanAbsoluteError(_Columns):
    """The mean of |output - target|."""

    def add(self, values: np.ndarray, wanted: np.ndarray) -> None:
        self.error = self.error + np.abs(values - wanted).sum(axis=0)

    def score(self) -> float:
        return float(np.mean(self.error / self.count))


class RootMeanSquaredError(_Columns):
    """The root of the mean of (output - target)^2, of each column; then the mean over columns."""

    def add(self, values: np.ndarray, wanted: np.ndarray) -> None:
        self.error = self.error + ((values - wanted) ** 2).sum(axis=0)

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

    def add(self, values: np.ndarray, wanted: np.ndarray) -> None:
        if not len(wanted):
            return
        self.error = self.error + ((values - wanted) ** 2).sum(axis=0)
        mean = wanted.mean(axis=0)
        total, distance = self.count + len(wanted), mean - self.mean
        self.spread = self.spread + ((wanted - mean) ** 2).sum(axis=0) + distance * distance * (self.count * len(wanted) / total)
        self.mean = self.mean + distance * (len(wanted) / total)

    def score(self) -> float:
        if self.count < 2:
            return math.nan
        error, spread = np.asarray(self.error), np.asarray(self.spread)
        alike = np.where(error == 0, 1.0, 0.0)
        return float(np.mean(np.where(spread == 0, alike, 1.0 - error / np.where(spread == 0, 1.0, spread))))
