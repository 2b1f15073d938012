"""Leaves whose bodies somebody else wrote, for an operator of their own: any function that Numba compiles.

They may take memory, call functions of Numba's and raise, which leaves of this package never do; so Numba's own code
generator compiles them, for this very processor, once for each process. Nothing of it is kept, so that what runs is
always what stands in the program.
"""

from __future__ import annotations

import functools
import itertools
import types as python_types
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from ..dtypes import ELEMENTS
from ..isa.vector import WORD
from .leaf import Leaf, Parameter, seen
from .status import RAISED

DTYPES = {code: from_dtype(np.dtype(e.memory)) for code, e in ELEMENTS.items()}
"""Signature letters (NumPy's) to Numba types; narrow elements and 16-bit floats travel as their bits."""
ENTRY = types.intp(*[types.intp] * 4)
"""What a leaf is to C, in Numba's types."""
_numbers = itertools.count()
_OPTIONS = {"error_model": "numpy"}
"""Numba's options: a division by zero raises nothing. None lets floats be reordered."""


def _numba_type(p: Parameter) -> types.Type:
    """A parameter's type as the function sees it."""
    if p.words == 0:
        return types.intp
    if p.is_array:
        return types.Array(DTYPES[p.dtype], p.ndim - (p.cut == "w"), "C")
    return DTYPES[p.dtype]


def _views(parameters: tuple[Parameter, ...]) -> Any:
    """The intrinsic that reads an argument block into a tuple of array views and scalars."""
    result = types.Tuple([_numba_type(p) for p in parameters])

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        block, lo, hi, worker = args
        base = builder.inttoptr(block, WORD.as_pointer())
        position = 0

        def word() -> Any:
            nonlocal position
            value = builder.load(builder.gep(base, [ir.Constant(WORD, position)]))
            position += 1
            return value

        values = []
        for p in parameters:
            if p.words == 0:
                rest = builder.add(block, ir.Constant(WORD, 8 * position))
                values.append({"lo": lo, "hi": hi, "worker": worker, "rest": rest}[p.dtype])
                continue
            first, kind = word(), _numba_type(p)
            element = context.get_data_type(DTYPES[p.dtype])
            size = context.get_abi_sizeof(element)
            if not p.is_array:
                if p.dtype in ("i8", "u8"):
                    values.append(first)
                elif p.dtype == "b1":
                    values.append(builder.trunc(first, ir.IntType(8)))
                else:
                    values.append(builder.bitcast(builder.trunc(first, ir.IntType(8 * size)), element))
                continue
            shape = [word() for _ in range(p.ndim)]
            strides = [ir.Constant(WORD, size)]
            for n in shape[:0:-1]:
                strides.insert(0, builder.mul(strides[0], n, flags=["nsw"]))
            if p.cut == "r":
                first = builder.add(first, builder.mul(lo, strides[0]))
                shape[0] = builder.sub(hi, lo)
            elif p.cut == "w":
                first = builder.add(first, builder.mul(worker, strides[0]))
                shape, strides = shape[1:], strides[1:]
            array = make_array(kind)(context, builder)
            populate_array(array, data=builder.inttoptr(first, element.as_pointer()), shape=shape, strides=strides,
                           itemsize=ir.Constant(WORD, size), meminfo=None)
            values.append(array._getvalue())
        return context.make_tuple(builder, result, values)

    @intrinsic
    def views(_typing: Any, block: Any, lo: Any, hi: Any, worker: Any) -> Any:
        return result(types.intp, types.intp, types.intp, types.intp), generate

    return views


class ForeignLeaf(Leaf):
    """A leaf of a user's function. An exception in it is the status `RAISED`."""

    def __init__(
        self, function: Callable[..., Any], signature: str, texts: tuple[Any, ...] = (), boundscheck: bool = False
    ) -> None:
        """Args:
        function: plain, or compiled by numba.njit; takes the views of the signature, then the texts.
        texts: constants that no argument block holds: texts, and tuples of texts.
        boundscheck: an index that is out of range raises.
        """
        super().__init__(getattr(function, "py_func", function), signature, checked=True)
        self._function, self._texts, self._boundscheck = function, texts, boundscheck
        self._number = next(_numbers)
        self._made: Any = None

    @property
    def identity(self) -> str:
        """No other leaf of this process has it."""
        return f"{self._number}"

    @property
    def stored_name(self) -> str:
        """A name that the cache never has."""
        return f"foreign.{self.name}-{self._number}"

    def load(self) -> bool:
        """Compile it here and now: no other process could do it for this one."""
        self.compile()
        return True

    def compile(self) -> None:
        """Compile it, if that was not done before."""
        if self._made is None:
            self._made = cfunc(ENTRY, **_OPTIONS)(self._entry())

    @property
    def address(self) -> int:
        """The C address of the compiled leaf (compiles it first)."""
        self.compile()
        return int(self._made.address)

    def _entry(self) -> Callable[[int, int, int, int], int]:  # type: ignore[override]
        """What Numba compiles: the function over the views of its arguments."""
        given = seen(self.parameters)
        order = [self.same.get(i, i) for i in range(len(given))]
        text = ("def entry(block, lo, hi, worker):\n"
                f"    v = views(block, lo, hi, worker)\n{self._lines([f'v[{i}]' for i in order])}")
        names = dict(views=_views(given), __name__=self.twin.__module__, **self._names())
        exec(compile(text, "<leaf>", "exec"), names)          # our own four lines above: no foreign text reaches it
        home = self.twin.__code__
        code = names["entry"].__code__.replace(                # type: ignore[attr-defined]
            co_filename=home.co_filename, co_firstlineno=home.co_firstlineno, co_name=self.name,
            co_qualname=f"{self.name}-{self.identity}")
        entry = python_types.FunctionType(code, names)
        entry.__module__ = self.twin.__module__
        return entry

    def _lines(self, arguments: list[str]) -> str:
        given = [*arguments, *(f"text{i}" for i in range(len(self._texts)))]
        return (
            "    try:\n"
            f"        body({', '.join(given)})\n"
            "    except Exception:\n"
            f"        return {RAISED}\n"
            "    return 0\n"
        )

    def _names(self) -> dict[str, Any]:
        compiled = (
            njit(boundscheck=self._boundscheck, **_OPTIONS)(self.twin)
            if self._boundscheck or self.twin is self._function
            else self._function
        )
        return {"body": compiled, **{f"text{i}": text for i, text in enumerate(self._texts)}}


@functools.lru_cache(1024)
def foreign_leaf(
    function: Callable[..., Any], signature: str, texts: tuple[Any, ...] = (), boundscheck: bool = False
) -> ForeignLeaf:
    """The one leaf of a function, for arguments of these types and with these constants."""
    return ForeignLeaf(function, signature, texts, boundscheck)
