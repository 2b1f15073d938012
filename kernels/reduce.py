"""Reductions of x[outer, n, inner] over the middle axis to y[outer, pieces, inner]: sums, means, products, maxima, minima.

All arrays are passed flat. One pass cuts the n elements into pieces of `length`; pass follows pass until one piece is left.

Sums are accurate and have one order: blocks of BLOCK elements are added in lanes of their own type (`sums`), blocks are
added to each other in float64 (integers: int64, wrapping). A long axis is cut into pieces of fixed length whose totals a
second call adds in order, so neither the number of workers nor the cut changes a bit.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .isa import cpu
from .isa.half import widened
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf
from .rows import row_kernel
from .sums import BLOCK, block_product, block_sum

ROWS = 32                 # rows added to each other in their own type
COLUMNS = 1024            # columns that one unit of range reduces
NARROW = 128              # rows of fewer columns are summed several at a time
PIECE = 16384             # elements of the reduced axis (times inner) per partial total


def _as_it_lies(x: Any, at: int, n: int, _spare: Any) -> Any:
    return x[at:at + n]


def _sum_rows(part_of: Any) -> Any:
    """The body over what part_of(x, first element, elements, spare) gives: elements as they lie, or 16-bit ones widened."""
    def sum_rows(x: Any, y: Any, spare: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int, count: float) -> None:
        """inner = 1: y[o, p] = sum of piece p of x[o], divided by `count`; a unit of range is (o, p)."""
        o, p = lo // pieces, lo % pieces
        for unit in range(lo, hi):
            start, stop = o * n + p * length, o * n + min((p + 1) * length, n)
            total = 0.0
            for first in range(start, stop, BLOCK):
                total += block_sum(part_of(x, first, min(BLOCK, stop - first), spare))
            y[unit] = total / count
            p += 1
            if p == pieces:
                o, p = o + 1, 0
    return sum_rows


def _sum_rows_int(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
    """The same for integers, wrapping."""
    for unit in range(lo, hi):
        o, p = unit // pieces, unit % pieces
        row = x[o * n + p * length:o * n + min((p + 1) * length, n)]
        total = 0
        for i in range(row.shape[0]):
            total += row[i]
        y[unit] = total


def _sum_columns(part_of: Any) -> Any:
    """The same where rows are added to each other."""
    def sum_columns(x: Any, y: Any, spare: Any, part: Any, total: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int,
                    fold: int, count: float) -> None:
        """y[o, p, i] = sum of x[o, k, i] over piece p of k, divided by `count`; a unit of range is (o, p, strip of i).

        Few columns: `fold` rows at once are one wide row, so that vectors are full.
        """
        strips = (inner + COLUMNS - 1) // COLUMNS
        for unit in range(lo, hi):
            o, p, first = unit // strips // pieces, unit // strips % pieces, unit % strips * COLUMNS
            width = min(inner - first, COLUMNS)
            start, last = p * length, min((p + 1) * length, n)
            sums, block, wide = total[:width * fold], part[:width * fold], (last - start) // fold
            for i in range(sums.shape[0]):
                sums[i] = 0
            for k0 in range(0, wide, ROWS):
                for i in range(block.shape[0]):
                    block[i] = 0
                for k in range(k0, min(k0 + ROWS, wide)):
                    at = (o * n + start + k * fold) * inner + first
                    row = part_of(x, at, block.shape[0], spare)
                    for i in range(block.shape[0]):
                        block[i] += row[i]
                for i in range(sums.shape[0]):
                    sums[i] += block[i]
            for k in range(start + wide * fold, last):
                at = (o * n + k) * inner + first
                row = part_of(x, at, width, spare)
                for i in range(width):
                    sums[i] += row[i]
            for k in range(1, fold):
                for i in range(width):
                    sums[i] += sums[k * width + i]
            to = (o * pieces + p) * inner + first
            target = y[to:to + width]
            for i in range(width):
                target[i] = sums[i] / count
    return sum_columns


def _sum_columns_int(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
    """The same for integers, wrapping."""
    strips = (inner + COLUMNS - 1) // COLUMNS
    for unit in range(lo, hi):
        o, p, first = unit // strips // pieces, unit // strips % pieces, unit % strips * COLUMNS
        width = min(inner - first, COLUMNS)
        to = (o * pieces + p) * inner + first
        target = y[to:to + width]
        for i in range(width):
            target[i] = 0
        for k in range(p * length, min((p + 1) * length, n)):
            at = (o * n + k) * inner + first
            row = x[at:at + width]
            for i in range(width):
                target[i] += row[i]


def _best_rows(kernel: Any) -> Any:
    def best_rows(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
        for unit in range(lo, hi):
            o, p = unit // pieces, unit % pieces
            row = x[o * n + p * length:o * n + min((p + 1) * length, n)]
            kernel(1, row.shape[0], row.ctypes.data, y[unit:].ctypes.data)
    return best_rows


def _best_rows_int(largest: bool) -> Any:
    def best_rows(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
        for unit in range(lo, hi):
            o, p = unit // pieces, unit % pieces
            row = x[o * n + p * length:o * n + min((p + 1) * length, n)]
            best = row[0]
            for i in range(row.shape[0]):
                best = max(best, row[i]) if largest else min(best, row[i])
            y[unit] = best
    return best_rows


def _best_columns(largest: bool) -> Any:
    def best_columns(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
        strips = (inner + COLUMNS - 1) // COLUMNS
        for unit in range(lo, hi):
            o, p, first = unit // strips // pieces, unit // strips % pieces, unit % strips * COLUMNS
            width = min(inner - first, COLUMNS)
            to, at = (o * pieces + p) * inner + first, (o * n + p * length) * inner + first
            target, row = y[to:to + width], x[at:at + width]
            for i in range(width):
                target[i] = row[i]
            for k in range(p * length + 1, min((p + 1) * length, n)):
                at = (o * n + k) * inner + first
                row = x[at:at + width]
                for i in range(width):
                    value, best = row[i], target[i]
                    better = value > best if largest else value < best
                    target[i] = value if better or value != value else best
    return best_columns


def _product_rows(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
    """y[o, p] = product of piece p of x[o]; a unit of range is (o, p). Integers wrap."""
    o, p = lo // pieces, lo % pieces
    for unit in range(lo, hi):
        y[unit] = block_product(x[o * n + p * length:o * n + min((p + 1) * length, n)])
        p += 1
        if p == pieces:
            o, p = o + 1, 0


def _product_columns(x: Any, y: Any, lo: int, hi: int, n: int, inner: int, pieces: int, length: int) -> None:
    """y[o, p, i] = product of x[o, k, i] over piece p of k; a unit of range is (o, p, strip of i)."""
    strips = (inner + COLUMNS - 1) // COLUMNS
    for unit in range(lo, hi):
        o, p, first = unit // strips // pieces, unit // strips % pieces, unit % strips * COLUMNS
        to = (o * pieces + p) * inner + first
        target = y[to:to + min(inner - first, COLUMNS)]
        for i in range(target.shape[0]):
            target[i] = 1
        for k in range(p * length, min((p + 1) * length, n)):
            at = (o * n + k) * inner + first
            row = x[at:at + target.shape[0]]
            for i in range(target.shape[0]):
                target[i] *= row[i]


@functools.cache
def product_leaf(dtype: str, columns: bool) -> Leaf:
    """The leaf of products."""
    return Leaf(_product_columns if columns else _product_rows, f"{dtype}[:], {dtype}[:], {DIMS}")


DIMS = "lo, hi, i8, i8, i8, i8"          # n, inner, pieces, length


def sum_leaf(source: str, target: str, columns: bool) -> Leaf:
    """The summing leaf from element type `source` to `target` (float to float, or integer to integer)."""
    if target[0] == "i":
        return _integer_sum(source, target, columns)
    return _float_sum(source, target, columns, "", cpu.current())


@functools.cache
def _integer_sum(source: str, target: str, columns: bool) -> Leaf:
    return Leaf(_sum_columns_int if columns else _sum_rows_int, f"{source}[:], {target}[:], {DIMS}")


@functools.cache
def _float_sum(source: str, target: str, columns: bool, letter: str, path: cpu.Cpu) -> Leaf:
    """Sums of `source`, or of float32 numbers that lie in 16-bit memory of type `letter`."""
    part_of = widened(letter) if letter else _as_it_lies
    narrowed = functools.partial(_narrowed, columns) if source == "f4" and not letter else None
    arrays, key = f"{letter or source}[:], {target}[:], {source}[w,:]", path.name if letter else ""
    if columns:
        return Leaf(_sum_columns(part_of), f"{arrays}, {source}[w,:], f8[w,:], {DIMS}, i8, f8", key=key, narrowed=narrowed)
    return Leaf(_sum_rows(part_of), f"{arrays}, {DIMS}, f8", key=key, narrowed=narrowed)


def _narrowed(columns: bool, call: Call, letters: Mapping[int, str]) -> Call | None:
    """The sum of an array in 16-bit memory; what it is summed to is not."""
    if set(letters) != {0}:
        return None
    args = list(call.args)
    size = args[3].shape[0] if columns else BLOCK
    args[2] = Work(f"part in float32, {size}", (size,), "f4")
    return replace(call, leaf=_float_sum("f4", call.leaf.parameters[1].dtype, columns, letters[0], cpu.current()), args=args)


def best_leaf(dtype: str, columns: bool, largest: bool) -> Leaf:
    """The leaf of the maximum (`largest`) or minimum; NaN wins."""
    return _best_leaf(dtype, columns, largest, cpu.current())


@functools.cache
def _best_leaf(dtype: str, columns: bool, largest: bool, path: cpu.Cpu) -> Leaf:
    if columns:
        body = _best_columns(largest)
    elif dtype[0] == "f":
        body = _best_rows(row_kernel("row_max" if largest else "row_min", dtype, path))
    else:
        body = _best_rows_int(largest)
    return Leaf(body, f"{dtype}[:], {dtype}[:], {DIMS}", key=f"largest={largest}")


def merged(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, bool]]:
    """(size, reduced) of each run of neighbouring axes that are all reduced or all kept; axes of size 1 do not count."""
    found: list[tuple[int, bool]] = []
    for i, n in enumerate(shape):
        if n == 1:
            continue
        if found and found[-1][1] == (i in axes):
            found[-1] = (found[-1][0] * n, found[-1][1])
        else:
            found.append((n, i in axes))
    return found


def reduce_calls(kind: str, dtype: str, shape: Sequence[int], axes: Sequence[int], count: float = 1.0,
                 source: Any = None, target: Any = None) -> list[Call]:
    """The Calls that reduce `axes` of a contiguous array.

    Args:
        kind: "sum", "product", "max" or "min". Sums of floats are divided by `count` at the end (a mean). No reduced axis may be empty
            for a maximum or minimum; an empty sum is 0 / count.
        dtype: element letters of the source and the target.
        source, target: the flat arguments (default: input 0 and output 0); a float sum's source may be a float64 Work.
    """
    final_dtype = dtype.replace("u", "i") if kind == "sum" else dtype     # the same bits, and Numba has no int64 + uint64
    between = {"f": "f8", "i": "i8"}[final_dtype[0]] if kind == "sum" else dtype
    now = source or In(0, (math.prod(shape),))
    now_dtype = now.dtype if isinstance(now, Work) else final_dtype
    groups = merged(shape, axes)
    calls: list[Call] = []
    while True:
        last = max((i for i, (_, reduced) in enumerate(groups) if reduced), default=-1)
        if last < 0:
            groups.append((1, True))
        n, inner = groups[last][0], math.prod(m for m, _ in groups[last:][1:])
        outer = math.prod(m for m, _ in groups[:last])
        length = PIECE // min(max(inner, 1), COLUMNS)
        pieces = -(-n // length) if n > 2 * length and n > outer * inner else 1
        groups[last:last + 1 or None] = [(pieces, True)] if pieces > 1 else []
        final = not any(reduced for _, reduced in groups)
        size = outer * pieces * inner
        goal = (target or Out(0, (size,))) if final else Work(f"partials {len(calls)}", (size,), between)
        types = (now_dtype, final_dtype if final else between)
        dims = (n, inner, pieces, length if pieces > 1 else max(n, 1))
        calls.append(_pass(kind, types, now, goal, outer, dims, count if final else 1.0))
        if final:
            return calls
        now, now_dtype = goal, between


def _pass(kind: str, types: tuple[str, str], source: Any, target: Any, outer: int, dims: tuple[int, int, int, int],
          count: float) -> Call:
    """One pass over source [outer, n, inner]; dims = n, inner, pieces, length."""
    n, inner, pieces, _ = dims
    columns = inner > 1
    units = outer * pieces * (-(-inner // COLUMNS) if columns else 1)
    extra: list[Any] = []
    tail: list[Any] = []
    if kind == "sum":
        leaf = sum_leaf(*types, columns)
        if types[1][0] == "f":
            tail, extra = [float(count)], [Work(f"part {types[0]}", (1,), types[0])]
            if columns:
                fold = min(max(1, NARROW // inner), max(1, n))
                tail = [fold, float(count)]
                width = min(inner, COLUMNS) * fold
                extra += [Work(f"block {types[0]} {width}", (width,), types[0]), Work(f"sums {width}", (width,), "f8")]
    elif kind == "product":
        leaf = product_leaf(types[0], columns)
    else:
        leaf = best_leaf(types[0], columns, kind == "max")
    size = outer * n * inner
    return Call(leaf, (source, target, *extra, *dims, *tail), units, max(1, 4096 * units // max(size, 1)),
                size * 0.12 + units * 5.0)
