"""What of a Python function shapes the machine code made of it, as a hash: its instructions and constants, defaults, what its closure holds and what
its names stand for.

What functions of this package take from their modules is left out: the cache's folder carries a hash of all its sources. Of a module the name counts,
not what is in it; of objects unknown here the type's: whoever makes kernels of such tells them apart by the leaf's key.
"""
from __future__ import annotations

import enum
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core.types import Type

OURS = __name__.rpartition("machine.")[0]
VERSIONED = ("numba.", "llvmlite.", "numpy.")
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), enum.Enum, np.generic, np.dtype, Type)
"""Values of which the text tells all."""


def digest(function: Callable[..., Any]) -> str:
    """The hash of a Python function, 16 letters."""
    return hashlib.sha1(repr(list(_words(function, {}))).encode()).hexdigest()[:16]


def _words(value: Any, met: dict[int, int]) -> Iterator[str]:
    """Words that differ where machine code may. met: the functions met so far, numbered by their ids; a function may call itself."""
    yield type(value).__qualname__
    value = getattr(value, "py_func", getattr(value, "_defn", value))              # what Numba's dispatchers and intrinsics are made of
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, types.FunctionType) and not f"{value.__module__}.".startswith(VERSIONED):
        known = id(value) in met
        yield str(met.setdefault(id(value), len(met)))
        if not known:
            yield from _function(value, met)
    elif isinstance(value, types.CodeType):
        yield repr((value.co_code, value.co_argcount, value.co_flags, value.co_names, value.co_varnames))
        yield from _words(value.co_consts, met)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield from (str(value.dtype), str(value.shape), hashlib.sha1(value.tobytes()).hexdigest())
    elif isinstance(value, tuple):
        yield str(len(value))
        for element in value:
            yield from _words(element, met)
    elif isinstance(value, frozenset):
        yield from sorted(map(repr, value))
    else:
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"


def _function(function: types.FunctionType, met: dict[int, int]) -> Iterator[str]:
    yield from _words((function.__code__, function.__defaults__), met)
    for cell in function.__closure__ or ():
        if cell != types.CellType():                                               # a name that is not bound yet
            yield from _words(cell.cell_contents, met)
    if not f"{function.__module__}.".startswith(OURS):
        for name in _names(function.__code__):
            yield from _words(function.__globals__.get(name), met)


def _names(code: types.CodeType) -> Iterator[str]:
    """What a function, and those written within it, read by name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
