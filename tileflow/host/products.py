"""Matrix products: epilogues on their blocks, and B laid out in panels."""
from __future__ import annotations

from collections.abc import Sequence

from ..graph.op import Types
from ..kernels.gemm import panels
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..memory.types import TensorType, dtype_of
from ..ops.matmul import Gemm, Product
from ..ops.shape import present
from .form import Blockwise, HostForm, Packed, blockwise, calls, packed


@blockwise.register(Product)
@blockwise.register(Gemm)
def _(op: Product | Gemm, form: HostForm) -> Blockwise | None:
    return Blockwise(-1)


@packed.register(Product)
@packed.register(Gemm)
def _(op: Product | Gemm, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    """B. Serialized products keep their bounded memory: they have no such form."""
    b = present(inputs[1])
    laid = None if op.pieces() else panels(b.code, op.problem(present(inputs[0]), b))
    return None if laid is None else Packed(1, b, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls)


@calls.register(Product)
@calls.register(Gemm)
def _(op: Product | Gemm, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    problem = op.problem(present(inputs[0]), present(inputs[1]))
    return op.calls(problem, form.laid(inputs), outputs, form.packed is not None, form.epilogue)
