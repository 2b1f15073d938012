"""A leaf: one readable function over array views, compiled to `status = leaf(block, lo, hi, worker)`.

    @leaf("f4[r,:], f4[r,:]")
    def relu(x, y):
        for i in range(y.shape[0]):
            ...

The caller hands over the address of an *argument block* (int64 words: address and dimensions of each array, bits of
each scalar) and a range. Arguments marked `[r, ...]` arrive cut to rows lo..hi, so a body never sees the range and loops
from 0 (a loop from `lo` may index negatively as far as LLVM knows, and then does not vectorise). Arguments marked
`[w, ...]` are one row per worker: the body sees its own row, an array of one dimension less. The words `lo`, `hi` and
`worker` in a signature pass those numbers themselves. The word `rest` passes the address of the block's words behind
those that the body sees: of parameters after it, which code reads that takes any number of them, or what leaves read
that the body calls by an `Address` among its arguments (see `called.py`). The word `numbers` passes a leaf's sizes and
strides as one argument with names, a `Numbers`. Bodies never raise; a `checked` leaf returns a status, 0 for success.
What a body may say, `words` tells, which makes its code; what it calls are plain functions of the same kind.
"""
from __future__ import annotations

import ctypes
import functools
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from llvmlite import ir

from ..dtypes import ELEMENTS
from ..isa import cpu
from ..isa.inlined import over_words
from ..isa.target import Target
from ..isa.vector import WORD, word
from . import build, content, stored, values, words
from .values import Array, Fields, Record, View

PASSED = ("lo", "hi", "worker", "rest")
"""What a signature may ask for that has no words of its own in the argument block."""
NUMBERS = "numbers"
"""What a signature calls the parameter that is a `Numbers`."""


class Numbers:
    """Integers that the body reads by name. A subclass is a frozen dataclass of `int` fields; each is a word of the argument block."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields, in the order of their words."""
        return tuple(f.name for f in fields(cls))                                          # type: ignore[arg-type]

    @classmethod
    def body(cls) -> Any:
        """The named tuple that a compiled body sees."""
        return _named_tuple(cls.__name__, cls.names())

    def words(self) -> list[int]:
        """The fields' values."""
        return [int(getattr(self, name)) for name in self.names()]


@functools.cache
def _named_tuple(name: str, names: tuple[str, ...]) -> Any:
    return namedtuple(name, names)                                                         # type: ignore[misc]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a leaf: an array of `ndim` dimensions as the caller passes it, a scalar (ndim 0), or a range word."""

    dtype: str                 # a key of ELEMENTS, one of PASSED, or NUMBERS
    ndim: int = 0
    cut: str = ""              # "r": axis 0 is the range; "w": axis 0 is the worker
    numbers: type[Numbers] | None = None       # what the parameter `numbers` is

    @property
    def is_array(self) -> bool:
        return self.ndim > 0

    @property
    def words(self) -> int:
        """Words in the argument block."""
        return 0 if self.dtype in PASSED else len(self.numbers.names()) if self.numbers else 1 + self.ndim


def parse(signature: str, numbers: type[Numbers] | None = None) -> tuple[Parameter, ...]:
    """`'f4[r,:], i8, numbers, worker'` to parameters, of which `numbers` is one of that class."""
    found = []
    for text in re.split(r",(?![^\[]*\])", signature) if signature else ():
        word = text.strip()
        if word in PASSED:
            found.append(Parameter(word))
            continue
        if word == NUMBERS and numbers is not None:
            found.append(Parameter(word, numbers=numbers))
            continue
        match = re.fullmatch(r"(\w\d)(?:\[([^\]]*)\])?", word)
        if match is None or match[1] not in ELEMENTS:
            raise ValueError(f"leaf signature {signature!r}: cannot read {word!r}")
        axes = [axis.strip() for axis in match[2].split(",")] if match[2] is not None else []
        cut = axes[0] if axes and axes[0] in "rw" else ""
        found.append(Parameter(match[1], len(axes), cut))
    return tuple(found)


def seen(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parameters that the body gets: all up to `rest`."""
    return next((parameters[:i + 1] for i, p in enumerate(parameters) if p.dtype == "rest"), parameters)


@dataclass(frozen=True)
class Address:
    """An argument for a parameter `i8`: the address of a leaf that the called one calls itself, 0 for none. What that
    one finds at `rest`, its `parameters`, are arguments behind those for the called leaf's own (`Leaf.takes`)."""

    leaf: Leaf | None = None
    parameters: tuple[Parameter, ...] = ()

    @property
    def word(self) -> int:
        """The address (compiles the leaf first)."""
        return self.leaf.address if self.leaf else 0


class Leaf:
    """A compiled kernel with three faces: `address` (the runtime's), a call over arrays (tests), `twin` (plain Python)."""

    def __init__(self, function: Callable[..., Any], signature: str, *, same: Mapping[int, int] | None = None,
                 checked: bool = False, key: str = "", numbers: type[Numbers] | None = None,
                 narrowed: Callable[[Any, Mapping[int, str]], Any] | None = None) -> None:
        """Args:
            function: the body, over views of the signature's parameters.
            same: {output: input} pairs of parameters that share memory. The body gets one view twice, so that LLVM
                sees one pointer and its overlap checks do not send the loop to scalar code.
            checked: the body returns a status.
            key: whatever else shapes the code and neither `signature` nor the body's content tells (`content`): objects in closures.
            numbers: the class of the parameter `numbers`, if the signature has one.
            narrowed: how a call of this leaf is done with some parameters, by their place among those with words, in 16-bit memory of these types
                while it computes in float32; None where it cannot. Arrays cut by rows need none of it (`streamed`).
        """
        self.twin, self.signature, self.parameters = function, signature, parse(signature, numbers)
        self.checked, self.narrowed = checked, narrowed
        self.same = dict(same or {})
        self._key = key
        self._code: stored.Code | None = None

    @property
    def name(self) -> str:
        return self.twin.__name__

    @property
    def identity(self) -> str:
        """A hash of everything that shapes the machine code but what compiles it, 16 letters."""
        path = cpu.current()
        named = [p.numbers.names() for p in self.parameters if p.numbers]
        return content.digest(self._content, path.name, Target.of(path), self.signature, self.same, self.checked,
                              self._key, named)

    @functools.cached_property
    def _content(self) -> str:
        return content.digest(self.twin)

    @property
    def stored_name(self) -> str:
        """What the cache calls the machine code."""
        return f"{self.twin.__module__}.{self.name}-{self.identity}"

    def load(self) -> bool:
        """Make the code ready if that needs no compiler: it is ready, or the cache has it. Returns whether it is."""
        if self._code is None:
            self._code = stored.load(self.stored_name)
        return self._code is not None

    def compile(self) -> None:
        """Compile, or read from the cache; nothing when done before."""
        if not self.load():
            symbol = f"tileflow_{self.name}_{self.identity}"
            made, given = build.built([build.Entry(symbol, self._entry())], Target.of(cpu.current()))
            self._code = stored.keep(self.stored_name, self.name, [symbol], given, made)

    def _entry(self) -> build.Emitted:
        """The function to compile."""
        return build.Emitted(self._defined)

    def _defined(self, module: ir.Module) -> ir.Function:
        parameters = seen(self.parameters)
        names = self.twin.__code__.co_varnames
        function = ir.Function(module, ir.FunctionType(WORD, [WORD] * 4), f"leaf.{self.name}")
        b = ir.IRBuilder(function.append_basic_block("entry"))
        block, passed = function.args[0], dict(zip(("lo", "hi", "worker"), function.args[1:], strict=True))
        base, position = b.inttoptr(block, WORD.as_pointer()), 0

        def take(count: int) -> list[Any]:
            nonlocal position
            position += count
            return [b.load(b.gep(base, [word(i)])) for i in range(position - count, position)]

        args: list[Any] = []
        for p in parameters:
            if p.words == 0:
                args.append(passed[p.dtype] if p.dtype in passed else b.add(block, word(8 * position)))
            elif p.numbers:
                args.append(Record(Fields(p.numbers.names()), tuple(take(p.words))))
            elif not p.is_array:
                args.append(values.from_bits(b, take(1)[0], p.dtype))
            else:
                args.append(self._cut(b, p, take(p.words), passed))
        args = [args[self.same.get(i, i)] for i in range(len(args))]
        kinds = {name: kind for name, kind in zip(names, map(values.kind_of, args), strict=False) if kind != WORD}
        status = b.call(words.define(module, self.twin, kinds), [part for a in args for part in values.parts_of(a)])
        b.ret(values.cast(b, status, WORD) if self.checked else word(0))
        function.linkage = "internal"
        return function

    @staticmethod
    def _cut(b: ir.IRBuilder, p: Parameter, found: Sequence[Any], passed: Mapping[str, Any]) -> View:
        """An array of address and sizes, cut to the range or to the worker's row."""
        address, *shape = found
        if p.cut:
            row = word(ELEMENTS[p.dtype].bytes)
            for n in shape[1:]:
                row = b.mul(row, n)
            address = b.add(address, b.mul(passed["lo" if p.cut == "r" else "worker"], row))
            shape = [b.sub(passed["hi"], passed["lo"]), *shape[1:]] if p.cut == "r" else shape[1:]
        return View(Array(p.dtype, len(shape)), address, tuple(shape))

    @property
    def address(self) -> int:
        """The C address of the compiled leaf (compiles it first)."""
        self.compile()
        assert self._code is not None
        return self._code.address

    def takes(self, args: Sequence[Any]) -> list[Parameter]:
        """The parameters that these arguments are for, one each: the leaf's own that have words in the argument block,
        then those of the leaves whose addresses are among the arguments, in their order."""
        own = (p for p in self.parameters if p.words)
        return [*own, *(p for arg in args if isinstance(arg, Address) for p in arg.parameters)]

    def block(self, *args: Any) -> np.ndarray:
        """The argument block for these arrays, scalars and addresses (int64). The arrays must outlive it."""
        words: list[int] = []
        values = iter(args)
        for p in self.takes(args):
            value = next(values)
            if isinstance(value, Address):
                words.append(value.word)
                continue
            if p.numbers:
                words += value.words()
                continue
            if not p.is_array:
                words.append(scalar_word(p.dtype, value))
                continue
            wanted = np.dtype(ELEMENTS[p.dtype].memory)
            same_bits = wanted.kind == "u" and value.dtype.itemsize == wanted.itemsize <= 2
            if (value.dtype != wanted and not same_bits) or value.ndim != p.ndim or not value.flags.c_contiguous:
                raise TypeError(f"{self.name}({self.signature}): got {value.dtype}{list(value.shape)}, "
                                f"contiguous {value.flags.c_contiguous}")
            words += [value.ctypes.data, *value.shape]
        if next(values, None) is not None:
            raise TypeError(f"{self.name}({self.signature}): too many arguments")
        return np.array(words, np.int64)

    def __call__(self, *args: Any, n: int | None = None, lo: int = 0, worker: int = 0) -> int:
        """Run over rows lo..n (default: all rows of the first `r` array) on the calling thread; returns the status."""
        if n is None:
            arrays = [a for a, p in zip(args, self.takes(args), strict=True) if p.cut == "r"]
            n = arrays[0].shape[0] if arrays else 1
        block = self.block(*args)
        return int(invoke_leaf(self.address, block.ctypes.data, lo, n, worker))


def from_lines(lines: Sequence[str], names: Mapping[str, Any], like: Callable[..., Any]) -> Any:
    """The function that lines of a kernel's own making define, in a scope of these names; it goes by the name and place of `like`."""
    scope = dict(names)
    exec(compile("\n".join(lines), "<leaf>", "exec"), scope)     # our own lines: no foreign text reaches them
    made, home = content.written(scope[re.split(r"[ (]", lines[0])[1]], "\n".join(lines)), like.__code__
    made.__code__ = made.__code__.replace(co_filename=home.co_filename, co_firstlineno=home.co_firstlineno, co_name=like.__name__)
    made.__name__ = like.__name__
    return made


def scalar_word(dtype: str, value: Any) -> int:
    """The bits of a scalar as one int64 word."""
    kind = np.dtype(ELEMENTS[dtype].memory if dtype != "f2" else "f2")
    raw = np.array(value, kind).tobytes().ljust(8, b"\0")
    return int(np.frombuffer(raw, np.int64)[0])


def leaf(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Leaf]:
    """Decorator form of `Leaf`."""
    return lambda function: Leaf(function, signature, **options)


class Generic:
    """A leaf written once for several element types: `T` in its signature stands for each; pick one by `relu["f4"]`."""

    def __init__(self, function: Callable[..., Any], signature: str, dtypes: tuple[str, ...], **options: Any) -> None:
        self.twin, self.signature, self.dtypes, self.options = function, signature, dtypes, options
        self._leaves: dict[tuple[str, str], Leaf] = {}

    def __getitem__(self, dtype: str) -> Leaf:
        """The leaf for `dtype` on the current CPU path."""
        at = (dtype, cpu.current().name)
        if at not in self._leaves:
            if dtype not in self.dtypes:
                raise KeyError(f"{self.twin.__name__} has no {dtype} form; it has {', '.join(self.dtypes)}")
            self._leaves[at] = Leaf(self.twin, re.sub(r"\bT\b", dtype, self.signature), **self.options)
        return self._leaves[at]


def generic(signature: str, dtypes: tuple[str, ...] = ("f4", "f8"), **options: Any) -> Callable[[Callable[..., Any]], Generic]:
    """Decorator form of `Generic`. Inside the body write constants as `x.dtype.type(2)`, so that float32 stays float32."""
    return lambda function: Generic(function, signature, dtypes, **options)


@over_words(5)
def invoke(b: ir.IRBuilder, function: Any, *args: Any) -> Any:
    """Call a leaf by address from compiled code: block, lo, hi, worker."""
    return b.call(b.inttoptr(function, ir.FunctionType(WORD, [WORD] * 4).as_pointer()), args)


_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


def invoke_leaf(function: int, block: int, lo: int, hi: int, worker: int) -> int:
    """Call a leaf by address from Python."""
    return int(_CALL(function)(block, lo, hi, worker))
