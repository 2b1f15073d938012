"""Losses whose labels are numbers beside the output's: squared and absolute errors, binary cross entropy."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ..memory.types import TensorType
from ..metrics.view import OutputMeaning
from ..options.options import Options
from .base import LABELS, Loss, RowLosses, per_row
from .head import Output, ending_of, head_of

if TYPE_CHECKING:
    from ..graph import Builder, Value


@dataclass(frozen=True)
class NumberLoss(Loss):
    """The mean over all elements of an operator's loss of output and target, both of one type and shape.

    probabilities: the operator takes probabilities; where the model ends in Sigmoid, `scores_operator` is computed from the scores before it.
    """

    name: str
    operator: str
    scores_operator: str = ""

    takes: ClassVar[Literal["numbers"]] = "numbers"

    @property
    def binary(self) -> bool:
        """The targets are probabilities, 0..1."""
        return bool(self.scores_operator)

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType:
        return outputs[0]

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return self._loss(b, outputs[0], "mean")

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses | None:
        output = outputs[0]
        if not output.type.rank:
            return None
        return RowLosses(per_row(b, self._loss(b, output, "none"), output.shape[0]), float(output.type.size // max(1, output.shape[0])))

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning:
        if not self.binary:
            return OutputMeaning("numbers")
        head = ending_of(outputs[0])
        probabilities = self.operator != self.scores_operator or (head is not None and head.kind == "sigmoid")
        return OutputMeaning("binary", "probabilities" if probabilities else "scores")

    def _loss(self, b: Builder, output: Value, reduction: str) -> Value:
        targets, operator = b.input(LABELS, output.type), self.operator
        head = head_of(output) if self.binary else None
        if head is not None and head.kind == "sigmoid":
            output, operator = head.before(b), self.scores_operator
        return getattr(b, operator)(output, targets, reduction=reduction)


@dataclass(frozen=True)
class HuberLoss(NumberLoss):
    """The mean of d^2 / 2 for d = |output - target| below delta, else of delta (d - delta / 2) (Huber, 1964; PyTorch's
    HuberLoss)."""

    delta: float = 1.0

    def _loss(self, b: Builder, output: Value, reduction: str) -> Value:
        delta, half = b.scalar(self.delta, output), b.scalar(0.5, output)
        d = b.Abs(b.Sub(output, b.input(LABELS, output.type)))
        near = b.Min(d, delta)
        each = b.Mul(near,
                     b.Sub(d,
                           b.Mul(near,
                                 half)))                  # at most delta: d * d / 2, and delta (d - delta / 2) beyond
        return each if reduction == "none" else b.ReduceMean(each, keepdims=0)


def huber(o: Options) -> Loss:
    """Mean squared error that is linear from delta on."""
    return HuberLoss("huber", "Abs", delta=o.huber_delta)


def mse(_: Options) -> Loss:
    """Mean squared error."""
    return NumberLoss("mse", "MSELoss")


def l1(_: Options) -> Loss:
    """Mean absolute error."""
    return NumberLoss("l1", "L1Loss")


def bce(_: Options) -> Loss:
    """Mean binary cross entropy of probabilities."""
    return NumberLoss("bce", "BCELoss", "BCEWithLogitsLoss")


def bce_with_logits(_: Options) -> Loss:
    """Mean binary cross entropy of scores."""
    return NumberLoss("bce_with_logits", "BCEWithLogitsLoss", "BCEWithLogitsLoss")
