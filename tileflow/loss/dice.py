"""The dice loss of segmentation: 1 less twice what prediction and label share, over what both are (Milletari et al.,
2016)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..options.options import Options
from .base import LABELS, Loss, RowLosses, class_weights
from .classes import ClassLoss
from .head import head_of
from .numbers import NumberLoss

if TYPE_CHECKING:
    from ..graph import Builder, Value

SMOOTH = 1e-5
"""Added above and below the fraction's line: a class that is nowhere, and predicted nowhere, is right."""


@dataclass(frozen=True)
class DiceLoss(ClassLoss):
    """1 - (2 sum p t + s) / (sum p + sum t + s) over the places of a row, for each class the softmax's p and its share
    t in the labels; then the mean over classes, by their weights, and over rows. Places whose label is the ignore_index
    do not count."""

    name: str = "dice"

    least_classes = 2
    """One column is of yes and no."""

    @property
    def has_rows(self) -> bool:
        return True

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return b.ReduceMean(self.rows(b, outputs).total, keepdims=0)

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses:
        output = outputs[0]
        self.check_weights(output.type)
        axis, count = self.axis(output.type), output.shape[0]
        scores, logs = self._scores(b, output, axis)
        labels = b.input(LABELS, self.label_type([output.type]))
        rank, classes, places = output.type.rank, output.shape[axis], labels.type.size // max(1, count)
        likely = b.Exp(scores) if logs else b.Softmax(scores, axis=axis)
        column = b.Reshape(labels, shape=(*output.shape[:axis], 1, *output.shape[axis + 1:]), allowzero=1)
        numbers = b.constant(np.arange(classes).reshape([classes if i == axis else 1 for i in range(rank)]))
        one, zero = b.scalar(1.0, likely), b.scalar(0.0, likely)
        truth = b.Where(b.Equal(column, numbers), one, zero)
        if self.ignore_index is not None:
            likely = b.Where(b.Equal(column, b.constant(np.array(self.ignore_index))), zero, likely)
            truth = b.Where(b.Equal(column, b.constant(np.array(self.ignore_index))), zero, truth)
        if axis == 1:
            shape, along = (count, classes, places), 2
        else:
            shape, along = (count, places, classes), 1
        each = _dice(b, b.Reshape(likely, shape=shape, allowzero=1), b.Reshape(truth, shape=shape, allowzero=1), along)
        weights = np.array(self.class_weights or [1.0] * classes)
        each = b.Mul(each, b.constant((weights / weights.sum()).astype(each.type.numpy)))
        return RowLosses(b.ReduceSum(each, axes=(1,), keepdims=0), 1.0)

    def for_like_labels(self) -> Loss:
        return BinaryDiceLoss()


@dataclass(frozen=True)
class BinaryDiceLoss(NumberLoss):
    """The same of one column of yes and no, or of several, by the sigmoid of the scores; over all places of a row
    together."""

    name: str = "dice"
    operator: str = "Sigmoid"
    scores_operator: str = "Sigmoid"

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return b.ReduceMean(self.rows(b, outputs).total, keepdims=0)

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses:
        output = outputs[0]
        head, targets = head_of(output), b.input(LABELS, output.type)
        likely = output if head is not None and head.kind == "sigmoid" else b.Sigmoid(output)
        shape = (output.shape[0], output.type.size // max(1, output.shape[0]))
        return RowLosses(_dice(b, b.Reshape(likely, shape=shape, allowzero=1),
                               b.Reshape(targets, shape=shape, allowzero=1), 1), 1.0)


def _dice(b: Builder, likely: Value, truth: Value, along: int) -> Value:
    """1 - (2 sum p t + s) / (sum p + sum t + s) along an axis, in float32 at least."""
    likely, truth = b.widened(likely), b.widened(truth)

    def total(x: Value) -> Value:
        return b.ReduceSum(x, axes=(along,), keepdims=0)
    smooth = b.scalar(SMOOTH, likely)
    shared = b.Mul(total(b.Mul(likely, truth)), b.scalar(2.0, likely))
    return b.Sub(b.scalar(1.0, likely), b.Div(b.Add(shared, smooth), b.Add(b.Add(total(likely), total(truth)), smooth)))


def dice(o: Options) -> Loss:
    """Mean dice loss."""
    return DiceLoss("dice", False, o.ignore_index, class_weights(o), 0.0, o.class_axis)
