"""Sampling images at places of a grid, and the grids of affine maps."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Var
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .sampled import TAPS, sampled
from .shape import Shape, check_float, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

PADDINGS = ("zeros", "border", "reflection")
OLD = {"bilinear": "linear", "bicubic": "cubic"}
"""What modes were called until opset 20."""


@op("GridSample")
class GridSample(Op):
    """x [n, c, *spatial] at the places that grid [n, *out, axes] names, last axis first: [n, c, *out].

    A place is -1 to 1 along an axis, from the first element to the last: between their centres (align_corners), else their outer borders.
    mode: "linear", "nearest" (halves to even) or "cubic" along every axis. padding_mode: what lies beyond is "zeros", the "border"'s elements or
    the image's "reflection". A place that is no number meets nothing, or no number. Source: PyTorch's grid_sample, which ONNX follows.
    """

    roles = ("moved",)

    align_corners: int = 0
    mode: str = "linear"
    padding_mode: str = "zeros"

    @classmethod
    def samples(cls) -> list[Sample]:
        image, grid = (2, 3, 5, 4), ("float32", (2, 3, 2, 2), -1.35, 1.35)
        return [*[sample(image, grid, mode=m, padding_mode=p, align_corners=a) for m in TAPS for p in PADDINGS for a in (0, 1)],
                sample((1, 2, 3, 4, 2), ("float32", (1, 2, 2, 3, 3), -1.2, 1.2)),
                sample((1, 2, 3, 4, 2), ("float32", (1, 2, 2, 3, 3), -1.2, 1.2), mode="nearest", padding_mode="border"),
                sample((2, 3, 6), ("float32", (2, 5, 1), -1.2, 1.2), padding_mode="reflection", align_corners=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, grid = present(types[0]), present(types[1])
        if not x.is_float or not grid.is_float:
            raise TypeMismatchError(f"the input is {x.dtype} and the grid {grid.dtype}; both must be float types.")
        for name, value, known in (("mode", OLD.get(self.mode, self.mode), tuple(TAPS)), ("padding_mode", self.padding_mode, PADDINGS)):
            if value not in known:
                raise UnsupportedError(f"{name} {value!r} is unknown; it must be one of {', '.join(known)}.")
        if not 3 <= x.rank <= 5:
            raise UnsupportedError(f"sampling over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; "
                                   "1, 2 or 3 axes are.")
        if grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != x.rank - 2 or 0 in x.shape[2:]:
            raise ShapeError(f"the grid {list(grid.shape)} does not fit the input {list(x.shape)}: it must be [images, *places, {x.rank - 2}], "
                             "and the spatial axes may not be empty.")
        return (x.with_shape((*x.shape[:2], *grid.shape[1:-1])),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, grid = present(inputs[0]), present(inputs[1])
        spatial, out = x.shape[2:], grid.shape[1:-1]
        grid = grid if grid.dtype == x.dtype else b.Cast(grid, to=x.dtype)
        flat = b.Reshape(grid, shape=(x.shape[0], math.prod(out), len(spatial)), allowzero=1)
        parts = b.Split(flat, axis=2, sizes=(1,) * len(spatial)) if len(spatial) > 1 else (flat,)
        columns = []
        for n, part in zip(spatial, parts[::-1], strict=True):
            at = Var(0, x.dtype)
            at = (at + 1) / 2 * (n - 1) if self.align_corners else ((at + 1) * n - 1) / 2
            columns.append(b.Map(b.Reshape(part, shape=(x.shape[0], 1, math.prod(out)), allowzero=1), exprs=(at,)))
        y = sampled(b, x, columns, OLD.get(self.mode, self.mode), self.padding_mode, bool(self.align_corners))
        return [b.Reshape(y, shape=(*x.shape[:2], *out), allowzero=1)]


@op("AffineGrid")
class AffineGrid(Op):
    """The grid for GridSample of affine maps theta [n, axes, axes + 1] over images of `size` [n, c, *spatial]: [n, *spatial, axes].

    A single element of an axis is at -1 with align_corners, as ONNX defines it (PyTorch has it at 0).
    """

    size: Shape = ()
    align_corners: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 2, 3), size=(2, 3, 4, 5)), sample((2, 2, 3), size=(2, 3, 4, 1), align_corners=1), sample((1, 3, 4), size=(1, 2, 2, 3, 4))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        theta, axes = present(types[0]), len(self.size) - 2
        check_float(theta, "theta")
        if axes not in (2, 3) or theta.shape != (self.size[0], axes, axes + 1) or min(self.size) < 0:
            raise ShapeError(f"theta {list(theta.shape)} and size {list(self.size)} do not fit: for a size [n, c, h, w] theta must be [n, 2, 3], for "
                             "[n, c, d, h, w] [n, 3, 4].")
        return (theta.with_shape((self.size[0], *self.size[2:], axes)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        theta, spatial = present(inputs[0]), self.size[2:]
        rank = len(spatial)
        table = np.ones((*spatial, rank + 1))
        for d, n in enumerate(spatial):
            ends = np.arange(n) * 2 / max(1, n - 1) - 1 if self.align_corners else (np.arange(n) * 2 + 1) / max(1, n) - 1
            table[..., rank - 1 - d] = ends.reshape(-1, *[1] * (rank - 1 - d))
        base = b.constant(table.reshape(-1, rank + 1).astype(theta.type.numpy), "places")
        grid = b.MatMul(base, b.Transpose(theta, perm=(0, 2, 1)))
        return [b.Reshape(grid, shape=(self.size[0], *spatial, rank), allowzero=1)]
