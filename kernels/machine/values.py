"""What functions over words compute with: 64-bit words, uint64, int32, float32 and float64 numbers, views of arrays,
tuples of these.

Each value is of a kind: LLVM's type of a scalar; `Array` of a `View`; `Fields` of a `Record`, words with names; a tuple
of kinds; `Known` of what is known when code is written, and takes none. Kinds say how values travel: as the scalars
that they are made of.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from ..dtypes import ELEMENTS
from ..isa.paths import PATHS
from ..isa.vector import WORD, Emitter, word

# What is computed of int32 is a word; variables keep it, so that a loop that sums it takes many at once.
I4, F4, F8 = ir.IntType(32), ir.FloatType(), ir.DoubleType()


class _Unsigned(ir.IntType):
    """A type of LLVM's, which have no signs, that is no other one of its size."""

    def __new__(cls, bits: int) -> _Unsigned:
        made: _Unsigned = ir.Type.__new__(cls)
        made.width = bits
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unsigned)

    def __hash__(self) -> int:
        return hash(_Unsigned)


U8 = _Unsigned(64)
"""uint64, which meets its own kind, or words as the bits that they are, and no other numbers."""
NUMBERS = (WORD, U8, I4, F4, F8)
WHOLE = (WORD, I4, U8)
_LETTERS = {"i4": I4, "u8": U8, "f4": F4, "f8": F8}
_ORDERED = {"<", "<=", ">", ">=", "=="}


@dataclass(frozen=True)
class Array:
    """The kind of a contiguous array of elements of those letters."""

    dtype: str
    ndim: int


@dataclass(frozen=True)
class Fields:
    """The kind of words with names (`Numbers`)."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """The kind, and the value, of a function, a type, or what else is known when code is written."""

    what: Any


@dataclass(frozen=True)
class View:
    """An array by its address and sizes."""

    kind: Array
    address: Any
    shape: tuple[Any, ...]


@dataclass(frozen=True)
class Record:
    """Words with names."""

    kind: Fields
    words: tuple[Any, ...]


def kind_of(value: Any) -> Any:
    """The kind of a value."""
    if isinstance(value, tuple):
        return tuple(map(kind_of, value))
    if isinstance(value, Known):
        return value
    return value.kind if isinstance(value, View | Record) else value.type


def types_of(kind: Any) -> list[ir.Type]:
    """The scalars that a value of a kind is made of."""
    if isinstance(kind, tuple):
        return [t for part in kind for t in types_of(part)]
    if isinstance(kind, Array | Fields):
        return [WORD] * (1 + kind.ndim if isinstance(kind, Array) else len(kind.names))
    return [] if isinstance(kind, Known) else [kind]


def parts_of(value: Any) -> list[Any]:
    """Those scalars of a value."""
    if isinstance(value, tuple):
        return [p for element in value for p in parts_of(element)]
    if isinstance(value, View):
        return [value.address, *value.shape]
    if isinstance(value, Record):
        return list(value.words)
    return [] if isinstance(value, Known) else [value]


def rebuilt(kind: Any, parts: Iterator[Any]) -> Any:
    """The value of a kind that is made of those scalars."""
    if isinstance(kind, tuple):
        return tuple(rebuilt(part, parts) for part in kind)
    if isinstance(kind, Array):
        return View(kind, next(parts), tuple(next(parts) for _ in range(kind.ndim)))
    if isinstance(kind, Fields):
        return Record(kind, tuple(next(parts) for _ in kind.names))
    return kind if isinstance(kind, Known) else next(parts)


def unified(one: Any, other: Any) -> Any:
    """The kind that values of both become where either may be: a word of two kinds of whole numbers, of any others
    float64, as Numba has it (a word fits no float32); None: none is."""
    if one == other:
        return one
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        kinds = tuple(map(unified, one, other))
        return None if None in kinds else kinds
    if U8 in (one, other):
        return None
    if one in WHOLE and other in WHOLE:
        return WORD
    return F8 if one in NUMBERS and other in NUMBERS else None


def cast(b: ir.IRBuilder, value: Any, kind: Any) -> Any:
    """A value as one of a kind that it becomes, or a number as another one."""
    have = kind_of(value)
    if have == kind:
        return value
    if isinstance(kind, tuple):
        return tuple(cast(b, v, k) for v, k in zip(value, kind, strict=True))
    if have in WHOLE and kind in WHOLE:
        return b.sext(value, kind) if have == I4 else b.trunc(value, I4) if kind == I4 else b.bitcast(value, kind)
    if have in WHOLE:
        return b.uitofp(value, kind) if have == U8 else b.sitofp(value, kind)
    if kind in WHOLE:
        return b.fptoui(value, kind) if kind == U8 else b.fptosi(value, kind)
    return b.fpext(value, F8) if kind == F8 else b.fptrunc(value, F4)


def converted(b: ir.IRBuilder, value: Any, what: Any) -> Any:
    """What a type of Python's or NumPy's makes of a number; None: it is none that makes numbers. `float` leaves float32
    what it is, as Numba has it."""
    if what in (bool, np.bool_):
        return b.zext(compared(b, "!=", value, value.type(0)), WORD)
    if what is float and value.type == F4:
        return value
    if what is int or what is float:
        what = np.int64 if what is int else np.float64
    if not (isinstance(what, type) and issubclass(what, np.number)):
        return None
    kind = np.dtype(what)
    if kind.kind == "f":
        return cast(b, value, _LETTERS[f"f{kind.itemsize}"])
    if kind in (np.int32, np.uint64):
        return cast(b, value, I4 if kind == np.int32 else U8)
    value = cast(b, value, WORD)
    if kind.itemsize == 8:
        return value
    value = b.trunc(value, ir.IntType(8 * kind.itemsize))
    return b.sext(value, WORD) if kind.kind == "i" else b.zext(value, WORD)


_MATHEMATICS = {math.sqrt: "sqrt", math.log: "log", math.exp: "exp", math.fabs: "fabs", abs: "fabs",
                np.exp: "exp", np.log: "log", np.sqrt: "sqrt"}
_WHOLE = {math.floor: "floor", math.ceil: "ceil"}


def mathematics(b: ir.IRBuilder, what: Any, x: Any) -> Any:
    """What a function makes of a number; None: it is none that is known here."""
    if what in (np.isnan, math.isnan):
        return b.zext(b.fcmp_unordered("uno", x, x), WORD)
    if what in (np.isfinite, math.isfinite):              # what alone has a difference with itself
        return b.zext(b.fcmp_ordered("==", b.fsub(x, x), x.type(0)), WORD)
    if what is abs and x.type in WHOLE:
        x = cast(b, x, WORD)
        return b.select(b.icmp_signed("<", x, word(0)), b.neg(x), x)
    e = Emitter(b, PATHS["generic"])
    if what is math.log1p:
        return e.call("log1p", F8, [cast(b, x, F8)])
    number = cast(b, x, F8 if x.type in WHOLE else x.type)
    if what in _WHOLE:
        return cast(b, e.unary(_WHOLE[what], number), WORD)
    return e.unary(_MATHEMATICS[what], number) if what in _MATHEMATICS else None


def arithmetic(b: ir.IRBuilder, name: str, x: Any, y: Any) -> Any:
    """x and y of one kind added, subtracted or multiplied."""
    return getattr(b, name if x.type in WHOLE else f"f{name}")(x, y)


def compared(b: ir.IRBuilder, order: str, x: Any, y: Any) -> Any:
    """A bit: how two numbers of one kind compare. NaN is unlike anything."""
    if x.type in WHOLE:
        return b.icmp_unsigned(order, x, y) if x.type == U8 else b.icmp_signed(order, x, y)
    return b.fcmp_ordered(order, x, y) if order in _ORDERED else b.fcmp_unordered(order, x, y)


# ---- elements

def scalar_type(view: View) -> type:
    """NumPy's type of a view's elements, as compiled code has them."""
    return np.dtype(ELEMENTS[view.kind.dtype].memory).type


def number_kind(dtype: str) -> ir.Type:
    """The kind that a number of those letters is kept as: whole ones but int32, and bits of 16-bit floats, as words."""
    return _LETTERS.get(dtype, WORD)


def part(b: ir.IRBuilder, view: View, at: Sequence[Any], first: Any = None, stop: Any = None) -> View:
    """The view behind indices of the first axes, from `first` to before `stop` along the next, if these are given."""
    kind, rest = Array(view.kind.dtype, view.kind.ndim - len(at)), view.shape[len(at):]
    index = _flat(b, view, [*at, *([] if first is None else [first])])
    size = ELEMENTS[kind.dtype].bytes
    address = view.address if index is None else b.add(view.address, b.mul(index, word(size)))
    if first is None:
        return View(kind, address, rest)
    last = rest[0] if stop is None else _chosen(b, "<", stop, rest[0])
    return View(kind, address, (_chosen(b, ">", b.sub(last, first), word(0)), *rest[1:]))


def _chosen(b: ir.IRBuilder, order: str, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed(order, x, y), x, y)


def _flat(b: ir.IRBuilder, view: View, at: Sequence[Any]) -> Any:
    """Elements from a view's first one to that at the indices of some axes; None: none."""
    index = None
    for axis, n in enumerate(view.shape):
        if index is not None:
            index = b.mul(index, n, flags=["nsw"])
        if axis < len(at):
            index = at[axis] if index is None else b.add(index, at[axis], flags=["nsw"])
    return index


def _place(b: ir.IRBuilder, view: View, at: Sequence[Any]) -> Any:
    """The pointer to an element: by an index from the view's address on, by which loops are known to walk."""
    kind = _LETTERS.get(view.kind.dtype) or ir.IntType(8 * ELEMENTS[view.kind.dtype].bytes)
    return b.gep(b.inttoptr(view.address, kind.as_pointer()), [_flat(b, view, at)], inbounds=True)


def element(b: ir.IRBuilder, view: View, at: Sequence[Any]) -> Any:
    """An element of a view."""
    value = b.load(_place(b, view, at))
    if value.type == number_kind(view.kind.dtype):
        return value
    return b.sext(value, WORD) if np.dtype(ELEMENTS[view.kind.dtype].memory).kind == "i" else b.zext(value, WORD)


def keep(b: ir.IRBuilder, value: Any, view: View, at: Sequence[Any]) -> None:
    """Write an element of a view."""
    value, size = cast(b, value, number_kind(view.kind.dtype)), ELEMENTS[view.kind.dtype].bytes
    b.store(b.trunc(value, ir.IntType(8 * size)) if value.type == WORD and size < 8 else value, _place(b, view, at))


def from_bits(b: ir.IRBuilder, bits: Any, dtype: str) -> Any:
    """The number of those letters whose bits a word holds."""
    kind, narrow = number_kind(dtype), ir.IntType(8 * ELEMENTS[dtype].bytes)
    if kind == WORD:
        return b.sext(b.trunc(bits, narrow), WORD) if dtype in ("i1", "i2") else bits
    bits = b.trunc(bits, narrow) if kind not in (F8, U8) else bits
    return bits if kind == I4 else b.bitcast(bits, kind)


def to_word(b: ir.IRBuilder, value: Any) -> Any:
    """What stands for a value where a word is asked for: a view's address, a float's bits."""
    if isinstance(value, View):
        return value.address
    if value.type in WHOLE:
        return cast(b, value, WORD)
    if value.type == F8:
        return b.bitcast(value, WORD)
    return b.zext(b.bitcast(value, ir.IntType(32)), WORD)
