"""Matrix products: epilogues on their blocks, and B laid out in panels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..graph.op import Types
from ..graph.types import TensorType, dtype_of
from ..kernels.gemm import GemmProblem, panels
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..ops.matmul import Gemm, Product
from ..ops.shape import present
from .form import AsItStands, Blockwise, Finish, Packed, blockwise, packed


class Products(AsItStands):
    """MatMul, Gemm and their like."""

    op: Product | Gemm
    name: ClassVar[str] = "Products"
    epilogue: ClassVar[int | None] = -1

    def __init__(self, op: Product | Gemm) -> None:
        self.op = op

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        problem = self.op.problem(present(inputs[0]), present(inputs[1]))
        return self.op.calls(problem, inputs, outputs, False, finish.epilogue)


class Prepacked(Blockwise):
    """A product of a given problem whose B, of type `b`, is laid out in panels already. Made by `packed` only."""

    name: ClassVar[str] = "Prepacked"
    epilogue: ClassVar[int | None] = -1

    def __init__(self, op: Product | Gemm, problem: GemmProblem, b: TensorType) -> None:
        self.op, self.problem, self.b = op, problem, b

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(types[0], self.b, *types[2:])

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        return self.op.calls(self.problem, inputs, outputs, True, finish.epilogue)

    def __str__(self) -> str:
        return f"{self.op} with B in panels"


@blockwise.register(Product)
@blockwise.register(Gemm)
def _(op: Product | Gemm) -> Blockwise | None:
    return Products(op)


@packed.register(Product)
@packed.register(Gemm)
def _(op: Product | Gemm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    """Serialized products keep their bounded memory: they have no such form."""
    b = present(inputs[1])
    problem = op.problem(present(inputs[0]), b)
    laid = None if op.pieces() else panels(b.code, problem)
    if laid is None:
        return None
    return Packed(1, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls, Prepacked(op, problem, b))
