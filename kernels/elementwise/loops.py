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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from llvmlite import ir

from ..dtypes import CODES, ELEMENTS, HALVES, NARROW
from ..isa import cpu, half, mathlib
from ..isa.vector import BIT, INT32, WORD, Emitter, word
from ..isa.vector import ELEMENTS as LLVM
from ..machine.call import Call, In, Micro, Out, Position, Seed, Work
from ..machine.emitted import EmittedLeaf
from ..machine.leaf import Leaf
from ..random import SPAN, span_bits
from . import narrow, rounding
from .coefficients import coefficients, letters, lift
from .expr import Expr, draws, flops, key, postorder, variables

GRAIN = 1024
"""Elements below which a range is not cut."""

CACHE = 4 << 20
"""Bytes that a core's caches are assumed to hold (for cost estimates only)."""

NOTHING: Mapping[int, Any] = MappingProxyType({})

FULL, SCALAR, ROW, COLUMN = "full", "scalar", "row", "column"
"""How an input lies along the iteration space: as the outputs do; one element; broadcast over some outer dimensions, with
elements along the innermost one; broadcast over the innermost dimension too."""


def _size(dtype: str) -> int:
    return ELEMENTS[CODES[dtype]].bytes


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
    leaf = _leaf(lifted.exprs, tuple(read), lies, len(space.dims), cpu.current())
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
    moved = sum(_size(v.dtype) for v, how in zip(read.values(), lies, strict=True) if how == FULL)
    moved += sum(_size(o.dtype) for o in written)
    points = math.prod(space.dims)
    arithmetic = 0.28 * flops(*computed) / lanes_of(computed, cpu.current()) + 0.5 * len(draws(*computed))
    return 20.0 + 2.0 * space.rows + points * max(arithmetic, moved / (50.0 if points * moved < CACHE else 30.0))


@functools.cache
def _leaf(outputs: tuple[Expr, ...], read: tuple[int, ...], lies: tuple[str, ...], rank: int, path: cpu.Cpu) -> Leaf:
    """The leaf for these lifted expressions and this broadcast pattern; sizes, strides and coefficients are run-time
    arguments."""
    name = hashlib.sha1(repr((key(*outputs), read, lies, rank, path.name)).encode()).hexdigest()[:16]
    dtypes = tuple(v.dtype for v in variables(*outputs).values())
    inner = "" if rank == 1 else ",:"
    words = ["i8"] * (rank - 2)
    for dtype, how in zip(dtypes, lies, strict=True):
        words.append(f"{CODES[dtype]}[r{inner}]" if how == FULL else f"{CODES[dtype]}[:]")
        words += ["i8"] * ((rank - 1) * (how in (ROW, COLUMN)))
    words += [*(f"{CODES[o.dtype]}[r{inner}]" for o in outputs), *letters(*outputs)]
    words += ["i8"] * (3 if draws(*outputs) else 0)
    loops = Loops(outputs, read, dtypes, lies, rank)

    def elementwise(e: Emitter, block: Any, lo: Any, hi: Any) -> None:
        loops.emit(e, block, lo, hi)
    return EmittedLeaf(elementwise, ", ".join(words), key=name, path=path)


def lanes_of(outputs: Sequence[Expr], path: cpu.Cpu) -> int:
    """Lanes of one step: what a register holds of the widest float, or where there is none of the widest type."""
    nodes = postorder(outputs)
    widest = max((_size(n.dtype) for n in nodes if n.is_float), default=0)
    return path.lanes(widest or max(_size(n.dtype) for n in nodes))


# ---- loops --------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Loops:
    """Emits the loops around lifted expressions: rows of the outer dimensions, vectors of the innermost one, a tail."""

    outputs: tuple[Expr, ...]
    read: tuple[int, ...]
    dtypes: tuple[str, ...]
    lies: tuple[str, ...]
    rank: int

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
        if self.rank == 1:
            ins = self._moved(e, ins, [lo if how == FULL else word(0) for how in self.lies])
            whole = [e.b.sub(hi, lo), ins, self._moved_out(e, outs, lo), scalars]
            if streams := draws(*self.computed):
                start, seed, count = take(3)
                self._drawn_row(e, streams, e.b.add(start, lo), seed, count, *whole)
            else:
                self.row(e, *whole)
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
            self.row(e, inner, self._moved(e, ins, offsets), self._moved_out(e, outs, start), scalars)
            return _next(e, at, sizes)

        e.loop(lo, hi, 1, _coordinates(e, lo, sizes), row)

    def _moved(self, e: Emitter, addresses: Sequence[Any], offsets: Sequence[Any]) -> list[Any]:
        """Input addresses plus offsets in elements."""
        return [e.address(a, e.times(o, _size(d))) for a, o, d in zip(addresses, offsets, self.dtypes, strict=True)]

    def _moved_out(self, e: Emitter, addresses: Sequence[Any], offset: Any) -> list[Any]:
        """Output addresses plus an offset in elements."""
        return [e.address(a, e.times(offset, _size(o.dtype))) for a, o in zip(addresses, self.outputs, strict=True)]

    def _drawn_row(self, e: Emitter, streams: Sequence[int], start: Any, seed: Any, count: Any,
                   n: Any, ins: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any]) -> None:
        """`row` where the expressions draw from `streams`: the words of a SPAN of elements are drawn at a time, then read as an input is.
        `start`: the position of the first element, a multiple of SPAN, as all cuts of a range are."""
        room = {stream: e.b.ptrtoint(e.b.alloca(ir.ArrayType(INT32, SPAN)), WORD) for stream in streams}

        def span(i: Any, _state: list[Any]) -> None:
            at = e.b.udiv(e.b.add(start, i), word(SPAN))
            for stream, to in room.items():
                span_bits(e, at, seed, count, stream, to)
            self.row(e, e.minimum(e.b.sub(n, i), word(SPAN)), self._moved(e, ins, [i if how == FULL else word(0) for how in self.lies]),
                     self._moved_out(e, outs, i), scalars, room)
        e.loop(0, n, SPAN, [], span)

    def vector(self, e: Emitter, lanes: int, raw: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any] = (),
               mask: Any = None, words: dict[int, Any] | None = None) -> None:
        """One vector of each input, as it lies in memory, to one of each output; `scalars`: vectors of the
        coefficients; `words`: what is drawn, by stream."""
        vectors = {index: _unpacked(e, v, dtype) for index, v, dtype in zip(self.read, raw, self.dtypes, strict=True)}
        values = Translator(e, lanes).values(self.computed, vectors, scalars, words)
        for y, o, value in zip(outs, self.outputs, values, strict=False):
            e.store(_packed(e, value, o.dtype, bool(o.args)), y, mask)
        self.look(e, values[len(self.outputs):], mask)

    def look(self, e: Emitter, values: Sequence[Any], mask: Any) -> None:
        """What was computed beyond the outputs, for lanes in `mask` (None: all)."""

    def row(self, e: Emitter, n: Any, ins: Sequence[Any], outs: Sequence[Any], scalars: Sequence[Any] = (),
            room: Mapping[int, Any] = NOTHING) -> None:
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
                    raw.append(e.load(e.address(ins[k], e.times(i, _size(dtype))), ir.VectorType(stored(dtype), lanes), mask))
            words = {stream: e.load(e.address(at, e.times(i, 4)), ir.VectorType(INT32, lanes)) for stream, at in room.items()}
            targets = [e.address(y, e.times(i, _size(o.dtype))) for y, o in zip(outs, self.outputs, strict=True)]
            self.vector(e, lanes, raw, targets, numbers, mask, words)

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


# ---- values -------------------------------------------------------------------------------------------------------------

def stored(dtype: str) -> ir.Type:
    """The element type in memory."""
    return ir.IntType(16) if dtype in HALVES else LLVM[CODES[dtype]]


def _held(dtype: str) -> ir.Type:
    """The element type in registers: 16-bit floats are held as float32 (rounded after every operation), bool as one bit."""
    return {"float16": ir.FloatType(), "bfloat16": ir.FloatType(), "bool": BIT}.get(dtype) or stored(dtype)


def loaded(e: Emitter, at: Any, exprs: Sequence[Expr]) -> list[Any]:
    """The coefficients of lifted expressions as registers hold them; their words lie in the argument block, from the
    address `at` on."""
    return [e.load(e.address(at, 8 * i), _held(dtype)) for i, dtype in enumerate(coefficients(*exprs))]


def _unpacked(e: Emitter, raw: Any, dtype: str) -> Any:
    if dtype == "bool":
        return e.b.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
    return half.widen(e, CODES[dtype], raw) if dtype in HALVES else raw


def _packed(e: Emitter, value: Any, dtype: str, rounded: bool = False) -> Any:
    """The value as memory holds it. rounded: it is an operation's, which has been rounded to its type."""
    kind = ir.VectorType(stored(dtype), value.type.count)
    if dtype == "bool":
        return e.b.zext(value, kind)
    return half.narrow(e, CODES[dtype], value, rounded) if dtype in HALVES else value


class Translator:
    """Expressions to vector values. A dtype decides between float, signed, unsigned and bool instructions."""

    def __init__(self, e: Emitter, lanes: int) -> None:
        self.e, self.b, self.lanes = e, e.b, lanes

    def values(self, outputs: Sequence[Expr], inputs: dict[int, Any], scalars: Sequence[Any],
               words: dict[int, Any] | None = None) -> list[Any]:
        """The outputs' values; `inputs` holds a vector per variable, `scalars` one per coefficient, `words` one per
        stream. A shared subexpression is computed once."""
        known: dict[Expr, Any] = {}
        for node in postorder(outputs):
            if node.op == "var":
                known[node] = inputs[int(node.value or 0)]
            elif node.op == "coefficient":
                known[node] = scalars[int(node.value or 0)]
            elif node.op == "draw":
                assert words is not None, "nobody drew"
                known[node] = words[int(node.value or 0)]
            elif node.op == "const":
                known[node] = self.constant(node.dtype, node.value or 0)
            else:
                value = _EMITTERS[node.op](self, node, *[known[a] for a in node.args])
                known[node] = _unpacked(self.e, _packed(self.e, value, node.dtype), node.dtype) if node.dtype in HALVES else value
        return [known[o] for o in outputs]

    def kind(self, dtype: str) -> ir.VectorType:
        return ir.VectorType(_held(dtype), self.lanes)

    def constant(self, dtype: str, number: float) -> Any:
        return ir.Constant(self.kind(dtype), [number if "float" in dtype else int(number)] * self.lanes)

    def compare(self, relation: str, dtype: str, x: Any, y: Any) -> Any:
        if "float" in dtype:
            return (self.b.fcmp_unordered if relation == "!=" else self.b.fcmp_ordered)(relation, x, y)
        return (self.b.icmp_signed if dtype.startswith("int") else self.b.icmp_unsigned)(relation, x, y)


Rule = Callable[..., Any]


def _arithmetic(name: str) -> Rule:
    """add, sub, mul: an LLVM instruction with an integer and a float form."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        return getattr(t.b, ("f" if node.is_float else "") + name)(x, y)
    return rule


def _bitwise(name: str) -> Rule:
    return lambda t, _node, x, y: getattr(t.b, name)(x, y)


def _comparison(relation: str) -> Rule:
    return lambda t, node, x, y: t.compare(relation, node.args[0].dtype, x, y)


def _intrinsic(name: str) -> Rule:
    """A rounding or root that LLVM has; integers are unchanged by floor, ceil and round."""
    return lambda t, node, x: t.e.unary(name, x) if node.is_float else x


def _library(function: Callable[..., Any]) -> Rule:
    return lambda t, _node, *args: function(t.e, *args)


def _div(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    """Integers: 0 where the divisor is 0, and the least value by -1 wraps; the hardware would trap on both."""
    if node.is_float:
        return t.b.fdiv(x, y)
    zero, one = t.constant(node.dtype, 0), t.constant(node.dtype, 1)
    empty = t.b.icmp_signed("==", y, zero)
    if not node.dtype.startswith("int"):
        return t.b.select(empty, zero, t.b.udiv(x, t.b.select(empty, one, y)))
    reverse = t.b.icmp_signed("==", y, t.constant(node.dtype, -1))
    quotient = t.b.sdiv(x, t.b.select(t.b.or_(empty, reverse), one, y))
    return t.b.select(empty, zero, t.b.select(reverse, t.b.neg(x), quotient))


def _shift(left: bool) -> Rule:
    """LLVM leaves open what a shift by all bits or more gives; a negative number of places is a large one without a sign."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        bits, signed = 8 * _size(node.dtype), node.dtype.startswith("int")
        beyond = t.b.icmp_unsigned(">=", y, t.constant(node.dtype, bits))
        if not left and signed:
            return t.b.ashr(x, t.b.select(beyond, t.constant(node.dtype, bits - 1), y))
        zero = t.constant(node.dtype, 0)
        return t.b.select(beyond, zero, (t.b.shl if left else t.b.lshr)(x, t.b.select(beyond, zero, y)))
    return rule


def _neg(t: Translator, node: Expr, x: Any) -> Any:
    return t.b.fneg(x) if node.is_float else t.b.neg(x)


def _abs(t: Translator, node: Expr, x: Any) -> Any:
    if node.is_float:
        return t.e.unary("fabs", x)
    return t.b.select(t.compare("<", node.dtype, x, t.constant(node.dtype, 0)), t.b.neg(x), x)


def _sign(t: Translator, node: Expr, x: Any) -> Any:
    """x itself where it is 0 or NaN."""
    zero = t.constant(node.dtype, 0)
    positive = t.b.select(t.compare(">", node.dtype, x, zero), t.constant(node.dtype, 1), x)
    return t.b.select(t.compare("<", node.dtype, x, zero), t.constant(node.dtype, -1), positive)


def _extreme(relation: str) -> Rule:
    """maximum (x unless x < y) and minimum (x unless x > y); NaN of x passes by the comparison, NaN of y by a second
    one, unless y is a number: coefficients are never NaN."""
    def rule(t: Translator, node: Expr, x: Any, y: Any) -> Any:
        chosen = t.b.select(t.compare(relation, node.dtype, x, y), y, x)
        other = node.args[1]
        if not node.is_float or other.op == "coefficient" or (other.op == "const" and not math.isnan(other.value or 0)):
            return chosen
        return t.b.select(t.b.fcmp_unordered("uno", y, y), y, chosen)
    return rule


def _pow(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    """Integers by squaring; beyond 63 only the parity of the exponent matters (0 and ±1; all else has overflowed)."""
    if node.is_float:
        return mathlib.pow_(t.e, x, y)

    def k(number: int) -> Any:
        return t.constant(node.dtype, number)

    odd = t.b.and_(y, k(1))
    large = t.compare(">", node.dtype, y, k(63))
    exponent, square, power = t.b.select(large, t.b.or_(k(62), odd), y), x, k(1)
    for bit in range(6):
        chosen = t.b.icmp_unsigned("!=", t.b.and_(exponent, k(1 << bit)), k(0))
        power = t.b.select(chosen, t.b.mul(power, square), power)
        square = t.b.mul(square, square)
    if not node.dtype.startswith("int"):
        return power
    minus = t.b.select(t.b.icmp_unsigned("!=", odd, k(0)), k(-1), k(1))
    inverse = t.b.select(t.b.icmp_signed("==", x, k(-1)), minus, t.b.select(t.b.icmp_signed("==", x, k(1)), k(1), k(0)))
    return t.b.select(t.b.icmp_signed("<", y, k(0)), inverse, power)


def _fmod(t: Translator, node: Expr, x: Any, y: Any) -> Any:
    if node.is_float:
        return mathlib.fmod(t.e, x, y)
    return t.b.sub(x, t.b.mul(_div(t, node, x, y), y))


def _cast(t: Translator, node: Expr, x: Any) -> Any:
    source, target = node.args[0].dtype, node.dtype
    if source in NARROW:
        source, x = narrow.BYTES.get(source, "float32"), narrow.decode(t.e, source, x)
    if target in NARROW:
        through = "int32" if target in narrow.INTEGERS else "float32" if source == "float32" or _size(source) <= 2 else "float64"
        if target not in narrow.INTEGERS or "float" in source:
            source, x = through, _convert(t, source, through, x)
        elif source == "bool":
            source, x = "uint8", _convert(t, source, "uint8", x)
    return narrow.encode(t.e, target, x, node.op) if target in NARROW else _convert(t, source, target, x)


def _convert(t: Translator, source: str, target: str, x: Any) -> Any:
    """Numbers of one type as another, none of them narrow."""
    kind = t.kind(target)
    if source == target:
        return x
    if target == "bool":
        return t.compare("!=", source, x, t.constant(source, 0))
    if "float" in source and "float" in target:
        wider, narrower = kind.element == ir.DoubleType(), x.type.element == ir.DoubleType()
        return x if wider == narrower else t.b.fpext(x, kind) if wider else t.b.fptrunc(x, kind)
    if "float" in source:
        if _size(target) < 4 or target == "int32":
            return _saturated(t, target, x)
        name = f"llvm.fpto{'s' if target.startswith('int') else 'u'}i.sat.v{t.lanes}i{8 * _size(target)}"
        return t.e.call(f"{name}.v{t.lanes}f{32 if x.type.element == ir.FloatType() else 64}", kind, [x])
    signed = source.startswith("int")
    if "float" in target:
        return (t.b.sitofp if signed else t.b.uitofp)(x, kind)
    if x.type.element.width >= kind.element.width:
        return t.b.trunc(x, kind) if x.type != kind else x
    return (t.b.sext if signed else t.b.zext)(x, kind)


def _saturated(t: Translator, target: str, x: Any) -> Any:
    """Floats as integers of at most 32 bits: towards zero, saturated, NaN as 0. What `llvm.fptosi.sat` says, which LLVM does lane by lane."""
    bits, number = 8 * _size(target), lambda value: ir.Constant(x.type, [value] * t.lanes)
    least, most = (-2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1) if target.startswith("int") else (0.0, 2.0 ** bits - 1)
    x = t.b.select(t.b.fcmp_ordered("ord", x, x), x, number(0.0))
    x = t.b.select(t.b.fcmp_ordered(">", x, number(least)), x, number(least))
    words = ir.VectorType(INT32, t.lanes)
    if target == "int32":                                       # its largest number is none of float32
        over = t.b.fcmp_ordered(">=", x, number(2.0 ** 31))
        found = t.b.fptosi(t.b.select(over, number(0.0), x), words)
        return t.b.select(over, ir.Constant(words, [2 ** 31 - 1] * t.lanes), found)
    found = t.b.fptosi(t.b.select(t.b.fcmp_ordered("<", x, number(most)), x, number(most)), words)
    return t.b.trunc(found, t.kind(target))


_EMITTERS: dict[str, Rule] = {
    "add": _arithmetic("add"), "sub": _arithmetic("sub"), "mul": _arithmetic("mul"), "div": _div, "neg": _neg,
    "abs": _abs, "sign": _sign, "sqrt": _intrinsic("sqrt"),
    "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"), "round": _intrinsic("rint"),
    "exp": _library(mathlib.exp), "expm1": _library(mathlib.expm1), "log": _library(mathlib.log), "log1p": _library(mathlib.log1p),
    "tanh": _library(mathlib.tanh), "sigmoid": _library(mathlib.sigmoid), "erf": _library(mathlib.erf),
    "gelu": _library(mathlib.gelu),
    "sin": _library(mathlib.sin), "cos": _library(mathlib.cos), "pow": _pow, "fmod": _fmod,
    **{name: _library(function) for name, function in mathlib.RARE.items()},
    "maximum": _extreme("<"), "minimum": _extreme(">"),
    "lt": _comparison("<"), "le": _comparison("<="), "gt": _comparison(">"), "ge": _comparison(">="),
    "eq": _comparison("=="), "ne": _comparison("!="),
    "isnan": lambda t, _node, x: t.b.fcmp_unordered("uno", x, x),
    "and": _bitwise("and_"), "or": _bitwise("or_"), "xor": _bitwise("xor"),
    "not": lambda t, _node, x: t.b.not_(x),
    "shl": _shift(True), "shr": _shift(False),
    "where": lambda t, _node, condition, x, y: t.b.select(condition, x, y),
    **{name: _cast for name in narrow.MODES.values()},
    "stochastic": lambda t, node, x, words: rounding.emit_stochastic(t.e, node.dtype, x, words),
    "away": lambda t, node, x: rounding.emit_away(t.e, node.dtype, x),
    "remainder": lambda t, node, x, rounded: rounding.emit_remainder(t.e, node.args[1].dtype, x, rounded),
    "joined": lambda t, node, rounded, rest: rounding.emit_joined(t.e, node.args[0].dtype, rounded, rest),
}
