"""Pooling: over channels-last images with one or two spatial axes, on finished planes, and with its winners written down."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..graph.op import Op, Types
from ..graph.types import TensorType
from ..graph.work import Work
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.pool import channels_last as kernels
from ..kernels.pool.maximum import max_pool, max_unpool, none, winner_code
from ..kernels.pool.planar import AverageWindow, PoolWindow
from ..kernels.pool.planes import Pooling
from ..kernels.reduce import reduce_calls
from ..ops.pool import (
    Average,
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
from .channels_last import ChannelsLast
from .form import Form, HostOp, Record, channels_last, pooling, recorded

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
class MaxUnpool(HostOp, Windowed):
    """The gradient of MaxPool from the gradient of its maxima and the record of the winners."""

    name: ClassVar[str] = "MaxUnpool"
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
    return Record(WinningMaxPool(**op.same()), MaxUnpool(**op.same(), shape=present(inputs[1]).shape[2:]), (0,))


# ---- on finished planes

@pooling.register(MaxPool)
def _(op: MaxPool, inputs: Types, outputs: Sequence[TensorType]) -> Pooling | None:
    x = present(inputs[0])
    p = pool_of(op.windows(x.shape))
    if op.indices or not p.halves or (p.oh, p.ow) != (p.h // 2, p.w // 2) or outputs[0].size == 0 or x.code not in ("f4", "f8"):
        return None
    return Pooling(x.code, planes_of(x), p.h, p.w, outputs[1].code if len(outputs) > 1 else "")


# ---- channels last

class PoolChannelsLast(ChannelsLast):
    """A pool with these windows, of images [n, channels, ...]; all operands and results are channels-last."""

    def __init__(self, op: Op, p: PoolWindow, image: TensorType, operands: int = 1, results: int = 1) -> None:
        super().__init__(op, (True,) * operands, (True,) * results)
        self.p, self.n, self.channels = p, image.shape[0], image.shape[1]

    @property
    def fits(self) -> bool:
        """A winner's number fits a byte, and every element knows its windows."""
        return self.p.kh * self.p.kw < kernels.NOBODY and self.p.dh == self.p.dw == 1


class MaxPoolChannelsLast(PoolChannelsLast):
    """MaxPool without indices, or with winners."""

    name: ClassVar[str] = "MaxPoolChannelsLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        y = outputs[0]
        return kernels.max_pool(self.p, self.n, self.channels, y.code, cpu, len(outputs) > 1) if y.size else []


class MaxUnpoolChannelsLast(PoolChannelsLast):
    """MaxUnpool."""

    name: ClassVar[str] = "MaxUnpoolChannelsLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        return kernels.max_unpool(self.p, self.n, self.channels, x.code, cpu) if x.size else []


class AveragePoolChannelsLast(PoolChannelsLast):
    """AveragePool."""

    name: ClassVar[str] = "AveragePoolChannelsLast"
    p: AverageWindow

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return kernels.average(self.p, self.n, self.channels, outputs[0].code, cpu) if outputs[0].size else []


class AveragePoolGradChannelsLast(PoolChannelsLast):
    """AveragePoolGrad."""

    name: ClassVar[str] = "AveragePoolGradChannelsLast"
    p: AverageWindow

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return kernels.average_gradient(self.p, self.n, self.channels, outputs[0].code, cpu) if outputs[0].size else []


class GlobalAveragePoolChannelsLast(ChannelsLast):
    """GlobalAveragePool."""

    name: ClassVar[str] = "GlobalAveragePoolChannelsLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        spatial = range(1, x.rank - 1)
        return reduce_calls("sum", x.code, x.shape, spatial, math.prod(x.shape[i] for i in spatial)) if outputs[0].size else []


def _form(op: Windowed, kind: type[PoolChannelsLast], image: TensorType, gain: float, **more: Any) -> Form | None:
    """The form of this kind where there is one; `gain` is nanoseconds saved per byte of the image."""
    win = op.windows(image.shape)
    made = kind(op, op.averaged(win) if isinstance(op, Average) else pool_of(win), image, **more)
    return made.form((-gain if made.p.halves else gain) * image.nbytes) if made.fits and image.code in KERNELS else None


@channels_last.register(MaxPool)
def _(op: MaxPool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    x = present(inputs[0])
    form, p = _form(op, MaxPoolChannelsLast, x, MAX_GAIN), pool_of(op.windows(x.shape))
    if op.indices or form is None or p.halves:
        return None if op.indices else form
    ways = max_pool(p, planes_of(x), x.code, cpu), kernels.max_pool(p, x.shape[0], x.shape[1], x.code, cpu, False)
    planes, last = (sum(call.cost for call in calls) for calls in ways)
    return replace(form, gain=planes - last)               # planes meet fewer taps of a large window


@channels_last.register(WinningMaxPool)
def _(op: WinningMaxPool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    return _form(op, MaxPoolChannelsLast, present(inputs[0]), MAX_GAIN, results=2)


@channels_last.register(MaxUnpool)
def _(op: MaxUnpool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    return _form(op, MaxUnpoolChannelsLast, outputs[0], MAX_GAIN, operands=2)


@channels_last.register(AveragePool)
def _(op: AveragePool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    return _form(op, AveragePoolChannelsLast, present(inputs[0]), 0.0)


@channels_last.register(AveragePoolGrad)
def _(op: AveragePoolGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    return _form(op, AveragePoolGradChannelsLast, outputs[0], 0.0)


@channels_last.register(GlobalAveragePool)
def _(op: GlobalAveragePool, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    return GlobalAveragePoolChannelsLast(op, (True,), (True,)).form() if present(inputs[0]).code in KERNELS else None
