"""The register block of a product of 8-bit integers in the CPU's tiles (AMX-INT8): 32 x 32 sums, to 16 x 16 of which an instruction adds 64 terms.

TDPBSUD multiplies four signed bytes by four unsigned ones and adds the products to an int32, without saturation (Intel's Instruction Set Reference).
So operands are laid out as for products of bytes in vectors (see `dots`), and two tiles of B, 16 groups of 16 columns each, lie side by side in that
way's panels: one layout serves both. Rows of A are filled up to whole tiles with zeros, by which what lies behind a panel's end is multiplied.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..isa.amx import ROW, ROWS, SIDE, TILE, closer, opener, tiles
from ..isa.vector import ELEMENTS, WORD, Emitter, define, inlined_code, vector, word
from . import dots
from .dots import Way

PANEL_ROW = 4 * SIDE
"""Bytes of a group of all columns of a panel."""
LEAST = 1 << 16
"""Products from which it pays to configure tiles and to take the sums through memory."""


@dataclass(frozen=True)
class Tiles(Way):
    """Groups of four bytes in tiles of 16; `lanes` is that of the vectors whose panels they share."""

    @property
    def rows(self) -> int:
        return SIDE

    @property
    def whole(self) -> int:
        return ROWS

    @property
    def name(self) -> str:
        return f"tiles_{self.path.tiles}_{self.path.name}"

    @property
    def speed(self) -> float:
        """Twice that of products of bfloat16, of which a tile holds half as many (`gemm.tiles`): by the manual, not measured."""
        return 900.0


def chosen(way: Way, m: int, n: int, k: int) -> Way:
    """The way to do C [m, n] of sums over k whose panels are those of `way`: tiles where there are any and the product fills them."""
    if way.group != 4 or way.width != SIDE or not way.path.byte_tiles or min(m, n) < 8 or k < ROW or m * n * k < LEAST:
        return way
    return Tiles(way.path, way.group, way.lanes)


def _nothing(unused: int) -> None:
    """Vectors need no permission."""


def switches(way: Way) -> tuple[Any, Any]:
    """The functions `open(0)` and `close(0)` around what `products` does."""
    return (opener(), closer()) if isinstance(way, Tiles) else (_nothing, _nothing)


def products(way: Way) -> Any:
    """The function of `dots.products` for either way. Tiles read rows of A that are whole tiles, and whole tiles of rows."""
    return _products(way) if isinstance(way, Tiles) else dots.products(way)


def _block(tall: int) -> Any:
    """The code of [16 * tall, 32] sums: of `blocks` tiles of B at `b`, then of one at `last` if `more` is 1."""
    def emit(e: Emitter, blocks: Any, a: Any, a_row: Any, b: Any, more: Any, last: Any, c: Any) -> None:
        t = tiles(e)
        for i in range(2 * tall):
            t.zero(i)

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_a, at_b = state
            for j in range(2):
                t.load(6 + j, e.address(at_b, j * ROW), word(PANEL_ROW))
            for i in range(tall):
                t.load(4 + i, e.address(at_a, e.times(a_row, ROWS * i)), a_row)
                for j in range(2):
                    t.dot_bytes(2 * i + j, 4 + i, 6 + j)
            return [e.address(at_a, ROW), e.address(at_b, ROWS * PANEL_ROW)]

        at_a, _ = e.loop(0, blocks, 1, [a, b], step)
        e.loop(0, more, 1, [at_a, last], step)
        for i in range(tall):
            for j in range(2):
                t.store(2 * i + j, e.address(c, i * ROWS * PANEL_ROW + j * ROW), word(PANEL_ROW))
    return emit


def _finish(way: Way) -> Any:
    """The code that takes the zero points off `rows` rows of sums and writes them to C: see `dots.products`."""
    words = vector("i4", way.lanes)

    def emit(e: Emitter, rows: Any, sums: Any, c: Any, c_row: Any, left: Any, right: Any, second: Any) -> None:
        columns = [[e.load(e.address(right, at, v * way.lanes * 4), words) for v in range(way.vectors)] for at in (0, second)]

        def row(_i: Any, state: list[Any]) -> list[Any]:
            at, to, terms = state
            zero_point, total = (e.splat(e.load(e.address(terms, place), ELEMENTS["i4"]), way.lanes) for place in (0, 4))
            for v in range(way.vectors):
                less = e.b.add(e.b.mul(zero_point, columns[0][v]), e.b.mul(total, columns[1][v]))
                e.store(e.b.sub(e.load(e.address(at, v * way.lanes * 4), words), less), e.address(to, v * way.lanes * 4))
            return [e.address(at, PANEL_ROW), e.address(to, c_row), e.address(terms, 8)]
        e.loop(0, rows, 1, [sums, c, left], row)
    return emit


@functools.cache
def _products(way: Tiles) -> Any:
    def emit(e: Emitter, m: Any, k: Any, a: Any, a_row: Any, b: Any, c: Any, c_row: Any, left: Any, right: Any, second: Any) -> None:
        sums, last = (_memory(e, size) for size in (4 * TILE, 2 * TILE))
        blocks, rest = e.b.sdiv(k, word(ROWS)), e.b.srem(k, word(ROWS))
        end, half = e.address(b, e.times(blocks, ROWS * PANEL_ROW)), vector("i4", way.lanes)

        def keep(i: Any, _state: list[Any]) -> None:
            for v in range(way.vectors):
                place = e.address(e.times(i, PANEL_ROW), v * way.lanes * 4)
                e.store(e.load(e.address(end, place), half), e.address(last, place))
        e.loop(0, rest, 1, [], keep)                            # a whole tile there may reach beyond the panels
        more = e.minimum(rest, word(1))
        finish = define(e.b.module, f"tileflow_{way.name}_finish", 7, way.path, _finish(way))

        def block(i: Any, _state: list[Any]) -> None:
            here = e.minimum(e.b.sub(m, i), word(SIDE))
            args = [blocks, e.address(a, e.b.mul(i, a_row)), a_row, b, more, last, sums]
            with e.b.if_else(e.b.icmp_signed(">", here, word(ROWS))) as (large, small):
                for tall, branch in ((2, large), (1, small)):
                    with branch:
                        e.b.call(define(e.b.module, f"tileflow_{way.name}_{tall}", 7, way.path, _block(tall)), args)
            e.b.call(finish, [here, sums, e.address(c, e.b.mul(i, c_row)), c_row, e.address(left, e.times(i, 8)), right, second])
        e.loop(0, m, SIDE, [], block)
    return inlined_code(f"tileflow_products_{way.name}", "m, k, a, a_row, b, c, c_row, left, right, second", way.path, emit)


def _memory(e: Emitter, size: int) -> Any:
    """The address of `size` bytes of the stack."""
    place = e.b.alloca(ELEMENTS["i1"], size)
    place.align = ROW
    return e.b.ptrtoint(place, WORD)
