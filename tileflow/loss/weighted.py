"""A loss whose rows have weights, and several losses of several outputs as one."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..memory.types import TensorType
from ..metrics.view import OutputMeaning
from .base import Loss, RowLosses, Takes

if TYPE_CHECKING:
    from ..graph import Builder, Value
    from .head import Output

WEIGHTS = "sample_weight"
"""Name of the input with the rows' weights, of the array that they come from, and of the option that names another
one."""


@dataclass(frozen=True)
class WeightedLoss(Loss):
    """The sum of weight times loss of each row, over what the loss divides by without weights: for a mean over rows
    their number (Keras' `sum_over_batch_size`), so that weights of 1 change nothing and it does not matter how rows are
    divided into micro-batches."""

    inner: Loss

    @property
    def name(self) -> str:          # type: ignore[override]
        return self.inner.name

    @property
    def takes(self) -> Literal["classes", "numbers", "nothing", "anything"]:          # type: ignore[override]
        return self.inner.takes

    @property
    def takes_each(self) -> tuple[Takes, ...]:
        return (*self.inner.takes_each, "numbers")

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses:
        rows = self.inner.rows(b, outputs)
        assert rows is not None, "a loss without a value for a row has no weights"
        weights = b.input(WEIGHTS, outputs[0].type.with_shape(outputs[0].shape[:1]))
        return RowLosses(b.Mul(rows.total, b.cast(weights, rows.total.dtype)), rows.weight)

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        total, weight = self.rows(b, outputs)
        if isinstance(weight, float | int):
            count = b.scalar(weight * max(1, total.shape[0]), total)
        else:
            count = b.ReduceSum(weight, keepdims=0)
        return b.Div(b.ReduceSum(total, keepdims=0), count)

    def fitted(self, outputs: Sequence[Value | Output], *labels: TensorType | None) -> WeightedLoss:
        return replace(self, inner=self.inner.fitted(outputs, *labels[:len(self.inner.takes_each)]))

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType | None:
        return self.inner.label_type(outputs)

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning | None:
        return self.inner.view(outputs)

    def describe(self) -> dict[str, Any]:
        return self.inner.describe() | {"weighted": True}


@dataclass(frozen=True)
class OutputLoss:
    """The loss of one output. place: which output it is. factor: by which it counts."""

    output: str
    place: int
    loss: Loss
    factor: float = 1.0


@dataclass(frozen=True)
class SeveralLosses(Loss):
    """The sum of the losses of several outputs, each with labels of its own and times its factor."""

    parts: tuple[OutputLoss, ...]

    takes = "numbers"

    @property
    def name(self) -> str:          # type: ignore[override]
        return ",".join(f"{p.output}={p.loss.name}" + ("" if p.factor == 1 else f"*{p.factor:g}") for p in self.parts)

    @property
    def takes_each(self) -> tuple[Takes, ...]:
        return tuple(takes for p in self.parts for takes in p.loss.takes_each)

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        each = [(b.widened(p.loss(b, [outputs[p.place]])), p.factor) for p in self.parts]
        return _sum(b, each)

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses | None:
        """None where what a row weighs depends on its labels."""
        if not self.has_rows:
            return None
        found = [(p.loss.rows(b, [outputs[p.place]]), p.factor) for p in self.parts]
        each = [(rows.total, factor / rows.weight) for rows, factor in found
                if rows is not None and isinstance(rows.weight, float | int)]
        return RowLosses(_sum(b, each), 1.0)

    @property
    def has_rows(self) -> bool:
        return all(p.loss.has_rows for p in self.parts)

    def fitted(self, outputs: Sequence[Value | Output], *labels: TensorType | None) -> SeveralLosses:
        return replace(self, parts=tuple(replace(p, loss=p.loss.fitted([outputs[p.place]], t))
                                         for p, t in zip(self.parts, labels, strict=False)))

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType | None:
        return self.parts[0].loss.label_type([outputs[self.parts[0].place]])

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning | None:
        """That of the first part, where it is of the first output."""
        first = self.parts[0]
        return first.loss.view(outputs) if first.place == 0 else None

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "parts": [p.loss.describe() for p in self.parts]}


def _sum(b: Builder, each: Sequence[tuple[Value, float]]) -> Value:
    scaled = [x if factor == 1 else b.Mul(x, b.scalar(factor, x)) for x, factor in each]
    total = scaled[0]
    for x in scaled[1:]:
        total = b.Add(total, b.cast(x, total.dtype))
    return total
