"""Moves and sums along one axis do the same to channels-last tensors, along that axis where it lies then."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..memory.types import TensorType
from ..ops.index import Gather, Slice
from ..ops.pad import Pad
from ..ops.resize import Interpolate, Repeat, RepeatGrad
from ..ops.shape import normal_axes, normal_axis, present
from .channels_last import axis_channels_last, to_channels_last
from .form import ChannelsLast, channels_last


@channels_last.register(Repeat)
@channels_last.register(RepeatGrad)
def _(op: Repeat | RepeatGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    """Where two axes are repeated, they are neighbours in either order."""
    rank = outputs[0].rank
    first = 3 if op.rows > 1 else 2
    return ChannelsLast(replace(op, axis=op.axis - 1), (True,), (True,)) if rank >= 3 and op.axis >= first else None


@channels_last.register(Interpolate)
def _(op: Interpolate, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    rank = outputs[0].rank
    return ChannelsLast(replace(op, axis=axis_channels_last(op.axis, rank)), (True, *[False] * 6),
                        (True,)) if rank >= 3 else None


@channels_last.register(Gather)
def _(op: Gather, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    """A gather that keeps the rank; of channels, planes are picked faster than elements."""
    rank, axis = outputs[0].rank, normal_axis(op.axis, present(inputs[0]).rank)
    if rank < 3 or present(inputs[1]).rank != 1 or axis == 1:
        return None
    return ChannelsLast(replace(op, axis=axis_channels_last(axis, rank)), (True, False), (True,))


@channels_last.register(Pad)
def _(op: Pad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    rank = outputs[0].rank
    if rank < 3:
        return None
    return ChannelsLast(replace(op, pads=to_channels_last(op.pads[:rank]) + to_channels_last(op.pads[rank:])), (True,),
                        (True,))


@channels_last.register(Slice)
def _(op: Slice, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    rank = outputs[0].rank
    if rank < 3:
        return None
    axes = range(len(op.starts)) if op.axes is None else normal_axes(op.axes, rank)
    return ChannelsLast(replace(op, axes=tuple(axis_channels_last(a, rank) for a in axes)), (True,), (True,))
