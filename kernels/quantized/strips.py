"""The register block of a convolution of 8-bit integers: strips of pixels times rows of weights, read where they lie.

Images lie in planes of 32-bit groups (see `conv`), so that the pixels that a tap meets are neighbours in memory: a step of the sums reads vectors
of groups at the tap's distance from the strip and multiplies them by the groups of a few output channels. No patches are laid out.
"""
from __future__ import annotations

import functools
from typing import Any

from ..isa.vector import ELEMENTS, WORD, Emitter, define, inlined_code, vector
from .dots import Way, dot


def _register_block(way: Way, rows: int, vectors: int) -> Any:
    """The code of `rows` x `vectors` vectors of sums: see `strip`."""
    words = vector("i4", way.lanes)

    def emit(e: Emitter, k: Any, steps: Any, b: Any, a: Any, start: Any, c: Any, c_row: Any) -> None:
        sums = [e.splat(e.load(e.address(start, 4 * i), ELEMENTS["i4"]), way.lanes) for i in range(rows) for _ in range(vectors)]

        def group(_k: Any, state: list[Any]) -> list[Any]:
            at_step, at_a, found = state[0], state[1], state[2:]
            from_b = e.address(b, e.load(at_step, WORD))
            pixels = [e.load(e.address(from_b, v * way.lanes * 4), words) for v in range(vectors)]
            for i in range(rows):
                each = e.splat(e.load(e.address(at_a, 4 * i), ELEMENTS["i4"]), way.lanes)
                for v in range(vectors):
                    found[i * vectors + v] = dot(e, way, found[i * vectors + v], each, pixels[v])
            return [e.address(at_step, 8), e.address(at_a, 4 * rows), *found]

        found = e.loop(0, k, 1, [steps, a, *sums], group)[2:]
        for i in range(rows):
            for v in range(vectors):
                e.store(found[i * vectors + v], e.address(c, e.times(c_row, i), v * way.lanes * 4))
    return emit


@functools.cache
def strip(way: Way, rows: int, vectors: int) -> Any:
    """The function `strip(blocks, k, steps, b, a, start, c, c_row)`; all arguments intp, strides in bytes.

    For `blocks` blocks of `vectors` vectors of pixels, side by side in b and c: c [rows, pixels] int32 = start [rows] + sums over k groups of
    those of a [k, rows] times those at b + steps[k]. `steps` are int64, in bytes.
    """
    width = 4 * way.lanes * vectors

    def emit(e: Emitter, blocks: Any, k: Any, steps: Any, b: Any, a: Any, start: Any, c: Any, c_row: Any) -> None:
        name = f"tileflow_strip_{way.name}_{rows}x{vectors}"
        function = define(e.b.module, name, 7, way.path, _register_block(way, rows, vectors))

        def block(_i: Any, at: list[Any]) -> list[Any]:
            e.b.call(function, [k, steps, at[0], a, start, at[1], c_row])
            return [e.address(at[0], width), e.address(at[1], width)]
        e.loop(0, blocks, 1, [b, c], block)
    return inlined_code(f"tileflow_strips_{way.name}_{rows}x{vectors}", "blocks, k, steps, b, a, start, c, c_row", way.path, emit)
