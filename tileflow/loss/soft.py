"""Losses whose labels are probabilities of classes: cross entropy, and the divergence of Kullback and Leibler.
PyTorch's formulas."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ..memory.types import TensorType
from ..metrics.view import Form, OutputMeaning
from ..options.options import Options
from ..system.errors import OptionError, ShapeError
from .base import LABELS, Loss, RowLosses, class_weights, per_row
from .head import Output, ending_of, head_of

if TYPE_CHECKING:
    from ..graph import Builder, Value


@dataclass(frozen=True)
class SoftClassLoss(Loss):
    """Scores [N, C, ...] or [N, ..., C], or what a softmax makes of them, and labels t of their shape: along the axis
    of the classes they are probabilities.

    The mean over all distributions of -sum_c w_c t_c log p_c; with `divergence`, of sum_c w_c t_c (log t_c - log p_c),
    which has the same gradient and is 0 where p is t (PyTorch's `batchmean`, where there is one distribution for each
    row).

    log_probabilities: the outputs are logarithms already, unless the graph says that they are probabilities.
    """

    name: str = "soft_cross_entropy"
    divergence: bool = False
    log_probabilities: bool = False
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    class_axis: Literal[1, -1] | None = None

    takes: ClassVar[Literal["numbers"]] = "numbers"

    def axis(self, output: Value | Output) -> int:
        """The axis of the classes, 1 or more."""
        rank, head = output.type.rank, ending_of(output)
        if rank < 2:
            raise ShapeError("A loss of classes needs scores [N, C, ...] or [N, ..., C], the model's first output is "
                             f"{output.type}.")
        if rank == 2:
            return 1
        if self.class_axis is not None:
            return self.class_axis % rank
        if head is None or head.axis is None:
            raise OptionError(f"The scores and the labels are {list(output.shape[1:])} per row, so the classes may be "
                              "on axis 1 or on the last one; "
                              "set class_axis (--class-axis) to 1 or -1.")
        return head.axis

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType:
        return outputs[0]

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        each, places = self._each(b, outputs[0])
        each = b.widened(each)
        return b.Div(b.ReduceSum(each, keepdims=0), b.scalar(float(max(1, each.shape[0] * places)), each))

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses:
        each, places = self._each(b, outputs[0])
        return RowLosses(per_row(b, each, outputs[0].shape[0]), float(places))

    def _each(self, b: Builder, output: Value) -> tuple[Value, int]:
        """What each class adds to the loss, of the output's shape, and how many distributions a row has."""
        axis, head = self.axis(output), head_of(output)
        targets = b.input(LABELS, output.type)
        if head is not None and head.kind != "sigmoid":
            if head.axis != axis:
                raise ShapeError(f"The model ends in {head.function} along another axis than that of the classes, "
                                 f"{axis}, of its output "
                                 f"{output.type}; set class_axis to the axis of the classes.")
            logs = b.LogSoftmax(head.before(b), axis=axis)
        else:
            logs = output if self.log_probabilities else b.LogSoftmax(output, axis=axis)
        classes = output.shape[axis]
        if self.label_smoothing:
            share = self.label_smoothing
            targets = b.Add(b.Mul(targets, b.scalar(1 - share, output)), b.scalar(share / classes, output))
        if self.divergence:
            zero = b.scalar(0.0, output)
            positive = b.Greater(targets, zero)
            logs = b.Sub(logs, b.Log(b.Where(positive, targets, b.scalar(1.0, output))))
        each = b.Neg(b.Mul(targets, logs))
        if self.class_weights:
            if len(self.class_weights) != classes:
                raise OptionError(f"Option class_weights has {len(self.class_weights)} numbers; the model has "
                                  f"{classes} classes.")
            shape = [classes if i == axis else 1 for i in range(output.type.rank)]
            each = b.Mul(each, b.constant(np.array(self.class_weights, output.type.numpy).reshape(shape)))
        return each, output.type.size // max(1, output.shape[0] * classes)

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning:
        return OutputMeaning("classes", form_of(outputs[0], self.log_probabilities), self.axis(outputs[0]))

    def fitted(self, outputs: Sequence[Value | Output], labels: TensorType | None) -> SoftClassLoss:
        return replace(self, class_axis=-1 if self.axis(outputs[0]) > 1 else 1) if self.class_axis is None else self


def form_of(output: Value | Output, log_probabilities: bool) -> Form:
    """What an output holds for each class, which the graph says, else the loss."""
    head = ending_of(output)
    if head is None or head.kind == "sigmoid":
        return "log_probabilities" if log_probabilities else "scores"
    return "probabilities" if head.kind == "softmax" else "log_probabilities"


def soft_cross_entropy(o: Options) -> Loss:
    """Mean cross entropy of scores, for labels that are probabilities."""
    return SoftClassLoss(class_weights=class_weights(o), label_smoothing=o.label_smoothing, class_axis=o.class_axis)


def kl(o: Options) -> Loss:
    """Mean divergence of Kullback and Leibler from the model's distribution to that of the labels."""
    return SoftClassLoss("kl", True, class_weights=class_weights(o), label_smoothing=o.label_smoothing,
                         class_axis=o.class_axis)
