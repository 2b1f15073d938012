"""The best elements along an axis, in order, and where they lie."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Operand, Staged, Work
from ..graph.work import Axis as WorkAxis
from ..kernels.machine.call import Call
from ..kernels.top_k import top_k_calls
from ..memory.types import FLOATS, TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

RANKED = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


@op("TopK")
class TopK(Op):
    """The K largest (or smallest) elements along `axis`, the best first, and their places (int64).

    The first of equals comes first; NaN is above all numbers, as NumPy sorts. Without `sorted` the order is left open, and is this one all the same.
    """

    halves = True

    K: int = 1
    axis: int = -1
    largest: int = 1
    sorted: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        ties = np.array([[1, 3, 3, 0, 1], [2, 2, 2, 2, 2]], np.int8)
        return [sample((3, 7), K=3), sample((2, 5, 3), K=2, axis=1, largest=0), sample((4, 3), K=4, axis=0), sample(ties, K=4),
                sample(("uint64", (70,), 0, 9), K=69, sorted=0)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        axis = normal_axis(self.axis, x.rank)
        if x.dtype not in RANKED:
            raise TypeMismatchError(f"the input is {x.dtype}; it must be one of {', '.join(RANKED)}.")
        if not 0 <= self.K <= x.shape[axis]:
            raise ShapeError(f"K {self.K} of the {x.shape[axis]} elements of axis {axis} of {list(x.shape)}; it must be 0 to {x.shape[axis]}.")
        y = x.with_shape((*x.shape[:axis], self.K, *x.shape[axis + 1:]))
        return y, y.with_dtype("int64")

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        keys = x.astype(np.float32) if x.dtype.name == "bfloat16" else x
        if self.largest:                                   # turned, so that the first of equals is the last; then the best is first
            order = x.shape[self.axis] - 1 - np.flip(np.argsort(np.flip(keys, self.axis), self.axis, kind="stable"), self.axis)
        else:
            order = np.argsort(keys, self.axis, kind="stable")
        places = np.take(order, range(self.K), self.axis)
        return np.take_along_axis(x, places, self.axis), places.astype(np.int64)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        if g is None:
            return [None]
        nothing = b.Expand(b.scalar(0.0, x), shape=x.shape)
        return [b.ScatterElements(nothing, outputs[1], g, axis=normal_axis(self.axis, x.type.rank))]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        axis, names = normal_axis(self.axis, x.rank), LETTERS[:x.rank]
        axes = tuple(
            WorkAxis(a, n, "staged" if i == axis else "parallel")
            for i, (a, n) in enumerate(zip(names, x.shape, strict=True))
        )
        best = tuple(None if i == axis else a for i, a in enumerate(names))
        return Staged(
            axes,
            (Operand(tuple(names), x.dtype),),
            tuple(Operand(best, y.dtype) for y in outputs),
            math.log2(self.K + 1) + 1.0,
            joined="select",
        )

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        lo, hi = box[LETTERS[normal_axis(self.axis, present(inputs[0]).rank)]]
        return self if hi - lo >= self.K else replace(self, K=hi - lo)

    def joined(self, starts: Sequence[int], made: Sequence[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
        """The best of what all parts have: those of an earlier part come first, as they do in the whole."""
        values = np.concatenate([best for best, _ in made], self.axis)
        places = np.concatenate([at + start for start, (_, at) in zip(starts, made, strict=True)], self.axis)
        best, at = replace(self, K=min(self.K, values.shape[self.axis])).reference(values)
        return [(best, np.take_along_axis(places, at, self.axis))]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        axis = normal_axis(self.axis, x.rank)
        if not outputs[0].size:
            return []
        return top_k_calls(x.code, math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:]), self.K, bool(self.largest))
