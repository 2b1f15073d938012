"""A thin LLVM IR emitter for explicit vector code, and the way such code becomes callable from leaf bodies.

LLVM's own vectoriser stops at 256 bits and needs provable trip counts; the kernels that matter spell their vectors out.
Addresses and counts are 64-bit integers; strides are bytes. Vectors are `ir.VectorType`s of any element and lane count.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .. import dtypes
from . import cpu
from .inlined import Inlined, outside

WORD, BIT, INT32 = ir.IntType(64), ir.IntType(1), ir.IntType(32)
_FLOATS = {"f2": ir.HalfType(), "f4": ir.FloatType(), "f8": ir.DoubleType()}
ELEMENTS = {code: _FLOATS.get(code) or ir.IntType(8 * e.bytes) for code, e in dtypes.ELEMENTS.items()}
"""LLVM's types by letters; bfloat16 and bool are the integers that hold them."""
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def itemsize(dtype: str) -> int:
    """Bytes of one element of a kernel dtype such as "f4"."""
    return dtypes.ELEMENTS[dtype].bytes


def lanes_within(dtype: str, run: int, path: cpu.Cpu) -> int:
    """Elements of the longest vector, a power of two, that runs of so many have."""
    return min(path.lanes(itemsize(dtype)), 1 << (run.bit_length() - 1))


def vector(dtype: str, lanes: int) -> ir.VectorType:
    """The type of `lanes` elements of `dtype`."""
    return ir.VectorType(ELEMENTS[dtype], lanes)


def word(number: int) -> ir.Constant:
    """A 64-bit integer constant."""
    return ir.Constant(WORD, number)


def _suffix(type_: ir.Type) -> str:
    """How LLVM mangles a type in an overloaded intrinsic's name."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{_suffix(type_.element)}"
    return _SUFFIX.get(str(type_), str(type_))


class Emitter:
    """Helpers around an `ir.IRBuilder` (`.b`) for one CPU path."""

    def __init__(self, builder: ir.IRBuilder, path: cpu.Cpu) -> None:
        self.b, self.path = builder, path

    def call(self, name: str, result: ir.Type, args: Sequence[Any]) -> Any:
        """Call an LLVM intrinsic or function by its full name."""
        kind = ir.FunctionType(result, [a.type for a in args])
        return self.b.call(outside(self.b.module, kind, name), list(args))

    def unary(self, name: str, x: Any) -> Any:
        """`llvm.<name>` of a scalar or vector: sqrt, fabs, floor, ceil, rint, trunc ..."""
        return self.call(f"llvm.{name}.{_suffix(x.type)}", x.type, [x])

    def address(self, base: Any, *offsets: Any) -> Any:
        """`base` plus byte offsets (Python numbers or words)."""
        for offset in offsets:
            if isinstance(offset, int):
                offset = word(offset)
            if not (isinstance(offset, ir.Constant) and offset.constant == 0):
                base = self.b.add(base, offset)
        return base

    def times(self, x: Any, factor: int) -> Any:
        """A word times a Python number."""
        return self.b.mul(x, word(factor))

    def opaque(self, x: Any) -> Any:
        """The word `x`, about which LLVM knows nothing.

        From addresses that differ by multiples of a stride it makes a chain of additions, each waiting for the one before.
        """
        return self.b.asm(ir.FunctionType(WORD, [WORD]), "", "=r,0", [x], False)

    def minimum(self, x: Any, y: Any) -> Any:
        """The smaller of two words."""
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def _pointer(self, address: Any, type_: ir.Type) -> Any:
        return self.b.inttoptr(address, type_.as_pointer())

    def _align(self, type_: ir.Type) -> int:
        """The alignment arrays promise: one element's."""
        element = type_.element if isinstance(type_, ir.VectorType) else type_
        return int(element.width // 8) if isinstance(element, ir.IntType) else {"half": 2, "float": 4, "double": 8}[str(element)]

    def load(self, address: Any, type_: ir.Type, mask: Any = None) -> Any:
        """Load a scalar or vector; lanes outside `mask` are not touched and read as zero."""
        pointer, align = self._pointer(address, type_), self._align(type_)
        if mask is None:
            return self.b.load(pointer, align=align)
        return self.call(f"llvm.masked.load.{_suffix(type_)}.p0", type_,
                         [pointer, ir.Constant(INT32, align), mask, ir.Constant(type_, None)])

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a scalar or vector; lanes outside `mask` are not touched."""
        pointer, align = self._pointer(address, value.type), self._align(value.type)
        if mask is None:
            self.b.store(value, pointer, align=align)
        else:
            self.call(f"llvm.masked.store.{_suffix(value.type)}.p0", ir.VoidType(),
                      [value, pointer, ir.Constant(INT32, align), mask])

    def prefetch(self, address: Any, write: bool = False, locality: int = 3) -> None:
        """Ask for the cache line at `address`; any address is harmless."""
        flags = [ir.Constant(INT32, n) for n in (int(write), locality, 1)]
        self.call("llvm.prefetch.p0", ir.VoidType(), [self._pointer(address, ir.IntType(8)), *flags])

    def splat(self, x: Any, lanes: int) -> Any:
        """A vector with every lane `x`."""
        kind = ir.VectorType(x.type, lanes)
        empty = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(empty, x, ir.Constant(INT32, 0))
        return self.shuffle(first, empty, [0] * lanes)

    def shuffle(self, x: Any, y: Any, picks: Sequence[int]) -> Any:
        """Lanes picked from `x` and `y` laid end to end."""
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(INT32, len(picks)), list(picks)))

    def picked(self, parts: Sequence[Any], picks: Sequence[int]) -> Any:
        """Likewise from any number of vectors as long as `picks`: a shuffle for the first two, and one for each beyond."""
        lanes = len(picks)
        found = self.shuffle(parts[0], parts[min(1, len(parts) - 1)], [pick if pick < 2 * lanes else 0 for pick in picks])
        for number, part in enumerate(parts[2:], 2):
            found = self.shuffle(found, part, [lanes + pick % lanes if pick // lanes == number else k for k, pick in enumerate(picks)])
        return found

    def woven(self, parts: Sequence[Any]) -> list[Any]:
        """Vectors x, y, … as the ones that hold x[0], y[0], …, x[1], y[1], … one after the other."""
        count, lanes = len(parts), parts[0].type.count
        return [self.picked(parts, [q % count * lanes + q // count for q in range(v * lanes, (v + 1) * lanes)]) for v in range(count)]

    def unwoven(self, parts: Sequence[Any]) -> list[Any]:
        """The other way round."""
        count, lanes = len(parts), parts[0].type.count
        return [self.picked(parts, [k * count + part for k in range(lanes)]) for part in range(count)]

    def first(self, count: Any, lanes: int) -> Any:
        """The mask of the first `count` (a word; any sign, any size) lanes."""
        lane = ir.Constant(ir.VectorType(WORD, lanes), list(range(lanes)))
        return self.b.icmp_signed("<", lane, self.splat(count, lanes))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x * y + z: fused where the path has it, else two instructions (never a call of libm's slow emulation)."""
        if not self.path.fma:
            return self.b.fadd(self.b.fmul(x, y), z)
        return self.call(f"llvm.fma.{_suffix(x.type)}", x.type, [x, y, z])

    def loop(self, start: Any, stop: Any, step: int, carried: Sequence[Any],
             body: Callable[[Any, list[Any]], Sequence[Any] | None]) -> list[Any]:
        """`for i in range(start, stop, step): carried = body(i, carried)`; tested at the top, so it may run no times."""
        b, function = self.b, self.b.function
        before = b.block
        head, inside, after = (function.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        phis = []
        for value in (word(start) if isinstance(start, int) else start, *carried):
            phi = b.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        b.cbranch(b.icmp_signed("<", phis[0], word(stop) if isinstance(stop, int) else stop), inside, after)
        b.position_at_end(inside)
        inner = body(phis[0], phis[1:]) or []
        values = [b.add(phis[0], word(step), flags=["nsw"]), *inner]
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        return phis[1:]

    def along(self, n: Any, lanes: int, body: Callable[[Any], Any]) -> None:
        """body(first element) for vectors that cover n >= `lanes` elements; the last one overlaps the one before it."""
        end = self.b.sub(n, word(lanes))

        def vector(i: Any, _state: list[Any]) -> None:
            body(self.minimum(i, end))
        self.loop(0, n, lanes, [], vector)

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        """Emit the block's code behind a test."""
        with self.b.if_then(condition):
            yield

    def transpose(self, rows: Sequence[Any]) -> list[Any]:
        """`lanes` vectors of `lanes` elements, transposed, in log2(lanes) rounds of shuffles (lanes is a power of two)."""
        rows, lanes = list(rows), len(rows)
        block = lanes // 2
        while block:
            low = [lane if lane // block % 2 == 0 else lanes + lane - block for lane in range(lanes)]
            high = [lane + block if lane // block % 2 == 0 else lanes + lane for lane in range(lanes)]
            for i in range(lanes):
                if i // block % 2 == 0:
                    x, y = rows[i], rows[i + block]
                    rows[i], rows[i + block] = self.shuffle(x, y, low), self.shuffle(x, y, high)
            block //= 2
        return rows

    def sums(self, vectors: Sequence[Any]) -> Any:
        """Horizontal sums: `lanes` vectors of `lanes` elements to one vector, lane i = the sum of vectors[i].

        Halves are folded onto each other, so the order of additions is the same whatever the lane.
        """
        vectors, lanes = list(vectors), len(vectors)
        block = lanes // 2
        while block:
            low = [lane if lane // block % 2 == 0 else lanes + lane - block for lane in range(lanes)]
            high = [lane + block if lane // block % 2 == 0 else lanes + lane for lane in range(lanes)]
            vectors = [self.b.fadd(self.shuffle(x, y, low), self.shuffle(x, y, high))
                       for x, y in zip(vectors[:block], vectors[block:], strict=True)]
            block //= 2
        return vectors[0]


Emit = Callable[..., Any]


def define(module: ir.Module, name: str, parameters: int, path: cpu.Cpu, emit: Emit, status: bool = False) -> ir.Function:
    """The function `void name(word, ...)` of `module`, emitted as `emit(emitter, *words)` on first use; with `status` it returns the
    word that `emit` gives.

    It is never inlined and merges across modules by name, so the name must tell everything that shapes its code.
    """
    if (known := module.globals.get(name)) is not None:
        return known
    function = ir.Function(module, ir.FunctionType(WORD if status else ir.VoidType(), [WORD] * parameters), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    result = emit(Emitter(builder, path), *function.args)
    if status:
        builder.ret(result)
    else:
        builder.ret_void()
    return function


def inlined_code(name: str, parameters: str, path: cpu.Cpu, emit: Emit, status: bool = False) -> Inlined:
    """What bodies call over words ("m, n, a ..."): the function that `define` makes; with `status` it gives a word."""
    count = len(re.split(r",\s*", parameters))

    def called(b: ir.IRBuilder, *args: Any) -> Any:
        result = b.call(define(b.module, name, count, path, emit, status), args)
        return result if status else None
    return Inlined(name, called, count)
