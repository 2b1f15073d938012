"""Elements kept, or written, by where they lie: triangles, and ones among zeros."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Const, Var, cast, equal, where
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@op("Trilu")
class Trilu(Op):
    """The upper (or lower) triangle of the last two axes from the k-th diagonal on, zero elsewhere, whatever was there."""

    roles = ("moved",)

    upper: int = 1
    k: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4)), sample((2, 4, 3), upper=0), sample((3, 4), k=1), sample((4, 3), upper=0, k=-2),
                sample(("int64", (3, 3), -9, 9), k=-1),
                sample(("bool", (3, 3)), upper=0, k=9)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if x.rank < 2:
            raise ShapeError(f"{list(x.shape)} has no two axes to take a triangle of.")
        return (x,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        rows, columns = x.shape[-2:]
        far = max(min(self.k, columns), -rows)             # beyond, all or nothing stays
        row, column = b.constant(np.arange(rows, dtype=np.int32).reshape(-1, 1)), b.constant(np.arange(columns, dtype=np.int32))
        across = Var(2, "int32") - Var(1, "int32")
        kept = across >= far if self.upper else across <= far
        return [b.Map(x, row, column, exprs=(where(kept, Var(0, x.dtype), Const(0, x.dtype)),))]


@op("OneHot")
class OneHot(Op):
    """`values[1]` at the place that each index names along a new axis of `depth`, `values[0]` elsewhere.

    Indices of -depth to -1 count from the end; those outside have no such place. Float indices are cut to whole numbers.
    """

    roles = ("data", "moved")

    depth: int = 1
    axis: int = -1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("int64", (3, 2), -5, 7), (2,), depth=4), sample(("int32", (3,), 0, 3), np.array([2, 5]), depth=3, axis=0),
                sample(np.array([[0.5, 2.5], [1.5, 9.5]], np.float32), (2,), depth=3, axis=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        index, values = present(types[0]), present(types[1])
        axis = normal_axis(self.axis, index.rank + 1)
        if index.dtype == "bool":
            raise TypeMismatchError("the indices are bool; they must be numbers.")
        if values.shape != (2,):
            raise ShapeError(f"the values are {values}; they must be two, that of all others and that of the index.")
        if self.depth < 0:
            raise ShapeError(f"the depth is {self.depth}; it must not be negative.")
        return (values.with_shape((*index.shape[:axis], self.depth, *index.shape[axis:])),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        index, values = present(inputs[0]), present(inputs[1])
        rank = index.type.rank + 1
        axis = normal_axis(self.axis, rank)
        off, on = (b.Reshape(v, shape=(), allowzero=1) for v in b.Split(values, axis=0, sizes=(1, 1)))
        places = b.constant(np.arange(self.depth).reshape([self.depth if i == axis else 1 for i in range(rank)]))
        number = cast(Var(0, index.dtype), "int64")
        place = where(number < 0, number + self.depth, number)
        hot = b.Map(b.Unsqueeze(index, axes=(axis,)), places, exprs=(equal(place, Var(1, "int64")),))
        return [b.Where(hot, on, off)]
