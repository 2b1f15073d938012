"""Whether tensors are finite, and how many elements are large: what adapts a loss scale."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..kernels.finite import all_finite_calls, count_calls
from ..kernels.machine.call import Call
from ..memory.types import FLOATS, TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def _floats(types: Types) -> list[TensorType]:
    found = [present(t) for t in types]
    for i, t in enumerate(found):
        if t.dtype not in FLOATS:
            raise TypeMismatchError(f"input {i} is {t}; it must be one of {', '.join(FLOATS)}.")
    return found


@op("AllFinite", onnx=False)
class AllFinite(Op):
    """x1, …, xn -> whether no element of any of them is infinite or NaN, a bool scalar. Floats of any types and shapes."""

    halves = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (5,), ()), sample(("float16", (7, 2)), (3,), ("float64", (2,))), sample((3, 4), np.array([1.0, np.inf], np.float32)),
                sample((0, 3))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if not types:
            raise ShapeError("there is no operand; give at least one tensor.")
        _floats(types)
        return (TensorType("bool", ()),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.asarray(all(bool(np.isfinite(present(x)).all()) for x in inputs)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The largest magnitude of each is below infinity, which no NaN is."""
        found = None
        for x in map(present, inputs):
            below = b.Less(b.ReduceMax(b.Abs(x), keepdims=0), b.scalar(math.inf, x))
            found = below if found is None else b.And(found, below)
        assert found is not None
        return [found]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        found = _floats(inputs)
        return all_finite_calls([t.code for t in found], [t.size for t in found])


@op("CountLarge", onnx=False)
class CountLarge(Op):
    """x -> how many elements have a magnitude of `edge` or more, a float64 scalar; NaN counts as well."""

    edge: float = 1.0

    halves = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((30, 40), edge=0.5), sample(("float16", (7, 20), -3, 3), edge=0.3), sample(("float64", (9,)), edge=0.25), sample((0,))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if not self.edge >= 0:
            raise ShapeError(f"edge must be a number >= 0, not {self.edge!r}.")
        _floats(types)
        return (TensorType("float64", ()),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0]).astype(np.float64)
        return (np.asarray(np.count_nonzero(~(np.abs(x) < self.edge)), np.float64),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Ones for those that are not below, added in float32: exact for sixteen million of them."""
        x = present(inputs[0])
        wide = b.widened(x)
        small = b.Less(b.Abs(wide), b.scalar(self.edge, wide))
        ones = b.Where(small, b.constant(np.float32(0)), b.constant(np.float32(1)))
        return [b.Cast(b.ReduceSum(ones, keepdims=0), to="float64")]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        return count_calls(x.code, x.size, self.edge)
