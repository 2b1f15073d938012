"""Convolution and its gradients over channels-last tensors [n, *spatial, channels], as the host's lowering may choose them.

These forms are made after the fork of the street: they are not in the registry, and the tile machine never sees them.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..graph.op import Op, Types
from ..graph.types import TensorType
from ..kernels import conv as kernels
from ..kernels.call import Call, In, Out
from ..kernels.call import Work as Scratch
from ..kernels.conv import Axis, Sites
from ..kernels.move import Axis as MoveAxis
from ..kernels.move import fill_call, move
from ..work import Work
from .shape import present
from .window import Shape, Windows

if TYPE_CHECKING:
    from ..kernels.cpu import Cpu


def sites(x: Shape, w: Shape, win: Windows, group: int) -> Sites:
    """The numbers of a convolution for the kernels, from its planar shapes."""
    axes = [Axis(n, out, k, s, 1, -p, d) for n, out, k, s, p, d in
            zip(win.size, win.out, win.kernel, win.strides, win.begin, win.dilations, strict=True)]
    axes = [Axis(1, 1, 1)] * (3 - len(axes)) + axes
    return Sites(x[0], group, w[1], w[0] // group, (axes[0], axes[1], axes[2]))


def zeros(outputs: Sequence[TensorType]) -> list[Call]:
    """Sums of nothing."""
    return [fill_call(Out(i, (t.size,)), 0, t.size, t.itemsize) for i, t in enumerate(outputs) if t.size]


def to_last(t: TensorType) -> TensorType:
    """[n, c, *spatial] as [n, *spatial, c]."""
    return t.with_shape((t.shape[0], *t.shape[2:], t.shape[1]))


def to_planar(t: TensorType) -> TensorType:
    """[n, *spatial, c] as [n, c, *spatial]."""
    return t.with_shape((t.shape[0], t.shape[-1], *t.shape[1:-1]))


@dataclass(frozen=True)
class ChannelsLast(Op):
    """`of` with its images and their gradients channels-last: inputs `images_in`, outputs `images_out`."""

    of: Any
    images_in: ClassVar[tuple[int, ...]] = ()
    images_out: ClassVar[tuple[int, ...]] = ()

    def _planar(self, inputs: Types) -> list[TensorType | None]:
        return [to_planar(t) if t is not None and i in self.images_in else t for i, t in enumerate(inputs)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return tuple(to_last(t) if i in self.images_out else t for i, t in enumerate(self.of.infer(*self._planar(types))))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        found = self.of.reference(*[np.moveaxis(a, -1, 1) if a is not None and i in self.images_in else a for i, a in enumerate(inputs)])
        return tuple(np.ascontiguousarray(np.moveaxis(a, 1, -1)) if i in self.images_out else a for i, a in enumerate(found))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        planar = [to_planar(t) if i in self.images_out else t for i, t in enumerate(outputs)]
        return self.of.work(self._planar(inputs), planar)                                 # type: ignore[no-any-return]


@dataclass(frozen=True)
class ConvLast(ChannelsLast):
    """Conv: x [n, *spatial, c], weights [o, c / group, *kernel] and an optional bias to y [n, *out, o]."""

    name: ClassVar[str] = "ConvLast"
    images_in: ClassVar[tuple[int, ...]] = (0,)
    images_out: ClassVar[tuple[int, ...]] = (0,)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, w = to_planar(present(inputs[0])), present(inputs[1])
        if outputs[0].size == 0:
            return []
        s = sites(x.shape, w.shape, self.of.windows(x.shape, w.shape), self.of.group)
        return kernels.last_forward(s, x.code, cpu, len(inputs) > 2 and inputs[2] is not None)


@dataclass(frozen=True)
class ConvInputGradLast(ChannelsLast):
    """ConvInputGrad: (dy [n, *out, o], weights) to dx [n, *spatial, c]."""

    name: ClassVar[str] = "ConvInputGradLast"
    images_in: ClassVar[tuple[int, ...]] = (0,)
    images_out: ClassVar[tuple[int, ...]] = (0,)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, w, x = present(inputs[0]), present(inputs[1]), to_planar(outputs[0])
        if x.size == 0 or g.size == 0:
            return zeros(outputs)
        return kernels.last_input_gradient(sites(x.shape, w.shape, self.of.windows(w.shape), self.of.group), x.code, cpu)


@dataclass(frozen=True)
class ConvWeightGradLast(ChannelsLast):
    """ConvWeightGrad: (x [n, *spatial, c], dy [n, *out, o]) to dw or (dw, dbias), as they always are."""

    name: ClassVar[str] = "ConvWeightGradLast"
    images_in: ClassVar[tuple[int, ...]] = (0, 1)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, g, w = to_planar(present(inputs[0])), present(inputs[1]), outputs[0]
        if w.size == 0 or x.size == 0 or g.size == 0:
            return zeros(outputs)
        return kernels.last_weight_gradient(sites(x.shape, w.shape, self.of.windows(x.shape), self.of.group), x.code, cpu, self.of.biased)


def planar_calls(form: ChannelsLast, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    """The calls of `form` over planar images: each is turned into scratch memory, or out of it."""
    moved = [to_last(t) if t is not None and i in form.images_in else t for i, t in enumerate(inputs)]
    results = [to_last(t) if i in form.images_out else t for i, t in enumerate(outputs)]
    before, after = [], []
    renamed: dict[tuple[type, int], Scratch] = {}
    for i in form.images_in:
        t = present(inputs[i])
        renamed[In, i] = Scratch(f"input {i}", (t.size,), t.code)
        before += move(In(i, (t.size,)), renamed[In, i], turned(t, False), t.itemsize)
    for i in form.images_out:
        t = outputs[i]
        renamed[Out, i] = Scratch(f"output {i}", (t.size,), t.code)
        after += move(renamed[Out, i], Out(i, (t.size,)), turned(t, True), t.itemsize)
    middle = []
    for call in form.kernel(moved, results, cpu):
        args = [replace(renamed[type(a), a.index], shape=a.shape) if isinstance(a, In | Out) and (type(a), a.index) in renamed else a
                for a in call.args]
        middle.append(replace(call, args=args))
    return [*before, *middle, *after]


def turned(t: TensorType, back: bool) -> list[MoveAxis]:
    """The axes of the move from planar images of type `t` to channels-last ones, or `back`."""
    n, c, pixels = t.shape[0], t.shape[1], math.prod(t.shape[2:])
    if back:
        return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(c, 1, pixels), MoveAxis(pixels, c, 1)]
    return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(pixels, 1, c), MoveAxis(c, pixels, 1)]
