"""Matrix products: one front for all types; in which blocks (blocking.py), micro-kernels, and the ways: float32, half, tiles."""
from __future__ import annotations

from ..elementwise.epilogue import Epilogue
from ..isa.half import HALVES
from ..machine.call import Call, In, Out, Work
from . import float32, half
from .problem import Bias, GemmProblem, Panels, Serial

__all__ = ["Bias", "GemmProblem", "Panels", "Serial", "matmul_calls", "panels"]


def matmul_calls(dtype: str, p: GemmProblem, a: In, b: In, c: Out | Work, *, alpha: float = 1.0, beta: float = 1.0,
                 bias: Bias | None = None,
                 serial: Serial | None = None, packed: bool = False, epilogue: Epilogue | None = None, partials: str = "f4") -> list[Call]:
    """Calls that compute C = alpha * A @ B + beta * bias for every matrix of a batch, on the current CPU path.

    Args:
        dtype: "f4", "f8", "f2" or "b2".
        p: sizes, transpositions and batch.
        a, b, c: the operands. Only their number of elements matters; C holds the matrices of the batch in order.
        bias: an addend, the same for all matrices; those of a batch must have a B each.
        serial: do it in pieces, with less scratch memory. Pieces of sums must divide k.
        packed: b is what the calls of `panels` made.
        epilogue: elementwise work on C; channels are columns, the last axis of c's shape.
        partials: "f2" rounds the sums of 16-bit products to float16 after every 16 of them.
    """
    assert bias is None or all(p.b_step)
    if dtype in HALVES:
        return half.calls(dtype, p, a, b, c, alpha=alpha, beta=beta, bias=bias, serial=serial, partials=partials, packed=packed, epilogue=epilogue)
    return float32.calls(dtype, p, a, b, c, alpha=alpha, beta=beta, bias=bias, serial=serial, packed=packed, epilogue=epilogue)


def panels(dtype: str, p: GemmProblem) -> Panels | None:
    """How B is laid out for `matmul_calls(..., packed=True)` on the current CPU path; None where B is better read as it is."""
    return (half if dtype in HALVES else float32).panels(dtype, p)
