"""What brings pixels together for the kernels of channels-last convolution: copies of rows read through addresses, and of columns.

16-bit numbers become float32 on the way to a kernel that sums in vectors.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.half import BITS16, HALVES, read, summed
from ..isa.vector import ELEMENTS, WORD, Emitter, as_intrinsic, itemsize, word


@functools.cache
def gather_rows(dtype: str, path: cpu.Cpu) -> Any:
    """Numba-callable `gather_rows(rows, count, sources, shift, target, row)`: [rows, count] elements, `row` bytes apart, from the rows
    whose addresses are the words at sources + 8 * i, plus `shift`."""
    size = itemsize(dtype)
    lanes = path.lanes(size)
    element = BITS16 if dtype in HALVES else ELEMENTS[dtype]
    kind = ir.VectorType(element, lanes)

    def emit(e: Emitter, rows: Any, count: Any, sources: Any, shift: Any, target: Any, row: Any) -> None:
        whole = e.b.and_(count, word(-lanes))
        mask = e.first(e.b.sub(count, whole), lanes)

        def line(_i: Any, state: list[Any]) -> list[Any]:
            table, to = state
            at = e.address(e.load(table, WORD), shift)
            e.loop(0, whole, lanes, [], lambda j, _s: e.store(e.load(e.address(at, e.times(j, size)), kind), e.address(to, e.times(j, size))))
            with e.when(e.b.icmp_signed("!=", whole, count)):
                end = e.times(whole, size)
                e.store(e.load(e.address(at, end), kind, mask), e.address(to, end), mask)
            return [e.address(table, 8), e.address(to, row)]
        e.loop(0, rows, 1, [sources, target], line)
    return as_intrinsic(f"tileflow_gather_rows_{size}_{path.name}", "rows, count, sources, shift, target, row", path, emit)


@functools.cache
def gather_columns(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    """Numba-callable `gather_columns(pixels, source, step, target)`: target[p, i] = source[p, i] for i < rows, 16-bit numbers as float32;
    rows of the source are `step` bytes apart, those of the target follow one another."""
    size = itemsize(summed(dtype))

    def emit(e: Emitter, pixels: Any, source: Any, step: Any, target: Any) -> None:
        def pixel(_p: Any, state: list[Any]) -> list[Any]:
            e.store(read(e, dtype, state[0], rows), state[1])
            return [e.address(state[0], step), e.address(state[1], rows * size)]
        e.loop(0, pixels, 1, [source, target], pixel)
    return as_intrinsic(f"tileflow_gather_columns_{dtype}_{path.name}_{rows}", "pixels, source, step, target", path, emit)


@functools.cache
def gather_channels(dtype: str, path: cpu.Cpu) -> Any:
    """Numba-callable `gather_channels(cols, pixels, sources, shift, target)`: target[p, j] = the element j of the row whose address is
    the word at sources + 8 * p, plus `shift`; rows of the target are `width` elements, zero from `cols` on; 16-bit numbers as float32."""
    vectors, given, size = path.tile.vectors, itemsize(dtype), itemsize(summed(dtype))
    lanes = path.lanes(size)
    wide = vectors * lanes

    def emit_block(e: Emitter, masked: bool, cols: Any, pixels: Any, sources: Any, shift: Any, target: Any) -> None:
        masks = [e.first(e.b.sub(cols, word(v * lanes)), lanes) if masked else None for v in range(vectors)]

        def pixel(_p: Any, state: list[Any]) -> list[Any]:
            row = e.address(e.load(state[0], WORD), shift)
            for v in range(vectors):
                e.store(read(e, dtype, e.address(row, v * lanes * given), lanes, masks[v]), e.address(state[1], v * lanes * size))
            return [e.address(state[0], 8), e.address(state[1], wide * size)]
        e.loop(0, pixels, 1, [sources, target], pixel)

    def emit(e: Emitter, cols: Any, *args: Any) -> None:
        with e.b.if_else(e.b.icmp_signed(">=", cols, word(wide))) as (whole, part):
            with whole:
                emit_block(e, False, cols, *args)
            with part:
                emit_block(e, True, cols, *args)
    return as_intrinsic(f"tileflow_gather_channels_{dtype}_{path.name}", "cols, pixels, sources, shift, target", path, emit)
