"""Products of float16 with float16 sums, by the CPU's own float16 multiply-adds (AVX512-FP16): twice the elements of float32 a vector.

A block of `PARTIAL` products is summed from zero in a chain of fused multiply-adds, each rounded to float16; then it is added to the
partial sum, rounded. CPUs without these instructions sum a block in float32 and round once (half.py), so bits differ from one path to
the other; on one path they are always the same. Inside of a block a sum may become infinite here that float32 could hold.

For sums in float32 these instructions give nothing but conversions, which the kernels do while packing anyway.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.vector import ELEMENTS, Emitter, define, inlined_code, vector, word
from .micro import by_rows

PARTIAL = 16
"""Products that are summed before a float16 partial sum is rounded."""
ROWS, VECTORS, LANES = 6, 2, 32
"""The register block: 12 partial sums and 12 sums of a block in 32 registers."""
WIDTH = VECTORS * LANES
"""Columns of a block, which is the width of a panel of B."""


def register_block(rows: int) -> Any:
    """The code of one register block of C: `rows` x WIDTH."""
    kind, zero = vector("f2", LANES), ir.Constant(vector("f2", LANES), None)

    def emit(e: Emitter, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, c: Any, c_row: Any) -> None:
        a_rows = [e.opaque(e.times(a_row, i)) for i in range(rows)]

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_a, at_b, *sums = state
            right = [e.load(e.address(at_b, v * LANES * 2), kind) for v in range(VECTORS)]
            for i in range(rows):
                left = e.splat(e.load(e.address(at_a, a_rows[i]), ELEMENTS["f2"]), LANES)
                for v in range(VECTORS):
                    sums[i * VECTORS + v] = e.fma(left, right[v], sums[i * VECTORS + v])
            return [e.address(at_a, a_k), e.address(at_b, WIDTH * 2), *sums]

        def run(done: Any, state: list[Any]) -> list[Any]:
            at_a, at_b, *totals = state
            at_a, at_b, *sums = e.loop(0, e.minimum(e.b.sub(k, done), word(PARTIAL)), 1, [at_a, at_b, *[zero] * len(totals)], step)
            return [at_a, at_b, *(e.b.fadd(total, part) for total, part in zip(totals, sums, strict=True))]

        _, _, *totals = e.loop(0, k, PARTIAL, [a, b, *[zero] * (rows * VECTORS)], run)
        for i in range(rows):
            for v in range(VECTORS):
                e.store(e.b.fpext(totals[i * VECTORS + v], vector("f4", LANES)), e.address(c, e.times(c_row, i), v * LANES * 4))
    return emit


def _outer(path: cpu.Cpu) -> Any:
    def emit(e: Emitter, m: Any, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, c: Any, c_row: Any) -> None:
        def block(rows: int, i: Any) -> None:
            function = define(e.b.module, f"tileflow_half_fma_{rows}", 7, path, register_block(rows))
            e.b.call(function, [k, e.address(a, e.b.mul(i, a_row)), a_row, a_k, b, e.address(c, e.b.mul(i, c_row)), c_row])

        by_rows(e, m, ROWS, block)
    return emit


@functools.cache
def outer(path: cpu.Cpu) -> Any:
    """The function `outer(m, k, a, a_row, a_k, b, c, c_row)`; all arguments intp, strides in bytes.

    C [m, WIDTH] float32 = the sums over k, as above, of A[i, k] * B[k, j], both float16. A[i, k] lies at a + i * a_row + k * a_k, rows of B
    are WIDTH elements that follow one another, row i of C lies at c + i * c_row.
    """
    return inlined_code("tileflow_half_fma", "m, k, a, a_row, a_k, b, c, c_row", path, _outer(path))
