"""Products of bytes: epilogues on their blocks, which may give another element type, and B laid out in panels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..graph.op import Types
from ..graph.types import TensorType, dtype_of
from ..kernels.gemm.problem import Problem
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..kernels.quantized.product import panels
from ..ops.integer import ByteProduct
from ..ops.shape import present
from .form import AsItStands, Blockwise, Finish, Packed, blockwise, packed


class ByteProducts(AsItStands):
    """ByteProduct and IntegerProduct. Channels of an epilogue are columns."""

    op: ByteProduct
    name: ClassVar[str] = "ByteProducts"
    epilogue: ClassVar[int | None] = -1
    retypes: ClassVar[bool] = True

    def __init__(self, op: ByteProduct) -> None:
        self.op = op

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        a, b = present(inputs[0]), present(inputs[1])
        return self.op.calls(self.op.problem(a, b), (a.code, b.code), inputs, outputs, epilogue=finish.epilogue)


class ByteRows(ByteProducts):
    """Likewise where channels are rows."""

    name: ClassVar[str] = "ByteRows"
    epilogue: ClassVar[int | None] = -2


class PackedBytes(Blockwise):
    """A product of a given problem whose B, of type `b`, is laid out in panels already. Made by `packed` only."""

    name: ClassVar[str] = "PackedBytes"
    epilogue: ClassVar[int | None] = -1
    retypes: ClassVar[bool] = True

    def __init__(self, op: ByteProduct, problem: Problem, b: TensorType) -> None:
        self.op, self.problem, self.b = op, problem, b

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(types[0], self.b, *types[2:])

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        return self.op.calls(self.problem, (present(inputs[0]).code, self.b.code), inputs, outputs, True, finish.epilogue)

    def __str__(self) -> str:
        return f"{self.op} with B in panels"


@blockwise.register(ByteProduct)
def _(op: ByteProduct) -> Blockwise | None:
    return ByteRows(op) if op.by_row else ByteProducts(op)


@packed.register(ByteProduct)
def _(op: ByteProduct, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    a, b = present(inputs[0]), present(inputs[1])
    problem = op.problem(a, b)
    if op.by_row or problem.count * problem.m * problem.n * problem.k == 0:
        return None
    laid = panels(b.code, problem)
    return Packed(1, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls, PackedBytes(op, problem, b))
