"""Images from their windows: Col2Im adds what lies at one place, MaxUnpool puts maxima where they were."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .pool import taps_of
from .resize import SparseRows, interpolated
from .shape import Shape, check_float, present
from .window import Windows, windows

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@op("Col2Im")
class Col2Im(Op):
    """Windows [n, c * taps, windows] added to images [n, c, *image_shape] where they overlap: PyTorch's fold, over any number of axes."""

    image_shape: Shape = ()
    block_shape: Shape = ()
    dilations: Shape | None = None
    pads: Shape | None = None
    strides: Shape | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 12, 4), image_shape=(5, 5), block_shape=(2, 3), strides=(3, 2)),
                sample((1, 4, 25), image_shape=(4, 4), block_shape=(2, 2), pads=(1, 1, 1, 1)),
                sample((1, 8, 9), image_shape=(5, 5), block_shape=(2, 2), dilations=(2, 2)),
                sample((1, 16, 4), image_shape=(3, 3, 2), block_shape=(2, 2, 2)),
                sample((2, 6, 3), image_shape=(4,), block_shape=(2,))]

    def windows(self) -> Windows:
        """Where the windows lie."""
        if len(self.image_shape) != len(self.block_shape) or not self.image_shape or min(self.image_shape) < 1:
            raise ShapeError(f"image_shape {list(self.image_shape)} and block_shape {list(self.block_shape)} must be as many sizes, from 1 on.")
        return windows(self.image_shape, self.block_shape, self.strides, self.pads, self.dilations)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, win = present(types[0]), self.windows()
        check_float(x)
        taps, count = math.prod(win.kernel), math.prod(win.out)
        if x.rank != 3 or x.shape[1] % taps or x.shape[2] != count:
            raise ShapeError(f"the input is {x}; for images {list(self.image_shape)} and blocks {list(self.block_shape)} it must be [n, c * {taps}, "
                             f"{count}].")
        return (x.with_shape((x.shape[0], x.shape[1] // taps, *self.image_shape)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, win = present(inputs[0]), self.windows()
        places, inside = taps_of(win)                                # [windows, taps], as the input has them the other way round
        met = np.flatnonzero(inside.T)
        at = places.T.reshape(-1)[met]
        order = np.argsort(at, kind="stable")
        start = np.searchsorted(at[order], np.arange(math.prod(self.image_shape) + 1))
        table = SparseRows(places.size, start.astype(np.int64), met[order].astype(np.int64), np.ones(len(met)))
        n, channels = x.shape[0], x.shape[1] // math.prod(win.kernel)
        y = interpolated(b, b.Reshape(x, shape=(n * channels, places.size), allowzero=1), 1, table)
        return [b.Reshape(y, shape=(n, channels, *self.image_shape), allowzero=1)]


@op("MaxUnpool")
class MaxUnpool(Op):
    """Zeros with the elements of x at the places that MaxPool told, in the tensor that it pooled: what `kernel_shape`, `strides` and `pads` undo.

    output_shape: the shape of the result, which holds that tensor in its first corner. Of several for one place the last stays.
    """

    output_shape: Shape | None = None
    kernel_shape: Shape = ()
    pads: Shape | None = None
    strides: Shape | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        places = np.array([5, 7, 13, 8, 16, 18, 29, 31]).reshape(1, 2, 2, 2)
        return [sample((1, 2, 2, 2), places, kernel_shape=(2, 2), strides=(2, 2)),
                sample((1, 2, 2, 2), places, kernel_shape=(2, 2), strides=(2, 2), output_shape=(1, 2, 5, 6)),
                sample((2, 1, 2), np.array([[[1, 3]], [[5, 4]]]), kernel_shape=(3,), strides=(2,), pads=(1, 0))]

    def pooled(self, x: Shape) -> Shape:
        """The shape of the tensor that was pooled."""
        rank = len(x) - 2
        strides, pads = self.strides or (1,) * rank, self.pads or (0,) * (2 * rank)
        if rank < 1 or not len(self.kernel_shape) == len(strides) == len(pads) // 2 == rank or min(*self.kernel_shape, *strides) < 1:
            raise ShapeError(f"kernel_shape {list(self.kernel_shape)}, strides {list(strides)} and pads {list(pads)} do not fit the input {list(x)}.")
        spatial = tuple((n - 1) * s - pads[i] - pads[rank + i] + k for i, (n, s, k) in enumerate(zip(x[2:], strides, self.kernel_shape, strict=True)))
        if min(spatial) < 1:
            raise ShapeError(f"pads {list(pads)} leave nothing of the result along an axis: {list(spatial)}.")
        return (*x[:2], *spatial)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, places = present(types[0]), present(types[1])
        if not x.is_float or places.dtype != "int64" or places.shape != x.shape:
            raise TypeMismatchError(f"the input is {x} and the places {places}; they must be of a float type and int64, and of one shape.")
        inner = self.pooled(x.shape)
        outer = inner if self.output_shape is None else tuple(self.output_shape)
        if len(outer) != len(inner) or any(m < n for m, n in zip(outer, inner, strict=True)):
            raise ShapeError(f"output_shape {list(outer)} must hold the {list(inner)} that was pooled.")
        return (x.with_shape(outer),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, places = present(inputs[0]), present(inputs[1])
        inner, outer = self.pooled(x.shape), self.infer(x.type, places.type)[0].shape
        flat = (x.type.size,)
        zeros = b.Expand(b.scalar(0.0, x), shape=(math.prod(inner),))
        y = b.ScatterElements(zeros, b.Reshape(places, shape=flat, allowzero=1), b.Reshape(x, shape=flat, allowzero=1), axis=0)
        y = b.Reshape(y, shape=inner, allowzero=1)
        more = tuple(m - n for m, n in zip(outer, inner, strict=True))
        return [b.Pad(y, pads=(*[0] * len(inner), *more)) if any(more) else y]
