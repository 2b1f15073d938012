"""Products of bfloat16 with float32 sums, by the CPU's own products of pairs (AVX512-BF16): twice the products of float32 an instruction.

An instruction adds to each float32 lane two products, those of the high and of the low halves of 32-bit words, one after the other: two
fused multiply-adds, each rounded to nearest even, for a product of bfloat16 numbers is exact in float32. Denormal operands and
results are zero, whatever the CPU's modes (VDPBF16PS in Intel's Instruction Set Reference). So the error class is that of float32 sums of the widened
numbers; the order within a pair is the only other difference from widening first.

Terms 2p and 2p + 1 of a sum are a pair: rows of A are read as words where they lie. B is laid out in panels of WIDTH columns, [pair][column][2].
An odd last term has zero beside it, on both sides.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.half import BITS16, Bfloat
from ..isa.vector import ELEMENTS, Emitter, define, inlined_code, vector, word
from .micro import CHAIN, by_rows, copy, transpose
from .split import poke

ROWS, VECTORS, LANES = 12, 2, 16
"""The register block: 24 sums in 32 registers."""
WIDTH = VECTORS * LANES
"""Columns of a block, which is the width of a panel of B."""
STEP = 4 * WIDTH
"""Bytes from pair to pair of a panel."""
DEPTH = 1024
"""Terms after which the next panel of B takes its turn: a block of A and one of B of so many terms share the second-level cache."""
SKEW = 64
"""Bytes added to rows of words in scratch: rows a power of two apart would fight for the same cache sets."""


def dot_pairs(e: Emitter, sums: Any, left: Any, right: Any) -> Any:
    """sums + left.high * right.high, + left.low * right.low, in each of 16 lanes; `left` and `right` are words."""
    kind = ir.VectorType(Bfloat(), 2 * LANES)
    return e.call("llvm.x86.avx512bf16.dpbf16ps.512", sums.type, [sums, e.b.bitcast(left, kind), e.b.bitcast(right, kind)])


def in_register(e: Emitter, words: Any) -> Any:
    """A vector that LLVM does not make the memory operand of what reads it.

    Bochs reads such an operand of VDPBF16PS from the wrong place where its distance is one byte of the instruction: it
    takes that times 4, for an element, where a vector's 64 is meant (`tests/oracle/emulator_checks.py` says so as soon
    as it no longer does). On a processor a load by itself takes as long, so that tests can emulate what runs.
    """
    return e.b.asm(ir.FunctionType(words.type, [words.type]), "", "=v,0", [words], False)


def register_block(rows: int, vectors: int = VECTORS) -> Any:
    """The code of one register block of C: `rows` by the first so many vectors of a panel."""
    words, sums_kind = vector("i4", LANES), vector("f4", LANES)
    zero = ir.Constant(sums_kind, None)

    def emit(e: Emitter, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        starts = [e.opaque(e.address(a, e.times(a_row, i))) for i in range(0, rows, 3)]      # three rows to an address, as in `micro`
        twice = e.times(a_row, 2)
        places = [e.address(c, e.times(c_row, i), v * LANES * 4) for i in range(rows) for v in range(vectors)]

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_b, ats, sums = state[0], state[1:1 + len(starts)], state[1 + len(starts):]
            right = [e.load(e.address(at_b, v * LANES * 4), words) for v in range(vectors)]
            right = [in_register(e, r) for r in right] if rows == 1 else right        # with more rows a register holds it for all of them
            for i in range(rows):
                left = e.splat(e.load(e.address(ats[i // 3], (0, a_row, twice)[i % 3]), ELEMENTS["i4"]), LANES)
                for v in range(vectors):
                    sums[i * vectors + v] = dot_pairs(e, sums[i * vectors + v], left, right[v])
            return [e.address(at_b, STEP), *(e.address(at, a_k) for at in ats), *sums]

        def run(done: Any, state: list[Any]) -> list[Any]:
            state = e.loop(0, e.minimum(e.b.sub(k, done), word(CHAIN)), 1, [*state, *[zero] * len(places)], step)
            with e.b.if_else(e.b.icmp_signed("!=", e.b.or_(accumulate, done), word(0))) as (adding, writing):
                with adding:
                    for value, place in zip(state[1 + len(starts):], places, strict=True):
                        e.store(e.b.fadd(e.load(place, sums_kind), value), place)
                with writing:
                    for value, place in zip(state[1 + len(starts):], places, strict=True):
                        e.store(value, place)
            return state[:1 + len(starts)]

        e.loop(0, e.b.select(e.b.icmp_signed(">", k, word(1)), k, word(1)), CHAIN, [b, *starts], run)      # without any k the zeros are written
    return emit


def _outer(path: cpu.Cpu, vectors: int) -> Any:
    def emit(e: Emitter, m: Any, k: Any, a: Any, a_row: Any, a_k: Any, b: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        def block(rows: int, i: Any) -> None:
            function = define(e.b.module, f"tileflow_pairs_{rows}x{vectors}", 8, path, register_block(rows, vectors))
            e.b.call(function, [k, e.address(a, e.b.mul(i, a_row)), a_row, a_k, b, e.address(c, e.b.mul(i, c_row)), c_row, accumulate])

        by_rows(e, m, ROWS, block)
    return emit


@functools.cache
def outer(path: cpu.Cpu) -> Any:
    """The function `outer(m, k, a, a_row, a_k, b, c, c_row, accumulate)`; all arguments intp, strides in bytes.

    C [m, WIDTH] float32 = the sums over k pairs, as above, of A and B, or += where `accumulate` is not 0. Pair p of row i of A lies at
    a + i * a_row + p * a_k; `b` is a panel; row i of C lies at c + i * c_row.
    """
    return inlined_code("tileflow_pairs", "m, k, a, a_row, a_k, b, c, c_row, accumulate", path, _outer(path, VECTORS))


@functools.cache
def narrow(path: cpu.Cpu) -> Any:
    """`outer` of a panel's first LANES columns: C is [m, LANES]."""
    return inlined_code("tileflow_pairs_narrow", "m, k, a, a_row, a_k, b, c, c_row, accumulate", path, _outer(path, 1))


@functools.cache
def across(path: cpu.Cpu) -> Any:
    """The function `multiply(m, n, k, a, a_row, a_k, b, panel, c, c_row, accumulate)`: `outer` for all panels of B,
    which lie `panel` bytes apart. Whole vectors of the n columns of C are written."""
    whole, last = outer(path), narrow(path)

    def multiply(m, n, k, a, a_row, a_k, b, panel, c, c_row, accumulate):  # type: ignore[no-untyped-def]
        for q in range(0, n, WIDTH):
            at, to = b + q // WIDTH * panel, c + 4 * q
            if n - q > LANES:
                whole(m, k, a, a_row, a_k, at, to, c_row, accumulate)
            else:
                last(m, k, a, a_row, a_k, at, to, c_row, accumulate)
    return multiply


def _weave(path: cpu.Cpu) -> Any:
    words, bits = vector("i4", LANES), ir.VectorType(BITS16, LANES)
    shift = ir.Constant(words, [16] * LANES)

    def emit(e: Emitter, k: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        def pair(p: Any, _state: list[Any]) -> None:
            at, to = e.address(source, e.b.mul(p, source_row)), e.address(target, e.b.mul(e.b.lshr(p, word(1)), target_row))
            further = e.splat(e.b.icmp_signed("<", e.address(p, 1), k), LANES)

            def columns(j: Any, mask: Any) -> None:
                low = e.load(e.address(at, e.times(j, 2)), bits, mask)
                high = e.load(e.address(at, source_row, e.times(j, 2)), bits, further if mask is None else e.b.and_(mask, further))
                e.store(e.b.or_(e.b.zext(low, words), e.b.shl(e.b.zext(high, words), shift)), e.address(to, e.times(j, 4)))

            whole = e.b.and_(n, word(-LANES))
            e.loop(0, whole, LANES, [], lambda j, _s: columns(j, None))
            with e.when(e.b.icmp_signed("<", whole, n)):
                columns(whole, e.first(e.b.sub(n, whole), LANES))
        e.loop(0, k, 2, [], pair)
    return emit


@functools.cache
def weave(path: cpu.Cpu) -> Any:
    """The function `weave(k, n, source, source_row, target, target_row)`: rows of 16-bit numbers two and two, strides in bytes.

    target[p, j] = (source[2p, j], source[2p + 1, j]), a word, for j < n; zero stands beside an odd last row and, up to the next multiple
    of 16, after the last column.
    """
    return inlined_code("tileflow_weave", "k, n, source, source_row, target, target_row", path, _weave(path))


def turned(path: cpu.Cpu) -> Any:
    """The function `turned(n, k, source, source_row, target, target_row)`: as `weave` from the transposed rows [n, k]; n is at most WIDTH."""
    turn, move = transpose("f4"), copy("f2")

    def lay(n, k, source, source_row, target, target_row):  # type: ignore[no-untyped-def]
        turn(n, k // 2, source, source_row, target, target_row)
        if k % 2 != 0:
            for j in range(n):
                poke(target + k // 2 * target_row + 4 * j, 0)
                move(1, 1, source + j * source_row + 2 * (k - 1), 0, target + k // 2 * target_row + 4 * j, 0)

    return lay


def left(path: cpu.Cpu) -> Any:
    """The function (height, deep, a, a_row, a_k, scratch) -> (address, row, pair): A as pairs, copied where they do not lie so."""
    woven, move = weave(path), copy("f2")

    def paired(height, deep, a, a_row, a_k, scratch):  # type: ignore[no-untyped-def]
        if a_k == 2 and deep % 2 == 0:
            return a, a_row, 4
        if a_k == 2:
            row = 2 * deep + 2 + SKEW
            for i in range(height):
                poke(scratch + i * row + 2 * deep - 2, 0)
            move(height, deep, a, a_row, scratch, row)
            return scratch, row, 4
        row = 4 * (height + LANES) + SKEW
        woven(deep, height, a, a_k, scratch, row)
        return scratch, 4, row

    return paired


def scratch_bytes(rows: int) -> int:
    """Bytes of scratch for `left` of blocks of that many rows."""
    return max(rows * (2 * DEPTH + 2 + SKEW), DEPTH // 2 * (4 * (rows + LANES) + SKEW))
