"""What tells the code of a user's function from another's: a digest of all that it reads, or None where something
cannot be told.

Stricter than what names kernels (`kernels/machine/content.py`): modules and classes that somebody may edit are no
names.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..kernels.machine import content

KNOWN = {*sys.stdlib_module_names, "numpy", "numba", "math"}
"""Modules whose code has a version that is part of what keys are made of."""
PACKAGE = __name__.partition(".")[0]


def digest(values: Iterable[Any]) -> str | None:
    """A digest of functions and classes as they are now, with all that these read by name; None: it reads what nobody
    can tell."""
    found = list(values)
    try:
        met: dict[int, Any] = {}
        for value in found:
            _require(value, met)
        return content.digest(*found, *(f.__kwdefaults__ for f in found if isinstance(f, types.FunctionType)))
    except TypeError:
        return None


def _require(value: Any, met: dict[int, Any]) -> None:
    """Raise TypeError where a value says nothing of what it is. `met`: those that were asked, by their ids."""
    value = getattr(value, "py_func", value)
    if id(value) in met or isinstance(value, content.PLAIN):
        return
    met[id(value)] = value
    if isinstance(value, types.FunctionType):
        if not _known(value.__module__):
            for inner in _read(value):
                _require(inner, met)
    elif isinstance(value, tuple | list | set | frozenset):
        for inner in value:
            _require(inner, met)
    elif isinstance(value, Mapping):
        for inner in (*value.keys(), *value.values()):
            _require(inner, met)
    elif isinstance(value, np.ufunc):
        if getattr(np, value.__name__, None) is not value:
            raise TypeError("a ufunc of a package whose version nobody knows")
    elif isinstance(value, types.ModuleType):
        if not _known(value.__name__):
            raise TypeError(f"the module {value.__name__}")
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of objects")
    elif not callable(value) or not hasattr(value, "__name__") or not _known(getattr(value, "__module__", "") or ""):
        raise TypeError(f"a {type(value).__name__}")


def _known(module: str) -> bool:
    return module.partition(".")[0] in {*KNOWN, PACKAGE} and module != "__main__"


def _read(function: types.FunctionType) -> Iterator[Any]:
    """What a function has at hand besides its arguments."""
    yield from (function.__defaults__ or (), function.__kwdefaults__ or {})
    yield from (cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType())
    for name in content.names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
