"""Moves: copies between strided tensors (transpose, slice, concat, expand), fills, gathers. Elements are plain bits.

A move is a box of elements, per axis a size, a source stride and a destination stride in elements. `move` merges axes,
picks rows (one axis contiguous on both sides, or a plain strided walk) or tiles (the source is contiguous along another
axis than the destination) and returns the Call. Leaves exist per item size only: float32 and int32 travel as "u4".
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from .dtypes import BITS
from .isa import cpu
from .isa.vector import Emitter, inlined_code, lanes_within, word
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf, Numbers, generic
from .machine.status import INDEX_OUT_OF_RANGE, OK

INTS = ("u1", "u2", "u4", "u8")
OUTER = 7                 # outer axes a leaf takes; with the inner one or two: rank 8 after merging
PIECE = 16384             # longer rows are cut into pieces of as many elements
TILE = 16                 # values of the source's contiguous axis that one unit of a transposition takes
FEW = 8                   # runs up to which they are mixed, or told apart, by shuffles
LONG = 4096               # elements of a run that one unit of range mixes, at least
SHUFFLED = 16             # elements of a vector that is shuffled, at most: wider ones of bytes take more instructions than they save
STRIP = 256               # columns that one unit of a scatter adds


class MoveAxis(NamedTuple):
    """One axis of a move: elements, source stride, destination stride (in elements; a source stride may be 0 or negative)."""

    n: int
    source: int
    target: int


@dataclass(frozen=True)
class MoveBox(Numbers):
    """What the leaves of a move read: where the box begins in x and y; n elements of its inner axis, `step` apart in x
    and `stride` apart in y; the m of a second one (tiles); and OUTER outer axes, the innermost first."""

    x_start: int
    y_start: int
    n: int
    step: int
    m: int
    stride: int
    n0: int
    x0: int
    y0: int
    n1: int
    x1: int
    y1: int
    n2: int
    x2: int
    y2: int
    n3: int
    x3: int
    y3: int
    n4: int
    x4: int
    y4: int
    n5: int
    x5: int
    y5: int
    n6: int
    x6: int
    y6: int


def _starts(r: int, b: Any) -> tuple[int, int]:
    """Where row r of a box begins in x and y, axis 0 running fastest. Axes beyond the last are of size 1, so the walk
    ends early."""
    at, to = b.x_start + r % b.n0 * b.x0, b.y_start + r % b.n0 * b.y0
    r //= b.n0
    if r > 0:
        at, to = at + r % b.n1 * b.x1, to + r % b.n1 * b.y1
        r //= b.n1
        if r > 0:
            at, to = at + r % b.n2 * b.x2, to + r % b.n2 * b.y2
            r //= b.n2
            if r > 0:
                at, to = at + r % b.n3 * b.x3, to + r % b.n3 * b.y3
                r //= b.n3
                if r > 0:
                    at, to = at + r % b.n4 * b.x4, to + r % b.n4 * b.y4
                    r //= b.n4
                    at, to = at + r % b.n5 * b.x5 + r // b.n5 * b.x6, to + r % b.n5 * b.y5 + r // b.n5 * b.y6
    return at, to


def _move_rows(size: int, copy_rows: Any) -> Any:
    def move_rows(x: Any, y: Any, b: Any, lo: int, hi: int) -> None:
        """y[to + i * stride] = x[at + i * step], i < n, where a row begins; a unit of range is a row."""
        n, step, stride, row = b.n, b.step, b.stride, lo
        while row < hi:
            at, to = _starts(row, b)
            run = min(b.n0 - row % b.n0, hi - row)
            row += run
            if stride == 1 and step == 1:
                copy_rows(run, n, x.ctypes.data + at * size, b.x0 * size, y.ctypes.data + to * size, b.y0 * size)
                continue
            for _ in range(run):
                if stride == 1 and step == 0:
                    value, target = x[at], y[to:to + n]
                    for i in range(n):
                        target[i] = value
                else:
                    for i in range(n):
                        y[to + i * stride] = x[at + i * step]
                at += b.x0
                to += b.y0
    return move_rows


@functools.cache
def _row_leaf(itemsize: int, path: cpu.Cpu) -> Leaf:
    """The leaf that moves rows; contiguous ones in vectors."""
    bits, lanes = BITS[itemsize], path.lanes(itemsize)
    element = ir.IntType(8 * itemsize)

    def emit(e: Emitter, rows: Any, n: Any, x: Any, x_step: Any, y: Any, y_step: Any) -> None:
        whole = e.b.and_(n, word(-lanes))
        masked = path.mask_registers

        def row(_: Any, at: list[Any]) -> list[Any]:
            def vector(i: Any, kind: ir.Type, mask: Any = None) -> None:
                offset = e.times(i, itemsize)
                e.store(e.load(e.address(at[0], offset), kind, mask), e.address(at[1], offset), mask)
            e.loop(0, whole, lanes, [], lambda i, _: vector(i, ir.VectorType(element, lanes)))
            if masked:
                with e.when(e.b.icmp_signed("<", whole, n)):
                    vector(whole, ir.VectorType(element, lanes), e.first(e.b.sub(n, whole), lanes))
            else:
                e.loop(whole, n, 1, [], lambda i, _: vector(i, element))
            return [e.b.add(at[0], x_step), e.b.add(at[1], y_step)]
        e.loop(0, rows, 1, [x, y], row)
    copy_rows = inlined_code(f"copy_rows_{bits}_{path.name}", "rows, n, x, x_step, y, y_step", path, emit)
    return Leaf(_move_rows(itemsize, copy_rows), f"{bits}[:], {bits}[:], numbers, lo, hi", numbers=MoveBox)


def _move_tiles(size: int, tile: int, transpose: Any) -> Any:
    def move_tiles(x: Any, y: Any, b: Any, lo: int, hi: int) -> None:
        """y[to + j * stride + i] = x[at + i * step + j], i < n, j < m; a unit is a strip of TILE values of j."""
        n, step, m, stride = b.n, b.step, b.m, b.stride
        strips = (m + TILE - 1) // TILE
        outer, start, at, to = lo // strips, lo % strips * TILE, 0, 0
        for unit in range(lo, hi):
            if start >= m:
                outer, start = outer + 1, 0
            if start == 0 or unit == lo:
                at, to = _starts(outer, b)
            stop = min(start + TILE, m)
            whole_j = start + (stop - start) // tile * tile
            whole_i = n if n > tile else n // tile * tile
            for at_i in range(0, whole_i, tile):
                i = min(at_i, n - tile)                       # the last tile may write again what the one before it did
                for j in range(start, whole_j, tile):
                    transpose(x.ctypes.data + (at + i * step + j) * size, step * size, y.ctypes.data + (to + j * stride + i) * size,
                              stride * size)
            for i in range(n):
                for j in range(start if i >= whole_i else whole_j, stop):
                    y[to + j * stride + i] = x[at + i * step + j]
            start = stop
    return move_tiles


@functools.cache
def _tile_leaf(itemsize: int, path: cpu.Cpu) -> Leaf:
    """The tile leaf: square tiles of as many elements as a register holds, transposed in registers."""
    bits, tile = BITS[itemsize], min(TILE, path.lanes(itemsize))
    kind = ir.VectorType(ir.IntType(8 * itemsize), tile)

    def emit(e: Emitter, x: Any, step: Any, y: Any, stride: Any) -> None:
        rows = [e.load(e.address(x, e.times(step, k)), kind) for k in range(tile)]
        for k, row in enumerate(e.transpose(rows)):
            e.store(row, e.address(y, e.times(stride, k)))
    transpose = inlined_code(f"transpose_{bits}_{tile}_{path.name}", "x, step, y, stride", path, emit)
    return Leaf(_move_tiles(itemsize, tile, transpose), f"{bits}[:], {bits}[:], numbers, lo, hi", key=f"tile={tile}",
                numbers=MoveBox)


def _move_few(size: int, few: int, mixes: bool, shuffled: Any) -> Any:
    def move_few(x: Any, y: Any, b: Any, lo: int, hi: int) -> None:
        """Few runs of n elements, `step` apart in x where it mixes them, else `stride` apart in y, that lie element by
        element on the other side; a unit is LONG of each, or what is left."""
        n, apart = b.n, b.step if mixes else b.stride
        parts = max(1, n // LONG)
        for unit in range(lo, hi):
            outer, part = unit // parts, unit % parts
            at, to = _starts(outer, b)
            first = part * LONG
            count = n - first if part == parts - 1 else LONG
            at, to = (at + first, to + first * few) if mixes else (at + first * few, to + first)
            shuffled(count, x.ctypes.data + at * size, y.ctypes.data + to * size, apart * size)
    return move_few


@functools.cache
def _few_leaf(itemsize: int, few: int, mixes: bool, lanes: int, path: cpu.Cpu) -> Leaf:
    """The leaf that mixes few runs, or tells them apart: images with a few channels first and last."""
    bits = BITS[itemsize]
    kind = ir.VectorType(ir.IntType(8 * itemsize), lanes)

    def emit(e: Emitter, n: Any, x: Any, y: Any, apart: Any) -> None:
        def vectors(i: Any) -> None:
            run, mixed = e.times(i, itemsize), e.times(i, few * itemsize)
            runs = [e.address(x if mixes else y, run, e.times(apart, k)) for k in range(few)]
            together = [e.address(y if mixes else x, mixed, k * lanes * itemsize) for k in range(few)]
            parts = [e.load(place, kind) for place in (runs if mixes else together)]
            for part, place in zip(e.woven(parts) if mixes else e.unwoven(parts), together if mixes else runs, strict=True):
                e.store(part, place)
        e.along(n, lanes, vectors)
    shuffled = inlined_code(f"few_{bits}_{few}_{mixes}_{lanes}_{path.name}", "n, x, y, apart", path, emit)
    return Leaf(_move_few(itemsize, few, mixes, shuffled), f"{bits}[:], {bits}[:], numbers, lo, hi",
                key=f"{few} {mixes} {lanes} {path.name}", numbers=MoveBox)


MODES = {"reflect": 0, "edge": 1, "wrap": 2}


def source_index(i: int, n: int, mode: int) -> int:
    """Which of n elements padding shows at place i (0..n-1 is the array itself, n > 0)."""
    if mode == 1 or n == 1:
        return min(max(i, 0), n - 1)
    if mode == 2:
        return i % n
    i = i % (2 * n - 2)
    return i if i < n else 2 * n - 2 - i


@generic("T[:], T[:], lo, hi, i8, i8, i8, i8, i8", INTS)
def pad_axis(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, padded: int, before: int, mode: int) -> None:
    """y[o, k, i] = x[o, source_index(k - before), i] for k < padded; a unit of range is one o."""
    for o in range(lo, hi):
        for k in range(padded):
            at, to = (o * n + source_index(k - before, n, mode)) * inner, (o * padded + k) * inner
            source, target = x[at:at + inner], y[to:to + inner]
            for i in range(inner):
                target[i] = source[i]


@generic("T[r], T", INTS)
def fill(y: Any, value: Any) -> None:
    """y = value."""
    for i in range(y.shape[0]):
        y[i] = value


@generic("T[r], T[r]", INTS)
def copy(x: Any, y: Any) -> None:
    """y = x."""
    for i in range(y.shape[0]):
        y[i] = x[i]


def strides(shape: Sequence[int]) -> list[int]:
    """Element strides of a contiguous array."""
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def merged(axes: Sequence[MoveAxis]) -> list[MoveAxis]:
    """The same box, outermost axis first, with axes of one element dropped and neighbours that make one walk joined."""
    found: list[MoveAxis] = []
    for axis in axes:
        if axis.n == 1:
            continue
        if found and found[-1].source == axis.source * axis.n and found[-1].target == axis.target * axis.n:
            found[-1] = MoveAxis(found[-1].n * axis.n, axis.source, axis.target)
        else:
            found.append(axis)
    return found


def copy_call(source: Any, target: Any, n: int, itemsize: int) -> Call:
    """A plain copy of n elements; `source` and `target` are In, Out or Work of shape (n,)."""
    return Call(copy[BITS[itemsize]], (source, target), n, 4096 // itemsize, n * itemsize * 0.06)


def fill_call(target: Any, value: int, n: int, itemsize: int) -> Call:
    """Set n elements to the bits `value`."""
    return Call(fill[BITS[itemsize]], (target, value), n, 4096 // itemsize, n * itemsize * 0.04)


def move(source: In | Work, target: Out | Work, axes: Sequence[MoveAxis], itemsize: int, source_start: int = 0,
         target_start: int = 0) -> list[Call]:
    """The Calls that move a box. `source` and `target` are seen flat; starts are element offsets.

    Axes are in the destination's order, outermost first. An empty box needs no call.
    """
    if any(axis.n == 0 for axis in axes):
        return []
    box = merged(axes) or [MoveAxis(1, 1, 1)]
    size = math.prod(axis.n for axis in box)
    inner, outer = box[-1], box[:-1]
    other = next((axis for axis in outer if axis.source == 1), None) if inner.target == 1 and inner.source not in (0, 1) else None
    if other is not None and (fitting := _few(source, target, inner, other, outer, itemsize, source_start, target_start)) is not None:
        return [fitting]
    tile = min(TILE, cpu.current().lanes(itemsize))
    if other is not None and inner.n < tile and inner.n < other.n:            # few channels: walked along the longer axis
        outer[outer.index(other)] = inner
        inner, other = other, None
    if other is not None and min(inner.n, other.n) >= tile:
        outer.remove(other)
        leaf = _tile_leaf(itemsize, cpu.current())
        head = (source_start, target_start, inner.n, inner.source, other.n, other.target)
        units, grain, cost = -(-other.n // TILE), 1, size * itemsize * 0.12
    else:
        calls = []
        if inner.n > PIECE and math.prod(axis.n for axis in outer) < 16:          # cut long rows, so that workers can share them
            pieces, rest = divmod(inner.n, PIECE)
            if rest:
                at = pieces * PIECE
                tail_box = [*outer, inner._replace(n=rest)]
                calls = move(source, target, tail_box, itemsize, source_start + at * inner.source, target_start + at * inner.target)
            outer = [*outer, MoveAxis(pieces, PIECE * inner.source, PIECE * inner.target)]
            inner = inner._replace(n=PIECE)
            return [*calls, *_rows(source, target, outer, inner, itemsize, source_start, target_start)]
        return _rows(source, target, outer, inner, itemsize, source_start, target_start)
    return [_box_call(leaf, source, target, head, outer, units, grain, cost)]


def _few(source: In | Work, target: Out | Work, inner: MoveAxis, other: MoveAxis, outer: list[MoveAxis], itemsize: int,
         source_start: int, target_start: int) -> Call | None:
    """The call where one of the two axes is short and those elements lie together on one side; else None."""
    mixes = inner.n < other.n
    few, n = (inner.n, other.n) if mixes else (other.n, inner.n)
    if few > FEW or (other.target if mixes else inner.source) != few:
        return None
    path = cpu.current()
    leaf = _few_leaf(itemsize, few, mixes, min(SHUFFLED, lanes_within(BITS[itemsize], n, path)), path)
    size = few * n * math.prod(axis.n for axis in outer if axis is not other)
    head = (source_start, target_start, n, inner.source, few, other.target)
    return _box_call(leaf, source, target, head, [axis for axis in outer if axis is not other], max(1, n // LONG),
                     max(1, LONG // (few * min(n, LONG))), size * itemsize * 0.06)


def _rows(source: In | Work, target: Out | Work, outer: list[MoveAxis], inner: MoveAxis, itemsize: int,
          source_start: int, target_start: int) -> list[Call]:
    size = inner.n * math.prod(axis.n for axis in outer)
    head = (source_start, target_start, inner.n, inner.source, 1, inner.target)
    cost = size * (itemsize * 0.05 if inner.target == 1 and inner.source in (0, 1) else 1.0) + size / inner.n * 4.0
    return [_box_call(_row_leaf(itemsize, cpu.current()), source, target, head, outer, 1, max(1, 1024 // inner.n), cost)]


def _box_call(leaf: Leaf, source: Any, target: Any, head: tuple[int, ...], outer: list[MoveAxis], units: int,
              grain: int, cost: float) -> Call:
    """A call over the outer axes times `units`; `head` is what a box has before them."""
    assert len(outer) <= OUTER, f"a move of rank {len(outer) + 1}"
    n = units * math.prod(axis.n for axis in outer)
    walk = outer[::-1] + [MoveAxis(1, 0, 0)] * (OUTER - len(outer))
    box = MoveBox(*head, *(value for axis in walk for value in axis))
    return Call(leaf, (source, target, box), n, grain, cost)


def _gather(x: Any, index: Any, y: Any, lo: int, hi: int) -> int:
    """y[o, k] = x[o, index[k]]; a unit of range is one row (o, k); negative indices count from the end."""
    size, count, inner = x.shape[1], index.shape[0], x.shape[2]
    unit = lo
    while unit < hi:
        o, first = unit // count, unit % count
        last = min(count, first + hi - unit)
        unit += last - first
        for k in range(first, last):
            v = int(index[k])
            if v < 0:
                v += size
            if v < 0 or v >= size:
                return INDEX_OUT_OF_RANGE
            if inner == 1:
                y[o, k, 0] = x[o, v, 0]
                continue
            source, target = x[o, v], y[o, k]
            for i in range(inner):
                target[i] = source[i]
    return OK


def _scatter_add(g: Any, index: Any, y: Any, lo: int, hi: int) -> int:
    """y[o, index[k]] += g[o, k] in the order of k, from zero; a unit of range is a strip of columns of one o."""
    size, strips = y.shape[1], (y.shape[2] + STRIP - 1) // STRIP
    for unit in range(lo, hi):
        o, first = unit // strips, unit % strips * STRIP
        last = min(first + STRIP, y.shape[2])
        for v in range(size):
            target = y[o, v, first:last]
            for i in range(target.shape[0]):
                target[i] = 0
        for k in range(index.shape[0]):
            v = int(index[k])
            if v < 0:
                v += size
            if v < 0 or v >= size:
                return INDEX_OUT_OF_RANGE
            target, source = y[o, v, first:last], g[o, k, first:last]
            for i in range(target.shape[0]):
                target[i] += source[i]
    return OK


@functools.cache
def gather(bits: str, index: str) -> Leaf:
    """x[o, v, i], index[k], y[o, k, i] for elements `bits` and int32 or int64 indices."""
    return Leaf(_gather, f"{bits}[:,:,:], {index}[:], {bits}[:,:,:], lo, hi", checked=True)


@functools.cache
def scatter_add(dtype: str, index: str) -> Leaf:
    """g[o, k, i], index[k], y[o, v, i]."""
    return Leaf(_scatter_add, f"{dtype}[:,:,:], {index}[:], {dtype}[:,:,:], lo, hi", checked=True)
