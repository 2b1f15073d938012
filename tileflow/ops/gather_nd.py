"""Slices picked by places along several axes at once."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ShapeError, TypeMismatchError
from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..graph.types import TensorType
from ..kernels.elementwise.expr import Const, Var, cast, where
from .index import INDICES
from .shape import Shape, present

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
        if index.dtype not in INDICES:
            raise TypeMismatchError(f"indices are {index.dtype}; they must be int32 or int64.")
        *_, rest = self.split(x.shape, index.shape)
        return (x.with_shape((*index.shape[:-1], *rest)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, index = present(inputs[0]), present(inputs[1])
        batch, indexed, rest = self.split(x.shape, index.shape)
        rows = b.Reshape(x, shape=(math.prod(batch) * math.prod(indexed), *rest), allowzero=1)
        known = b.graph.constants.get(index)
        places = self._computed(b, index, batch, indexed) if known is None else b.constant(self.places(x.type, known), "places")
        return [b.Gather(rows, places, axis=0)]

    def places(self, x: TensorType, index: np.ndarray) -> np.ndarray:
        """The rows that known indices into x name. Raises ShapeError for one out of range."""
        batch, indexed, _ = self.split(x.shape, index.shape)
        rows = np.zeros(index.shape[:-1], np.int64)
        for i, n in enumerate(indexed):
            place = index[..., i].astype(np.int64)
            if place.size and not (-n <= place.min() and place.max() < n):
                raise ShapeError(f"indices outside of {x}: places along an axis of {n} elements are {-n} to {n - 1}.")
            rows = rows * n + place % max(n, 1)
        return rows + _batch_starts(batch, indexed, rows.ndim) if batch else rows

    def _computed(self, b: Builder, index: Value, batch: Shape, indexed: Shape) -> Value:
        """The rows that the indices name; one beyond the last for those that are out of range."""
        depth, shape = len(indexed), index.shape[:-1]
        parts = b.Split(index, axis=-1, sizes=(1,) * depth) if depth > 1 else (index,)
        columns = [b.Reshape(part, shape=shape, allowzero=1) for part in parts]
        beyond = Const(math.prod(batch) * math.prod(indexed), "int64")
        row: object = Const(0, "int64")
        places = []
        for i, n in enumerate(indexed):
            given = cast(Var(i, index.dtype), "int64")
            places.append(where(given < 0, given + n, given))
            row = row * n + places[-1]                                   # type: ignore[operator]
        if batch:
            starts = _batch_starts(batch, indexed, len(shape)).astype(np.int64)
            columns.append(b.constant(starts))
            row = row + Var(depth, "int64")                              # type: ignore[operator]
        for place, n in zip(places, indexed, strict=True):
            row = where(place < 0, beyond, where(place >= n, beyond, row))          # type: ignore[arg-type]
        return b.Map(*columns, exprs=(row,))                                # type: ignore[arg-type]


def _batch_starts(batch: Shape, indexed: Shape, rank: int) -> np.ndarray:
    """The first row of each batch, to be added to indices of that rank."""
    starts = np.arange(math.prod(batch)) * math.prod(indexed)
    return starts.reshape(*batch, *[1] * (rank - len(batch)))
