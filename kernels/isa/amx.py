"""Products of tiles of bfloat16 and of bytes: Intel's AMX, or the same arithmetic in vector instructions.

A tile is 16 rows of 64 bytes. `dot` adds to a 16x16 float32 tile C the product of tile A, 16 rows of 16 pairs of bfloat16,
and tile B, 16 pairs of rows of 16 columns: C[m, n] += sum_i A[m, i].low * B[i, n].low + A[m, i].high * B[i, n].high, where
low and high are the halves of a 32-bit word. Which two terms of a sum form a pair is thus the caller's choice, the same for
A and B. The unit sums the low and the high products from zero in two chains of fused multiply-adds, adds the chains, and then C;
it rounds to nearest even and reads and writes denormal numbers as zero, whatever the CPU's modes
(TDPBF16PS in Intel's Instruction Set Reference). `dot_bytes` does so with 16 groups of four bytes for the pairs, signed in A and
unsigned in B, and int32 sums that wrap (TDPBSUD).

`Software` does all this with vectors on any path. It is slow and serves to run everything built on tiles where there are none.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from . import cpu
from .vector import ELEMENTS, WORD, Emitter, define, inlined_code, vector, word

ROWS, ROW, TILE = 16, 64, 16 * 64
"""Rows of a tile, bytes of a row, bytes of a tile."""
SIDE = 32
"""Rows and columns of the block of C that the register kernel holds: two by two tiles."""
TERMS = 32
"""Terms of the sums that one tile of A and one of B hold."""
ORDER = {1: [(0, 0)], 3: [(0, 1), (0, 0), (1, 0)], 4: [(0, 1), (0, 0), (1, 0), (1, 1)],
         6: [(0, 2), (0, 1), (0, 0), (2, 0), (1, 0), (1, 1)]}
"""Number of products -> which part of A meets which part of B (part 0 is the largest). The order saves loads of tiles."""
BYTE = ir.IntType(8)


def parts_of(products: int) -> int:
    """How many parts each operand has in that many products."""
    return max(a for a, _ in ORDER[products]) + 1


class Hardware:
    """The CPU's tile registers 0..7."""

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def _call(self, name: str, *args: Any) -> None:
        self.e.call(f"llvm.x86.{name}", ir.VoidType(), [ir.Constant(BYTE, a) if isinstance(a, int) else a for a in args])

    def _pointer(self, address: Any) -> Any:
        return self.e.b.inttoptr(address, BYTE.as_pointer())

    def zero(self, tile: int) -> None:
        self._call("tilezero", tile)

    def load(self, tile: int, address: Any, stride: Any) -> None:
        """Read 16 rows of 64 bytes, `stride` bytes apart."""
        self._call("tileloadd64", tile, self._pointer(address), stride)

    def store(self, tile: int, address: Any, stride: Any) -> None:
        self._call("tilestored64", tile, self._pointer(address), stride)

    def dot(self, c: int, a: int, b: int) -> None:
        self._call("tdpbf16ps", c, a, b)

    def dot_bytes(self, c: int, a: int, b: int) -> None:
        self._call("tdpbsud", c, a, b)

    def prefetch(self, address: Any) -> None:
        self.e.prefetch(address)

    def open(self) -> None:
        """Configure this thread's registers: palette 1, all eight tiles whole."""
        columns, rows = 0x0040_0040_0040_0040, 0x1010_1010_1010_1010             # 64 bytes and 16 rows for each
        place = self.e.b.alloca(WORD, 8)
        place.align = 64
        for i, number in enumerate((1, 0, columns, columns, 0, 0, rows, 0)):
            self.e.b.store(word(number), self.e.b.gep(place, [word(i)]))
        self._call("ldtilecfg", self.e.b.bitcast(place, BYTE.as_pointer()))

    def close(self) -> None:
        """Give the registers up: a thread without tile state is cheaper to switch."""
        self._call("tilerelease")


class Software:
    """Eight tiles in memory, and vector code that computes what the tile registers would."""

    def __init__(self, e: Emitter) -> None:
        self.e, self.lanes = e, e.path.lanes(4)
        memory = e.b.alloca(ir.ArrayType(BYTE, 8 * TILE))
        memory.align = 64
        self.base = e.b.ptrtoint(memory, WORD)

    def _at(self, tile: int) -> Any:
        return self.e.address(self.base, tile * TILE)

    def _move(self, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        function = define(self.e.b.module, f"tileflow_software_move_{self.e.path.name}", 4, self.e.path, _software_move)
        self.e.b.call(function, [source, source_row, target, target_row])

    def zero(self, tile: int) -> None:
        e, empty = self.e, ir.Constant(vector("i4", self.lanes), None)
        e.loop(0, TILE, 4 * self.lanes, [], lambda i, _state: e.store(empty, e.address(self._at(tile), i)))

    def load(self, tile: int, address: Any, stride: Any) -> None:
        self._move(address, stride, self._at(tile), word(ROW))

    def store(self, tile: int, address: Any, stride: Any) -> None:
        self._move(self._at(tile), word(ROW), address, stride)

    def dot(self, c: int, a: int, b: int) -> None:
        function = define(self.e.b.module, f"tileflow_software_dot_{self.e.path.name}", 3, self.e.path, _software_dot)
        self.e.b.call(function, [self._at(c), self._at(a), self._at(b)])

    def dot_bytes(self, c: int, a: int, b: int) -> None:
        function = define(self.e.b.module, f"tileflow_software_dot_bytes_{self.e.path.name}", 3, self.e.path, _software_dot_bytes)
        self.e.b.call(function, [self._at(c), self._at(a), self._at(b)])

    def prefetch(self, address: Any) -> None:
        pass

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass


def _software_move(e: Emitter, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
    """Copy a tile."""
    lanes = e.path.lanes(4)

    def row(i: Any, _state: list[Any]) -> None:
        at, to = e.address(source, e.b.mul(i, source_row)), e.address(target, e.b.mul(i, target_row))
        for j in range(0, ROW, 4 * lanes):
            e.store(e.load(e.address(at, j), vector("i4", lanes)), e.address(to, j))
    e.loop(0, ROWS, 1, [], row)


def _software_dot(e: Emitter, c: Any, a: Any, b: Any) -> None:
    """C += A x B over tiles in memory."""
    lanes = e.path.lanes(4)
    numbers, bits = vector("f4", lanes), vector("i4", lanes)

    def constant(n: int) -> Any:
        return ir.Constant(bits, [n] * lanes)

    def flush(x: Any) -> Any:
        """Denormal numbers become zeros of their sign."""
        u = e.b.bitcast(x, bits)
        tiny = e.b.icmp_unsigned("<", e.b.and_(u, constant(0x7FFFFFFF)), constant(0x00800000))
        return e.b.bitcast(e.b.select(tiny, e.b.and_(u, constant(-1 << 31)), u), numbers)

    def halves(pair: Any) -> tuple[Any, Any]:
        """The low and the high bfloat16 of each word."""
        return (flush(e.b.bitcast(e.b.shl(pair, constant(16)), numbers)), flush(e.b.bitcast(e.b.and_(pair, constant(-1 << 16)), numbers)))

    def row(m: Any, _state: list[Any]) -> None:
        at = e.address(a, e.times(m, ROW))
        for j in range(0, ROW, 4 * lanes):
            def term(i: Any, sums: list[Any], j: int = j) -> list[Any]:
                left = halves(e.splat(e.load(e.address(at, e.times(i, 4)), ELEMENTS["i4"]), lanes))
                right = halves(e.load(e.address(b, e.times(i, ROW), j), bits))
                return [flush(e.fma(x, y, z)) for x, y, z in zip(left, right, sums, strict=True)]
            low, high = e.loop(0, ROWS, 1, [ir.Constant(numbers, None)] * 2, term)
            place = e.address(c, e.times(m, ROW), j)
            e.store(flush(e.b.fadd(flush(e.load(place, numbers)), flush(e.b.fadd(low, high)))), place)
    e.loop(0, ROWS, 1, [], row)


def _software_dot_bytes(e: Emitter, c: Any, a: Any, b: Any) -> None:
    """C += A x B over tiles of bytes in memory, signed in A and unsigned in B."""
    lanes = e.path.lanes(4)
    kind = vector("i4", lanes)

    def constant(n: int) -> Any:
        return ir.Constant(kind, [n] * lanes)

    def row(m: Any, _state: list[Any]) -> None:
        at = e.address(a, e.times(m, ROW))
        for j in range(0, ROW, 4 * lanes):
            def term(i: Any, sums: list[Any], j: int = j) -> list[Any]:
                left = e.splat(e.load(e.address(at, e.times(i, 4)), ELEMENTS["i4"]), lanes)
                right, total = e.load(e.address(b, e.times(i, ROW), j), kind), sums[0]
                for byte in range(4):
                    x = e.b.ashr(e.b.shl(left, constant(24 - 8 * byte)), constant(24))
                    total = e.b.add(total, e.b.mul(x, e.b.and_(e.b.lshr(right, constant(8 * byte)), constant(255))))
                return [total]
            place = e.address(c, e.times(m, ROW), j)
            e.store(e.loop(0, ROWS, 1, [e.load(place, kind)], term)[0], place)
    e.loop(0, ROWS, 1, [], row)


def tiles(e: Emitter) -> Hardware | Software:
    """The tiles of the path that is compiled for."""
    return Hardware(e) if e.path.tiles == "amx" else Software(e)


def _product(products: int, tall: int) -> Any:
    """C [16 * tall, 32] from packed panels of A and B."""
    parts = parts_of(products)
    a_step, b_step = parts * tall * TILE, parts * 2 * TILE
    ahead = [*((i / a_step, 0, i) for i in range(0, a_step, 64)), *((i / b_step, 1, i) for i in range(0, b_step, 64))]
    lines = [(which, offset) for _, which, offset in sorted(ahead)]                    # of the next blocks of A and B

    def emit(e: Emitter, blocks: Any, a: Any, a_next: Any, b: Any, b_next: Any, c: Any, c_row: Any) -> None:
        t, row = tiles(e), word(ROW)
        for i in range(2 * tall):
            t.zero(i)

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_a, at_b = state
            x = y = -1
            for number, (left, right) in enumerate(ORDER[products]):
                for i in range(tall if left != x else 0):
                    t.load(4 + i, e.address(at_a, (left * tall + i) * TILE), row)
                for j in range(2 if right != y else 0):
                    t.load(6 + j, e.address(at_b, (right * 2 + j) * TILE), row)
                for i in range(tall):
                    for j in range(2):
                        t.dot(2 * i + j, 4 + i, 6 + j)
                x, y = left, right
                for which, offset in lines[len(lines) * number // products:len(lines) * (number + 1) // products]:
                    t.prefetch(e.address((at_a, at_b)[which], (a_next, b_next)[which], offset))
            return [e.address(at_a, a_next), e.address(at_b, b_next)]

        e.loop(0, blocks, 1, [a, b], step)
        for i in range(tall):
            for j in range(2):
                t.store(2 * i + j, e.address(c, e.times(c_row, 16 * i), j * ROW), c_row)
    return emit


@functools.cache
def _kernel(path: cpu.Cpu, products: int, tall: int) -> Any:
    return inlined_code(f"tileflow_tiles_{path.tiles}_{path.name}_{products}x{tall}", "blocks, a, a_next, b, b_next, c, c_row", path,
                        _product(products, tall))


def product(products: int, tall: int) -> Any:
    """The function `product(blocks, a, a_next, b, b_next, c, c_row)` of the current path's tiles; all arguments intp.

    C [16 * tall, 32] float32 = the sum over `blocks` blocks of 32 terms; `tall` is 1 or 2. A block of A at address `a` is its
    parts, largest first, of `tall` tiles each; a block of B its parts of two tiles; `a_next` and `b_next` bytes lead to the next.
    Row i of C lies at c + i * c_row. The thread's tiles must be open.
    """
    return _kernel(cpu.current(), products, tall)


@functools.cache
def _switch(path: cpu.Cpu, close: bool) -> Any:
    def emit(e: Emitter, _unused: Any) -> None:
        t = tiles(e)
        if close:
            t.close()
        else:
            t.open()
    return inlined_code(f"tileflow_tiles_{path.tiles}_{path.name}_{'close' if close else 'open'}", "unused", path, emit)


def opener() -> Any:
    """The function `open(0)`: this thread may use its tiles from here on."""
    return _switch(cpu.current(), False)


def closer() -> Any:
    """The function `close(0)`: this thread's tiles are gone."""
    return _switch(cpu.current(), True)
