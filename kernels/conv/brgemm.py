"""The register kernel of channels-last convolution: pixels x channels, summed over taps through a table of addresses.

A block of C is `rows` pixels times `vectors` vectors of output channels. Its left operand is the image itself: for each tap, the table
says where each pixel of the block meets it, and the channels follow one another there. Nothing is unfolded, and what lies in the
padding is a row of zeros (the indirect convolution of Dukhan, arXiv:1907.02129). The right operand is weights packed in panels.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.vector import ELEMENTS, WORD, Emitter, as_intrinsic, itemsize, vector, word


def width(dtype: str, path: cpu.Cpu) -> int:
    """Output channels of a register block, which is the width of a panel of weights."""
    return path.tile.vectors * path.lanes(itemsize(dtype))


def _brgemm(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    vectors, size, lanes = path.tile.vectors, itemsize(dtype), path.lanes(itemsize(dtype))
    kind, element, wide = vector(dtype, lanes), ELEMENTS[dtype], path.tile.vectors * lanes

    def emit(e: Emitter, cols: Any, taps: Any, depth: Any, sources: Any, tap_step: Any, shift: Any, b: Any, b_tap: Any, bias: Any,
             places: Any, column: Any, accumulate: Any) -> None:
        targets = [e.address(e.load(e.address(places, 8 * i), WORD), column) for i in range(rows)]
        for place in targets:
            e.prefetch(place, write=True)
        none = e.b.icmp_signed("==", bias, word(0))
        counted, addend = e.b.select(none, word(0), cols), e.b.select(none, b, bias)      # masked or not, a bad address would be slow
        start = [e.load(e.address(addend, v * lanes * size), kind, e.first(e.b.sub(counted, word(v * lanes)), lanes)) for v in range(vectors)]

        def tap(_t: Any, state: list[Any]) -> list[Any]:
            table, at_b, *sums = state
            lefts = [e.address(e.load(e.address(table, 8 * i), WORD), shift) for i in range(rows)]

            def channel(at: Any, state: list[Any]) -> list[Any]:
                at_b, *sums = state
                right = [e.load(e.address(at_b, v * lanes * size), kind) for v in range(vectors)]
                for i in range(rows):
                    left = e.splat(e.load(e.address(lefts[i], at), element), lanes)
                    for v in range(vectors):
                        sums[i * vectors + v] = e.fma(left, right[v], sums[i * vectors + v])
                return [e.address(at_b, wide * size), *sums]

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
def brgemm(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    """Numba-callable `brgemm(cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate)`.

    C[i, j] (+)= bias[j] + the sum over taps t and channels k of A[t, i][k] * B[t][k, j], for i < rows and j < cols; sums run over
    the taps, and over the channels of each, in ascending order.

    Args (integers; strides in bytes):
        cols: columns of C that are written, at most `width`.
        depth: bytes of the channels that are summed.
        sources, tap_step, shift: the address of A[t, i] is the word at sources + t * tap_step + 8 * i, plus `shift`.
        b, b_tap: B[t] is rows of `width` elements from b + t * b_tap on.
        bias: the address of `cols` elements, or 0.
        places, column: the address of row i of C is the word at places + 8 * i, plus `column`.
        accumulate: not 0: add to what is in C. Rows that several i share then hold anything.
    """
    return as_intrinsic(f"tileflow_brgemm_{dtype}_{path.name}_{rows}",
                        "cols, taps, depth, sources, tap_step, shift, b, b_tap, bias, places, column, accumulate", path,
                        _brgemm(dtype, path, rows))


def _over_pixels(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    vectors, size, lanes = path.tile.vectors, itemsize(dtype), path.lanes(itemsize(dtype))
    kind, element = vector(dtype, lanes), ELEMENTS[dtype]

    def emit(e: Emitter, pixels: Any, a: Any, b: Any, c: Any, accumulate: Any) -> None:
        places = [e.address(c, i * lanes * size) for i in range(rows * vectors)]
        for place in places[::vectors]:
            e.prefetch(place, write=True)

        def pixel(_p: Any, state: list[Any]) -> list[Any]:
            at_a, at_b, *sums = state
            right = [e.load(e.address(at_b, v * lanes * size), kind) for v in range(vectors)]
            for i in range(rows):
                left = e.splat(e.load(e.address(at_a, i * size), element), lanes)
                for v in range(vectors):
                    sums[i * vectors + v] = e.fma(left, right[v], sums[i * vectors + v])
            return [e.address(at_a, rows * size), e.address(at_b, vectors * lanes * size), *sums]

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
def over_pixels(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    """Numba-callable `over_pixels(pixels, a, b, c, accumulate)`, the register kernel of the weight gradient.

    C[i, j] (+)= the sum over pixels p of A[p, i] * B[p, j], for i < rows, j < `width`. All three are contiguous.
    """
    return as_intrinsic(f"tileflow_over_pixels_{dtype}_{path.name}_{rows}", "pixels, a, b, c, accumulate", path,
                        _over_pixels(dtype, path, rows))
