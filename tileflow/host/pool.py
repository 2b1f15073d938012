"""Pooling: over channels-last images with one or two spatial axes, on finished planes, and with its winners written down."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..graph.op import Op, Types
from ..graph.work import Work
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.pool import channels_last as kernels
from ..kernels.pool.maximum import max_pool, max_unpool, none, winner_code
from ..kernels.pool.planes import Pooling
from ..kernels.reduce import reduce_calls
from ..memory.types import TensorType
from ..ops.pool import (
    AveragePool,
    AveragePoolGrad,
    GlobalAveragePool,
    MaxPool,
    MaxPoolGrad,
    Windowed,
    planes_of,
    pool_of,
    taps_of,
    winners_of,
)
from ..ops.shape import Shape, present
from ..ops.window import Windows
from .channels_last import to_channels_last
from .form import ChannelsLast, HostForm, HostOp, Record, calls, channels_last, pooling, recorded
from .hosted import over_channels_last

MAX_GAIN = 0.05
"""Nanoseconds per byte of the image that a maximum with its winner saves where channels are last; over 2 x 2 blocks either costs as much."""
KERNELS = ("f4", "f8")
"""Element types that the channels-last kernels know."""


# ---- winners written down

def _taps_won(x: np.ndarray, win: Windows) -> tuple[np.ndarray, np.ndarray]:
    """[n * c, windows]: maxima, and which tap of its window each is, as the kernels write it down."""
    best, where = winners_of(x, win)
    places, inside = taps_of(win)
    code = winner_code(places.shape[1])
    won = np.full(where.shape, none(code), code)
    for t in range(places.shape[1]):
        won[(where == places[:, t]) & inside[:, t]] = t
    return best, won


class WinningMaxPool(HostOp, MaxPool):
    """MaxPool that also writes down which tap of each window has won."""

    name: ClassVar[str] = "WinningMaxPool"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        y, = super().infer(*types)
        return y, y.with_dtype(np.dtype(winner_code(math.prod(self.kernel_shape))).name)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        win = self.windows(x.shape)
        return tuple(found.reshape(*x.shape[:2], *win.out) for found in _taps_won(x, win))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        where = Out(1, (planes_of(x), math.prod(y.shape[2:])))
        return max_pool(pool_of(self.windows(x.shape)), planes_of(x), x.code, cpu, where) if y.size else []


@dataclass(frozen=True, repr=False)
class WinningMaxPoolGrad(HostOp, Windowed):
    """The gradient of MaxPool from the gradient of its maxima and the record of the winners."""

    name: ClassVar[str] = "WinningMaxPoolGrad"
    shape: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g = present(types[0])
        return (g.with_shape((*g.shape[:2], *self.shape)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, won = present(inputs[0]), present(inputs[1])
        win = self.windows((*g.shape[:2], *self.shape))
        places, _ = taps_of(win)
        dx = np.zeros((g.shape[0] * g.shape[1], math.prod(self.shape)), g.dtype)
        won = won.reshape(len(dx), math.prod(win.out))
        planes, wins = np.nonzero(won != none(winner_code(places.shape[1])))
        np.add.at(dx, (planes, places[wins, won[planes, wins]]), g.reshape(won.shape)[planes, wins])
        return (dx.reshape(*g.shape[:2], *self.shape),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return HostOp.work(self, inputs, outputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, x = present(inputs[0]), outputs[0]
        where = In(1, (planes_of(x), math.prod(g.shape[2:])))
        return max_unpool(pool_of(self.windows(x.shape)), planes_of(x), x.code, cpu, where) if x.size else []


@recorded.register(MaxPoolGrad)
def _(op: MaxPoolGrad, index: int, maker: Op, inputs: Types) -> Record | None:
    if index != 1 or type(maker) is not MaxPool or maker.indices or maker.same() != op.same():
        return None
    shape = present(inputs[1]).shape[2:]
    return Record(WinningMaxPool(**op.same()), WinningMaxPoolGrad(**op.same(), shape=shape), (0,))


# ---- on finished planes

@pooling.register(MaxPool)
def _(op: MaxPool, inputs: Types, outputs: Sequence[TensorType]) -> Pooling | None:
    x = present(inputs[0])
    p = pool_of(op.windows(x.shape))
    if op.indices or not p.halves or (p.oh, p.ow) != (p.h // 2, p.w // 2) or outputs[0].size == 0 or x.code not in ("f4", "f8"):
        return None
    return Pooling(x.code, planes_of(x), p.h, p.w, outputs[1].code if len(outputs) > 1 else "")


# ---- channels last

def _form(op: Windowed, image: TensorType, gain: float, operands: int = 1, results: int = 1) -> ChannelsLast | None:
    """The form over one or two spatial axes where a winner's number fits a byte, and every element knows its windows;
    all operands and results are channels-last. `gain` is nanoseconds saved per byte of the image."""
    p = pool_of(op.windows(image.shape))
    if p.kh * p.kw >= kernels.NOBODY or not p.dh == p.dw == 1 or image.code not in KERNELS:
        return None
    return over_channels_last(op, (True,) * operands, (True,) * results, (-gain if p.halves else gain) * image.nbytes)


@channels_last.register(MaxPool)
def _(op: MaxPool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    x = present(inputs[0])
    form, p = _form(op, x, MAX_GAIN), pool_of(op.windows(x.shape))
    if op.indices or form is None or p.halves:
        return None if op.indices else form
    ways = max_pool(p, planes_of(x), x.code, cpu), kernels.max_pool(p, x.shape[0], x.shape[1], x.code, cpu, False)
    planes, last = (sum(call.cost for call in way) for way in ways)
    return replace(form, gain=planes - last)               # planes meet fewer taps of a large window


@channels_last.register(WinningMaxPool)
def _(op: WinningMaxPool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    return _form(op, present(inputs[0]), MAX_GAIN, results=2)


@calls.register(MaxPool)
def _(op: MaxPool, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    """Without indices, or with winners."""
    x = present(inputs[0])
    p = pool_of(op.windows(x.shape))
    return kernels.max_pool(p, x.shape[0], x.shape[1], x.code, cpu, len(outputs) > 1) if outputs[0].size else []


@channels_last.register(WinningMaxPoolGrad)
def _(op: WinningMaxPoolGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    return _form(op, outputs[0], MAX_GAIN, operands=2)


@calls.register(WinningMaxPoolGrad)
def _(op: WinningMaxPoolGrad, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    x = outputs[0]
    return kernels.max_unpool(pool_of(op.windows(x.shape)), x.shape[0], x.shape[1], x.code, cpu) if x.size else []


@channels_last.register(AveragePool)
@channels_last.register(AveragePoolGrad)
def _(op: AveragePool | AveragePoolGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    return _form(op, _image(op, inputs, outputs), 0.0)


@calls.register(AveragePool)
@calls.register(AveragePoolGrad)
def _(op: AveragePool | AveragePoolGrad, form: HostForm, inputs: Types, outputs: Sequence[TensorType],
      cpu: Cpu) -> list[Call]:
    image = _image(op, inputs, outputs)
    way = kernels.average if isinstance(op, AveragePool) else kernels.average_gradient
    win = op.averaged(op.windows(image.shape))
    return way(win, image.shape[0], image.shape[1], image.code, cpu) if outputs[0].size else []


def _image(op: AveragePool | AveragePoolGrad, inputs: Types, outputs: Sequence[TensorType]) -> TensorType:
    """What lies under the windows."""
    return present(inputs[0]) if isinstance(op, AveragePool) else outputs[0]


@channels_last.register(GlobalAveragePool)
def _(op: GlobalAveragePool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    return over_channels_last(op, (True,), (True,)) if present(inputs[0]).code in KERNELS else None


@calls.register(GlobalAveragePool)
def _(op: GlobalAveragePool, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    x = present(inputs[0])
    shape, spatial = to_channels_last(x.shape), range(1, x.rank - 1)
    return reduce_calls("sum", x.code, shape, spatial, math.prod(shape[i] for i in spatial)) if outputs[0].size else []
