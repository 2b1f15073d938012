"""Forms over channels-last tensors [N, *spatial, C]: how their axes lie, and those of operators to which the order of
the axes does not matter."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..memory.types import TensorType
from ..ops.elementwise import Elementwise
from ..ops.reduce import Reduction
from ..ops.shape import Concat, Expand, Split, Transpose, normal_axis, present
from .form import ChannelsLast, axis_order, channels_last

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


@channels_last.register(Elementwise)
def _(op: Elementwise, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    if outputs[0].rank < 3 or op.position is not None:              # elements that draw are counted as they lie
        return None
    return ChannelsLast(op, tuple(t is not None and t.size != 1 for t in inputs), (True,) * len(outputs))


@channels_last.register(Reduction)
def _(op: Reduction, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    """The axes where they lie then; what is left must lie as before, or keep its place."""
    rank = present(inputs[0]).rank
    axes = op.reduced(rank)
    left = [axis_channels_last(i, rank) for i in range(rank) if i not in axes]
    if rank < 3 or not axes or (not op.keepdims and left != sorted(left)):
        return None
    return ChannelsLast(replace(op, axes=tuple(axis_channels_last(i, rank) for i in axes)), (True,),
                        (bool(op.keepdims),))


@channels_last.register(Concat)
def _(op: Concat, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    rank = outputs[0].rank
    if rank < 3:
        return None
    return ChannelsLast(Concat(axis=axis_channels_last(normal_axis(op.axis, rank), rank)), (True,) * len(inputs),
                        (True,))


@channels_last.register(Split)
def _(op: Split, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    rank = present(inputs[0]).rank
    if rank < 3:
        return None
    return ChannelsLast(Split(axis=axis_channels_last(normal_axis(op.axis, rank), rank), sizes=op.sizes), (True,),
                        (True,) * len(outputs))


@channels_last.register(Expand)
def _(op: Expand, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    y = outputs[0]
    return ChannelsLast(Expand(shape=to_channels_last(y.shape)), (present(inputs[0]).size != 1,),
                        (True,)) if y.rank >= 3 else None


@axis_order.register(Transpose)
def _(op: Transpose, x: TensorType) -> tuple[int, ...] | None:
    return op.order(x.rank)
