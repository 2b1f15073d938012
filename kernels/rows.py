"""Row kernels: softmax, log-softmax and their gradients, maxima; one row of contiguous elements at a time, in explicit vectors.

Each row takes two or three passes over registers' widths, up to UNROLL independent vectors at a time, then masked ones. The order
of all sums is fixed by the row's length.
"""
from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from .isa import cpu, mathlib
from .isa.vector import ELEMENTS, INT32, Emitter, inlined_code, itemsize, vector, word
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf
from .move import MoveAxis, move

SUMMED = 512              # elements that are summed by themselves
UNROLL = 4
Body = Callable[[Any, Any, list[Any]], Sequence[Any]]


class Rows:
    """Emits passes over rows of `n` (a word) elements of `dtype`."""

    def __init__(self, e: Emitter, dtype: str, n: Any) -> None:
        self.e, self.b, self.n = e, e.b, n
        self.size, self.lanes = itemsize(dtype), e.path.lanes(itemsize(dtype))
        self.kind = vector(dtype, self.lanes)
        self.element = ELEMENTS[dtype]

    def each(self, rows: Any, addresses: Sequence[Any], body: Callable[..., None]) -> None:
        """body(i, address of row i of each array) for all rows."""
        step = self.e.times(self.n, self.size)

        def row(i: Any, at: list[Any]) -> list[Any]:
            body(i, *at)
            return [self.b.add(a, step) for a in at]
        self.e.loop(0, rows, 1, addresses, row)

    def constant(self, number: float) -> Any:
        """A vector of one number."""
        return mathlib.constant(self.kind, number)

    def splat(self, x: Any) -> Any:
        """A vector of one scalar."""
        return self.e.splat(x, self.lanes)

    def load(self, base: Any, at: Any, mask: Any, outside: Any = None) -> Any:
        """The vector at byte offset `at`; lanes outside of the mask are `outside` (default 0)."""
        x = self.e.load(self.e.address(base, at), self.kind, mask)
        return x if mask is None or outside is None else self.b.select(mask, x, outside)

    def store(self, value: Any, base: Any, at: Any, mask: Any) -> None:
        """Store a vector at byte offset `at`."""
        self.e.store(value, self.e.address(base, at), mask)

    def first(self, count: Any) -> Any:
        """The mask of the first `count` > 0 lanes; compared as 32-bit numbers, which on AVX2 is one instruction."""
        number = self.b.trunc(self.e.minimum(count, word(self.lanes)), INT32)
        kind = ir.VectorType(INT32, self.lanes)
        return self.b.icmp_signed("<", ir.Constant(kind, list(range(self.lanes))), self.e.splat(number, self.lanes))

    def sweep(self, start: Any, body: Body, combine: Callable[[Any, Any], Any] | None = None, unroll: int = UNROLL) -> Any:
        """One pass: body(byte offset, mask, [accumulator]) -> [new accumulator], over `unroll` accumulators that begin as `start`.

        Returns their combination lane by lane, or None for a pass without accumulator (`start` None). A body much longer than the
        latency of one addition gains nothing from being there several times: give it unroll=1.
        """
        e, b = self.e, self.b
        count = 0 if start is None else unroll
        whole = b.and_(self.n, word(-self.lanes * unroll))

        def many(i: Any, carried: list[Any]) -> list[Any]:
            found: list[Any] = []
            for u in range(unroll):
                found += body(e.address(e.times(i, self.size), u * self.lanes * self.size), None, carried[u:u + 1])
            return found

        def one(i: Any, carried: list[Any]) -> list[Any]:
            return [*body(e.times(i, self.size), self.first(b.sub(self.n, i)), carried[:1]), *carried[1:]]

        carried = e.loop(0, whole, self.lanes * unroll, [start] * count, many)
        carried = e.loop(whole, self.n, self.lanes, carried, one)
        if combine is None:
            return None
        return functools.reduce(combine, carried)

    def fold(self, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """All lanes of a vector combined to a scalar."""
        half = self.lanes // 2
        while half:
            x = combine(x, self.e.shuffle(x, x, [(lane + half) % self.lanes for lane in range(self.lanes)]))
            half //= 2
        return self.b.extract_element(x, ir.Constant(INT32, 0))

    def larger(self, x: Any, y: Any) -> Any:
        """x where it is larger, else y; a NaN in x gives y."""
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def smaller(self, x: Any, y: Any) -> Any:
        """x where it is smaller, else y; a NaN in x gives y."""
        return self.b.select(self.b.fcmp_ordered("<", x, y), x, y)

    def sum(self, body: Callable[[Any, Any], Any], unroll: int = UNROLL) -> Any:
        """The sum of body(byte offset, mask) over the row, a scalar; lanes outside of the mask do not count.

        Blocks are summed by themselves: a lane of a long row would else add thousands of small numbers to a large one.
        """
        zero = self.constant(0.0)

        def block(start: Any, total: list[Any]) -> list[Any]:
            part = copy.copy(self)
            part.n = self.e.minimum(self.b.sub(self.n, start), word(SUMMED))
            first = self.e.times(start, self.size)

            def add(at: Any, mask: Any, sums: list[Any]) -> list[Any]:
                value = body(self.e.address(first, at), mask)
                return [self.b.fadd(sums[0], value if mask is None else self.b.select(mask, value, zero))]
            return [self.b.fadd(total[0], part.sweep(zero, add, self.b.fadd, unroll))]
        return self.fold(self.e.loop(0, self.n, SUMMED, [zero], block)[0], self.b.fadd)

    def map(self, target: Any, body: Callable[[Any, Any], Any], unroll: int = UNROLL) -> None:
        """target = body(byte offset, mask) along the row."""
        def put(at: Any, mask: Any, _nothing: list[Any]) -> list[Any]:
            self.store(body(at, mask), target, at, mask)
            return []
        self.sweep(None, put, unroll=unroll)

    def largest(self, x: Any) -> Any:
        """The largest number of a row, splat. NaN is passed over: exp(x - largest) has it anyway."""
        least = self.constant(-math.inf)
        found = self.sweep(least, lambda at, mask, best: [self.larger(self.load(x, at, mask, least), best[0])], self.larger)
        return self.splat(self.fold(found, self.larger))

    def exp_from(self, x: Any, shift: Any) -> Callable[[Any, Any], Any]:
        """exp(x - shift) as a body. It asks for the next row meanwhile: the pass before it waits for memory, this one computes."""
        ahead = self.e.address(x, self.e.times(self.n, self.size))

        def body(at: Any, mask: Any) -> Any:
            if mask is None:
                self.e.prefetch(self.e.address(ahead, at), locality=2)
            return mathlib.exp(self.e, self.b.fsub(self.load(x, at, mask, shift), shift))
        return body


def _softmax(r: Rows, x: Any, y: Any) -> None:
    """y = exp(x - max) / sum."""
    exp = r.exp_from(x, r.largest(x))

    def keep(at: Any, mask: Any) -> Any:
        value = exp(at, mask)
        r.store(value, y, at, mask)
        return value
    scale = r.splat(r.b.fdiv(ir.Constant(r.element, 1.0), r.sum(keep, 1)))
    r.map(y, lambda at, mask: r.b.fmul(r.load(y, at, mask), scale))


def _log_softmax(r: Rows, x: Any, y: Any) -> None:
    """y = (x - max) - log(sum)."""
    largest = r.largest(x)
    log = mathlib.log(r.e, r.splat(r.sum(r.exp_from(x, largest), 1)))
    r.map(y, lambda at, mask: r.b.fsub(r.b.fsub(r.load(x, at, mask), largest), log))


def _softmax_grad(r: Rows, g: Any, y: Any, dx: Any) -> None:
    """dx = (g - sum(g * y)) * y."""
    dot = r.splat(r.sum(lambda at, mask: r.b.fmul(r.load(g, at, mask), r.load(y, at, mask))))
    r.map(dx, lambda at, mask: r.b.fmul(r.b.fsub(r.load(g, at, mask), dot), r.load(y, at, mask)))


def _log_softmax_grad(r: Rows, g: Any, y: Any, dx: Any) -> None:
    """dx = g - sum(g) * exp(y)."""
    total = r.splat(r.sum(lambda at, mask: r.load(g, at, mask)))
    r.map(dx, lambda at, mask: r.b.fsub(r.load(g, at, mask), r.b.fmul(total, mathlib.exp(r.e, r.load(y, at, mask)))), 1)


def _max_sum_exp(r: Rows, x: Any, pair: Any) -> None:
    """pair = (max, sum of exp(x - max)); here the result has two elements a row."""
    largest = r.largest(x)
    r.e.store(r.b.extract_element(largest, ir.Constant(INT32, 0)), pair)
    r.e.store(r.sum(r.exp_from(x, largest), 1), r.e.address(pair, r.size))


def _extreme(choose: str, worst: float) -> Callable[..., None]:
    def extreme(r: Rows, x: Any, y: Any) -> None:
        """y[0] = the largest or smallest element, NaN if there is one."""
        better, edge = getattr(r, choose), r.constant(worst)
        found = r.sweep(edge, lambda at, mask, best: [better(r.load(x, at, mask, edge), best[0])], better)
        odd = r.sum(lambda at, mask: _nan_only(r, r.load(x, at, mask)))
        best = r.fold(found, better)
        r.e.store(r.b.select(r.b.fcmp_unordered("uno", odd, odd), odd, best), y)
    return extreme


def _nan_only(r: Rows, x: Any) -> Any:
    return r.b.select(r.b.fcmp_unordered("uno", x, x), x, r.constant(0.0))


EMITTERS: dict[str, Callable[..., None]] = {
    "softmax": _softmax, "log_softmax": _log_softmax, "softmax_grad": _softmax_grad, "log_softmax_grad": _log_softmax_grad,
    "max_sum_exp": _max_sum_exp, "row_max": _extreme("larger", -math.inf), "row_min": _extreme("smaller", math.inf),
}


@functools.cache
def row_kernel(name: str, dtype: str, path: cpu.Cpu) -> Any:
    """The function name(rows, n, addresses …) for rows of n contiguous elements of `dtype`.

    softmax, log_softmax: x, y; softmax_grad, log_softmax_grad: g, y, dx; for one row only max_sum_exp: x, pair (two elements)
    and row_max, row_min: x, y (one element).
    """
    arrays = "g, y, dx" if name.endswith("grad") else "x, y"

    def emit(e: Emitter, rows: Any, n: Any, *addresses: Any) -> None:
        r = Rows(e, dtype, n)
        r.each(rows, addresses, lambda _i, *at: EMITTERS[name](r, *at))
    return inlined_code(f"{name}_{dtype}_{path.name}", f"rows, n, {arrays}", path, emit)


def row_leaf(name: str, dtype: str) -> Leaf:
    """One of softmax, log_softmax (x, y), softmax_grad, log_softmax_grad (g, y, dx); all arrays [rows, n]."""
    return _row_leaf(name, dtype, cpu.current())


@functools.cache
def _row_leaf(name: str, dtype: str, path: cpu.Cpu) -> Leaf:
    kernel = row_kernel(name, dtype, path)

    def forward(x: Any, y: Any) -> None:
        kernel(y.shape[0], y.shape[1], x.ctypes.data, y.ctypes.data)

    def backward(g: Any, y: Any, dx: Any) -> None:
        kernel(dx.shape[0], dx.shape[1], g.ctypes.data, y.ctypes.data, dx.ctypes.data)

    forward.__name__ = backward.__name__ = name
    if name.endswith("grad"):
        return Leaf(backward, f"{dtype}[r,:], {dtype}[r,:], {dtype}[r,:]", key=name)
    return Leaf(forward, f"{dtype}[r,:], {dtype}[r,:]", key=name)


def to_rows(source: In | Work, target: Out | Work, outer: int, n: int, inner: int, itemsize: int) -> list[Call]:
    """Move [outer, n, inner] to [outer, inner, n], both flat."""
    return move(source, target, [MoveAxis(outer, n * inner, n * inner), MoveAxis(inner, 1, n), MoveAxis(n, inner, 1)],
                itemsize)


def row_calls(name: str, dtype: str, shape: Sequence[int], axis: int, inputs: int, output: int = 0) -> list[Call]:
    """The Calls of a row kernel along `axis` from inputs 0, 1 … to one output, all of `shape`.

    The kernels read contiguous rows: another axis than the last is moved there and back.
    """
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])
    size, rows = outer * n * inner, outer * inner
    if size == 0:
        return []
    itemsize = np.dtype(dtype).itemsize
    leaf, grain, cost = row_leaf(name, dtype), max(1, 2048 // n), size * 0.4 + rows * 20.0
    if inner == 1:
        return [Call(leaf, (*[In(i, (rows, n)) for i in range(inputs)], Out(output, (rows, n))), rows, grain, cost)]
    calls: list[Call] = []
    for i in range(inputs):
        calls += to_rows(In(i, (size,)), Work(f"rows of input {i}", (size,), dtype), outer, n, inner, itemsize)
    moved = [Work(f"rows of input {i}", (rows, n), dtype) for i in range(inputs)]
    calls.append(Call(leaf, (*moved, Work("rows of the result", (rows, n), dtype)), rows, grain, cost))
    return [*calls, *to_rows(Work("rows of the result", (size,), dtype), Out(output, (size,)), outer, inner, n, itemsize)]
