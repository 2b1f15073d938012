"""Where the best element of an axis lies: of x[outer, n, inner] to y[outer, inner], an int64 index along the middle axis.

NaN is best of all, of equal elements the first or the last. Rows of floats (inner = 1) are met in vectors, each lane with the place of its best;
whatever else column by column.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .isa import cpu
from .isa.vector import INT32, WORD, Emitter, inlined_code, itemsize, vector, word
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf
from .machine.places import address_of
from .reduce import COLUMNS

LONGEST = 1 << 31
"""Elements that a row has less than, so that places of float32 fit its lanes."""


# ---- rows ------------------------------------------------------------------------------------------------------------------------

@functools.cache
def _places(dtype: str, largest: bool, last: bool, path: cpu.Cpu) -> Any:
    """The function `places(rows, n, x, y)`: where the best of each row's n elements lies."""
    size = itemsize(dtype)
    lengths = sorted({path.lanes(size), min(4, path.lanes(size)), 1}, reverse=True)

    def emit(e: Emitter, rows: Any, n: Any, x: Any, y: Any) -> None:
        def beats(v: Any, w: Any) -> Any:
            return e.b.and_(e.b.fcmp_unordered(">" if largest else "<", v, w), e.b.fcmp_ordered("ord", w, w))

        def within(x: Any, lanes: int) -> Any:
            """The place as a word; n is at least `lanes`."""
            kind, numbers, end = vector(dtype, lanes), ir.VectorType(ir.IntType(8 * size), lanes), e.b.sub(n, word(lanes))
            lane = ir.Constant(numbers, list(range(lanes)))

            def meet(i: Any, state: list[Any]) -> list[Any]:
                at = e.minimum(i, end)                     # the last vector may overlap the one before
                v = e.load(e.address(x, e.times(at, size)), kind)
                better = e.b.not_(beats(state[0], v)) if last else beats(v, state[0])
                place = e.b.add(e.splat(e.b.trunc(at, numbers.element) if size < 8 else at, lanes), lane)
                return [e.b.select(better, v, state[0]), e.b.select(better, place, state[1])]
            best, place = e.loop(lanes, n, lanes, [e.load(x, kind), lane], meet)
            kept = lanes
            while kept > 1:                                # of equals in several lanes the first or last place
                kept //= 2
                (v, other), (w, mine) = [[e.shuffle(a, a, range(first, first + kept)) for a in (best, place)] for first in (kept, 0)]
                nearer = e.b.icmp_signed(">" if last else "<", other, mine)
                better = e.b.or_(beats(v, w), e.b.and_(nearer, e.b.not_(beats(w, v))))
                best, place = e.b.select(better, v, w), e.b.select(better, other, mine)
            found = e.b.extract_element(place, ir.Constant(INT32, 0))
            return e.b.zext(found, WORD) if size < 8 else found

        def choose(x: Any, y: Any, lengths: Sequence[int]) -> None:
            if lengths[0] == 1:
                e.store(within(x, 1), y)
                return
            with e.b.if_else(e.b.icmp_signed(">=", n, word(lengths[0]))) as (fits, short):
                with fits:
                    e.store(within(x, lengths[0]), y)
                with short:
                    choose(x, y, lengths[1:])

        def row(_: Any, state: list[Any]) -> list[Any]:
            choose(state[0], state[1], lengths)
            return [e.address(state[0], e.times(n, size)), e.address(state[1], 8)]
        e.loop(0, rows, 1, [x, y], row)

    name = f"tileflow_places_{dtype}_{'max' if largest else 'min'}_{'last' if last else 'first'}_{path.name}"
    return inlined_code(name, "rows, n, x, y", path, emit)


@functools.cache
def _index_rows(dtype: str, largest: bool, last: bool, path: cpu.Cpu) -> Leaf:
    places = _places(dtype, largest, last, path)

    def index_rows(x: Any, y: Any) -> None:
        places(x.shape[0], x.shape[1], address_of(x), address_of(y))

    return Leaf(index_rows, f"{dtype}[r,:], i8[r]", key=f"{largest} {last} {path.name}")


# ---- columns ---------------------------------------------------------------------------------------------------------------------

def _index_of_best(largest: bool, last: bool) -> Any:
    def index_of_best(x: Any, y: Any, best: Any, lo: int, hi: int, n: int, inner: int) -> None:
        """y[o, i] = the k of the best x[o, k, i], NaN being best of all; a unit of range is (o, strip of i)."""
        strips = (inner + COLUMNS - 1) // COLUMNS
        for unit in range(lo, hi):
            o, first = unit // strips, unit % strips * COLUMNS
            target = y[o * inner + first:o * inner + min(first + COLUMNS, inner)]
            row = x[o * n * inner + first:o * n * inner + first + target.shape[0]]
            for i in range(target.shape[0]):
                best[i], target[i] = row[i], 0
            for k in range(1, n):
                at = (o * n + k) * inner + first
                row = x[at:at + target.shape[0]]
                for i in range(target.shape[0]):
                    value, old = row[i], best[i]
                    better = value > old if largest else value < old
                    better = better or (value != value and old == old)
                    same = last and (value == old or (value != value and old != old))
                    if better or same:
                        best[i], target[i] = value, k
    return index_of_best


@functools.cache
def index_leaf(dtype: str, largest: bool, last: bool) -> Leaf:
    """x, y (int64), scratch; n, inner: the index of the maximum (`largest`) or minimum, the last of equals if `last`."""
    return Leaf(_index_of_best(largest, last), f"{dtype}[:], i8[:], {dtype}[w,:], lo, hi, i8, i8", key=f"{largest}, {last}")


def index_calls(dtype: str, shape: Sequence[int], axis: int, largest: bool, last: bool, path: cpu.Cpu) -> list[Call]:
    """The Calls from input 0 to the int64 index of the best element along `axis`, which is not empty."""
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])
    size = outer * n * inner
    if inner == 1 and dtype in ("f4", "f8") and n < LONGEST:
        call = Call(_index_rows(dtype, largest, last, path), (In(0, (outer, n)), Out(0, (outer,))), outer, max(1, 16384 // n),
                    size * 0.02 * itemsize(dtype) + outer * 12.0)
        return [call]
    units = outer * -(-inner // COLUMNS)
    args = (In(0, (size,)), Out(0, (outer * inner,)), Work("best", (min(inner, COLUMNS),), dtype), n, inner)
    return [Call(index_leaf(dtype, largest, last), args, units, max(1, 4096 * units // size), size * 1.0 + units * 5.0)]
