"""Matrix products: C = alpha * A @ B + beta * bias over batches, as leaf calls chosen from the shapes.

Three ways. In each, a unit of the range is a block of C, so that no sum is ever split between workers:
- direct: `micro.outer` reads A and a row-major B where they lie;
- dots:   `micro.dot` reads A and B^T, both by rows along k, where they lie: a transposed B and few rows of A;
- packed: a first call lays B out in panels as wide as a register block, the second copies blocks of A into the worker's
          scratch (Goto and van de Geijn, ACM TOMS 34(3), 2008): operands that outgrow the caches.
Sums run over k in blocks of one depth, each added to C in turn. Way and blocks are functions of sizes, dtype and CPU path alone.
A serialised product is done in pieces that share the scratch memory; its way and blocks are those of the whole.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from numba.extending import register_jitable

from . import cpu, tiled
from .call import Call, In, Out, Work
from .half import HALVES
from .leaf import Leaf
from .micro import TILES, WIDE, columns, copy, dot, outer, transpose
from .vector import itemsize

FLOPS_PER_NS = {"avx512": 80.0, "avx2": 70.0, "generic": 12.0}
"""Rough float32 speed of one core, for the cost estimates of calls."""
CACHE = 1 << 20
"""Bytes of second-level cache the blocking counts on."""
BIASED, MORE = 1, 2
"""Flags of a leaf call: a bias is added; C holds a sum already, to which this one is added."""
SKEW = 64
"""Bytes added to the rows of copied blocks of A: rows a power of two apart would fight for the same cache sets."""


@dataclass(frozen=True)
class Bias:
    """What is added to C: its element [i, j] lies at i * row + j * column of the array `arg`."""

    arg: In
    row: int
    column: int


@dataclass(frozen=True)
class Problem:
    """A batch of products C = A @ B with A [m, k] ([k, m] with `trans_a`), B [k, n] ([n, k] with `trans_b`), C [m, n].

    `a_step` and `b_step` are the elements from one matrix to the next along each axis of `batch`, 0 where the operand is broadcast.
    """

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    batch: tuple[int, ...] = ()
    a_step: tuple[int, ...] = ()
    b_step: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of matrices."""
        return math.prod(self.batch)


@dataclass(frozen=True)
class Serial:
    """Do a product in `factor` pieces, one after the other: of the rows ("m") or columns ("n") of C, or of its sums ("k").

    Only the packed copy of B takes memory, so pieces of rows cut that copy as pieces of columns do. Pieces of sums are added
    to C in order: the bits are those of the whole product where a piece is a multiple of the blocking's `depth`.
    """

    axis: str
    factor: int


@dataclass(frozen=True)
class Piece:
    """Columns j..j+n of C and terms at..at+k of its sums."""

    j: int
    n: int
    at: int
    k: int


@dataclass(frozen=True)
class Blocking:
    """How a problem is computed: the way, rows and columns of C in one unit of the range, length of one run of sums."""

    way: str
    rows: int
    cols: int
    depth: int


def simplify(p: Problem) -> Problem:
    """The same products with fewer batch axes: neighbours that step alike become one, or more rows of A where B stays the same."""
    axes: list[tuple[int, int, int]] = []
    for size, a, b in zip(p.batch, p.a_step, p.b_step, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == a * size and axes[-1][2] == b * size:
            axes[-1] = (axes[-1][0] * size, a, b)
        else:
            axes.append((size, a, b))
    if axes and axes[-1][2] == 0 and axes[-1][1] == p.m * p.k and (not p.trans_a or p.m == 1 or p.k == 1):
        p = replace(p, m=p.m * axes.pop()[0], trans_a=False)
    # A matrix of one row or column is the same memory either way round.
    if p.m == 1 or p.k <= 1:
        p = replace(p, trans_a=False)
    if p.n == 1 or p.k <= 1:
        p = replace(p, trans_b=p.k > 1)
    return replace(p, batch=tuple(x[0] for x in axes), a_step=tuple(x[1] for x in axes), b_step=tuple(x[2] for x in axes))


def _split(size: int, most: int, step: int) -> int:
    """The length of even blocks that cover `size`: about `most` or less, a multiple of `step`."""
    blocks = max(1, -(-size // most))
    return -(-size // (blocks * step)) * step if size else step


def blocking(p: Problem, dtype: str, path: cpu.Cpu) -> Blocking:
    """The way and the blocks for a simplified problem. The thresholds come from measuring the ways against each other."""
    panel, size, tall = columns(dtype, path), itemsize(dtype), TILES[path.name].rows
    depth, bytes_b, strip = 2048 // size, p.k * p.n * size, WIDE * path.lanes(size)
    rows = _split(p.m, 8 * TILES["avx512"].rows, tall)
    if path.amx and dtype == "f4" and tiled.pays(p.m, p.n, p.k, tiled.products(dtype, path)):
        rows, across = tiled.blocks(p.m, p.n)
        return Blocking("tiles", rows, across, tiled.DEPTH)
    if p.trans_b and not p.trans_a and (p.m <= 48 or p.n == 1):
        # Few rows stream B from memory: long rows keep the hardware's prefetching going.
        return Blocking("dots", 48, 16, depth if p.m > 8 else 8 * depth)
    outgrown = bytes_b >= (2 * CACHE if panel * size >= 128 and not p.trans_a else CACHE)
    if p.trans_b or (p.m >= 192 and outgrown):
        down = -(-p.m // rows)
        across = min(-(-16 // down), max(1, p.n // (2 * panel)))          # 16 units, if there are two panels for each
        return Blocking("packed", rows, _split(p.n, min(32 * panel, -(-p.n // across)), panel), depth)
    if (p.m <= 4 and bytes_b > CACHE) or (p.m <= 8 and bytes_b > 16 * CACHE):
        # Likewise for a row-major B: a few whole rows at a time, C stays in the first-level cache.
        return Blocking("direct", 8, min(16, max(4, p.n // 2 // strip)) * strip, 8 if p.m <= 4 else 16)
    if p.m == 1:
        return Blocking("direct", 1, strip, depth // 8)
    return Blocking("direct", rows, panel, depth // 2)


@register_jitable
def _finish(c: Any, at: int, n: int, rows: int, cols: int, alpha: float, beta: float, biased: int, bias: Any, bias_at: int,
            bias_row: int, bias_column: int) -> None:
    """C = alpha * C + beta * bias over the finished block that starts at element `at`; `n` elements lead from row to row."""
    if biased == 0 and alpha == 1:
        return
    for i in range(rows):
        row = c[at + i * n:at + i * n + cols]
        if biased == 0:
            for j in range(cols):
                row[j] *= alpha
        elif bias_column == 0:
            addend = beta * bias[bias_at + i * bias_row]
            for j in range(cols):
                row[j] = alpha * row[j] + addend
        else:
            source = bias[bias_at + i * bias_row:]
            for j in range(cols):
                row[j] = alpha * row[j] + beta * source[j]


def _direct(dtype: str) -> Any:
    kernel = outer(dtype)

    def block(height, width, k, depth, a, a_row, a_k, b, b_row, c, c_row, more, _scratch):  # type: ignore[no-untyped-def]
        for p in range(0, max(k, 1), depth):
            kernel(height, width, min(depth, k - p), a + p * a_k, a_row, a_k, b + p * b_row, b_row, c, c_row, p + more > 0)
    return block


def _dots(dtype: str) -> Any:
    kernel, size = dot(dtype), itemsize(dtype)

    def block(height, width, k, depth, a, a_row, _a_k, b, b_row, c, c_row, more, _scratch):  # type: ignore[no-untyped-def]
        for p in range(0, max(k, 1), depth):
            kernel(height, width, min(depth, k - p), a + p * size, a_row, b + p * size, b_row, c, c_row, p + more > 0)
    return block


def _packed(dtype: str) -> Any:
    kernel, move, size, panel = outer(dtype), copy(dtype), itemsize(dtype), columns(dtype, cpu.current())
    b_k = panel * size

    def block(height, width, k, depth, a, a_row, a_k, b, _b_row, c, c_row, more, scratch):  # type: ignore[no-untyped-def]
        for p in range(0, k, depth):
            deep = min(depth, k - p)
            if a_k == size:
                row, step = depth * size + SKEW, size
                move(height, deep, a + p * a_k, a_row, scratch, row)
            else:
                row, step = size, height * size + SKEW
                move(deep, height, a + p * a_k, a_k, scratch, step)
            for q in range(0, width, panel):
                kernel(height, min(panel, width - q), deep, scratch, row, step, b + q * k * size + p * b_k, b_k,
                       c + q * size, c_row, p + more > 0)
    return block


@functools.cache
def _gemm(way: str, dtype: str, path: cpu.Cpu) -> Leaf:
    """The leaf of one way. Range: units = blocks of C, rows first, then columns, then the batch.

    Strides of A and B are bytes, those of C and the bias elements; `b_row` leads from a row of what the way reads as B to the next.
    With a bias `c_at` is the piece's first column.
    """
    by_columns = way == "direct"
    ways = {"direct": _direct, "dots": _dots, "packed": _packed, "tiles": tiled.tile_block}
    block, size = register_jitable(ways[way](dtype)), itemsize(dtype)

    def gemm(a, b, c, bias, scratch, alpha, beta, flags, bias_row, bias_column, m, n, k, rows, cols, depth,  # type: ignore[no-untyped-def]
             a_row, a_k, b_row, inner, a_outer, a_inner, b_outer, b_inner, a_at, b_at, c_at, c_row, lo, hi):
        down, across = (m + rows - 1) // rows, (n + cols - 1) // cols
        for unit in range(lo, hi):
            i, j, matrix = unit % down * rows, unit // down % across * cols, unit // (down * across)
            height, width = min(rows, m - i), min(cols, n - j)
            from_a = a_at + matrix // inner * a_outer + matrix % inner * a_inner + i * a_row
            from_b = b_at + matrix // inner * b_outer + matrix % inner * b_inner + j * (size if by_columns else b_row)
            to = c_at + (matrix * m + i) * c_row + j
            block(height, width, k, depth, a.ctypes.data + from_a, a_row, a_k, b.ctypes.data + from_b, b_row,
                  c.ctypes.data + to * size, c_row * size, flags & MORE, scratch.ctypes.data)
            _finish(c, to, c_row, height, width, alpha, beta, flags & BIASED, bias, i * bias_row + (c_at + j) * bias_column, bias_row, bias_column)

    gemm.__name__ = f"gemm_{way}"
    signature = "T[:], T[:], T[:], T[:], T[w,:], T, T" + ", i8" * 21 + ", lo, hi"
    return Leaf(gemm, signature.replace("T", dtype), key=f"{way}-{path if way == 'tiles' else path.name}")


@functools.cache
def _pack(dtype: str, path: str) -> Leaf:
    """B [matrix] into panels [matrix][panel][k][width], the last filled up with zeros. Range: matrices * panels.

    `at`, `row` and `matrix` are elements: to the first one packed, from row to row, from matrix to matrix.
    """
    move, turn, size = copy(dtype), transpose(dtype), itemsize(dtype)

    def gemm_pack(b, packed, n, k, trans_b, width, panels, at, row, matrix, lo, hi):  # type: ignore[no-untyped-def]
        for unit in range(lo, hi):
            j = unit % panels * width
            count = min(width, n - j)
            source, target = at + unit // panels * matrix, unit * k * width
            to = packed.ctypes.data + target * size
            if trans_b != 0:
                turn(count, k, b.ctypes.data + (source + j * row) * size, row * size, to, width * size)
            else:
                move(k, count, b.ctypes.data + (source + j) * size, row * size, to, width * size)
            for p in range(k if count < width else 0):
                for q in range(count, width):
                    packed[target + p * width + q] = 0

    return Leaf(gemm_pack, f"{dtype}[:], {dtype}[:]" + ", i8" * 8 + ", lo, hi", key=path)


def last_two(values: Sequence[int], fill: int) -> tuple[int, int]:
    """The last two of `values`, filled up in front."""
    first, second = ([fill] * 2 + list(values))[-2:]
    return first, second


def starts(p: Problem) -> Iterator[tuple[int, int, int]]:
    """Starts of A, B (elements) and C (matrices) for each index of the batch axes before the last two."""
    for number, index in enumerate(product(*map(range, p.batch[:-2]))):
        yield (sum(i * s for i, s in zip(index, p.a_step, strict=False)),
               sum(i * s for i, s in zip(index, p.b_step, strict=False)), number * math.prod(p.batch[-2:]))


def flat(arg: Any, size: int | None = None) -> Any:
    """The operand as one axis."""
    return replace(arg, shape=(math.prod(arg.shape) if size is None else size,))


def _pieces(p: Problem, way: str, panel: int, serial: Serial | None) -> list[Piece]:
    """The pieces of a simplified problem, in the order in which they are done. Pieces of columns are whole panels."""
    whole = Piece(0, p.n, 0, p.k)
    if serial is None or p.k == 0:
        return [whole]
    if serial.axis == "k":
        assert p.k % serial.factor == 0, f"{serial} of {p}"
        step = p.k // serial.factor
        return [replace(whole, at=at, k=step) for at in range(0, p.k, step)]
    if way not in ("packed", "tiles"):
        return [whole]
    step = panel * -(-p.n // (panel * serial.factor))
    return [replace(whole, j=j, n=min(step, p.n - j)) for j in range(0, p.n, step)]


def matmul_calls(dtype: str, p: Problem, a: In, b: In, c: Out, *, alpha: float = 1.0, beta: float = 1.0,
                 bias: Bias | None = None, force: Blocking | None = None, serial: Serial | None = None,
                 partials: str = "f4") -> list[Call]:
    """Calls that compute C = alpha * A @ B + beta * bias for every matrix of a batch, on the current CPU path.

    Args:
        dtype: "f4", "f8", "f2" or "b2" (the last two: `half_gemm.half_calls`, which takes no `force`).
        p: sizes, transpositions and batch.
        a, b, c: the operands. Only their number of elements matters; C holds the matrices of the batch in order.
        bias: an addend, for problems without batch.
        force: this blocking instead of the chosen one (tests and tuning).
        serial: do it in pieces, with less scratch memory. Pieces of sums must divide k.
        partials: "f2" rounds the sums of 16-bit products to float16 after every 16 of them.
    """
    assert bias is None or not p.batch
    if dtype in HALVES:
        from .half_gemm import half_calls
        return half_calls(dtype, p, a, b, c, alpha=alpha, beta=beta, bias=bias, serial=serial, partials=partials)
    if p.count * p.m * p.n == 0:
        return []
    a, b, c = flat(a), flat(b), flat(c, p.count * p.m * p.n)
    if p.n == 1 and p.trans_a:
        # y = A^T x is the row x^T A: a row-major right operand instead of a strided left one.
        p = replace(p, m=1, n=p.m, trans_a=False, trans_b=False, a_step=p.b_step, b_step=p.a_step)
        a, b = b, a
        bias = bias and replace(bias, row=bias.column, column=bias.row)
    p = simplify(p)
    path = cpu.current()
    plan = force or blocking(p, dtype, path)
    pieces = _pieces(p, plan.way, _panel(plan.way, dtype, path), serial)
    calls: list[Call] = []
    for piece in pieces:
        last = piece.at + piece.k == p.k
        right, packing = (_packing(plan.way, dtype, p, piece, pieces[0], b, path) if plan.way in ("packed", "tiles") else (b, []))
        calls += packing
        calls += _piece_calls(dtype, p, plan, piece, (a, b, right, c), path,
                              alpha=alpha if last else 1.0, beta=beta, bias=bias if last else None)
    return calls


def _panel(way: str, dtype: str, path: cpu.Cpu) -> int:
    """Columns of a packed panel of B."""
    return tiled.SIDE if way == "tiles" else columns(dtype, path)


def _packing(way: str, dtype: str, p: Problem, piece: Piece, largest: Piece, b: In, path: cpu.Cpu) -> tuple[Work, list[Call]]:
    """A piece of B laid out in panels, in scratch memory that holds the largest piece."""
    panel, matrix, size = _panel(way, dtype, path), p.k * p.n, itemsize(dtype)
    matrices, panels = b.shape[0] // matrix, -(-piece.n // panel)
    if way == "tiles":
        words = tiled.panel_bytes(dtype, path, largest.k) // 4
        packed = Work("packed", (matrices * -(-largest.n // panel) * words,), dtype)
        row = p.k if p.trans_b else p.n
        start = piece.j * row + piece.at if p.trans_b else piece.at * row + piece.j
        return packed, [tiled.pack_call(dtype, path, b, packed, piece.n, piece.k, p.trans_b, start, row, matrix, matrices)]
    packed = Work("packed", (matrices * -(-largest.n // panel) * largest.k * panel,), dtype)
    row = p.k if p.trans_b else p.n
    start = piece.j * row + piece.at if p.trans_b else piece.at * row + piece.j
    return packed, [Call(_pack(dtype, path.name), [b, packed, piece.n, piece.k, int(p.trans_b), panel, panels, start, row, matrix],
                         n=matrices * panels, cost=0.1 * size * matrices * piece.k * piece.n)]


def _piece_calls(dtype: str, p: Problem, plan: Blocking, piece: Piece, operands: tuple[In, In, In | Work, Out], path: cpu.Cpu, *,
                 alpha: float, beta: float, bias: Bias | None) -> list[Call]:
    """The calls of one piece; `operands` are A, B, B as the way reads it, C."""
    a, b, right, c = operands
    size, panel, scratch = itemsize(dtype), columns(dtype, path), 1
    a_row, a_k = (1, p.m) if p.trans_a else (p.k, 1)
    by_columns = plan.way == "direct"
    b_row, b_step = p.n if by_columns else p.k, p.b_step
    b_start = piece.at * b_row + piece.j if by_columns else piece.j * b_row + piece.at
    if plan.way == "tiles":
        panel_row = tiled.panel_bytes(dtype, path, piece.k) // size
        matrix = -(-piece.n // tiled.SIDE) * panel_row
        b_row, b_start, b_step = panel_row // tiled.SIDE, 0, tuple(s // (p.k * p.n) * matrix for s in p.b_step)
        scratch = tiled.scratch_bytes(dtype, path, plan.rows) // size
    if plan.way == "packed":
        assert plan.cols % panel == 0
        matrix = -(-piece.n // panel) * panel * piece.k
        b_row, b_start, b_step = piece.k, 0, tuple(s // (p.k * p.n) * matrix for s in p.b_step)
        scratch = max(plan.rows * (plan.depth + SKEW // size), plan.depth * (plan.rows + SKEW // size))
    outer_count, inner_count = last_two(p.batch, 1)
    units = outer_count * inner_count * -(-p.m // plan.rows) * -(-piece.n // plan.cols)
    cost = 2.0 * outer_count * inner_count * p.m * piece.n * piece.k / FLOPS_PER_NS[path.name] * (size / 4) + 30.0 * units
    if plan.way == "tiles":
        cost *= FLOPS_PER_NS[path.name] / tiled.FLOPS_PER_NS[tiled.products(dtype, path)]
    cost += 0.01 * size * b.shape[0] * (piece.n * piece.k / max(1, p.n * p.k))
    more = MORE if piece.at else 0
    addend = [flat(bias.arg), BIASED | more, bias.row, bias.column] if bias else [a, more, 0, 0]
    calls = []
    for a_at, b_at, c_at in starts(replace(p, b_step=b_step)):
        steps = [*last_two(p.a_step, 0), *last_two(b_step, 0), a_at + piece.at * a_k, b_at + b_start]
        numbers = [p.m, piece.n, piece.k, plan.rows, plan.cols, plan.depth, *(s * size for s in (a_row, a_k, b_row)), inner_count,
                   *(s * size for s in steps), c_at * p.m * p.n + piece.j, p.n]
        args = [a, right, c, addend[0], Work("block", (scratch,), dtype), alpha, beta, *addend[1:], *numbers]
        calls.append(Call(_gemm(plan.way, dtype, path), args, n=units, cost=cost))
    return calls
