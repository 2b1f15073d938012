"""Machine code in the cache: what Numba made once is run from then on without its compiler.

Numba's own way back from a cache begins with all that a compilation would need, its tables of typing and of implementations, which takes several
times as long as the code itself. Here object code goes to the linker as it is. A function that Python calls also has Numba's wrapper, which reads
Python's integers and lets go of the interpreter's lock.
"""
from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import binding
from numba import _dynfunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps, loads

from . import cache


@dataclass(frozen=True)
class Code:
    """Machine code that is ready: the C address of the function, and the function for Python where it was made to be called from there."""

    address: int
    function: Callable[..., Any] | None = None


@functools.cache
def _context() -> Any:
    """Numba's target, with the parts of its runtime that object code may name."""
    context = cpu_target.target_context
    rtsys.initialize(context)
    return context


@functools.cache
def target() -> str:
    """A few letters for what code is made for: the processor and its features as LLVM has them."""
    return hashlib.sha256(repr(_context().codegen().magic_tuple()).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class _Kept:
    """What the cache holds of a compilation.

    symbol: of the C function. wrapper: of the function that Python calls, "" without one. environments: what Numba's code looks up in Python.
    """

    objects: bytes
    symbol: str
    wrapper: str
    module: str
    environments: tuple[Any, ...]

    def ready(self, engine: Any) -> Code:
        """The code where the linker has put it."""
        _ENVIRONMENTS.extend(self.environments)
        for environment in self.environments:
            _context().codegen().set_env(environment.env_name, environment)
        address = engine.get_function_address(self.symbol)
        if not self.wrapper:
            return Code(address)
        call = _dynfunc.make_function(importlib.import_module(self.module), self.symbol, "compiled", engine.get_function_address(self.wrapper),
                                      self.environments[0], ())
        return Code(address, call)


_ENVIRONMENTS: list[Any] = []
"""Machine code knows them by their addresses, and is never unloaded."""


@global_compiler_lock
def load(name: str) -> Code | None:
    """The code that the cache has under that name, ready to run; None where it has none."""
    payload = cache.read(name)
    if payload is None:
        return None
    kept = _Kept(*loads(payload))
    engine = _context().codegen()._engine
    engine._ee.add_object_file(binding.ObjectFileRef.from_data(kept.objects))
    engine.finalize_object()
    return kept.ready(engine)


@global_compiler_lock
def keep(name: str, shown: str, result: Any, wrapped: bool = False) -> Code:
    """The code of a compilation just done, which goes into the cache under that name.

    Args:
        shown: what those who listen to compilations are told.
        result: Numba's result of it.
        wrapped: Python calls the function; else only its C function is there.
    """
    cache.told(shown)
    library, described = result.library, result.fndesc
    address = library.get_pointer_to_function(described.llvm_cfunc_wrapper_name)          # makes the object code, where that is still to do
    wrapper = described.llvm_cpython_wrapper_name if wrapped else ""
    kept = (library._get_compiled_object(), described.llvm_cfunc_wrapper_name, wrapper, described.modname,
            tuple(result._find_referenced_environments()))
    cache.write(name, dumps(kept))
    return Code(address, result.entry_point if wrapped else None)
