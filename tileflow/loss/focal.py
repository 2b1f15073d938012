"""The focal loss: cross entropy that counts less where the model is sure already (Lin et al., 2017, equation 5)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..options.options import Options
from .base import Loss, class_weights
from .classes import ClassLoss

if TYPE_CHECKING:
    from ..graph import Builder, Value


@dataclass(frozen=True)
class FocalLoss(ClassLoss):
    """(1 - p)^gamma times -log p of each label's class; the mean is over the labels that count, each with its class's
    weight (the paper's alpha)."""

    name: str = "focal"
    gamma: float = 2.0

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return self._mean(b, outputs[0])

    def _each(self, b: Builder, output: Value) -> tuple[Value, Value | float]:
        scores, labels, weights, logs = self._operands(b, output)
        each = self._loss(b, scores, labels, None, logs, reduction="none")
        weight = self._weight(b, labels, weights, each)
        unsure = b.Max(b.Sub(b.scalar(1.0, each), b.Exp(b.Neg(each))),
                       b.scalar(1e-6, each))         # whose power has a gradient everywhere
        each = b.Mul(b.Pow(unsure, b.scalar(self.gamma, each)), each)
        return (each if isinstance(weight, float) else b.Mul(each, weight)), weight

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"gamma": self.gamma}


def focal(o: Options) -> Loss:
    """Mean focal loss of scores."""
    return FocalLoss("focal", False, o.ignore_index, class_weights(o), 0.0, o.class_axis, o.focal_gamma)
