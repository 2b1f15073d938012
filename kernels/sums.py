"""Sums and products of short runs of numbers in memory, in one order whatever the processor.

Numbers are combined side by side in WIDE bytes of lanes, number i in lane i modulo their count; the lanes are folded in
halves to NARROW bytes, in which the rest goes on, then to one. Fewer numbers than NARROW bytes hold are combined one
after the other. How the compiler cuts lanes into registers changes no bit. A plain loop with flags that let it reorder
sums would be cut by its estimates of one processor, and have other bits on the next.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from .isa.inlined import Inlined
from .isa.paths import PATHS
from .isa.vector import ELEMENTS, INT32, Emitter, inlined_code, itemsize, word
from .machine.values import View

WIDE = 128                # bytes side by side: four registers of 32 bytes hide the latency of an addition
NARROW = 32
BLOCK = 512               # elements summed in their own type
DOUBLE = ir.DoubleType()
Combine = Callable[[Any, Any], Any]


def folded(e: Emitter, x: Any, combine: Combine, lanes: int = 1) -> Any:
    """A vector's lanes combined to so many, a power of two, by halves; a scalar where one is left."""
    while (half := x.type.count // 2) >= lanes:
        x = combine(e.shuffle(x, x, list(range(half))), e.shuffle(x, x, list(range(half, 2 * half))))
    return e.b.extract_element(x, ir.Constant(INT32, 0)) if lanes == 1 else x


@dataclass(frozen=True)
class _Run:
    """Emits what n numbers at `place` are combined to, or the products of those at two places."""

    e: Emitter
    size: int                 # bytes of a number
    start: ir.Constant        # what changes no number that it is combined with
    combine: Combine

    def begun(self, lanes: int) -> Any:
        """`start` in all lanes."""
        return ir.Constant(ir.VectorType(self.start.type, lanes), [self.start] * lanes) if lanes > 1 else self.start

    def term(self, places: list[Any], i: Any, lanes: int) -> Any:
        """Numbers i, i + 1, …, or their products."""
        e, kind = self.e, self.begun(lanes).type
        x, *others = [e.load(e.address(place, e.times(i, self.size)), kind) for place in places]
        return e.b.fmul(x, *others) if others else x

    def first(self, places: list[Any], end: Any, lanes: int) -> Any:
        """Numbers 0..end, so many at a time."""
        return self.e.loop(0, end, lanes, [self.begun(lanes)],
                           lambda i, state: [self.combine(state[0], self.term(places, i, lanes))])[0]

    def last(self, places: list[Any], n: Any, count: Any, total: Any) -> Any:
        """`total` and the last `count` numbers, fewer than lanes: in the vector that ends with them no others count."""
        e, lanes = self.e, NARROW // self.size
        from_end = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes, 0, -1)))
        counts = e.b.icmp_signed("<=", from_end, e.splat(e.b.trunc(count, INT32), lanes))
        found = self.term(places, e.b.sub(n, word(lanes)), lanes)
        return self.combine(total, e.b.select(counts, found, self.begun(lanes)))

    def where(self, condition: Any, made: Callable[[], Any], otherwise: Any) -> Any:
        """What is made under the condition, else what there is."""
        b = self.e.b
        before = b.block
        with b.if_then(condition):
            value, inside = made(), b.block
        found = b.phi(value.type)
        found.add_incoming(value, inside)
        found.add_incoming(otherwise, before)
        return found

    def vectors(self, places: list[Any], n: Any) -> Any:
        """Of as many numbers as NARROW bytes hold, or more."""
        e, wide, narrow = self.e, WIDE // self.size, NARROW // self.size
        whole, most = e.b.and_(n, word(-wide)), e.b.and_(n, word(-narrow))
        total = self.where(e.b.icmp_signed("!=", whole, word(0)),
                           lambda: folded(e, self.first(places, whole, wide), self.combine, narrow), self.begun(narrow))
        for k in range(0, wide - narrow, narrow):                             # a loop of three turns would be unrolled
            at, sum_of = e.address(whole, k), total
            total = self.where(e.b.icmp_signed("<", at, most),
                               lambda at=at, sum_of=sum_of: self.combine(sum_of, self.term(places, at, narrow)), total)
        total = self.where(e.b.icmp_signed("!=", most, n), lambda: self.last(places, n, e.b.sub(n, most), total), total)
        return folded(e, total, self.combine)

    def of(self, places: list[Any], n: Any) -> Any:
        """All, a scalar."""
        b = self.e.b
        with b.if_else(b.icmp_signed(">=", n, word(NARROW // self.size))) as (then, otherwise):
            with then:
                many, inside = self.vectors(places, n), b.block
            with otherwise:
                few, beside = self.first(places, n, 1), b.block
        found = b.phi(self.start.type)
        found.add_incoming(many, inside)
        found.add_incoming(few, beside)
        return found

    def in_blocks(self, places: list[Any], n: Any) -> Any:
        """All in float64: floats in blocks of BLOCK, each combined by itself."""
        e = self.e

        def block(i: Any, total: list[Any]) -> list[Any]:
            within = [e.address(place, e.times(i, self.size)) for place in places]
            found = self.of(within, e.minimum(e.b.sub(n, i), word(BLOCK)))
            return [e.b.fadd(total[0], found if self.size == 8 else e.b.fpext(found, DOUBLE))]
        return e.loop(0, n, BLOCK, [ir.Constant(DOUBLE, 0.0)], block)[0]


def _over(operation: str, start: int, *, blocks: bool = False) -> Callable[..., Any]:
    """What emits the code over views.

    Args:
        operation: of the builder's, for integers; floats have its twin. start: what it changes nothing with.
        blocks: floats are combined in blocks, and these added in float64.
    """
    def emit(b: ir.IRBuilder, *views: Any) -> Any:
        kinds = {getattr(view, "kind", None) for view in views}
        if len(kinds) > 1 or not all(isinstance(view, View) and view.kind.ndim == 1 for view in views):
            given = ", ".join(map(str, kinds))
            raise TypeError(f"sums are of contiguous arrays of one axis and one type, not of {given}")
        element, size = ELEMENTS[views[0].kind.dtype], itemsize(views[0].kind.dtype)
        real = not isinstance(element, ir.IntType)
        combine = getattr(b, f"f{operation}" if real else operation)
        run = _Run(Emitter(b, PATHS["generic"]), size, ir.Constant(element, float(start) if real else start), combine)
        places, n = [view.address for view in views], views[0].shape[0]
        found = run.in_blocks(places, n) if blocks else run.of(places, n)
        return found if real or size == 8 else b.sext(found, n.type)
    return emit


block_sum = Inlined("block_sum", _over("add", 0))
"""The sum of the elements of a contiguous x[n], in their type; 0 of none."""


def row_sums(dtype: str) -> Any:
    """`row_sums(x, rows, step, parts, part, n, to, accumulate)`: to[r] = or += the sum over p < parts, one after the
    other, of the `block_sum`s of the n floats from x + r * step + p * part on; addresses, and strides in bytes."""
    kind, size = ELEMENTS[dtype], itemsize(dtype)
    zero = ir.Constant(kind, 0.0)

    def emit(e: Emitter, x: Any, rows: Any, step: Any, parts: Any, part: Any, n: Any, to: Any, accumulate: Any) -> None:
        run, adding = _Run(e, size, zero, e.b.fadd), e.b.icmp_signed("!=", accumulate, word(0))

        def row(_: Any, at: list[Any]) -> list[Any]:
            def block(_: Any, state: list[Any]) -> list[Any]:
                return [e.address(state[0], part), e.b.fadd(state[1], run.of([state[0]], n))]
            total = e.loop(0, parts, 1, [at[0], zero], block)[1]
            with e.b.if_else(adding) as (more, new):
                with more:
                    e.store(e.b.fadd(e.load(at[1], kind), total), at[1])
                with new:
                    e.store(total, at[1])
            return [e.address(at[0], step), e.address(at[1], size)]
        e.loop(0, rows, 1, [x, to], row)
    words = "x, rows, step, parts, part, n, to, accumulate"
    return inlined_code(f"tileflow_row_sums_{dtype}", words, PATHS["generic"], emit)


block_product = Inlined("block_product", _over("mul", 1))
"""The product of the elements of a contiguous x[n], in their type (integers wrap); 1 of none."""
block_dot = Inlined("block_dot", _over("add", 0))
"""The sum of x[i] * y[i] over contiguous floats x[n] and y[n], in their type, each product rounded; 0 of none."""
row_dot = Inlined("row_dot", _over("add", 0, blocks=True))
"""The same of rows of any length, in float64, in which the sums of blocks of BLOCK elements are added."""
