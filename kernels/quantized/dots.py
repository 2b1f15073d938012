"""The register block of a product of 8-bit integers: sums of int32 lanes, to which an instruction adds the products of four bytes or of two words.

*Bytes* (VNNI, VPDPBUSD): four products of an unsigned and a signed byte, added without saturation. A is signed there and B unsigned; other operands
have their top bit flipped as they are laid out, which moves their zero points by 128. *Words* (PMADDWD): two products of 16-bit integers, to which
bytes widen; exact, unlike products of byte pairs (PMADDUBSW), which saturate.

Both read 32-bit groups: a group of A is broadcast, one of B lies in each lane. A last group that is not whole is filled up with zeros.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..gemm.micro import by_rows
from ..isa import cpu
from ..isa.features import x86
from ..isa.vector import ELEMENTS, INT32, Emitter, define, inlined_code, vector

SPEED = {4: 150.0, 2: 60.0}
"""Products a nanosecond on one core with vectors of 64 bytes, by the group."""


@dataclass(frozen=True)
class Way:
    """How groups are made and multiplied on a CPU path: `group` elements each, in vectors of `lanes` groups."""

    path: cpu.Cpu
    group: int                 # 4: bytes, 2: words
    lanes: int

    @property
    def rows(self) -> int:
        """Of a register block."""
        return self.path.tile.rows

    @property
    def vectors(self) -> int:
        return self.path.tile.vectors

    @property
    def width(self) -> int:
        """Columns of a register block, and of a panel of B."""
        return self.vectors * self.lanes

    @property
    def whole(self) -> int:
        """Rows of A are filled up to a multiple of so many groups."""
        return 1

    @property
    def speed(self) -> float:
        """Products a nanosecond on one core: for estimates only."""
        return SPEED[self.group] * self.path.integer_bytes / 64

    @property
    def name(self) -> str:
        return f"{'bytes' if self.group == 4 else 'words'}_{self.path.name}"

    @property
    def element(self) -> str:
        """The letters of an element of a group in memory."""
        return "i1" if self.group == 4 else "i2"

    def left(self, signed: bool) -> tuple[int, int]:
        """(flip, less): an element of A is laid out as (byte ^ flip) - less."""
        return (128 if signed else 0, 128 if signed or self.group == 4 else 0)

    def right(self, signed: bool) -> tuple[int, int]:
        """Likewise of B."""
        return (128 if signed else 0, 128 if signed and self.group == 2 else 0)


def way_of(path: cpu.Cpu) -> Way:
    """The faster way on this path."""
    return Way(path, 4 if path.vnni else 2, path.integer_bytes // 4)


def dot(e: Emitter, way: Way, sums: Any, left: Any, right: Any) -> Any:
    """sums + the products of the groups of `left` and `right`."""
    bits = 32 * way.lanes
    if way.group == 4:
        kind = ir.VectorType(ir.IntType(8), 4 * way.lanes)
        return e.call(f"llvm.x86.avx512.vpdpbusd.{bits}", sums.type, [sums, e.b.bitcast(right, kind), e.b.bitcast(left, kind)])
    words = ir.VectorType(ir.IntType(16), 2 * way.lanes)
    left, right = e.b.bitcast(left, words), e.b.bitcast(right, words)
    if x86():
        name = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}[bits]
        return e.b.add(sums, e.call(f"llvm.x86.{name}", sums.type, [left, right]))
    for half in range(2):
        picks = list(range(half, 2 * way.lanes, 2))
        sums = e.b.add(sums, e.b.mul(*[e.b.sext(e.shuffle(x, x, picks), sums.type) for x in (left, right)]))
    return sums


def _register_block(way: Way, rows: int) -> Any:
    """The code of `rows` x `way.width` elements of C: see `products`."""
    words = vector("i4", way.lanes)
    zero, step = ir.Constant(words, None), 4 * way.width

    def emit(e: Emitter, k: Any, a: Any, a_row: Any, b: Any, c: Any, c_row: Any, left: Any, right: Any, second: Any) -> None:
        starts = [e.opaque(e.address(a, e.times(a_row, i))) for i in range(0, rows, 3)]      # three rows to an address, as in `gemm.micro`
        twice = e.times(a_row, 2)

        def group(_k: Any, state: list[Any]) -> list[Any]:
            at_b, ats, sums = state[0], state[1:1 + len(starts)], state[1 + len(starts):]
            row_b = [e.load(e.address(at_b, v * way.lanes * 4), words) for v in range(way.vectors)]
            for i in range(rows):
                each = e.splat(e.load(e.address(ats[i // 3], (0, a_row, twice)[i % 3]), ELEMENTS["i4"]), way.lanes)
                for v in range(way.vectors):
                    sums[i * way.vectors + v] = dot(e, way, sums[i * way.vectors + v], each, row_b[v])
            return [e.address(at_b, step), *(e.address(at, 4) for at in ats), *sums]

        sums = e.loop(0, k, 1, [b, *starts, *[zero] * (rows * way.vectors)], group)[1 + len(starts):]
        columns = [[e.load(e.address(right, at, v * way.lanes * 4), words) for v in range(way.vectors)] for at in (0, second)]
        for i in range(rows):
            zero_point, total = (e.splat(e.load(e.address(left, 8 * i + at), INT32), way.lanes) for at in (0, 4))
            for v in range(way.vectors):
                less = e.b.add(e.b.mul(zero_point, columns[0][v]), e.b.mul(total, columns[1][v]))
                e.store(e.b.sub(sums[i * way.vectors + v], less), e.address(c, e.times(c_row, i), v * way.lanes * 4))
    return emit


@functools.cache
def products(way: Way) -> Any:
    """The function `products(m, k, a, a_row, b, c, c_row, left, right, second)`; all arguments intp, strides in bytes.

    C [m, width] int32 = sums over k groups of A (row i at a + i * a_row) and B (a panel), less left[i][0] * right[j] + left[i][1] * right'[j]:
    `left` holds two words for each row, `right` one for each column, and `second` bytes after it one more.
    """
    def emit(e: Emitter, m: Any, k: Any, a: Any, a_row: Any, b: Any, c: Any, c_row: Any, left: Any, right: Any, second: Any) -> None:
        def block(rows: int, i: Any) -> None:
            function = define(e.b.module, f"tileflow_{way.name}_{rows}", 9, way.path, _register_block(way, rows))
            e.b.call(function, [k, e.address(a, e.b.mul(i, a_row)), a_row, b, e.address(c, e.b.mul(i, c_row)), c_row,
                                e.address(left, e.times(i, 8)), right, second])

        by_rows(e, m, way.rows, block)
    return inlined_code(f"tileflow_products_{way.name}", "m, k, a, a_row, b, c, c_row, left, right, second", way.path, emit)


@functools.cache
def layer(way: Way, signed: bool) -> Any:
    """The function `lay(groups, b, row, to, sums)`; all arguments intp, `row` in bytes: whole groups of `way.width` columns of B, whose rows
    are contiguous, as a panel at `to`; the sums of the columns are added to those at `sums`."""
    flip, less = way.right(signed)
    narrow, words = ir.VectorType(ir.IntType(8), way.lanes), vector("i4", way.lanes)

    def constant(kind: ir.VectorType, number: int) -> Any:
        return ir.Constant(kind, [number] * way.lanes)

    def emit(e: Emitter, groups: Any, b: Any, row: Any, to: Any, sums: Any) -> None:
        at = [e.address(sums, v * way.lanes * 4) for v in range(way.vectors)]

        def group(_g: Any, state: list[Any]) -> list[Any]:
            source, target, totals = state[0], state[1], state[2:]
            for v in range(way.vectors):
                made = constant(words, 0)
                for r in range(way.group):
                    byte = e.load(e.address(source, e.times(row, r), v * way.lanes), narrow)
                    value = e.b.sub(e.b.zext(e.b.xor(byte, constant(narrow, flip)), words), constant(words, less))
                    totals[v] = e.b.add(totals[v], value)
                    kept = e.b.and_(value, constant(words, (1 << 32 // way.group) - 1))
                    made = e.b.or_(made, e.b.shl(kept, constant(words, 32 // way.group * r)))
                e.store(made, e.address(target, v * way.lanes * 4))
            return [e.address(source, e.times(row, way.group)), e.address(target, 4 * way.width), *totals]
        found = e.loop(0, groups, 1, [b, to, *(e.load(place, words) for place in at)], group)[2:]
        for value, place in zip(found, at, strict=True):
            e.store(value, place)
    return inlined_code(f"tileflow_lay_{way.name}_{signed}", "groups, b, row, to, sums", way.path, emit)
