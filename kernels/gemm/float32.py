"""Matrix products of float32 and float64: C = alpha * A @ B + beta * bias over batches, as leaf calls chosen from the shapes.

Five ways. In each, a unit of the range is a block of C, so that no sum is ever split between workers:
- direct: `micro.outer` reads A and a row-major B where they lie;
- dots:   `micro.dot` reads A and B^T, both by rows along k, where they lie: a transposed B and few rows of A;
- panels: B lies in panels as wide as a register block; a weight that many products share is laid out once, before them;
- packed: likewise, and blocks of A are copied into the worker's scratch (Goto and van de Geijn, ACM TOMS 34(3), 2008): operands
          that outgrow the caches;
- tiles:  B lies in panels of bfloat16 parts for the CPU's tile unit (gemm/tiles.py).
Sums run over k in blocks of one depth, each added to C in turn. blocking.py chooses way and blocks.
A serialized product is done in pieces that share the scratch memory; its way and blocks are those of the whole.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llvmlite import ir

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..isa import cpu
from ..isa.paths import PATHS
from ..isa.vector import ELEMENTS, INT32, Emitter, inlined_code, itemsize, vector, word
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf
from ..machine.places import address_of
from . import micro
from . import tiles as tiled
from .blocking import Blocking, blocking, prepacked
from .micro import columns, copy, dot, slack, strips
from .pack import TOGETHER, Packing, pack_leaf
from .problem import (
    ALONG,
    BIASED,
    COPIED,
    MORE,
    PANELS,
    Bias,
    GemmProblem,
    GemmSizes,
    Panels,
    Serial,
    flat,
    last_two,
    simplify,
    starts,
)

FINISHED_BYTES = 1 << 19
"""From this size of C on elementwise work is done in finished blocks; a smaller C is still in cache afterwards, and costs no further leaf."""
SKEW = 64
"""Bytes added to the rows of copied blocks of A: rows a power of two apart would fight for the same cache sets."""


@dataclass(frozen=True)
class Piece:
    """Columns j..j+n of C and terms at..at+k of its sums."""

    j: int
    n: int
    at: int
    k: int


@functools.cache
def _scaling(dtype: str) -> Any:
    """The function `scale(c, c_row, rows, cols, alpha, beta, flags, bias, bias_row)`: C = alpha * C + beta * bias over
    a finished block; addresses, strides in bytes, and the bits of alpha and beta."""
    kind, size = ELEMENTS[dtype], itemsize(dtype)

    def emit(e: Emitter, c: Any, c_row: Any, rows: Any, cols: Any, alpha: Any, beta: Any, flags: Any, bias: Any,
             bias_row: Any) -> None:
        factor, share = (e.b.bitcast(bits if size == 8 else e.b.trunc(bits, INT32), kind) for bits in (alpha, beta))

        def each(added: Callable[[Any, Any, int], Any] | None) -> None:
            """Scale, and add what is `added` to lanes from a column on, in a row's bias: vectors, then the rest."""
            def row(_: Any, at: list[Any]) -> list[Any]:
                def columns(lanes: int, first: Any, last: Any) -> None:
                    def column(j: Any, _state: list[Any]) -> None:
                        place = e.address(at[0], e.times(j, size))
                        value = e.b.fmul(e.splat(factor, lanes), e.load(place, vector(dtype, lanes)))
                        e.store(value if added is None else e.b.fadd(value, added(at[1], j, lanes)), place)
                    e.loop(first, last, lanes, [], column)
                wide = micro.LINE // size
                whole = e.b.and_(cols, word(-wide))
                columns(wide, 0, whole)
                columns(1, whole, cols)
                return [e.address(at[0], c_row), e.address(at[1], bias_row)]
            e.loop(0, rows, 1, [c, bias], row)

        def of_column(start: Any, j: Any, lanes: int) -> Any:
            return e.b.fmul(e.splat(share, lanes), e.load(e.address(start, e.times(j, size)), vector(dtype, lanes)))

        def of_row(start: Any, _: Any, lanes: int) -> Any:
            return e.splat(e.b.fmul(share, e.load(start, kind)), lanes)

        with e.b.if_else(_has(e, flags, BIASED)) as (biased, plain):
            with plain, e.when(e.b.fcmp_unordered("!=", factor, ir.Constant(kind, 1))):
                each(None)
            with biased, e.b.if_else(_has(e, flags, ALONG)) as (along, down):
                with along:
                    each(of_column)
                with down:
                    each(of_row)
    return inlined_code(f"tileflow_scale_{dtype}", "c, c_row, rows, cols, alpha, beta, flags, bias, bias_row",
                        PATHS["generic"], emit)


def _has(e: Emitter, flags: Any, flag: int) -> Any:
    return e.b.icmp_signed("!=", e.b.and_(flags, word(flag)), word(0))


def _outer_block(dtype: str, outer: Callable[[str], Any]) -> Any:
    path = cpu.current()
    panel, tall, size = columns(dtype, path), path.tile.rows, itemsize(dtype)
    kernel, move, cut, rest = outer(dtype), copy(dtype), strips(dtype, tall), slack(dtype, tall, path)

    def block(height, width, k, depth, a, a_row, a_k, b, b_col, c, c_row, flags, scratch):  # type: ignore[no-untyped-def]
        step, b_k = (panel, panel * size) if flags & PANELS else (width, c_row)          # rows of a B as it is are as long as C's
        for p in range(0, max(k, 1), depth):
            deep = min(depth, k - p)
            left, row, along, down, strip = a + p * a_k, a_row, a_k, height, 0
            if flags & COPIED and a_k == size:
                left, row = scratch, depth * size + SKEW
                move(height, deep, a + p * a_k, a_row, scratch, row)
            elif flags & COPIED:
                left, row, along, down, strip = scratch, size, tall * size, tall, (deep * tall + rest) * size
                cut(deep, height, a + p * a_k, a_k, scratch, strip)
            for q in range(0, width, max(step, 1)):
                for i in range(0, height, down):
                    kernel(min(down, height - i), min(step, width - q), deep, left + i // down * strip, row, along,
                           b + q * b_col + p * b_k, b_k, c + i * c_row + q * size, c_row, p + (flags & MORE) > 0)
    return block


def _dots_block(dtype: str) -> Any:
    kernel, size = dot(dtype), itemsize(dtype)

    def block(height, width, k, depth, a, a_row, _a_k, b, b_col, c, c_row, flags, _scratch):  # type: ignore[no-untyped-def]
        for p in range(0, max(k, 1), depth):
            kernel(height, width, min(depth, k - p), a + p * size, a_row, b + p * size, b_col, c, c_row, p + (flags & MORE) > 0)
    return block


@functools.cache
def _gemm(kind: str, dtype: str, path: cpu.Cpu) -> Leaf:
    """The leaf over one micro-kernel; `GemmSizes` says what it reads and its range."""
    makers: dict[str, Any] = {"outer": partial(_outer_block, outer=micro.rows),
                              "panels": partial(_outer_block, outer=micro.panels),
                              "dot": _dots_block, "tiles": tiled.tile_block}
    block, scale, size, finish = makers[kind](dtype), _scaling(dtype), itemsize(dtype), finisher()

    def gemm(a, b, c, bias, scratch, alpha, beta, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        down, across = (s.m + s.rows - 1) // s.rows, (s.n + s.cols - 1) // s.cols
        for unit in range(lo, hi):
            i, j, matrix = unit % down * s.rows, unit // down % across * s.cols, unit // (down * across)
            height, width = min(s.rows, s.m - i), min(s.cols, s.n - j)
            from_a = s.a_at + matrix // s.inner * s.a_outer + matrix % s.inner * s.a_inner + i * s.a_row
            from_b = s.b_at + matrix // s.inner * s.b_outer + matrix % s.inner * s.b_inner + j * s.b_col
            to = s.c_at + (matrix * s.m + i) * s.c_row + j
            block(height, width, s.k, s.depth, a.ctypes.data + from_a, s.a_row, s.a_k, b.ctypes.data + from_b, s.b_col,
                  c.ctypes.data + to * size, s.c_row * size, s.flags, address_of(scratch))
            addend = i * s.bias_row + (s.c_at + j if s.flags & ALONG else 0)
            scale(c.ctypes.data + to * size, s.c_row * size, height, width, alpha, beta, s.flags,
                  bias.ctypes.data + addend * size, s.bias_row * size)
            finish(epilogue, rest, height, width, address_of(c), to, s.c_row, (s.c_at + j) % s.c_row)

    gemm.__name__ = f"gemm_{kind}"
    signature = "T[:], T[:], T[:], T[:], T[w,:], T, T, numbers, lo, hi"
    return Leaf(gemm, signature.replace("T", dtype) + CALLED, numbers=GemmSizes,
                    key=f"{kind}-{path if kind == 'tiles' else path.name}")


def _pieces(p: GemmProblem, plan: Blocking, panel: int, serial: Serial | None) -> list[Piece]:
    """The pieces of a simplified problem, in the order in which they are done. Pieces of columns are whole panels."""
    whole = Piece(0, p.n, 0, p.k)
    if serial is None or p.k == 0:
        return [whole]
    if serial.axis == "k":
        assert p.k % serial.factor == 0, f"{serial} of {p}"
        step = p.k // serial.factor
        return [replace(whole, at=at, k=step) for at in range(0, p.k, step)]
    if not plan.panels:
        return [whole]
    step = panel * -(-p.n // (panel * serial.factor))
    return [replace(whole, j=j, n=min(step, p.n - j)) for j in range(0, p.n, step)]


def calls(dtype: str, p: GemmProblem, a: In, b: In, c: Out | Work, *, alpha: float = 1.0, beta: float = 1.0,
          bias: Bias | None = None, force: Blocking | None = None, serial: Serial | None = None, packed: bool = False,
          epilogue: Epilogue | None = None) -> list[Call]:
    """`gemm.matmul_calls` for "f4" and "f8". `force` takes this blocking instead of the chosen one (tests and tuning)."""
    if p.count * p.m * p.n == 0:
        return []
    after: list[Call] = []
    if epilogue is not None and (p.n == 1 or p.count * p.m * p.n * itemsize(dtype) < FINISHED_BYTES):
        after, epilogue = [epilogue.after(c.shape, -1)], None
    a, b, c = flat(a), flat(b), flat(c, p.count * p.m * p.n)
    if p.n == 1 and p.trans_a:
        # y = A^T x is the row x^T A: a row-major right operand instead of a strided left one.
        p = replace(p, m=1, n=p.m, trans_a=False, trans_b=False, a_step=p.b_step, b_step=p.a_step)
        a, b = b, a
        bias = bias and replace(bias, row=bias.column, column=bias.row)
    p = simplify(p)
    path = cpu.current()
    plan = force or (prepacked(p, dtype, path) if packed else blocking(p, dtype, path))
    assert plan is not None
    assert not (packed and serial)
    pieces = _pieces(p, plan, _panel(plan, dtype, path), serial)
    made = []
    for piece in pieces:
        last = piece.at + piece.k == p.k
        right: In | Work = b
        if plan.panels and not packed:
            right = Work("packed", (b.shape[0] // (p.k * p.n) * _panel_elements(plan, dtype, pieces[0], path),), dtype)
            made.append(_packing(plan, dtype, p, piece, b, right, path))
        made += _piece_calls(dtype, p, plan, piece, (a, right, c), path,
                             alpha=alpha if last else 1.0, beta=beta, bias=bias if last else None, epilogue=epilogue if last else None)
    return made + after


def panels(dtype: str, p: GemmProblem) -> Panels | None:
    """How B is laid out for `calls(..., packed=True)` on the current CPU path; None where B is better read as it is."""
    p, path = simplify(p), cpu.current()
    plan = None if p.count * p.m * p.n == 0 else prepacked(p, dtype, path)
    if plan is None:
        return None
    whole = Piece(0, p.n, 0, p.k)
    elements = _panel_elements(plan, dtype, whole, path)
    return Panels(elements, dtype, (_packing(plan, dtype, p, whole, In(0, (p.k * p.n,)), Out(0, (elements,)), path),))


def _panel(plan: Blocking, dtype: str, path: cpu.Cpu) -> int:
    """Columns of a panel."""
    return tiled.SIDE if plan.way == "tiles" else columns(dtype, path)


def _panel_elements(plan: Blocking, dtype: str, piece: Piece, path: cpu.Cpu) -> int:
    """Elements of one matrix in panels."""
    panel = _panel(plan, dtype, path)
    return -(-piece.n // panel) * (tiled.panel_bytes(dtype, path, piece.k) // 4 if plan.way == "tiles" else piece.k * panel)


def _packing(plan: Blocking, dtype: str, p: GemmProblem, piece: Piece, b: In, target: Out | Work,
             path: cpu.Cpu) -> Call:
    """The call that lays out a piece of each matrix of B."""
    matrix, size = p.k * p.n, itemsize(dtype)
    matrices = b.shape[0] // matrix
    row = p.k if p.trans_b else p.n
    start = piece.j * row + piece.at if p.trans_b else piece.at * row + piece.j
    if plan.way == "tiles":
        return tiled.pack_call(dtype, path, b, target, piece.n, piece.k, p.trans_b, start, row, matrix, matrices)
    groups = -(-piece.n // (TOGETHER * columns(dtype, path)))
    return Call(pack_leaf(dtype, path), (b, target, Packing(piece.n, piece.k, int(p.trans_b), start, row, matrix)),
                n=matrices * groups, cost=0.1 * size * matrices * piece.k * piece.n)


def _strides(dtype: str, p: GemmProblem, plan: Blocking, piece: Piece,
             path: cpu.Cpu) -> tuple[int, int, tuple[int, ...]]:
    """B as the way reads it: elements from column to column (within a panel: their mean), start, `b_step`."""
    if plan.panels:
        matrix, panel = _panel_elements(plan, dtype, piece, path), _panel(plan, dtype, path)
        return matrix // (-(-piece.n // panel) * panel), 0, tuple(s // (p.k * p.n) * matrix for s in p.b_step)
    if plan.way == "direct":
        return 1, piece.at * p.n + piece.j, p.b_step
    return p.k, piece.j * p.k + piece.at, p.b_step


def _piece_calls(dtype: str, p: GemmProblem, plan: Blocking, piece: Piece, operands: tuple[In, In | Work, Out | Work],
                 path: cpu.Cpu, *,
                 alpha: float, beta: float, bias: Bias | None, epilogue: Epilogue | None) -> list[Call]:
    """The calls of one piece; `operands` are A, B as the way reads it, C."""
    a, right, c = operands
    size, tall = itemsize(dtype), path.tile.rows
    a_row, a_k = (1, p.m) if p.trans_a else (p.k, 1)
    b_col, b_start, b_step = _strides(dtype, p, plan, piece, path)
    assert not plan.panels or plan.cols % _panel(plan, dtype, path) == 0
    copied = plan.way == "packed"
    scratch = 1
    if copied and a_k == 1:
        scratch = plan.rows * (plan.depth + SKEW // size)
    elif copied:
        scratch = -(-plan.rows // tall) * (plan.depth * tall + slack(dtype, tall, path))
    elif plan.way == "tiles":
        scratch = tiled.scratch_bytes(dtype, path, plan.rows) // size
    outer_count, inner_count = last_two(p.batch, 1)
    units = outer_count * inner_count * -(-p.m // plan.rows) * -(-piece.n // plan.cols)
    cost = 2.0 * outer_count * inner_count * p.m * piece.n * piece.k / path.rates.products * (size / 4) + 30.0 * units
    if plan.way == "tiles":
        cost *= path.rates.products / tiled.FLOPS_PER_NS[tiled.products(dtype, path)]
    cost += 0.01 * size * right.shape[0] + (epilogue.cost if epilogue else 0.0)
    flags = (MORE if piece.at else 0) | (COPIED if copied else 0) | (PANELS if plan.panels else 0)
    addend = flat(bias.arg) if bias else a
    flags |= (BIASED | (ALONG if bias.column else 0)) if bias else 0
    leaf = _gemm({"dots": "dot", "direct": "outer", "packed": "panels"}.get(plan.way, plan.way), dtype, path)
    made = []
    for a_at, b_at, c_at in starts(replace(p, b_step=b_step)):
        (a_outer, a_inner), (b_outer, b_inner) = last_two(p.a_step, 0), last_two(b_step, 0)
        sizes = GemmSizes(flags, bias.row if bias else 0, bias.column if bias else 0, p.m, piece.n, piece.k, plan.rows,
                          plan.cols, plan.depth,
                      a_row * size, a_k * size, b_col * size, inner_count, a_outer * size, a_inner * size, b_outer * size, b_inner * size,
                      (a_at + piece.at * a_k) * size, (b_at + b_start) * size, c_at * p.m * p.n + piece.j, p.n)
        args = [a, right, c, addend, Work("block", (scratch,), dtype), alpha, beta, sizes, *arguments(epilogue)]
        made.append(Call(leaf, args, n=units, cost=cost))
    return made
