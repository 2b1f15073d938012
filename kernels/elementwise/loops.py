"""Elementwise leaves: scalar expressions compiled to explicit vector code over broadcast arrays.

    x, y = Var(0, "float32"), Var(1, "float32")
    call = elementwise_call([maximum(x + y, 0)], [In(0, (8, 3, 5)), In(1, (3, 1))], [Out(0, (8, 3, 5))])

One leaf computes any number of outputs of one shape in one pass. Each operation is rounded to its dtype and none is
contracted with another, so fused and separate computation give the same bits, as do vector bodies and tails, and every
split of the range. All inputs of a vector are read before its outputs are written: an output may share the memory of an
input of its shape and item size. Constants that do not shape the code are arguments (`coefficients`).
"""
from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir

from ..dtypes import CODES
from ..isa import cpu
from ..isa.vector import INT32, WORD, Emitter, word
from ..machine.call import Call, In, Micro, Out, Position, Seed, Work
from ..machine.emitted import EmittedLeaf
from ..machine.leaf import Leaf
from ..random import SPAN, span_bits
from .coefficients import letters, lift
from .expr import Expr, draws, flops, key, postorder, variables
from .tabulated import Tabulated, fill, reserve, tabulated_for
from .values import NOTHING, Table, Translator, loaded, packed, size_of, stored, unpacked

GRAIN = 1024
"""Elements below which a range is not cut."""

CACHE = 4 << 20
"""Bytes that a core's caches are assumed to hold (for cost estimates only)."""

FULL, SCALAR, ROW, COLUMN = "full", "scalar", "row", "column"
"""How an input lies along the iteration space: as the outputs do; one element; broadcast over some outer dimensions, with
elements along the innermost one; broadcast over the innermost dimension too."""


# ---- the iteration space ------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Space:
    """An iteration space with as few dimensions as broadcasting allows; `strides` in elements per input and dimension."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def inner(self) -> int:
        return self.dims[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.dims[:-1])

    def lies(self, index: int) -> str:
        """FULL, SCALAR, ROW or COLUMN."""
        strides = self.strides[index]
        if all(strides):
            return FULL
        return ROW if strides[-1] else COLUMN if any(strides) else SCALAR


def collapse(shape: tuple[int, ...], inputs: Sequence[tuple[int, ...]]) -> Space:
    """Merge neighbouring dimensions along which every input is either present or broadcast; drop dimensions of 1."""
    dims: list[int] = []
    patterns: list[tuple[bool, ...]] = []
    padded = [(1,) * (len(shape) - len(s)) + s for s in inputs]
    for axis, n in enumerate(shape):
        pattern = tuple(s[axis] == n for s in padded)
        if n == 1:
            continue
        if patterns and patterns[-1] == pattern:
            dims[-1] *= n
        else:
            dims.append(n)
            patterns.append(pattern)
    if not dims:
        dims, patterns = [1], [(True,) * len(inputs)]
    strides = []
    for i in range(len(inputs)):
        own, step = [], 1
        for n, pattern in zip(reversed(dims), reversed(patterns), strict=True):
            own.append(step if pattern[i] else 0)
            step *= n if pattern[i] else 1
        strides.append(tuple(reversed(own)))
    return Space(tuple(dims), tuple(strides))


# ---- the call -----------------------------------------------------------------------------------------------------------

def elementwise_call(outputs: Sequence[Expr], inputs: Sequence[In | Out | Work], results: Sequence[Out | Work], start: int = 0) -> Call:
    """One pass that computes `outputs[k]` into `results[k]`, variable i being inputs[i].

    Expressions that draw random numbers do so by the run's seed, the index of the micro-batch and the element's position, counted from
    `start`; their inputs then have the results' shape or one element.

    Args:
        outputs: expressions; their dtypes are the results' dtypes, their variables' dtypes the inputs'.
        inputs: arrays whose shapes broadcast to the results' shape. Those that no expression reads are ignored.
        results: arrays of one shape. A result may lie in the memory of an input of its shape and item size.
    """
    read = variables(*outputs)
    shape = results[0].shape
    assert all(r.shape == shape for r in results), results
    assert len(results) == len(outputs)
    arrays = {i: inputs[i] for i in read}
    space = collapse(shape, [a.shape for a in arrays.values()])
    lies = tuple(space.lies(k) for k in range(len(arrays)))
    lifted = lift(tuple(outputs))
    fixed = frozenset(i for i, how in zip(read, lies, strict=True) if how == SCALAR)
    looked_up = tabulated_for(math.prod(space.dims), lifted.exprs, fixed)
    leaf = _leaf(lifted.exprs, tuple(read), lies, len(space.dims), looked_up, cpu.current())
    nanoseconds = cost_of(outputs, outputs, read, lies, space)
    if len(space.dims) == 1:
        args: list[Any] = [replace(a, shape=(1,) if how == SCALAR else space.dims)
                           for a, how in zip(arrays.values(), lies, strict=True)]
        args += [replace(r, shape=space.dims) for r in results]
        return Call(leaf, [*args, *lifted.values, *drawn(outputs, start)], space.inner, GRAIN, nanoseconds, flat=True)
    assert not draws(*outputs), "an element's position is known where the inputs lie as the outputs do"
    table = (space.rows, space.inner)
    args = list(space.dims[1:-1])
    for k, (array, how) in enumerate(zip(arrays.values(), lies, strict=True)):
        args.append(replace(array, shape=table if how == FULL else (math.prod(array.shape),)))
        if how in (ROW, COLUMN):
            args += space.strides[k][:-1]
    args += [*(replace(r, shape=table) for r in results), *lifted.values]
    return Call(leaf, args, space.rows, max(1, GRAIN // max(1, space.inner)), nanoseconds)


def drawn(computed: Sequence[Expr], start: int) -> list[Any]:
    """The arguments that follow arrays and coefficients where random numbers are drawn."""
    assert start % SPAN == 0, start
    return [Position(start), Seed(), Micro()] if draws(*computed) else []


def cost_of(computed: Sequence[Expr], written: Sequence[Expr], read: dict[int, Expr], lies: Sequence[str], space: Space) -> float:
    """Nanoseconds on one core: a vector operation each 0.28, loads and stores at 50 bytes a ns in cache and 30 beyond it."""
    moved = sum(size_of(v.dtype) for v, how in zip(read.values(), lies, strict=True) if how == FULL)
    moved += sum(size_of(o.dtype) for o in written)
    points = math.prod(space.dims)
    arithmetic = 0.28 * flops(*computed) / lanes_of(computed, cpu.current()) + 0.5 * len(draws(*computed))
    return 20.0 + 2.0 * space.rows + points * max(arithmetic, moved / (50.0 if points * moved < CACHE else 30.0))


@functools.cache
def _leaf(outputs: tuple[Expr, ...], read: tuple[int, ...], lies: tuple[str, ...], rank: int, table: Tabulated | None,
          path: cpu.Cpu) -> Leaf:
    """The leaf for these lifted expressions and this broadcast pattern; sizes, strides and coefficients are run-time
    arguments."""
    name = hashlib.sha1(repr((key(*outputs), read, lies, rank, table is not None, path.name)).encode()).hexdigest()[:16]
    dtypes = tuple(v.dtype for v in variables(*outputs).values())
    inner = "" if rank == 1 else ",:"
    words = ["i8"] * (rank - 2)
    for dtype, how in zip(dtypes, lies, strict=True):
        words.append(f"{CODES[dtype]}[r{inner}]" if how == FULL else f"{CODES[dtype]}[:]")
        words += ["i8"] * ((rank - 1) * (how in (ROW, COLUMN)))
    words += [*(f"{CODES[o.dtype]}[r{inner}]" for o in outputs), *letters(*outputs)]
    words += ["i8"] * (3 if draws(*outputs) else 0)
    loops = Loops(outputs, read, dtypes, lies, rank, table)

    def elementwise(e: Emitter, block: Any, lo: Any, hi: Any) -> None:
        loops.emit(e, block, lo, hi)
    return EmittedLeaf(elementwise, ", ".join(words), key=name, path=path)


def lanes_of(outputs: Sequence[Expr], path: cpu.Cpu) -> int:
    """Lanes of one step: what a register holds of the widest float, or where there is none of the widest type."""
    nodes = postorder(outputs)
    widest = max((size_of(n.dtype) for n in nodes if n.is_float), default=0)
    return path.lanes(widest or max(size_of(n.dtype) for n in nodes))


# ---- loops --------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Loops:
    """Emits the loops around lifted expressions: rows of the outer dimensions, vectors of the innermost one, a tail."""

    outputs: tuple[Expr, ...]
    read: tuple[int, ...]
    dtypes: tuple[str, ...]
    lies: tuple[str, ...]
    rank: int
    looked_up: Tabulated | None = None

    @property
    def computed(self) -> tuple[Expr, ...]:
        """The outputs, and whatever else a kind of leaf wants to know."""
        return self.outputs

    def emit(self, e: Emitter, block: Any, lo: Any, hi: Any) -> None:
        """The function body: read the argument block (see `_leaf` for its order), then loop over lo..hi."""
        e.b.function.attributes.alignstack = e.path.vector_bytes        # so that constants which find no register are not read across lines
        position = 0

        def take(count: int) -> list[Any]:
            nonlocal position
            position += count
            return [e.load(e.address(block, 8 * i), WORD) for i in range(position - count, position)]

        ins, strides = [], {}
        sizes = take(max(0, self.rank - 2))
        for k, how in enumerate(self.lies):
            ins.append(take(1 + (min(self.rank, 2) if how == FULL else 1))[0])
            if how in (ROW, COLUMN):
                strides[k] = take(self.rank - 1)
        results = [take(1 + min(self.rank, 2)) for _ in self.outputs]
        outs = [r[0] for r in results]
        scalars = loaded(e, e.address(block, 8 * position), self.computed)
        position += len(scalars)
        tables = self.tables(e, ins, scalars)
        if self.rank == 1:
            ins = self._moved(e, ins, [lo if how == FULL else word(0) for how in self.lies])
            whole = [e.b.sub(hi, lo), ins, self._moved_out(e, outs, lo), scalars]
            if streams := draws(*self.computed):
                start, seed, count = take(3)
                self._drawn_row(e, streams, e.b.add(start, lo), seed, count, *whole, tables=tables)
            else:
                self.row(e, *whole, tables=tables)
            return
        inner = results[0][-1]

        def row(i: Any, at: list[Any]) -> list[Any]:
            start = e.b.mul(i, inner)
            offsets = []
            for k, how in enumerate(self.lies):
                offset = start if how == FULL else word(0)
                for c, s in zip(at, strides.get(k, []), strict=False):
                    offset = e.b.add(offset, e.b.mul(c, s))
                offsets.append(offset)
            self.row(e, inner, self._moved(e, ins, offsets), self._moved_out(e, outs, start), scalars, tables=tables)
            return _next(e, at, sizes)

        e.loop(lo, hi, 1, _coordinates(e, lo, sizes), row)

    def _moved(self, e: Emitter, addresses: Sequence[Any], offsets: Sequence[Any]) -> list[Any]:
        """Input addresses plus offsets in elements."""
        return [e.address(a, e.times(o, size_of(d))) for a, o, d in zip(addresses, offsets, self.dtypes, strict=True)]

    def _moved_out(self, e: Emitter, addresses: Sequence[Any], offset: Any) -> list[Any]:
        """Output addresses plus an offset in elements."""
        return [e.address(a, e.times(offset, size_of(o.dtype))) for a, o in zip(addresses, self.outputs, strict=True)]

    def _drawn_row(self, e: Emitter, streams: Sequence[int], start: Any, seed: Any, count: Any,
                   n: Any, ins: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any],
                   tables: Mapping[Expr, Table] = NOTHING) -> None:
        """`row` where the expressions draw from `streams`: the words of a SPAN of elements are drawn at a time, then read as an input is.
        `start`: the position of the first element, a multiple of SPAN, as all cuts of a range are."""
        room = {stream: e.b.ptrtoint(e.b.alloca(ir.ArrayType(INT32, SPAN)), WORD) for stream in streams}

        def span(i: Any, _state: list[Any]) -> None:
            at = e.b.udiv(e.b.add(start, i), word(SPAN))
            for stream, to in room.items():
                span_bits(e, at, seed, count, stream, to)
            self.row(e, e.minimum(e.b.sub(n, i), word(SPAN)), self._moved(e, ins, [i if how == FULL else word(0) for how in self.lies]),
                     self._moved_out(e, outs, i), scalars, room, tables)
        e.loop(0, n, SPAN, [], span)

    def vector(self, e: Emitter, lanes: int, raw: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any] = (),
               mask: Any = None, words: dict[int, Any] | None = None, tables: Mapping[Expr, Table] = NOTHING) -> None:
        """One vector of each input, as it lies in memory, to one of each output; `scalars`: vectors of the
        coefficients; `words`: what is drawn, by stream; `tables`: what is looked up."""
        vectors = {index: unpacked(e, v, dtype) for index, v, dtype in zip(self.read, raw, self.dtypes, strict=True)}
        values = Translator(e, lanes).values(self.computed, vectors, scalars, words, tables)
        for y, o, value in zip(outs, self.outputs, values, strict=False):
            e.store(packed(e, value, o.dtype, bool(o.args)), y, mask)
        self.look(e, values[len(self.outputs):], mask)

    def look(self, e: Emitter, values: Sequence[Any], mask: Any) -> None:
        """What was computed beyond the outputs, for lanes in `mask` (None: all)."""

    def tables(self, e: Emitter, ins: Sequence[Any], scalars: Sequence[Any]) -> dict[Expr, Table]:
        """Tables of what is looked up in all rows of a call, written here; the arguments are those of `row`."""
        what = self.looked_up
        if what is None:
            return {}
        lanes = lanes_of(self.computed, e.path)
        known = {self.read[k]: unpacked(e, e.splat(e.load(ins[k], stored(self.dtypes[k])), lanes), self.dtypes[k])
                 for k, how in enumerate(self.lies) if how == SCALAR}
        numbers, addresses = [e.splat(x, lanes) for x in scalars], reserve(e, len(what.nodes))
        fill(e, lanes, addresses,
             lambda value: Translator(e, lanes).values(what.nodes, known, numbers, given={what.source: value}))
        return {node: (what.source, address) for node, address in zip(what.nodes, addresses, strict=True)}

    def row(self, e: Emitter, n: Any, ins: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any] = (),
            room: Mapping[int, Any] = NOTHING, tables: Mapping[Expr, Table] = NOTHING) -> None:
        """All elements of one contiguous run of outputs; `scalars`: the coefficients; `room`: where the random words of
        each stream lie."""
        lanes = lanes_of(self.computed, e.path)
        single = {k: e.load(ins[k], stored(self.dtypes[k])) for k, how in enumerate(self.lies) if how in (SCALAR, COLUMN)}

        def wide(lanes: int) -> list[Any]:
            return [e.splat(x, lanes) for x in scalars]

        def step(i: Any, lanes: int, numbers: Sequence[Any], mask: Any = None) -> None:
            raw = []
            for k, dtype in enumerate(self.dtypes):
                if k in single:
                    raw.append(e.splat(single[k], lanes))
                else:
                    raw.append(e.load(e.address(ins[k], e.times(i, size_of(dtype))), ir.VectorType(stored(dtype), lanes), mask))
            words = {stream: e.load(e.address(at, e.times(i, 4)), ir.VectorType(INT32, lanes)) for stream, at in room.items()}
            targets = [e.address(y, e.times(i, size_of(o.dtype))) for y, o in zip(outs, self.outputs, strict=True)]
            self.vector(e, lanes, raw, targets, numbers, mask, words, tables)

        def vectors(start: Any, stop: Any, lanes: int) -> None:
            numbers = wide(lanes)
            e.loop(start, stop, lanes, [], lambda i, _: step(i, lanes, numbers))

        whole = e.b.and_(n, word(-lanes))
        vectors(0, whole, lanes)
        if e.path.mask_registers:
            with e.when(e.b.icmp_signed("<", whole, n)):
                step(whole, lanes, wide(lanes), e.first(e.b.sub(n, whole), lanes))
        else:
            vectors(whole, n, 1)


def _coordinates(e: Emitter, row: Any, sizes: Sequence[Any]) -> list[Any]:
    """The outer coordinates of a row number; the first one is not bounded, `sizes` are those of the others."""
    at = []
    for size in reversed(sizes):
        size = e.b.select(e.b.icmp_unsigned("==", size, word(0)), word(1), size)       # an empty array has no row, but may ask
        at.append(e.b.urem(row, size))
        row = e.b.udiv(row, size)
    return [row, *reversed(at)]


def _next(e: Emitter, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of the following row."""
    carry: Any = word(1)
    result = []
    for c, size in zip(reversed(at[1:]), reversed(sizes), strict=True):
        c = e.b.add(c, carry)
        over = e.b.icmp_unsigned("==", c, size)
        result.append(e.b.select(over, word(0), c))
        carry = e.b.zext(over, WORD)
    return [e.b.add(at[0], carry), *reversed(result)]
