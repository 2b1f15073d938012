"""What brings pixels together for the kernels of channels-last convolution: copies of rows read through addresses, and of columns.

16-bit numbers become float32 on the way to a kernel that sums in vectors.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.half import BITS16, HALVES, read, summed
from ..isa.vector import ELEMENTS, WORD, Emitter, inlined_code, itemsize, word


@functools.cache
def gather_rows(dtype: str, path: cpu.Cpu) -> Any:
    """The function `gather_rows(rows, count, sources, shift, target, row)`: [rows, count] elements, `row` bytes apart, from the rows
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
    return inlined_code(f"tileflow_gather_rows_{size}_{path.name}", "rows, count, sources, shift, target, row", path, emit)


@functools.cache
def gather_columns(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    """The function `gather_columns(pixels, source, step, target)`: target[p, i] = source[p, i] for i < rows, 16-bit numbers as float32;
    rows of the source are `step` bytes apart, those of the target follow one another."""
    size = itemsize(summed(dtype))

    def emit(e: Emitter, pixels: Any, source: Any, step: Any, target: Any) -> None:
        def pixel(_p: Any, state: list[Any]) -> list[Any]:
            e.store(read(e, dtype, state[0], rows), state[1])
            return [e.address(state[0], step), e.address(state[1], rows * size)]
        e.loop(0, pixels, 1, [source, target], pixel)
    return inlined_code(f"tileflow_gather_columns_{dtype}_{path.name}_{rows}", "pixels, source, step, target", path, emit)


@functools.cache
def gather_channels(dtype: str, path: cpu.Cpu, pairs: bool = False) -> Any:
    """The function `gather_channels(cols, terms, sources, shift, target, single)`: target[p, j] = the element j of
    the row whose address is the word at sources + 8 * p, plus `shift`; rows of the target are `width` elements, zero
    from `cols` on; 16-bit numbers as float32.

    With `pairs` of bfloat16 a term is two pixels, and an element of the target a word: those of pixels 2p and 2p + 1,
    the first in the low half. single: not 0: there are columns for one vector at most, and what lies beside it stays.
    """
    vectors, given, size = path.tile.vectors, itemsize(dtype), itemsize(summed(dtype))
    lanes, pixels = path.lanes(size), 2 if pairs else 1
    wide, bits = vectors * lanes, ir.VectorType(BITS16, lanes)
    turns = ir.Constant(ir.VectorType(ir.IntType(32), 2 * lanes), [i // 2 + i % 2 * lanes for i in range(2 * lanes)])

    def part(e: Emitter, rows: list[Any], v: int, mask: Any) -> Any:
        places = [e.address(row, v * lanes * given) for row in rows]
        if pairs:
            return e.b.shuffle_vector(*(e.load(place, bits, mask) for place in places), turns)
        return read(e, dtype, places[0], lanes, mask)

    def emit_block(e: Emitter, count: int, masked: bool, cols: Any, terms: Any, sources: Any, shift: Any,
                   target: Any) -> None:
        masks = [e.first(e.b.sub(cols, word(v * lanes)), lanes) if masked else None for v in range(count)]

        def term(_p: Any, state: list[Any]) -> list[Any]:
            rows = [e.address(e.load(e.address(state[0], 8 * i), WORD), shift) for i in range(pixels)]
            for v, mask in enumerate(masks):
                e.store(part(e, rows, v, mask), e.address(state[1], v * lanes * size))
            return [e.address(state[0], 8 * pixels), e.address(state[1], wide * size)]
        e.loop(0, terms, 1, [sources, target], term)

    def emit(e: Emitter, cols: Any, terms: Any, sources: Any, shift: Any, target: Any, single: Any) -> None:
        given = (cols, terms, sources, shift, target)
        with e.b.if_else(e.b.icmp_signed("!=", single, word(0))) as (one, more):
            with one:
                emit_block(e, 1, True, *given)
            with more, e.b.if_else(e.b.icmp_signed(">=", cols, word(wide))) as (whole, some):
                with whole:
                    emit_block(e, vectors, False, *given)
                with some:
                    emit_block(e, vectors, True, *given)
    return inlined_code(f"tileflow_gather_channels_{dtype}_{path.name}_{pixels}",
                        "cols, terms, sources, shift, target, single", path, emit)
