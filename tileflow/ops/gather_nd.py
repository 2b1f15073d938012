"""Slices and elements picked by places along several axes at once."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Const, Var, where
from ..memory.types import TensorType
from ..system.errors import ShapeError
from .places import check_indices, element_places, inside, known_place
from .shape import Shape, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


@op("GatherND")
class GatherND(Op):
    """x[batch, place…] for each place that the last axis of the indices holds, within the first `batch_dims` axes that both share.

    Negative places count from the end. One out of range stops the run with status INDEX_OUT_OF_RANGE, or a ShapeError where indices are known.
    Its parts are one place in all of the indexed axes together, and a Gather of rows.
    """

    roles = ("table",)
    halves = True

    batch_dims: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), ("int64", (6, 2), -3, 3)), sample((3, 4), ("int64", (2, 3, 2), 0, 3)), sample((3, 4), ("int64", (5, 1), -3, 3)),
                sample((2, 3, 4), ("int64", (2, 2, 1), -3, 3), batch_dims=1), sample((2, 3, 4, 2), ("int64", (2, 3, 2), -2, 2), batch_dims=2)]

    def split(self, x: Shape, index: Shape) -> tuple[Shape, Shape, Shape]:
        """The sizes of x's batch, indexed and other axes."""
        depth = index[-1] if index else 0
        end = self.batch_dims + depth
        if not 0 <= self.batch_dims < len(index) or not depth or end > len(x) or x[:self.batch_dims] != index[:self.batch_dims]:
            raise ShapeError(f"indices of shape {list(index)} into {list(x)} with batch_dims {self.batch_dims}: the batch axes must be alike and the "
                             f"last axis of the indices must name 1 to {max(0, len(x) - self.batch_dims)} of the others.")
        return x[:self.batch_dims], x[self.batch_dims:end], x[end:]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, index = present(types[0]), present(types[1])
        check_indices(index)
        *_, rest = self.split(x.shape, index.shape)
        return (x.with_shape((*index.shape[:-1], *rest)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, index = present(inputs[0]), present(inputs[1])
        batch, indexed, rest = self.split(x.shape, index.shape)
        rows = b.Reshape(x, shape=(math.prod(batch) * math.prod(indexed), *rest), allowzero=1)
        return [b.Gather(rows, row_places(b, index, x.shape, self.batch_dims), axis=0)]


@op("GatherElements")
class GatherElements(Op):
    """For each index the element that it names along `axis`, at its own place along the others; negative ones count from the end.

    One out of range stops the run with status INDEX_OUT_OF_RANGE, or is a ShapeError where indices are known.
    """

    halves = True

    axis: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("int64", (2, 4), -3, 3)), sample((3, 4), ("int32", (3, 6), -4, 4), axis=1),
                sample((2, 3, 4), ("int64", (2, 5, 3), -3, 3), axis=-2), sample((3, 4), np.array([[1, 3], [0, -4]]), axis=-1),
                sample(("bool", (5,)), ("int64", (3,), 0, 5))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, index = present(types[0]), present(types[1])
        axis = normal_axis(self.axis, x.rank)
        check_indices(index)
        if index.rank != x.rank or any(n > m and i != axis for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True))):
            raise ShapeError(f"indices {list(index.shape)} into {list(x.shape)} must have its axes, and may be larger along axis {axis} only.")
        return (x.with_shape(index.shape),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, index = present(inputs[0]), present(inputs[1])
        places = element_places(b, index, x.shape, normal_axis(self.axis, x.type.rank))
        return [b.Gather(b.Reshape(x, shape=(x.type.size,), allowzero=1), places, axis=0)]


def row_places(b: Builder, index: Value, shape: Shape, batch_dims: int) -> Value:
    """The rows that the last axis of indices into a tensor of `shape` names, in all of the indexed axes together.

    One beyond the last for those that are out of range; raises ShapeError where they are known.
    """
    known = b.graph.constants.get(index)
    if known is not None:
        return b.constant(known_rows(known, shape, batch_dims), "places")
    depth = index.shape[-1]
    batch, indexed = shape[:batch_dims], shape[batch_dims:batch_dims + depth]
    parts = b.Split(index, axis=-1, sizes=(1,) * depth) if depth > 1 else (index,)
    columns = [b.Reshape(part, shape=index.shape[:-1], allowzero=1) for part in parts]
    row, beyond = Const(0, "int64"), Const(math.prod(batch) * math.prod(indexed), "int64")
    outside = []
    for i, n in enumerate(indexed):
        place, out = inside(Var(i, index.dtype), n)
        row = row * n + place
        outside.append(out)
    if batch:
        columns.append(b.constant(_batch_starts(batch, indexed, index.type.rank - 1)))
        row = row + Var(depth, "int64")
    for out in outside:
        row = where(out, beyond, row)
    return b.Map(*columns, exprs=(row,))


def known_rows(index: np.ndarray, shape: Shape, batch_dims: int) -> np.ndarray:
    """The same of indices that are known."""
    batch, indexed = shape[:batch_dims], shape[batch_dims:batch_dims + index.shape[-1]]
    rows = np.zeros(index.shape[:-1], np.int64)
    for i, n in enumerate(indexed):
        rows = rows * n + known_place(index[..., i], n, shape)
    return rows + _batch_starts(batch, indexed, rows.ndim) if batch else rows


def _batch_starts(batch: Shape, indexed: Shape, rank: int) -> np.ndarray:
    """The first row of each batch, to be added to indices of that rank."""
    starts = np.arange(math.prod(batch), dtype=np.int64) * math.prod(indexed)
    return starts.reshape(*batch, *[1] * (rank - len(batch)))
