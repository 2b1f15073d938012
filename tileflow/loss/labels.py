"""What is known of a data set's labels before anything is trained: shape, range, whether they are whole or one-hot. And range checks."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..system.errors import DataError
from .base import Loss
from .classes import ClassLoss
from .numbers import NumberLoss
from .soft import SoftClassLoss

ADDS_UP = 1e-2
"""By how much probabilities, perhaps rounded ones, may miss one in all."""


@dataclass(frozen=True)
class Labels:
    """Facts about all labels.

    sample: the shape of one row's label.
    low, high: the range of the labels that count; nan where there is none.
    finite: no NaN or infinity. whole: whole numbers only.
    one_hot: the axis of a row's label along which there is one 1 and else 0, everywhere; None where there is not exactly one such axis.
    classes: names of the classes that the labels number, where they were strings.
    shares: the axes of a row's label along which numbers from 0 to 1 add up to one, everywhere.
    """

    data: str
    sample: tuple[int, ...]
    low: float
    high: float
    finite: bool
    whole: bool
    one_hot: int | None
    classes: tuple[str, ...] | None = None
    shares: tuple[int, ...] = ()

    @property
    def binary(self) -> bool:
        """All are 0 or 1."""
        return self.whole and self.low >= 0 and self.high <= 1

    def __str__(self) -> str:
        if self.classes is not None:
            return f"strings, {len(self.classes)} different one{'s' if len(self.classes) > 1 else ''}"
        if self.binary:
            return "0 and 1 only" if self.low != self.high else f"all {self.low:g}"
        return f"{'whole numbers' if self.whole else 'numbers'} from {self.low:g} to {self.high:g}"


def facts(data: str, sample: tuple[int, ...], chunks: Iterable[np.ndarray], ignore_index: int | None = None,
          classes: tuple[str, ...] | None = None) -> Labels:
    """Look at labels [rows, *sample] chunk by chunk."""
    low, high, finite, whole = np.inf, -np.inf, True, True
    hot = {axis for axis, n in enumerate(sample) if n > 1}
    shares = set(hot)
    for chunk in chunks:
        x = np.asarray(chunk)
        if x.dtype.kind not in "biu":
            good = np.isfinite(x.astype(np.float64, copy=False))
            finite = finite and bool(good.all())
            x = x[good] if not finite else x
            whole = whole and finite and bool(np.all(x == np.trunc(x)))
        if hot:
            hot = {axis for axis in hot if finite and is_one_hot(x, axis)}
        if shares:
            in_range = finite and bool(np.all((x >= 0) & (x <= 1)))
            shares = {axis for axis in shares if in_range
                      and bool(np.all(np.abs(x.sum(axis=axis + 1, dtype=np.float64) - 1) < ADDS_UP))}
        if ignore_index is not None:
            x = x[x != ignore_index]
        if x.size:
            low, high = min(low, float(x.min())), max(high, float(x.max()))
    if low > high:
        low = high = float("nan")
    return Labels(data, sample, low, high, finite, whole, hot.pop() if len(hot) == 1 else None, classes,
                  tuple(sorted(shares)))


def is_one_hot(x: np.ndarray, axis: int) -> bool:
    """Along `axis` of each row there is one 1 and else 0."""
    ones = x == 1
    return bool(np.all(ones | (x == 0)) and np.all(np.count_nonzero(ones, axis=axis + 1) == 1))


def range_of(loss: Loss, classes: int | None) -> tuple[float, float] | None:
    """The least and the largest label that a loss takes; None: any finite number, or no labels."""
    if isinstance(loss, ClassLoss):
        assert classes is not None
        return 0, classes - 1
    return (0, 1) if isinstance(loss, SoftClassLoss) or (isinstance(loss, NumberLoss) and loss.binary) else None


def is_wrong(loss: Loss, x: np.ndarray, classes: int | None) -> np.ndarray:
    """Which labels the loss cannot take."""
    bounds = range_of(loss, classes)
    bad = ~np.isfinite(x.astype(np.float64, copy=False)) if bounds is None else ~((x >= bounds[0]) & (x <= bounds[1]))
    if isinstance(loss, ClassLoss):
        if x.dtype.kind not in "biu":
            bad |= x != np.trunc(x)
        if loss.ignore_index is not None:
            bad &= x != loss.ignore_index
    return bad


def refuse(loss: Loss, labels: Labels, classes: int | None, row: int, value: object) -> DataError:
    """The sentence for the first label that a loss cannot take."""
    start = f"Data {labels.data}: the label {value} of row {row}"
    if not isinstance(loss, ClassLoss):
        if range_of(loss, classes) is None:
            return DataError(f"{start} is no finite number; leave the row out or mend it.")
        return DataError(f"{start} is outside of 0..1, which the loss {loss.name} takes; for other numbers choose --loss mse.")
    assert classes is not None
    hint = "check the label column or the number of classes of the model"
    if labels.classes is not None:
        hint = f"the labels are {len(labels.classes)} different strings: {', '.join(labels.classes[:5])}{' ...' if len(labels.classes) > 5 else ''}"
    elif not labels.whole:
        hint = "class numbers are whole; for numbers to be predicted choose --loss mse"
    elif labels.low == 1 and labels.high == classes:
        hint = "classes are numbered from 0 and these labels from 1: subtract 1"
    elif labels.low < 0 and loss.ignore_index is None:
        hint = f"if labels of {labels.low:g} are to be left out, set ignore_index to {labels.low:g}"
    return DataError(f"{start} is outside of the model's classes 0..{classes - 1}; {hint}.")
