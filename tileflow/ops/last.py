"""What channels-last forms of operators share. They work on [N, *spatial, C], are made by `Op.channels_last` for the host's lowering
only and are not registered: no graph of a Program holds one.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.op import Last, Op, Types
from ..graph.types import TensorType
from ..work import Work

Shape = tuple[int, ...]


def to_last(shape: Shape) -> Shape:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return (shape[0], *shape[2:], shape[1])


def to_first(shape: Shape) -> Shape:
    """[N, *spatial, C] as [N, C, *spatial]."""
    return (shape[0], shape[-1], *shape[1:-1])


def axis_last(axis: int, rank: int) -> int:
    """Where axis `axis` (not negative) of [N, C, *spatial] lies in [N, *spatial, C]."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


class ChannelsLast(Op):
    """The operator `op` over channels-last operands where `inputs` says so, with channels-last results where `outputs` says so."""

    def __init__(self, op: Op, inputs: Sequence[bool], outputs: Sequence[bool]) -> None:
        self.op, self.inputs, self.outputs = op, tuple(inputs), tuple(outputs)

    def last(self, gain: float = 0.0) -> Last:
        """What `Op.channels_last` gives."""
        return Last(self, self.inputs, self.outputs, gain)

    def logical(self, types: Types) -> list[TensorType | None]:
        """The types of the operands as the operator itself sees them."""
        return [t.with_shape(to_first(t.shape)) if t is not None and last else t for t, last in zip(types, self.inputs, strict=False)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        made = self.op.infer(*self.logical(types))
        return tuple(t.with_shape(to_last(t.shape)) if last else t for t, last in zip(made, self.outputs, strict=True))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        given = [np.moveaxis(a, -1, 1) if a is not None and last else a for a, last in zip(inputs, self.inputs, strict=False)]
        found = self.op.reference(*given)
        return tuple(np.ascontiguousarray(np.moveaxis(a, 1, -1)) if last else a for a, last in zip(found, self.outputs, strict=True))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        raise AssertionError("a channels-last form has no work of its own: cost is counted before the host lowering")

    def __str__(self) -> str:
        return f"{self.op} over channels last"
