"""Matrix products of float16 and bfloat16: 16-bit operands and results, sums in float32, one rounding at the end.

B is laid out first: split into bfloat16 tiles where the CPU has them (a product of float16 is then four exact products, one of bfloat16
one), as bfloat16 pairs where it multiplies these (pairs.py), else converted to float32 panels for the vector kernels; few rows of A read a
transposed B where it lies. A block of C is summed in the worker's scratch, narrowed when it is finished (a panel's
columns at a time where pairs of A are read where they lie, which keeps the sums in the first-level cache) and handed to its epilogue. With
float16 partials, as the tile machine keeps them, the sums are rounded to float16 after every PARTIAL products; a CPU with float16
multiply-adds does these products with them (half_fma.py).
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..isa import cpu
from ..isa.half import narrow_rows, round_rows, widen_rows
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf
from ..machine.places import address_of
from . import half_fma, pairs
from . import tiles as tiled
from .half_fma import PARTIAL
from .micro import columns, dot, outer
from .pack import GROUP, Packing, half_pack_leaf
from .problem import BIASED, Bias, GemmProblem, GemmSizes, Panels, Serial, flat, last_two, simplify, starts

WIDTH, UNITS = 1024, 8
"""Columns of a block of C, and about how many blocks there are at least. Every further block beside another one reads
its rows of A again, and lays them out again where A is transposed: one of 256 columns took 0.93 of the time of two of
128 at 1024 x 256 x 2048 with A transposed.
"""
TILE_WIDTH, TILE_UNITS = 256, 16
"""Likewise in tiles."""
FEW, LONG = 8, 4096
"""Up to so many rows of A are multiplied with a transposed B as it is, that many terms at a time.

Against converting B first it takes 0.15 to 0.4 of the time for one row, 0.4 for eight (AVX2, 1024 x 1024 and 4096 x 4096).
"""


def _vector_block(dtype: str, partials: str) -> Any:
    """Like `tiled.tile_block`, with vectors: B in float32 panels as wide as a register block."""
    kernel, as_float, rounded = outer("f4"), tiled.left_as_float(dtype), round_rows("f2")
    panel, depth, coarse = columns("f4", cpu.current()), tiled.DEPTH, partials == "f2"

    def block(height, width, k, a, a_row, a_k, b, b_row, c, c_row, scratch):  # type: ignore[no-untyped-def]
        for p in range(0, max(k, 1), depth):
            deep = min(depth, k - p)
            rows, row, term = as_float(height, deep, a + p * a_k, a_row, a_k, scratch)
            for q in range(0, width, panel):
                source, wide = b + q * b_row + p * panel * 4, min(panel, width - q)
                if coarse:
                    for s in range(0, max(deep, 1), PARTIAL):
                        kernel(height, wide, min(PARTIAL, deep - s), rows + s * term, row, term, source + s * panel * 4, panel * 4,
                               c + 4 * q, c_row, p + s > 0)
                        rounded(height, wide, c + 4 * q, c_row, c + 4 * q, c_row)
                else:
                    kernel(height, wide, deep, rows, row, term, source, panel * 4, c + 4 * q, c_row, p > 0)

    return block


def _native_block(path: cpu.Cpu) -> Any:
    """Likewise with A as it is and B in panels of float16, by float16 multiply-adds."""
    kernel, panel = half_fma.outer(path), half_fma.WIDTH

    def block(height, width, k, a, a_row, a_k, b, b_row, c, c_row, _scratch):  # type: ignore[no-untyped-def]
        for q in range(0, width, panel):
            kernel(height, k, a, a_row, a_k, b + q * b_row, c + 4 * q, c_row)

    return block


def _pairs_block(path: cpu.Cpu) -> Any:
    """Likewise with A as it is, if its pairs lie together, and B in panels of pairs."""
    multiply, paired = pairs.across(path), pairs.left(path)
    panel, step, depth = pairs.WIDTH, pairs.STEP, pairs.DEPTH

    def block(height, width, k, a, a_row, a_k, b, b_row, c, c_row, scratch):  # type: ignore[no-untyped-def]
        for p in range(0, max(k, 1), depth):
            deep = min(depth, k - p)
            rows, row, pair = paired(height, deep, a + p * a_k, a_row, a_k, scratch)
            multiply(height, width, (deep + 1) // 2, rows, row, pair, b + p // 2 * step, panel * b_row, c, c_row, p > 0)

    return block


def _dots_block(dtype: str) -> Any:
    """Likewise with A and B^T by rows as they are: neither is converted in memory."""
    kernel = dot(dtype)

    def block(height, width, k, a, a_row, _a_k, b, b_row, c, c_row, _scratch):  # type: ignore[no-untyped-def]
        for p in range(0, k, LONG):
            kernel(height, width, min(LONG, k - p), a + 2 * p, a_row, b + 2 * p, b_row, c, c_row, p)

    return block


def _tile_block(dtype: str) -> Any:
    inner = tiled.tile_block(dtype)

    def block(height, width, k, a, a_row, a_k, b, b_row, c, c_row, scratch):  # type: ignore[no-untyped-def]
        inner(height, width, k, 0, a, a_row, a_k, b, b_row, c, c_row, 0, scratch)

    return block


@functools.cache
def _gemm(dtype: str, path: cpu.Cpu, way: str, partials: str) -> Leaf:
    """The product; `GemmSizes` says what it reads and its range. With a bias `c_at` is the piece's first column."""
    block = {"vectors": lambda: _vector_block(dtype, partials), "dots": lambda: _dots_block(dtype),
             "pairs": lambda: _pairs_block(path), "tiles": lambda: _tile_block(dtype),
             "native": lambda: _native_block(path)}[way]()
    read, write, finish = widen_rows(dtype), narrow_rows(dtype), finisher()
    alone = pairs.WIDTH if way == "pairs" else 0        # columns rounded before the next ones where A is read as it lies

    def scale(scratch, sums, spare, height, width, cols, alpha, beta, biased, bias,  # type: ignore[no-untyped-def]
              bias_at, bias_row, bias_column):
        """alpha * sums + beta * bias; `sums` and `spare` (a row of bias) are elements of the scratch."""
        for i in range(height):
            row, addend = scratch[sums + i * cols:sums + i * cols + width], scratch[spare:spare + width]
            if biased != 0 and (i == 0 or bias_row != 0):
                read(1, 1 if bias_column == 0 else width, address_of(bias) + 2 * (bias_at + i * bias_row), 0, address_of(scratch) + 4 * spare, 0)
            if biased == 0:
                for j in range(width):
                    row[j] *= alpha
            elif bias_column == 0:
                number = beta * addend[0]
                for j in range(width):
                    row[j] = alpha * row[j] + number
            else:
                for j in range(width):
                    row[j] = alpha * row[j] + beta * addend[j]

    def half_gemm(a, b, c, bias, scratch, alpha, beta, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        down, across, spare = (s.m + s.rows - 1) // s.rows, (s.n + s.cols - 1) // s.cols, s.rows * s.cols
        sums = address_of(scratch)
        work = sums + 4 * (spare + s.cols)
        for unit in range(lo, hi):
            i, j, matrix = unit % down * s.rows, unit // down % across * s.cols, unit // (down * across)
            height, width = min(s.rows, s.m - i), min(s.cols, s.n - j)
            from_a = s.a_at + matrix // s.inner * s.a_outer + matrix % s.inner * s.a_inner + i * s.a_row
            from_b = s.b_at + matrix // s.inner * s.b_outer + matrix % s.inner * s.b_inner + j * s.b_col
            to = s.c_at + (matrix * s.m + i) * s.c_row + j
            piece = alone if alone != 0 and s.a_k == 2 and s.k % 2 == 0 else s.cols
            for q in range(0, width, piece):
                wide = min(piece, width - q)
                block(height, wide, s.k, address_of(a) + from_a, s.a_row, s.a_k, address_of(b) + from_b + q * s.b_col,
                      s.b_col, sums, piece * 4, work)
                if s.flags & BIASED != 0 or alpha != 1:
                    scale(scratch, 0, spare, height, wide, piece, alpha, beta, s.flags & BIASED, bias,
                          i * s.bias_row + (s.c_at + j + q) * s.bias_column, s.bias_row, s.bias_column)
                write(height, wide, sums, piece * 4, address_of(c) + (to + q) * 2, s.c_row * 2)
            finish(epilogue, rest, height, width, address_of(c), to, s.c_row, (s.c_at + j) % s.c_row)

    right = dtype if way == "dots" else "f4"
    signature = f"{dtype}[:], {right}[:], {dtype}[:], {dtype}[:], f4[w,:], f4, f4, numbers, lo, hi" + CALLED
    return Leaf(half_gemm, signature, key=f"{way}-{path if way == 'tiles' else path.name}-{partials}",
                numbers=GemmSizes)


def _blocks(p: GemmProblem, layout: _Layout) -> tuple[int, int]:
    """Rows and columns of a block of C."""
    wide, units = (TILE_WIDTH, TILE_UNITS) if layout.way == "tiles" else (WIDTH, UNITS)
    tall, panel = layout.tall, layout.panel
    down = max(1, -(-p.m // 96))
    across = max(-(-p.n // wide), min(-(-units // down), max(1, p.n // (2 * panel))))
    return -(-p.m // (down * tall)) * tall, -(-p.n // (across * panel)) * panel


def _in_tiles(dtype: str, p: GemmProblem, path: cpu.Cpu, partials: str, packed: bool) -> bool:
    """Whether a simplified problem is done in tiles."""
    return path.amx and partials == "f4" and p.k > 0 and tiled.pays(p.m, p.n, p.k, tiled.products(dtype, path), packed)


def _in_dots(dtype: str, p: GemmProblem, path: cpu.Cpu, partials: str) -> bool:
    """Whether a simplified problem is done in dot products of A and B as they are. Without float16 instructions widening takes too long."""
    return p.trans_b and not p.trans_a and p.m <= FEW and p.k > 0 and partials == "f4" and (dtype == "b2" or path.f16c)


def _in_vectors(dtype: str, path: cpu.Cpu, partials: str) -> str:
    """The way by vectors of panels."""
    if partials == "f2":
        return "native" if dtype == "f2" and path.multiplies_halves else "vectors"
    return "pairs" if dtype == "b2" and path.pairs else "vectors"


@dataclass(frozen=True)
class _Layout:
    """B in panels of `panel` columns and `words` 32-bit words, by the `way`: "tiles"; "vectors" of float32; "native" ones of float16;
    "pairs" of bfloat16. "dots" leave B as it is."""

    dtype: str
    path: cpu.Cpu
    way: str
    k: int

    @property
    def tall(self) -> int:
        """Rows of a register block."""
        return {"tiles": tiled.SIDE, "native": half_fma.ROWS, "pairs": pairs.ROWS}.get(self.way, self.path.tile.rows)

    @property
    def panel(self) -> int:
        return {"tiles": tiled.SIDE, "native": half_fma.WIDTH, "pairs": pairs.WIDTH}.get(self.way, columns("f4", self.path))

    @property
    def words(self) -> int:
        if self.way == "tiles":
            return tiled.panel_bytes(self.dtype, self.path, self.k) // 4
        if self.way == "pairs":
            return (self.k + 1) // 2 * self.panel
        return self.k * self.panel // (2 if self.way == "native" else 1)

    @property
    def flops_per_ns(self) -> float:
        """Rough speed of one core."""
        if self.way == "tiles":
            return tiled.FLOPS_PER_NS[tiled.products(self.dtype, self.path)]
        return self.path.rates.products * (2 if self.way == "pairs" else 1)

    def elements(self, matrices: int, n: int) -> int:
        """Words of that many matrices of `n` columns."""
        return max(1, matrices * -(-n // self.panel) * self.words)

    def call(self, p: GemmProblem, first: int, n: int, matrices: int, b: In, target: Out | Work) -> Call:
        """The call that lays out `n` columns from `first` on."""
        row, start = (p.k, first * p.k) if p.trans_b else (p.n, first)
        if self.way == "tiles":
            return tiled.pack_call(self.dtype, self.path, b, target, n, p.k, p.trans_b, start, row, p.k * p.n, matrices)
        groups = -(-n // (GROUP * self.panel))
        args = (b, target, self.panel, Packing(n, p.k, int(p.trans_b), start, row, p.k * p.n))
        return Call(half_pack_leaf(self.dtype, self.path, self.way), args, n=matrices * groups, cost=0.3 * matrices * p.k * n)


def panels(dtype: str, p: GemmProblem) -> Panels | None:
    """How B is laid out for `calls(..., packed=True)` on the current CPU path; None where it is better not."""
    p, path = simplify(p), cpu.current()
    if p.batch or p.m <= 8 or p.count * p.m * p.n * p.k == 0:
        return None
    layout = _Layout(dtype, path, "tiles" if _in_tiles(dtype, p, path, "f4", True) else _in_vectors(dtype, path, "f4"), p.k)
    elements = layout.elements(1, p.n)
    return Panels(elements, "f4", (layout.call(p, 0, p.n, 1, In(0, (p.k * p.n,)), Out(0, (elements,))),))


def calls(dtype: str, p: GemmProblem, a: In, b: In, c: Out | Work, *, alpha: float = 1.0, beta: float = 1.0,
          bias: Bias | None = None,
          serial: Serial | None = None, partials: str = "f4", packed: bool = False, epilogue: Epilogue | None = None,
          tiles: bool | None = None) -> list[Call]:
    """`gemm.matmul_calls` for "f2" and "b2".

    Args:
        serial: lay B out in that many pieces of columns, one after the other, whatever the axis: the bits stay the same.
        partials: "f4", or "f2" to round the sums to float16 after every 16 products.
        packed: b is what the calls of `panels` made; then `partials` is "f4".
        tiles: use the CPU's tiles or not (tests); by default where they are faster.
    """
    path = cpu.current()
    if p.count * p.m * p.n == 0:
        return []
    assert not (packed and (serial or partials != "f4"))
    a, b, c, p = flat(a), flat(b), flat(c, p.count * p.m * p.n), simplify(p)
    in_tiles = _in_tiles(dtype, p, path, partials, packed) if tiles is None else tiles and p.k > 0
    in_dots = not packed and _in_dots(dtype, p, path, partials)
    layout = _Layout(dtype, path, "tiles" if in_tiles else "dots" if in_dots else _in_vectors(dtype, path, partials), p.k)
    if layout.way == "dots":
        return _piece(p, 0, p.n, layout, (a, b, c), alpha, beta, bias, partials, epilogue)
    step = p.n if serial is None else layout.panel * -(-p.n // (layout.panel * serial.factor))
    matrices = max(1, b.shape[0] // max(1, p.k * p.n))
    made: list[Call] = []
    for j in range(0, p.n, step):
        n, work = min(step, p.n - j), Work("packed", (layout.elements(matrices, step),), "f4")
        if p.k and not packed:
            made.append(layout.call(p, j, n, matrices, b, work))
        made += _piece(p, j, n, layout, (a, b if packed else work, c), alpha, beta, bias, partials, epilogue)
    return made


def _piece(p: GemmProblem, first: int, n: int, layout: _Layout, operands: tuple[In, In | Work, Out | Work],
           alpha: float, beta: float, bias: Bias | None, partials: str, epilogue: Epilogue | None) -> list[Call]:
    """The calls for `n` columns of C from `first` on; `operands` are A, those columns of B as the way reads them, C."""
    (a, right, c), dtype, path = operands, layout.dtype, layout.path
    rows, cols = _blocks(replace(p, n=n), layout)
    floats = rows * cols + cols
    if layout.way == "tiles":
        floats += tiled.scratch_bytes(dtype, path, rows) // 4
    elif layout.way == "vectors":
        floats += max(rows * (tiled.DEPTH + 16), tiled.DEPTH * (rows + 16))
    elif layout.way == "pairs":
        floats += -(-pairs.scratch_bytes(rows) // 4)
    outer_count, inner_count = last_two(p.batch, 1)
    units = outer_count * inner_count * -(-p.m // rows) * -(-n // cols)
    speed = layout.flops_per_ns / (1 if partials == "f4" else 2)
    a_row, a_k = (1, p.m) if p.trans_a else (p.k, 1)
    b_step = p.b_step if layout.way == "dots" else tuple(s // max(1, p.k * p.n) * layout.elements(1, n) for s in p.b_step)
    b_col, b_size = (2 * p.k, 2) if layout.way == "dots" else (layout.words * 4 // layout.panel, 4)
    made = []
    for a_at, b_at, c_at in starts(replace(p, b_step=b_step)):
        (a_outer, a_inner), (b_outer, b_inner) = last_two(p.a_step, 0), last_two(b_step, 0)
        sizes = GemmSizes(BIASED if bias else 0, bias.row if bias else 0, bias.column if bias else 0, p.m, n, p.k, rows,
                          cols, tiled.DEPTH,
                      a_row * 2, a_k * 2, b_col, inner_count, a_outer * 2, a_inner * 2, b_outer * b_size, b_inner * b_size,
                      a_at * 2, b_at * b_size, c_at * p.m * p.n + first, p.n)
        args = [a, right, c, flat(bias.arg) if bias else a, Work("block", (floats,), "f4"), alpha, beta, sizes,
                *arguments(epilogue)]
        cost = 2.0 * outer_count * inner_count * p.m * n * p.k / speed + 30.0 * units + (epilogue.cost if epilogue else 0.0)
        made.append(Call(_gemm(dtype, path, layout.way, partials), args, n=units, cost=cost))
    return made
