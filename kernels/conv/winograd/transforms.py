"""Winograd's F(2x2, 3x3) in vectors over channels: pixels into tiles, tiles into pixels, weights.

Along one axis: pixels d to (d0 - d2, d1 + d2, d2 - d1, d1 - d3); weights g to (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2);
products m to outputs (m0 + m1 + m2, m1 - m2 - m3). Along two axes one after the other.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ...isa import cpu
from ...isa.mathlib import constant
from ...isa.vector import WORD, Emitter, inlined_code, itemsize, vector, word

ELEMENTS = 16
"""Of a transformed tile."""


def _both_axes(values: list[Any], side: int, along: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """`along` over the columns, then over the rows of a square of `side` x `side` values."""
    columns = [along(values[i::side]) for i in range(side)]
    rows = [along([column[j] for column in columns]) for j in range(len(columns[0]))]
    return [v for row in rows for v in row]


@functools.cache
def pixels_in(dtype: str, path: cpu.Cpu) -> Any:
    """The function `pixels_in(channels, sources, source_step, target, target_step)`: a tile of 4 x 4 pixels, transformed.

    Pixel i lies at the address which is the word at sources + i * source_step; element i goes to target + i * target_step, where whole
    vectors are written.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, channels: Any, sources: Any, source_step: Any, target: Any, target_step: Any) -> None:
        def along(d: list[Any]) -> list[Any]:
            return [e.b.fsub(d[0], d[2]), e.b.fadd(d[1], d[2]), e.b.fsub(d[2], d[1]), e.b.fsub(d[1], d[3])]

        places = [e.load(e.address(sources, e.times(source_step, i)), WORD) for i in range(ELEMENTS)]

        def step(k: Any, mask: Any) -> None:
            offset = e.times(k, size)
            found = [e.load(e.address(place, offset), kind, mask) for place in places]
            for i, value in enumerate(_both_axes(found, 4, along)):
                e.store(value, e.address(target, e.times(target_step, i), offset))
        whole = e.b.and_(channels, word(-lanes))
        e.loop(0, whole, lanes, [], lambda k, _: step(k, None))
        e.loop(whole, channels, lanes, [], lambda k, _: step(k, e.first(e.b.sub(channels, k), lanes)))
    return inlined_code(f"tileflow_winograd_in_{dtype}_{path.name}", "channels, sources, source_step, target, target_step", path, emit)


@functools.cache
def pixels_out(dtype: str, path: cpu.Cpu) -> Any:
    """The function `pixels_out(channels, source, source_step, bias, biased, y00, y01, y10, y11, flag)`: 2 x 2 outputs of a tile of products.

    Element i lies at source + i * source_step. The word at `flag` becomes other than 0 where a sum is not finite.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, channels: Any, source: Any, source_step: Any, bias: Any, biased: Any, y00: Any, y01: Any, y10: Any, y11: Any,
             flag: Any) -> None:
        def along(m: list[Any]) -> list[Any]:
            middle = e.b.fadd(m[0], m[1]), e.b.fsub(m[1], m[2])
            return [e.b.fadd(middle[0], m[2]), e.b.fsub(middle[1], m[3])]

        zero = constant(kind, 0.0)
        adds = e.b.icmp_signed("!=", biased, word(0))

        def step(k: Any, mask: Any, bad: Any) -> Any:
            offset = e.times(k, size)
            found = [e.load(e.address(source, e.times(source_step, i), offset), kind, mask) for i in range(ELEMENTS)]
            addend = e.b.select(adds, e.load(e.address(e.b.select(adds, bias, source), offset), kind, mask), zero)
            for value, place in zip(_both_axes(found, 4, along), (y00, y01, y10, y11), strict=True):
                bad = e.fma(value, zero, bad)                      # NaN as soon as something is not finite
                e.store(e.b.fadd(value, addend), e.address(place, offset), mask)
            return bad
        whole = e.b.and_(channels, word(-lanes))
        bad, = e.loop(0, whole, lanes, [zero], lambda k, s: [step(k, None, s[0])])
        bad, = e.loop(whole, channels, lanes, [bad], lambda k, s: [step(k, e.first(e.b.sub(channels, k), lanes), s[0])])
        lost = e.b.bitcast(e.b.fcmp_unordered("uno", bad, bad), ir.IntType(lanes))
        e.store(e.b.or_(e.load(flag, WORD), e.b.zext(lost, WORD)), flag)
    return inlined_code(f"tileflow_winograd_out_{dtype}_{path.name}", "channels, source, source_step, bias, biased, y00, y01, y10, y11, flag",
                        path, emit)


@functools.cache
def weights_in(dtype: str, path: cpu.Cpu) -> Any:
    """The function `weights_in(channels, source, tap_step, target, target_step)`: filters of 3 x 3 weights, transformed.

    Weights are rows [channel][tap] of `width` filters, taps `tap_step` bytes apart; rows [channel] of element i go to target + i * target_step.
    """
    size, lanes, vectors = itemsize(dtype), path.lanes(itemsize(dtype)), path.tile.vectors
    kind = vector(dtype, lanes)

    def emit(e: Emitter, channels: Any, source: Any, tap_step: Any, target: Any, target_step: Any) -> None:
        half = constant(kind, 0.5)

        def along(g: list[Any]) -> list[Any]:
            ends = e.b.fadd(g[0], g[2])
            return [g[0], e.b.fmul(e.b.fadd(ends, g[1]), half), e.b.fmul(e.b.fsub(ends, g[1]), half), g[2]]

        def channel(_k: Any, state: list[Any]) -> list[Any]:
            for v in range(vectors):
                found = [e.load(e.address(state[0], e.times(tap_step, i), v * lanes * size), kind) for i in range(9)]
                for i, value in enumerate(_both_axes(found, 3, along)):
                    e.store(value, e.address(state[1], e.times(target_step, i), v * lanes * size))
            return [e.address(state[0], 9 * vectors * lanes * size), e.address(state[1], vectors * lanes * size)]
        e.loop(0, channels, 1, [source, target], channel)
    return inlined_code(f"tileflow_winograd_weights_{dtype}_{path.name}", "channels, source, tap_step, target, target_step", path, emit)
