"""Metrics of classes and of yes-or-no columns: accuracy, top k, F1, area under the ROC curve, perplexity."""
from __future__ import annotations

import math

import numpy as np

from ..system.errors import DataError
from .base import Metric, Part
from .view import OutputMeaning, accuracy_counts, truth


class _Share(Metric):
    """Base: how many are right, of how many."""

    def __init__(self, view: OutputMeaning) -> None:
        self.view, self.right, self.all = view, 0, 0

    def add(self, *part: np.ndarray) -> None:
        right, count = part[0].tolist()
        self.right, self.all = self.right + right, self.all + count

    def value(self) -> float:
        return self.right / self.all if self.all else math.nan


class Accuracy(_Share):
    """The share of right predictions; of several yes-or-no columns, the share of rows where all are right."""

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        return (np.array(accuracy_counts(self.view, output, labels), np.int64),)


class Top(_Share):
    """The share of labels among the k classes of largest value; of equal values, later classes go first, as in scikit-learn."""

    def __init__(self, view: OutputMeaning, k: int) -> None:
        super().__init__(view)
        self.k = k

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        values, wanted = self.view.read(output, labels)
        own = np.take_along_axis(values, wanted[:, None], axis=1)
        later = np.arange(values.shape[1]) > wanted[:, None]
        ahead = np.count_nonzero((values > own) | ((values == own) & later), axis=1)
        return (np.array([np.count_nonzero(ahead < self.k), len(wanted)], np.int64),)


class Confusion:
    """Which classes are taken for which: counts, int64 [labels, classes that were chosen]."""

    def __init__(self, view: OutputMeaning) -> None:
        self.view = view
        self.counts = np.zeros((0, 0), np.int64)

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        """Of a batch: the number of classes, which pairs of label and class there are (label * classes + class), how
        often each."""
        values, wanted = self.view.read(output, labels)
        if self.view.task == "binary":
            chosen, wanted = (a.reshape(-1).astype(np.int64) for a in (self.view.chosen(values), truth(wanted)))
            classes = 2
        else:
            classes, chosen, wanted = values.shape[1], self.view.chosen(values), wanted.astype(np.int64)
        counts = np.bincount(wanted * classes + chosen, minlength=classes * classes)
        pairs = np.flatnonzero(counts)
        return np.array(classes, np.int64), pairs, counts[pairs]

    def add(self, classes: np.ndarray, pairs: np.ndarray, counts: np.ndarray) -> None:
        """The next batch has these."""
        if not self.counts.size:
            self.counts = np.zeros((int(classes), int(classes)), np.int64)
        self.counts.reshape(-1)[pairs] += counts

    def update(self, output: np.ndarray, labels: np.ndarray) -> None:
        """The next batch."""
        self.add(*self.part(output, labels))


class F1(Metric):
    """2 TP / (2 TP + FP + FN), 0 where nothing is predicted and nothing there.

    average: binary (class 1 of two, or the only column), macro (the mean over classes that occur or are predicted, or over columns),
    weighted (by how often each occurs), micro (of all counts together), or "" for binary where there are two classes and macro otherwise.
    """

    def __init__(self, view: OutputMeaning, average: str) -> None:
        self.view, self.average = view, average
        self.hits = self.predicted = self.there = np.zeros(0, np.int64)

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        values, wanted = self.view.read(output, labels)
        chosen = self.view.chosen(values)
        if self.view.task == "binary":
            wanted = truth(wanted)
            counts = [np.count_nonzero(x, axis=0) for x in (chosen & wanted, chosen, wanted)]
        else:
            classes = values.shape[1]
            counts = [np.bincount(x, minlength=classes) for x in (wanted[chosen == wanted], chosen, wanted)]
        return (np.array(counts, np.int64),)

    def add(self, *part: np.ndarray) -> None:
        counts = part[0]
        if not self.hits.size:
            self.hits, self.predicted, self.there = np.zeros_like(counts)
        self.hits, self.predicted, self.there = self.hits + counts[0], self.predicted + counts[1], self.there + counts[2]

    def value(self) -> float:
        if not self.hits.size:
            return math.nan
        one = self.view.task == "binary" and len(self.hits) == 1
        two = self.view.task == "classes" and len(self.hits) == 2
        average = self.average or ("binary" if one or two else "macro")
        each = _ratio(2.0 * self.hits, self.predicted + self.there)
        if average == "binary":
            if not (one or two):
                raise DataError(f"The metric f1_binary is for two classes; there are {len(self.hits)}. Choose f1_macro, f1_micro or f1_weighted.")
            return float(each[-1])
        if average == "micro":
            return float(_ratio(2.0 * self.hits.sum(keepdims=True), (self.predicted + self.there).sum(keepdims=True))[0])
        if average == "weighted":
            return float(_ratio((each * self.there).sum(keepdims=True), self.there.sum(keepdims=True))[0])
        counted = np.ones(len(each), bool) if self.view.task == "binary" else self.predicted + self.there > 0
        return float(each[counted].mean()) if counted.any() else math.nan


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(len(a)), where=b != 0)


class MeanIoU(F1):
    """The mean over classes, or columns, that occur or are predicted, of TP / (TP + FP + FN): what prediction and label
    share of both together."""

    def __init__(self, view: OutputMeaning) -> None:
        super().__init__(view, "macro")

    def value(self) -> float:
        both = self.predicted + self.there - self.hits
        return float(np.mean(self.hits[both > 0] / both[both > 0])) if both.any() else math.nan


class Auc(Metric):
    """The probability that a row of a class has a larger value for it than a row of another one; equal values count half.

    Two classes or one column: of class 1. Several: the mean over classes, each against the rest, of probabilities. Several columns: their
    mean. NaN where a class has no row or all. Needs 8 bytes of memory per row and class.
    """

    def __init__(self, view: OutputMeaning) -> None:
        self.view = view
        self.values: list[np.ndarray] = []
        self.wanted: list[np.ndarray] = []

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        values, wanted = self.view.read(output, labels)
        if self.view.task == "binary":
            return values.astype(np.float64), truth(wanted)
        return self.view.probabilities(values), wanted

    def add(self, *part: np.ndarray) -> None:
        self.values.append(part[0])
        self.wanted.append(part[1])

    @property
    def held(self) -> int:
        """Bytes of what is kept."""
        return sum(a.nbytes for a in [*self.values, *self.wanted])

    def value(self) -> float:
        if not self.values:
            return math.nan
        values, wanted = np.concatenate(self.values), np.concatenate(self.wanted)
        if self.view.task == "binary":
            return float(np.mean([area(values[:, i], wanted[:, i]) for i in range(values.shape[1])]))
        if values.shape[1] == 2:
            return area(values[:, 1], wanted == 1)
        return float(np.mean([area(values[:, c], wanted == c) for c in range(values.shape[1])]))


def area(values: np.ndarray, yes: np.ndarray) -> float:
    """The area under the ROC curve by the rank statistic, exact up to one division; NaN where all rows are alike."""
    positives = int(np.count_nonzero(yes))
    negatives = len(yes) - positives
    if not positives or not negatives or np.isnan(values).any():
        return math.nan
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ours = np.bincount(group, weights=yes, minlength=len(sizes)).astype(np.int64)
    others = sizes - ours
    below = np.cumsum(others) - others
    return int(np.sum(ours * (2 * below + others))) / (2 * positives * negatives)


class Perplexity(Metric):
    """e to the mean of -log(probability of the label)."""

    def __init__(self, view: OutputMeaning) -> None:
        self.view, self.total, self.all = view, 0.0, 0

    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        values, wanted = self.view.read(output, labels)
        picked = np.take_along_axis(self.view.log_probabilities(values), wanted[:, None], axis=1)
        return picked.sum(), np.array(len(wanted), np.int64)

    def add(self, *part: np.ndarray) -> None:
        self.total -= float(part[0])
        self.all += int(part[1])

    def value(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(self.total / self.all)) if self.all else math.nan
