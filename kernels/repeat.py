"""Elements repeated along an axis and along the one before it, and the sums of such blocks, which are the gradient of that.

Arrays are x [outer, n, inner] and y [outer, rows, n, times, inner]; a unit of range is one o. What is read is read once, in vectors, and written
wherever it goes. Vectors are no longer than the runs that they cover, and the last one of a run overlaps the one before it, so nothing is masked: it
writes the same once more.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from .dtypes import BITS
from .isa import cpu
from .isa.vector import Emitter, inlined_code, itemsize, lanes_within, vector, word
from .machine.call import Call, In, Out
from .machine.leaf import Leaf
from .machine.places import address_of

SHUFFLED = 8
"""Times up to which vectors of neighbours are spread and folded by shuffles."""


def _walk(e: Emitter, count: Any, addresses: Sequence[Any], steps: Sequence[Any], body: Callable[..., None]) -> None:
    """body(*addresses) `count` times, each address a step further each time."""
    def step(_: Any, at: list[Any]) -> list[Any]:
        body(*at)
        return [e.address(a, s) for a, s in zip(at, steps, strict=True)]
    e.loop(0, count, 1, addresses, step)


# ---- emitted: x and y are the addresses of one o's first elements; a line of y is n * times * inner elements -------------------------------

Line = tuple[Any, int, int, Any, Any, Any]
"""Vectors' type, bytes of an element, times; n, inner, bytes of a line."""


def _in_lines(way: Callable[..., None]) -> Callable[..., None]:
    """Line after line: hardware foresees one run of writes to a page, not two."""
    def lines(e: Emitter, of: Line, rows: Any, x: Any, y: Any) -> None:
        _walk(e, rows, [y], [of[5]], lambda y: way(e, of, x, y))
    lines.__name__ = way.__name__
    return lines


@_in_lines
def _spread(e: Emitter, of: Line, x: Any, y: Any) -> None:
    """Few times, inner = 1: a vector becomes `times` vectors."""
    kind, size, times, n, _, _ = of
    lanes = kind.count

    def chunk(i: Any) -> None:
        value, to = e.load(e.address(x, e.times(i, size)), kind), e.address(y, e.times(i, times * size))
        for t in range(times):
            e.store(e.shuffle(value, value, [(t * lanes + k) // times for k in range(lanes)]), e.address(to, t * lanes * size))
    e.along(n, lanes, chunk)


@_in_lines
def _splat(e: Emitter, of: Line, x: Any, y: Any) -> None:
    """Many times, inner = 1: an element becomes vectors of itself."""
    kind, size, times, n, _, _ = of

    def element(x: Any, y: Any) -> None:
        value = e.splat(e.load(x, kind.element), kind.count)
        e.along(word(times), kind.count, lambda i: e.store(value, e.address(y, e.times(i, size))))
    _walk(e, n, [x, y], [word(size), word(times * size)], element)


@_in_lines
def _copied(e: Emitter, of: Line, x: Any, y: Any) -> None:
    """inner > 1: runs are copied."""
    kind, size, times, n, inner, _ = of
    run = e.times(inner, size)

    def element(x: Any, y: Any) -> None:
        def chunk(i: Any) -> None:
            offset = e.times(i, size)
            value = e.load(e.address(x, offset), kind)
            _walk(e, word(times), [e.address(y, offset)], [run], lambda to: e.store(value, to))
        e.along(inner, kind.count, chunk)
    _walk(e, n, [x, y], [run, e.times(run, times)], element)


def _folded(e: Emitter, of: Line, rows: Any, x: Any, y: Any) -> None:
    """Few times, inner = 1: `times` vectors are summed over the rows, then to one."""
    kind, size, times, n, _, line = of
    lanes = kind.count

    def chunk(i: Any) -> None:
        def row(_: Any, state: list[Any]) -> list[Any]:
            at, *sums = state
            found = [e.load(e.address(at, t * lanes * size), kind) for t in range(times)]
            return [e.address(at, line), *(e.b.fadd(s, v) for s, v in zip(sums, found, strict=True))]
        _, *sums = e.loop(0, rows, 1, [e.address(y, e.times(i, times * size)), *[ir.Constant(kind, None)] * times], row)
        e.store(functools.reduce(e.b.fadd, e.unwoven(sums)), e.address(x, e.times(i, size)))
    e.along(n, lanes, chunk)


def _added(e: Emitter, of: Line, rows: Any, x: Any, y: Any) -> None:
    """The sums of runs, element by element: any times, any inner."""
    kind, size, times, n, inner, line = of
    run = e.times(inner, size)

    def element(x: Any, y: Any) -> None:
        def chunk(i: Any) -> None:
            def row(_: Any, state: list[Any]) -> list[Any]:
                def copy(_: Any, inside: list[Any]) -> list[Any]:
                    return [e.address(inside[0], run), e.b.fadd(inside[1], e.load(inside[0], kind))]
                return [e.address(state[0], line), e.loop(0, word(times), 1, state, copy)[1]]
            _, total = e.loop(0, rows, 1, [e.address(y, e.times(i, size)), ir.Constant(kind, None)], row)
            e.store(total, e.address(x, e.times(i, size)))
        e.along(inner, kind.count, chunk)
    _walk(e, n, [x, y], [run, e.times(run, times)], element)


@functools.cache
def _emitted(way: Callable[..., None], dtype: str, lanes: int, times: int, path: cpu.Cpu) -> Any:
    size, kind = itemsize(dtype), vector(dtype, lanes)

    def emit(e: Emitter, count: Any, rows: Any, n: Any, inner: Any, x: Any, y: Any) -> None:
        each = e.times(e.b.mul(n, inner), size)
        line = e.times(each, times)
        of = (kind, size, times, n, inner, line)
        _walk(e, count, [x, y], [each, e.b.mul(rows, line)], lambda x, y: way(e, of, rows, x, y))
    return inlined_code(f"tileflow_repeat{way.__name__}_{dtype}_{lanes}_{times}_{path.name}", "count, rows, n, inner, x, y", path, emit)


# ---- leaves and calls ------------------------------------------------------------------------------------------------------------------

@functools.cache
def _repeat(way: Callable[..., None], bits: str, lanes: int, times: int, path: cpu.Cpu) -> Leaf:
    run = _emitted(way, bits, lanes, times, path)

    def repeat(x: Any, y: Any) -> None:
        run(y.shape[0], y.shape[1], y.shape[2], y.shape[4], address_of(x), address_of(y))
    return Leaf(repeat, f"{bits}[r,:,:], {bits}[r,:,:,:,:]", key=f"{way.__name__} {lanes} {times} {path.name}")


@functools.cache
def _repeat_sums(way: Callable[..., None], dtype: str, lanes: int, times: int, path: cpu.Cpu) -> Leaf:
    run = _emitted(way, dtype, lanes, times, path)

    def repeat_sums(g: Any, dx: Any) -> None:
        run(g.shape[0], g.shape[1], g.shape[2], g.shape[4], address_of(dx), address_of(g))
    return Leaf(repeat_sums, f"{dtype}[r,:,:,:,:], {dtype}[r,:,:]", key=f"{way.__name__} {lanes} {times} {path.name}")


def _grain(elements: int) -> int:
    """Units of so many repeated elements that are worth handing out."""
    return max(1, 4096 // elements)


def repeat_calls(outer: int, rows: int, n: int, times: int, inner: int, itemsize: int) -> list[Call]:
    """Input 0 [outer, n, inner] to output 0 [outer, rows, n, times, inner]; neither is empty."""
    path, bits = cpu.current(), BITS[itemsize]
    way, run = (_copied, inner) if inner > 1 else (_spread, n) if times <= SHUFFLED else (_splat, times)
    each = rows * n * times * inner
    leaf = _repeat(way, bits, lanes_within(bits, run, path), times, path)
    return [Call(leaf, (In(0, (outer, n, inner)), Out(0, (outer, rows, n, times, inner))), outer, _grain(each), outer * each * itemsize * 0.06)]


def repeat_sum_calls(outer: int, rows: int, n: int, times: int, inner: int, dtype: str) -> list[Call]:
    """Input 0 [outer, rows, n, times, inner] to its sums over rows and times, output 0 [outer, n, inner]; neither is empty.

    Sums are in the element type, in an order that follows from these numbers and the path.
    """
    path = cpu.current()
    way, run = (_folded, n) if inner == 1 and times <= SHUFFLED else (_added, inner)
    each = rows * n * times * inner
    leaf = _repeat_sums(way, dtype, lanes_within(dtype, run, path), times, path)
    args = (In(0, (outer, rows, n, times, inner)), Out(0, (outer, n, inner)))
    return [Call(leaf, args, outer, _grain(each), outer * each * itemsize(dtype) * 0.06)]
