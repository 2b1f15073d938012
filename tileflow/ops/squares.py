"""Sums of squares over many tensors, and scalars out of a vector: what clipping by a norm and LAMB's trust ratios need."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..kernels.machine.call import Call
from ..kernels.squares import squares_calls
from ..memory.types import FLOATS, TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


class _Squares(Op):
    """Shared by both: all operands of one float type, of any shapes; sums are float64, in which no square of a float32 overflows."""

    halves = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (5,), ()), sample(("float16", (7, 2)), ("float16", (3,)))]

    def common(self, types: Types) -> list[TensorType]:
        """The operands' types, which must be the same float."""
        found = [present(t) for t in types]
        if not found:
            raise ShapeError("there is no operand; give at least one tensor.")
        for i, t in enumerate(found):
            if t.dtype not in FLOATS or t.dtype != found[0].dtype:
                raise TypeMismatchError(f"input {i} is {t.dtype} and input 0 {found[0].dtype}; all must be of one float type "
                                        "(sum each type by itself and add).")
        return found

    def sums(self, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        """The sums of the squares of each array."""
        return np.array([np.square(present(a).astype(np.float64)).sum() for a in arrays])

    def parts(self, b: Builder, inputs: Sequence[Value | None]) -> list[Value]:
        """The sum of each operand's squares, as float64 of one element."""
        found = []
        for x in map(present, inputs):
            wide = b.widened(x)
            total = b.ReduceSum(b.Mul(wide, wide), keepdims=0)
            found.append(b.Reshape(b.cast(total, "float64"), shape=(1,)))
        return found


@op("SquareSum", onnx=False)
class SquareSum(_Squares):
    """x1, …, xn -> the sum of the squares of all their elements, a float64 scalar (the square of the norm of them all)."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        self.common(types)
        return (TensorType("float64", ()),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.asarray(math.fsum(self.sums(inputs)) if np.isfinite(self.sums(inputs)).all() else self.sums(inputs).sum()),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        return [b.ReduceSum(b.Concat(*self.parts(b, inputs), axis=0), keepdims=0)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        found = self.common(inputs)
        return squares_calls(found[0].code, [t.size for t in found], together=True)


@op("SquareSums", onnx=False)
class SquareSums(_Squares):
    """x1, …, xn -> the sum of the squares of each, float64 [n] (the squares of their norms)."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType("float64", (len(self.common(types)),)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (self.sums(inputs),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        return [b.Concat(*self.parts(b, inputs), axis=0)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        found = self.common(inputs)
        return squares_calls(found[0].code, [t.size for t in found], together=False)
