"""Serialized matrix products: the same products in equal pieces one after the other, with less temporary memory.

With the product Y [m, n] = X [m, k] @ W [k, n] and its gradients, the modes cut (PopART's serializematmuls.cpp):

    mode             axis   Y = X W          dX = G W'        dW = X' G
    input_channels   m      rows of Y        rows of dX       sums, added in order
    reducing_dim     k      sums, in order   columns of dX    rows of dW
    output_channels  n      columns of Y     sums, in order   columns of dW

Rows and columns are bit-equal to the plain product; sums are where a piece is a multiple of the depth after which the
plain product's sums start anew, else they are equally accurate.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..system.errors import OptionError, ShapeError
from .matmul import MODES, FusedMatMul, Gemm, Pieces
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..memory.types import TensorType

DIMENSIONS = {"m": "rows of A", "k": "columns of A, over which it sums", "n": "columns of B"}


@dataclass(frozen=True, repr=False)
class Serialized:
    """The attributes of a serialized product: which dimension is cut, and in how many pieces.

    keep_precision: float16 operands give float32 pieces, which are added in float32 and rounded once. (Sums of float32
    and float64 are kept in their own precision anyway.)
    """

    mode: str = "output_channels"
    factor: int = 1
    keep_precision: bool = False

    def pieces(self) -> Pieces:
        return Pieces(MODES[self.mode], self.factor, self.keep_precision)

    def plain(self, kind: type[Op]) -> Op:
        """The product of that kind with the same attributes, in one piece."""
        return kind(**{f.name: getattr(self, f.name) for f in fields(kind)})               # type: ignore[arg-type]

    def serialized(self, mode: str, factor: int, keep_precision: bool = False) -> Op | None:
        """What is serialized already stays as it is."""
        return None

    def check(self, a: TensorType, b: TensorType, problem: Any) -> None:
        """Raises OptionError for an unknown mode, ShapeError where the factor does not divide the dimension."""
        if self.mode not in MODES:
            raise OptionError(f"mode {self.mode!r} is unknown; a matmul is serialized along {', '.join(MODES)}.")
        axis = MODES[self.mode]
        size = getattr(problem, axis)
        if self.factor < 1 or size % self.factor:
            raise ShapeError(f"A is {a} and B is {b}: mode {self.mode} cuts the {size} {DIMENSIONS[axis]}; the factor {self.factor} "
                             f"does not divide {size}. Choose a factor that does.")


@op("SerializedMatMul", onnx=False)
class SerializedMatMul(Serialized, FusedMatMul):
    """FusedMatMul in pieces."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (4, 2), mode="input_channels", factor=3)]

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return self.plain(FusedMatMul)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        inferred = super().infer(*types)
        a, b = map(present, types)
        self.check(a, b, self.problem(a, b))
        return inferred


@op("SerializedGemm", onnx=False)
class SerializedGemm(Serialized, Gemm):
    """Gemm in pieces."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (4, 2), (2,), mode="reducing_dim", factor=2)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        return b.emit(self.plain(Gemm), *inputs)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return self.plain(Gemm)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        inferred = super().infer(*types)
        a, b = present(types[0]), present(types[1])
        self.check(a, b, self.problem(a, b))
        return inferred
