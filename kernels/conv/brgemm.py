"""The register kernel of channels-last convolution: pixels x channels, summed over taps through a table of addresses.

A block of C is `rows` pixels times `vectors` vectors of output channels. Its left operand is the image itself: for each tap, the table
says where each pixel of the block meets it, and the channels follow one another there. Nothing is unfolded, and what lies in the
padding is a row of zeros (the indirect convolution of Dukhan, arXiv:1907.02129). The right operand is weights packed in panels.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..gemm.micro import IN_PANELS, LINE
from ..gemm.pairs import dot_pairs
from ..isa import cpu
from ..isa.half import summed
from ..isa.vector import ELEMENTS, WORD, Emitter, inlined_code, itemsize, vector, word


@dataclass(frozen=True)
class Block:
    """A register block: rows of the left operand, vectors of the right one."""

    rows: int
    vectors: int

    def wide(self, dtype: str, path: cpu.Cpu) -> int:
        """Columns, where elements of this type are summed."""
        return self.vectors * path.lanes(itemsize(summed(dtype)))


def block(dtype: str, path: cpu.Cpu, used: int) -> Block:
    """The block for `used` columns in all: of pairs, one vector where that holds them."""
    if dtype == "b2" and used <= path.lanes(4):
        return Block(path.tile.rows, 1)
    return Block(path.tile.rows, path.tile.vectors)


def width(dtype: str, path: cpu.Cpu, used: int = 1 << 30) -> int:
    """Output channels of the register block for `used` of them, which is the width of a panel of weights."""
    return block(dtype, path, used).wide(dtype, path)


def _terms(dtype: str) -> tuple[str, Callable[[Emitter, Any, Any, Any], Any]]:
    """The dtype of a term, and the emitter (e, left, right, sums): a number and a multiply-add, or a word with a pair
    of bfloat16 numbers and both their products."""
    if dtype == "b2":
        return "i4", lambda e, left, right, sums: dot_pairs(e, sums, left, right)
    return dtype, lambda e, left, right, sums: e.fma(left, right, sums)


def _brgemm(dtype: str, path: cpu.Cpu, rows: int, vectors: int, panel: int) -> Any:
    (term, multiply), made = _terms(dtype), summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    kind, terms, element, wide = vector(made, lanes), vector(term, lanes), ELEMENTS[term], vectors * lanes
    step = panel * lanes * size

    def emit(e: Emitter, cols: Any, taps: Any, depth: Any, sources: Any, tap_step: Any, shift: Any, b: Any, b_tap: Any, bias: Any,
             places: Any, column: Any, accumulate: Any, ahead: Any, ahead_c: Any) -> None:
        targets = [e.address(e.load(e.address(places, 8 * i), WORD), column) for i in range(rows)]
        for place in targets:
            e.prefetch(place, write=True)
        with e.when(e.b.icmp_signed("!=", ahead, word(0))):
            for place in targets:
                for line in range(0, wide * size, LINE):
                    e.prefetch(e.address(place, ahead_c, line), write=True)
            with e.when(e.b.icmp_signed("==", column, word(0))):                 # other panels meet the same pixels
                newest = e.address(sources, e.b.mul(tap_step, e.b.sub(taps, word(1))))
                pixels = [e.address(e.load(e.address(newest, 8 * i), WORD), shift, ahead) for i in range(rows)]

                def ask(at: Any, _state: list[Any]) -> None:
                    for pixel in pixels:
                        e.prefetch(e.address(pixel, at), locality=2)
                e.loop(0, depth, LINE, [], ask)
        none = e.b.icmp_signed("==", bias, word(0))
        counted, addend = e.b.select(none, word(0), cols), e.b.select(none, b, bias)      # masked or not, a bad address would be slow
        start = [e.load(e.address(addend, v * lanes * size), kind, e.first(e.b.sub(counted, word(v * lanes)), lanes))
                 for v in range(vectors)]

        def tap(_t: Any, state: list[Any]) -> list[Any]:
            table, at_b, *sums = state
            lefts = [e.address(e.load(e.address(table, 8 * i), WORD), shift) for i in range(rows)]

            def channel(at: Any, state: list[Any]) -> list[Any]:
                at_b, *sums = state
                right = [e.load(e.address(at_b, v * lanes * size), terms) for v in range(vectors)]
                for line in range(0, wide * size, LINE):                     # the first pixels wait for weights at every step
                    e.prefetch(e.address(at_b, IN_PANELS.b + line))
                for i in range(rows):
                    left = e.splat(e.load(e.address(lefts[i], at), element), lanes)
                    for v in range(vectors):
                        sums[i * vectors + v] = multiply(e, left, right[v], sums[i * vectors + v])
                return [e.address(at_b, step), *sums]

            _, *sums = e.loop(0, depth, size, [at_b, *sums], channel)
            return [e.address(table, tap_step), e.address(at_b, b_tap), *sums]

        _, _, *sums = e.loop(0, taps, 1, [sources, b, *(start * rows)], tap)

        def finish(masked: bool, adding: bool) -> None:
            for v in range(vectors):
                mask = e.first(e.b.sub(cols, word(v * lanes)), lanes) if masked else None
                for i in range(rows):
                    place, total = e.address(targets[i], v * lanes * size), sums[i * vectors + v]
                    e.store(e.b.fadd(e.load(place, kind, mask), total) if adding else total, place, mask)

        adds = e.b.icmp_signed("!=", accumulate, word(0))
        with e.b.if_else(e.b.icmp_signed(">=", cols, word(wide))) as (whole, part):
            for branch, masked in ((whole, False), (part, True)):
                with branch, e.b.if_else(adds) as (add, write):
                    with add:
                        finish(masked, True)
                    with write:
                        finish(masked, False)
    return emit


@functools.cache
def brgemm(dtype: str, path: cpu.Cpu, rows: int, vectors: int, panel: int) -> Any:
    """The function `brgemm(cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate,
    ahead, ahead_c)`.

    C[i, j] (+)= bias[j] + the sum over taps t and channels k of A[t, i][k] * B[t][k, j], for i < rows and
    j < cols; sums run over the taps, and over the channels of each, in ascending order. Of "b2", A and B hold pairs of
    channels in words of 32 bits, C and the bias float32 (gemm/pairs.py has the order within a pair).

    Args (integers; strides in bytes):
        cols: columns of C that are written, at most those of `vectors`.
        depth: bytes of the channels that are summed.
        sources, tap_step, shift: the address of A[t, i] is the word at sources + t * tap_step + 8 * i, plus `shift`.
        b, b_tap: B[t] is rows of `panel` vectors of elements, or words, from b + t * b_tap on.
        bias: the address of `cols` elements, or 0.
        places, column: the address of row i of C is the word at places + 8 * i, plus `column`.
        accumulate: not 0: add to what is in C. Rows that several i share then hold anything.
        ahead, ahead_c: what lies so far behind the pixels of the last tap, and behind C, is asked for (ahead 0:
            nothing is).
    """
    return inlined_code(f"tileflow_brgemm_{dtype}_{path.name}_{rows}_{vectors}_{panel}",
                        "cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate, "
                        "ahead, ahead_c", path, _brgemm(dtype, path, rows, vectors, panel))


SUMS = 8
"""Vectors of sums that hide the latency of their additions: fewer pixels than that takes are no quicker."""


@functools.cache
def brgemm_rows(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Any:
    """A function over words, `brgemm_rows(count, cols, ...)`: `brgemm` over `count` rows, in blocks of `rows`,
    and of few for those that would fill no whole one; of one vector, if that holds the columns that a panel has. Tables
    hold a multiple of `rows`; the other arguments are those of `brgemm`."""
    wide = _blocks(dtype, path, rows, vectors, vectors)
    if vectors == 1:
        return wide
    slim, narrow = _blocks(dtype, path, rows, 1, vectors), path.lanes(itemsize(summed(dtype)))

    def each(count, cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column,  # type: ignore
             accumulate, ahead, ahead_c):
        if cols > narrow:
            wide(count, cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate, ahead,
                 ahead_c)
        else:
            slim(count, cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate, ahead,
                 ahead_c)
    return each


@functools.cache
def _blocks(dtype: str, path: cpu.Cpu, rows: int, vectors: int, panel: int) -> Any:
    few = min(rows, -(-SUMS // vectors))
    whole, part = brgemm(dtype, path, rows, vectors, panel), brgemm(dtype, path, few, vectors, panel)

    def each(count, cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column,  # type: ignore
             accumulate, ahead, ahead_c):
        at = 0
        while at < count:
            if (count - at + few - 1) // few * few >= rows:
                whole(cols, taps, depth, sources + at * 8, tap_step, shift, b, b_tap, bias, places + at * 8, column,
                      accumulate, ahead, ahead_c)
                at += rows
            else:
                part(cols, taps, depth, sources + at * 8, tap_step, shift, b, b_tap, bias, places + at * 8, column,
                     accumulate, ahead, ahead_c)
                at += few
    return each


def _over_pixels(dtype: str, path: cpu.Cpu, rows: int, vectors: int, where: bool) -> Any:
    (term, multiply), made = _terms(dtype), summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    kind, terms, element = vector(made, lanes), vector(term, lanes), ELEMENTS[term]

    def emit(e: Emitter, pixels: Any, a: Any, b: Any, shift: Any, c: Any, accumulate: Any, ahead: Any) -> None:
        places = [e.address(c, i * lanes * size) for i in range(rows * vectors)]
        for place in places[::vectors]:
            e.prefetch(place, write=True)

        def pixel(p: Any, state: list[Any]) -> list[Any]:
            at_a, at_b, *sums = state
            e.prefetch(e.address(ahead, e.times(p, LINE)), locality=2)
            source = e.address(e.load(at_b, WORD), shift) if where else at_b
            right = [e.load(e.address(source, v * lanes * size), terms) for v in range(vectors)]
            for i in range(rows):
                left = e.splat(e.load(e.address(at_a, i * size), element), lanes)
                for v in range(vectors):
                    sums[i * vectors + v] = multiply(e, left, right[v], sums[i * vectors + v])
            return [e.address(at_a, rows * size), e.address(at_b, 8 if where else vectors * lanes * size), *sums]

        zero = ir.Constant(kind, None)
        _, _, *sums = e.loop(0, pixels, 1, [a, b, *([zero] * (rows * vectors))], pixel)
        with e.b.if_else(e.b.icmp_signed("!=", accumulate, word(0))) as (add, write):
            with add:
                for total, place in zip(sums, places, strict=True):
                    e.store(e.b.fadd(e.load(place, kind), total), place)
            with write:
                for total, place in zip(sums, places, strict=True):
                    e.store(total, place)
    return emit


@functools.cache
def over_pixels(dtype: str, path: cpu.Cpu, rows: int, vectors: int, where: bool) -> Any:
    """The function `over_pixels(pixels, a, b, shift, c, accumulate, ahead)`, the register kernel of weight gradients.

    C[i, j] (+)= the sum over pixels p of A[p, i] * B[p, j], for i < rows, j < those of `vectors`. All three are
    contiguous, but with `where` the address of row p of B is the word at b + 8 * p, plus `shift`. Of "b2", p counts
    pairs of pixels, which A and B hold in words of 32 bits; C is float32. With each p a line of the cache is asked for,
    from the address `ahead` on.
    """
    return inlined_code(f"tileflow_over_pixels_{dtype}_{path.name}_{rows}_{vectors}_{where}",
                        "pixels, a, b, shift, c, accumulate, ahead", path,
                        _over_pixels(dtype, path, rows, vectors, where))
