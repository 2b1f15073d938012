"""Forms over channels-last tensors [N, *spatial, C]: what they share, and those of operators to which the order of the axes does not matter."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..graph.op import Op, Types
from ..graph.types import TensorType
from ..kernels.isa.cpu import Cpu
from ..ops.elementwise import Elementwise
from ..ops.reduce import Reduction
from ..ops.shape import Concat, Expand, Split, Transpose, normal_axis, present
from .form import Form, HostOp, axis_order, channels_last

Shape = tuple[int, ...]


def to_channels_last(shape: Shape) -> Shape:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return (shape[0], *shape[2:], shape[1])


def to_channels_first(shape: Shape) -> Shape:
    """[N, *spatial, C] as [N, C, *spatial]."""
    return (shape[0], shape[-1], *shape[1:-1])


def axis_channels_last(axis: int, rank: int) -> int:
    """Where axis `axis` (not negative) of [N, C, *spatial] lies in [N, *spatial, C]."""
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


class ChannelsLast(HostOp):
    """The operator `op` over channels-last operands where `inputs` says so, with channels-last results where `outputs` says so."""

    def __init__(self, op: Op, inputs: Sequence[bool], outputs: Sequence[bool]) -> None:
        self.op, self.inputs, self.outputs = op, tuple(inputs), tuple(outputs)

    def form(self, gain: float = 0.0) -> Form:
        """What `channels_last` gives."""
        return Form(self, self.inputs, self.outputs, gain)

    def logical(self, types: Types) -> list[TensorType | None]:
        """The types of the operands as the operator itself sees them."""
        return [t.with_shape(to_channels_first(t.shape)) if t is not None and turned else t
                for t, turned in zip(types, self.inputs, strict=False)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        made = self.op.infer(*self.logical(types))
        return tuple(t.with_shape(to_channels_last(t.shape)) if turned else t for t, turned in zip(made, self.outputs, strict=True))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        given = [np.moveaxis(a, -1, 1) if a is not None and turned else a for a, turned in zip(inputs, self.inputs, strict=False)]
        found = self.op.reference(*given)
        return tuple(np.ascontiguousarray(np.moveaxis(a, 1, -1)) if turned else a for a, turned in zip(found, self.outputs, strict=True))

    def __str__(self) -> str:
        return f"{self.op} over channels last"


@channels_last.register(Elementwise)
def _(op: Elementwise, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    if outputs[0].rank < 3 or op.position is not None:              # elements that draw are counted as they lie
        return None
    return Form(op, tuple(t is not None and t.size != 1 for t in inputs), (True,) * len(outputs))


@channels_last.register(Reduction)
def _(op: Reduction, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    """The axes where they lie then; what is left must lie as before, or keep its place."""
    rank = present(inputs[0]).rank
    axes = op.reduced(rank)
    left = [axis_channels_last(i, rank) for i in range(rank) if i not in axes]
    if rank < 3 or not axes or (not op.keepdims and left != sorted(left)):
        return None
    return Form(replace(op, axes=tuple(axis_channels_last(i, rank) for i in axes)), (True,), (bool(op.keepdims),))


@channels_last.register(Concat)
def _(op: Concat, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    rank = outputs[0].rank
    if rank < 3:
        return None
    return Form(Concat(axis=axis_channels_last(normal_axis(op.axis, rank), rank)), (True,) * len(inputs), (True,))


@channels_last.register(Split)
def _(op: Split, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    rank = present(inputs[0]).rank
    if rank < 3:
        return None
    return Form(Split(axis=axis_channels_last(normal_axis(op.axis, rank), rank), sizes=op.sizes), (True,), (True,) * len(outputs))


@channels_last.register(Expand)
def _(op: Expand, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    y = outputs[0]
    return Form(Expand(shape=to_channels_last(y.shape)), (present(inputs[0]).size != 1,), (True,)) if y.rank >= 3 else None


@axis_order.register(Transpose)
def _(op: Transpose, x: TensorType) -> tuple[int, ...] | None:
    return op.order(x.rank)
