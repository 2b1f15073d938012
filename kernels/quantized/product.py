"""Products of matrices of 8-bit integers with their zero points, as leaf calls: C[i, j] = sum over k of (A[i, k] - za[i]) (B[k, j] - zb[j]), int32.

Sums wrap beyond 32 bits as integers do, and nothing else rounds or saturates: every CPU path and every way gives the same bits. The zero points
are taken off the finished sums, by the sums of A's rows and of B's columns, which are found while the operands are laid out. B is laid out in panels
(once, where it is a weight), A block by block. An epilogue runs on finished blocks and may give another element type.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from ..elementwise.epilogue import Epilogue
from ..gemm.problem import GemmProblem, Panels, flat, last_two, simplify, starts
from ..isa import cpu
from ..machine.call import Call, Const, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .dots import Way, layer, way_of
from .finish import arguments, finisher
from .tiles import chosen, products, switches

BLOCK_ROWS, BLOCK_COLUMNS = 96, 512
"""Elements of C in a unit of work, at most: A's share of it is laid out once for all of the columns."""
SIGNED = {"i1": True, "u1": False}


@dataclass(frozen=True)
class Laying(Numbers):
    """What the leaf that lays B out reads; strides in bytes. Its range: panels of matrices."""

    n: int
    k: int
    row: int
    column: int


@functools.cache
def _lay_leaf(way: Way, signed: bool) -> Leaf:
    """B's panels [group][column] and after each the sums of its columns."""
    group, width, shift = way.group, way.width, 32 // way.group
    flip, less, mask = (np.int32(n) for n in (*way.right(signed), 0xFF if way.group == 4 else 0xFFFF))
    lay_whole = layer(way, signed)

    def lay_groups(b, to, s, lo, hi):  # type: ignore[no-untyped-def]
        groups, panels = (s.k + group - 1) // group, (s.n + width - 1) // width
        for unit in range(lo, hi):
            at, first = unit * (groups + 1) * width, unit % panels * width
            here, source = min(width, s.n - first), unit // panels * s.k * s.n + first * s.column
            sums = to[at + groups * width:at + (groups + 1) * width]
            for j in range(width):
                sums[j] = 0
            whole = s.k // group if s.column == 1 and here == width else 0
            lay_whole(whole, address_of(b) + source, s.row, address_of(to) + 4 * at, address_of(sums))
            for q in range(whole, groups):
                row = to[at + q * width:at + (q + 1) * width]
                for j in range(width):
                    row[j] = 0
                for r in range(min(group, s.k - q * group)):
                    start = source + (q * group + r) * s.row
                    up = np.int32(shift * r)
                    if s.column == 1:
                        line = b[start:start + here]
                        for j in range(here):
                            value = np.int32((np.int32(line[j]) ^ flip) - less)
                            row[j] |= np.int32((value & mask) << up)
                            sums[j] += value
                    else:
                        for j in range(here):
                            value = np.int32((np.int32(b[start + j * s.column]) ^ flip) - less)
                            row[j] |= np.int32((value & mask) << up)
                            sums[j] += value
    return Leaf(lay_groups, "u1[:], i4[:], numbers, lo, hi", key=f"{way.name}-{signed}", numbers=Laying)


@dataclass(frozen=True)
class ByteProductSizes(Numbers):
    """What the leaf of a product reads. Its range: units = blocks of C, rows first, then columns, then the batch of two axes.

    Strides of A are bytes, those of B words of its panels. `za` and `zb` are 0 for one zero point, 1 for one each.
    by_row: channels of the epilogue are rows.
    """

    m: int
    n: int
    k: int
    rows: int
    cols: int
    a_row: int
    a_k: int
    inner: int
    a_outer: int
    a_inner: int
    b_outer: int
    b_inner: int
    a_at: int
    b_at: int
    c_at: int
    za: int
    zb: int
    by_row: int


@functools.cache
def _product_leaf(way: Way, a_signed: bool, b_signed: bool) -> Leaf:
    multiply, finish, (begin, end) = products(way), finisher(), switches(way)
    (a_flip, a_less), (_, b_less) = way.left(a_signed), way.right(b_signed)
    a_moved, b_moved = 128 * a_signed - a_less, 128 * b_signed - b_less           # what is added to elements, and so to their zero points
    group, width, whole_row = way.group, way.width, way.whole
    flip_a, less_a = np.int32(a_flip), np.int32(a_less)

    def lay_rows(a, at, a_row, a_k, height, k, groups, to, terms, zero_points, first, step):  # type: ignore[no-untyped-def]
        """A block of A in groups, and for each row its zero point and its sum."""
        deep = groups * group
        for i in range(height):
            total, start = np.int32(0), at + i * a_row
            line = to[i * deep:i * deep + k]
            if a_k == 1:
                source = a[start:start + k]
                for q in range(k):
                    value = np.int32((np.int32(source[q]) ^ flip_a) - less_a)
                    line[q] = value
                    total = np.int32(total + value)
            else:
                for q in range(k):
                    value = np.int32((np.int32(a[start + q * a_k]) ^ flip_a) - less_a)
                    line[q] = value
                    total = np.int32(total + value)
            for q in range(i * deep + k, (i + 1) * deep):
                to[q] = 0
            terms[2 * i] = zero_points[(first + i) * step] + a_moved
            terms[2 * i + 1] = total

    def integer_product(a, b, za, zb, c, left, terms, block, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        groups, down, across = (s.k + group - 1) // group, (s.m + s.rows - 1) // s.rows, (s.n + s.cols - 1) // s.cols
        panel, filled = (groups + 1) * width, (groups + whole_row - 1) // whole_row * whole_row
        for unit in range(lo, hi):
            i, j, matrix = unit % down * s.rows, unit // down % across * s.cols, unit // (down * across)
            height, wide = min(s.rows, s.m - i), min(s.cols, s.n - j)
            from_a = s.a_at + matrix // s.inner * s.a_outer + matrix % s.inner * s.a_inner + i * s.a_row
            from_b = s.b_at + matrix // s.inner * s.b_outer + matrix % s.inner * s.b_inner + j // width * panel
            lay_rows(a, from_a, s.a_row, s.a_k, height, s.k, filled, left, terms, za, i, s.za)
            for q in range(0, wide, width):
                sums = b[from_b + q // width * panel + groups * width:from_b + (q // width + 1) * panel]
                at = 2 * s.rows + q
                for x in range(min(width, wide - q)):
                    zero = zb[(j + q + x) * s.zb] + b_moved
                    terms[at + x] = sums[x] - s.k * zero
                    terms[at + s.cols + x] = zero
            to = (s.c_at + matrix) * s.m * s.n + i * s.n + j
            whole = epilogue == 0 and wide % width == 0
            target, step = (address_of(c) + 4 * to, 4 * s.n) if whole else (address_of(block), 4 * s.cols)
            begin(0)
            for q in range(0, wide, width):
                multiply(height, groups, address_of(left), filled * 4, address_of(b) + 4 * (from_b + q // width * panel), target + 4 * q, step,
                         address_of(terms), address_of(terms) + 4 * (2 * s.rows + q), 4 * s.cols)
            end(0)
            if epilogue == 0 and not whole:
                for x in range(height):
                    for y in range(wide):
                        c[to + x * s.n + y] = block[x * s.cols + y]
            finish(epilogue, rest, 1, height, wide, address_of(block), 0, s.cols, to, 0, s.n, i if s.by_row != 0 else j)
    signature = f"u1[:], i4[:], i4[:], i4[:], i4[:], {way.element}[w,:], i4[w,:], i4[w,:], numbers, lo, hi" + CALLED
    return Leaf(integer_product, signature, key=f"{way.name}-{a_signed}-{b_signed}", numbers=ByteProductSizes)


def _words(way: Way, p: GemmProblem, matrices: int) -> int:
    """Of B's panels."""
    return matrices * -(-p.n // way.width) * (-(-p.k // way.group) + 1) * way.width


def _lay(way: Way, p: GemmProblem, code: str, b: In, target: Out | Work, matrices: int) -> Call:
    row, column = (1, p.k) if p.trans_b else (p.n, 1)
    units = matrices * -(-p.n // way.width)
    return Call(_lay_leaf(way, SIGNED[code]), (flat(b), target, Laying(p.n, p.k, row, column)), n=units, cost=20.0 + 0.25 * matrices * p.k * p.n)


def panels(code: str, p: GemmProblem) -> Panels:
    """How B is laid out for `calls(..., packed=True)` on the current CPU path."""
    p, way = simplify(p), way_of(cpu.current())
    matrices = _matrices(p)
    words = max(1, _words(way, p, matrices))
    made = (_lay(way, p, code, In(0, (matrices * p.k * p.n,)), Out(0, (words,)), matrices),) if p.k * p.n * matrices else ()
    return Panels(words, "i4", made)


def _matrices(p: GemmProblem) -> int:
    """Of B."""
    count = 1
    for size, step in zip(p.batch, p.b_step, strict=True):
        count *= size if step else 1
    return count


def calls(codes: tuple[str, str], p: GemmProblem, a: In, b: In, za: In | None, zb: In | None, c: Out, *,
          packed: bool = False, epilogue: Epilogue | None = None, by_row: bool = False) -> list[Call]:
    """The calls of a batch of products.

    Args:
        codes: "i1" or "u1" of A and of B.
        za, zb: int32, one zero point, or one for each row of A or each column of B; None: 0.
        packed: b is what the calls of `panels` made.
        epilogue: what is done to the sums (variable 0, int32); its first expression may have any type. by_row: its channels are rows.
    """
    way, per_row = way_of(cpu.current()), za is not None and za.shape != () and za.shape[0] > 1
    if p.count * p.m * p.n == 0:
        return []
    p = p if per_row or by_row else simplify(p)              # which may make rows of a batch
    matrices, made = _matrices(p), []
    right: In | Work = flat(b)
    if not packed:
        right = Work("panels", (max(1, _words(way, p, matrices)),), "i4")
        made.append(_lay(way, p, codes[1], b, right, matrices))
    each = -(-p.n // way.width) * (-(-p.k // way.group) + 1) * way.width
    way = chosen(way, p.m, p.n, p.k)
    filled = -(-p.k // (way.group * way.whole)) * way.whole
    rows, cols = _blocks(p, way)
    outer_count, inner_count = last_two(p.batch, 1)
    units = outer_count * inner_count * -(-p.m // rows) * -(-p.n // cols)
    a_row, a_k = (1, p.m) if p.trans_a else (p.k, 1)
    b_step = tuple(s // max(1, p.k * p.n) * each for s in p.b_step)
    zero = Const.of([0], "i4")
    leaf = _product_leaf(way, SIGNED[codes[0]], SIGNED[codes[1]])
    sums, follows = arguments(epilogue, c, "rows" if by_row else "columns")
    for a_at, b_at, c_at in starts(replace(p, b_step=b_step)):
        (a_outer, a_inner), (b_outer, b_inner) = last_two(p.a_step, 0), last_two(b_step, 0)
        sizes = ByteProductSizes(p.m, p.n, p.k, rows, cols, a_row, a_k, inner_count, a_outer, a_inner, b_outer, b_inner,
                                 a_at, b_at, c_at,
                      int(per_row), int(zb is not None and zb.shape != () and zb.shape[0] > 1), int(by_row))
        args = [flat(a), right, flat(za) if za else zero, flat(zb) if zb else zero, sums,
                Work("left", (rows * max(1, filled) * way.group,), way.element), Work("terms", (2 * (rows + cols),), "i4"),
                Work("block", (rows * cols,), "i4"), sizes, *follows]
        cost = outer_count * inner_count * p.m * p.n * p.k / way.speed + 60.0 * units + (epilogue.cost if epilogue else 0.0)
        made.append(Call(leaf, args, n=units, cost=cost))
    return made


def _blocks(p: GemmProblem, way: Way) -> tuple[int, int]:
    """Rows and columns of a unit: enough units for several workers, if C is large enough."""
    rows = min(BLOCK_ROWS // way.rows * way.rows, -(-p.m // way.rows) * way.rows)
    cols = min(BLOCK_COLUMNS, -(-p.n // way.width) * way.width)
    while rows * cols > 4096 and p.count * -(-p.m // rows) * -(-p.n // cols) < 8:
        if cols > 4 * way.width and cols >= rows:
            cols = -(-cols // 2 // way.width) * way.width
        elif rows > way.rows:
            rows = -(-rows // 2 // way.rows) * way.rows
        else:
            break
    return rows, cols
