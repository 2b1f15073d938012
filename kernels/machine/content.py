"""What of a Python function shapes the machine code made of it, as a hash: the sources that it and whatever it calls
come from, defaults, and what its closure holds. Not what lies beside it in a program, nor where or by which Python it
is made.

Functions of this package are told by their place in its sources (`sources`); functions written by our own code say
their text (`written`); of others their instructions and what they read by name count. Functions and types of Numba's
and NumPy's have versions, which the cache's folder carries.
"""
from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import platform
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from . import sources

VERSIONED = ("numba", "llvmlite", "numpy", "math", "operator", "builtins", "_operator")
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), enum.Enum, np.generic, np.dtype)
"""Values of which the text tells all."""
MACHINE = (sys.platform, platform.machine().lower())
"""What modules of this package compute their globals from, besides sources."""


def digest(*values: Any) -> str:
    """The hash of functions and of what else shapes code, 16 letters.

    Raises:
        TypeError: a value, or one in a closure, is of a kind about which nothing is known; one that says its own
            content as `content()` is.
    """
    return hashlib.sha256(repr([MACHINE, *_words(values, {})]).encode()).hexdigest()[:16]


def written(function: Any, text: str) -> Any:
    """A function that our own code has written, which says its text by now."""
    function.__written__ = text
    return function


def _words(value: Any, met: dict[int, int]) -> Iterator[str]:
    """Words that differ where machine code may. met: the functions met so far, numbered by their ids; a function may call itself."""
    value = getattr(value, "py_func", value)              # what Numba's dispatchers are made of
    kind = type(value)
    yield kind.__qualname__
    is_type = isinstance(value, type)
    home = value.__name__ if isinstance(value, types.ModuleType) else (value if is_type else kind).__module__
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, types.FunctionType):
        known = id(value) in met
        yield str(met.setdefault(id(value), len(met)))
        if not known:
            yield from _function(value, met)
    elif isinstance(value, tuple | list):
        yield str(len(value))
        for element in value:
            yield from _words(element, met)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(repr, value))
    elif isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            yield repr(name)
            yield from _words(value[name], met)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield from (str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
    elif isinstance(value, functools.partial):
        yield from _words((value.func, value.args, value.keywords), met)
    elif isinstance(value, types.MethodType):
        yield from _words((value.__func__, value.__self__), met)
    elif hasattr(kind, "content"):
        yield str(value.content())
    elif is_type and _is_ours(home):
        yield from (value.__qualname__, sources.digest(value.__module__))
    elif is_dataclass(value) and not is_type:
        yield f"{home}.{kind.__qualname__}"
        for field in fields(value):
            yield from _words(getattr(value, field.name), met)
    elif (is_type or isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ufunc)
          or home.split(".")[0] in VERSIONED):
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        yield repr(value) if home.startswith("numba.core.types") else f"{home}.{name}"
    else:
        raise TypeError(f"machine code would depend on {value!r}, and a {home}.{kind.__qualname__} says nothing that "
                        "names it in the cache; give its class a method content()")


def _is_ours(module: str) -> bool:
    return module.startswith(f"{sources.PACKAGE}.")


def _function(function: types.FunctionType, met: dict[int, int]) -> Iterator[str]:
    module, code = function.__module__ or "", function.__code__
    if module.split(".")[0] in VERSIONED and not hasattr(function, "__written__"):
        yield f"{module}.{function.__qualname__}"
        return
    yield from _words(function.__defaults__, met)
    for cell in function.__closure__ or ():
        if cell != types.CellType():                                               # a name that is not bound yet
            yield from _words(cell.cell_contents, met)
    if hasattr(function, "__written__"):
        yield function.__written__
        yield from _named(function, met)
    elif _is_ours(module) and code.co_filename == getattr(sys.modules.get(module), "__file__", ""):
        yield from (module, function.__qualname__, str(code.co_firstlineno), sources.digest(module))
    else:
        yield from _words(_Code(code), met)
        yield from _named(function, met)


class _Code:
    """Instructions, which are those of a version of Python."""

    def __init__(self, code: types.CodeType) -> None:
        self._code = code

    def content(self) -> str:
        code = self._code
        constants = [_Code(c).content() if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
        return repr((sys.version_info[:2], code.co_code, code.co_argcount, code.co_flags, code.co_names,
                     code.co_varnames, constants))


def _named(function: types.FunctionType, met: dict[int, int]) -> Iterator[str]:
    """What a function, and those written within it, read by name from where they were made."""
    for name in sorted(set(names_in(function.__code__))):
        if name in function.__globals__:
            yield name
            yield from _words(function.__globals__[name], met)
        elif not hasattr(builtins, name):
            yield name


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names that a function, and those written within it, read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)
