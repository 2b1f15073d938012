"""Convolution whose taps lie where an operand says."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .sampled import sampled
from .shape import Shape, present
from .window import Windows, windows

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@op("DeformConv")
class DeformConv(Op):
    """A convolution of x [n, c, *spatial] with weights [o, c / group, *kernel] whose taps are moved by `offset`, and scaled by `mask`.

    offset: [n, offset_group * taps * axes, *out], for each tap how far it is moved along each axis; mask: [n, offset_group * taps, *out]. The
    channels of an offset group share them. Between elements values are linear, beyond the image they are zero (Dai et al. 2017, Zhu et al. 2019).
    """

    roles = ("data", "weight", "data", "bias")
    dilations: Shape | None = None
    group: int = 1
    kernel_shape: Shape | None = None
    offset_group: int = 1
    pads: Shape | None = None
    strides: Shape | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        def moved(*shape: int) -> tuple[str, Shape, float, float]:
            return "float32", shape, -0.9, 0.9

        return [sample((1, 2, 4, 5), (3, 2, 2, 3), moved(1, 12, 3, 3)),
                sample((2, 4, 4, 5), (4, 2, 2, 2), moved(2, 16, 3, 3), (4,), (2, 8, 3, 3), group=2, offset_group=2, strides=(2, 2),
                       pads=(1, 1, 1, 1)),
                sample((1, 2, 5, 5), (2, 2, 2, 2), moved(1, 8, 3, 3), (2,), (1, 4, 3, 3), dilations=(2, 2)),
                sample((1, 2, 6), (2, 2, 3), moved(1, 3, 4))]

    def windows(self, x: Shape, w: Shape) -> Windows:
        """Where the taps lie before they are moved."""
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(w[2:]):
            raise ShapeError(f"kernel_shape {list(self.kernel_shape)} does not match the weights {list(w)}.")
        return windows(x[2:], w[2:], self.strides, self.pads, self.dilations)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, w, offset = map(present, types[:3])
        bias, mask = (*types[3:], None, None)[:2]
        given = [t for t in types if t is not None]
        if not x.is_float or len({t.dtype for t in given}) > 1:
            raise TypeMismatchError(f"the operands are {', '.join(t.dtype for t in given)}; all must be of one float type.")
        if not 3 <= x.rank <= 5:
            raise UnsupportedError(f"a convolution over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; "
                                   "1, 2 or 3 axes are.")
        fits = w.rank == x.rank and min(self.group, self.offset_group) >= 1 and 0 not in (*w.shape, *x.shape[1:])
        if not fits or w.shape[1] * self.group != x.shape[1] or w.shape[0] % self.group or x.shape[1] % self.offset_group:
            raise ShapeError(f"weights {list(w.shape)} do not fit the input {list(x.shape)} in {self.group} groups and {self.offset_group} offset "
                             "groups: they must be [o, channels / groups, *kernel], and groups must divide channels.")
        out, taps = self.windows(x.shape, w.shape).out, math.prod(w.shape[2:]) * self.offset_group
        wanted = {"offset": (offset, (x.shape[0], taps * (x.rank - 2), *out)), "B": (bias, w.shape[:1]), "mask": (mask, (x.shape[0], taps, *out))}
        for name, (t, shape) in wanted.items():
            if t is not None and t.shape != shape:
                raise ShapeError(f"{name} is {t}; for the input {x} and weights {w} its shape must be {list(shape)}.")
        return (x.with_shape((x.shape[0], w.shape[0], *out)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """What each tap meets, [n, c, taps, *out], then a product with the weights."""
        x, w, offset = map(present, inputs[:3])
        bias, mask = (*inputs[3:], None, None)[:2]
        win, (n, c), rank = self.windows(x.shape, w.shape), x.shape[:2], x.type.rank - 2
        taps, out, many = math.prod(win.kernel), math.prod(win.out), n * self.offset_group
        moved = b.Reshape(offset, shape=(many, taps, rank, out), allowzero=1)
        columns = []
        for d, part in enumerate(b.Split(moved, axis=2, sizes=(1,) * rank) if rank > 1 else (moved,)):
            start = np.arange(win.out[d]) * win.strides[d] - win.begin[d]
            tap = np.arange(win.kernel[d]) * win.dilations[d]
            still = np.broadcast_to(tap.reshape(-1, *[1] * (2 * rank - 1 - d)) + start.reshape(-1, *[1] * (rank - 1 - d)), (*win.kernel, *win.out))
            places = b.constant(still.reshape(1, 1, taps * out).astype(x.type.numpy), "places")
            columns.append(b.Add(b.Reshape(part, shape=(many, 1, taps * out), allowzero=1), places))
        factor = None if mask is None else b.Reshape(mask, shape=(many, 1, taps * out), allowzero=1)
        images = b.Reshape(x, shape=(many, c // self.offset_group, *win.size), allowzero=1)
        met = b.Reshape(sampled(b, images, columns, "linear", factor=factor), shape=(n, self.group, c // self.group * taps, out), allowzero=1)
        weights = b.Reshape(w, shape=(1, self.group, w.shape[0] // self.group, c // self.group * taps), allowzero=1)
        y = b.Reshape(b.MatMul(weights, met), shape=(n, w.shape[0], *win.out), allowzero=1)
        return [y if bias is None else b.Add(y, b.Reshape(bias, shape=(-1, *[1] * rank), allowzero=1))]
