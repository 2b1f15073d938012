"""The on-disk compile cache: machine code keyed by what was compiled, invalidated by any change in any kernel source.

Numba's own cache looks at one file's time stamp and at a function's name, so it misses edits in a callee's file and
can return the code of another dtype (two signatures of one body share file, line and name). Here the folder carries a
hash of every kernel source, and each function's qualified name a hash of everything that shapes its code.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import Cache, CompileResultCacheImpl, _CacheLocator

on_compile: list[Callable[[str], None]] = []
"""Called with a leaf's name each time machine code is made anew (not when it is read from disk)."""


def root() -> Path:
    """The cache folder: `TILEFLOW_CACHE_DIR`, else the platform's user cache folder."""
    if chosen := os.environ.get("TILEFLOW_CACHE_DIR"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tileflow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tileflow"


def _name_apart() -> None:
    """Let Numba number functions from a random start.

    It tells closures of one source apart by a counter of the process, in the names of their symbols. Cached code brings such names from
    other processes; where two agree the linker takes the one it has met first, and a kernel would run the inner function of another.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(6), "little"))


_name_apart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_name_apart)


@functools.cache
def source_hash() -> str:
    """A hash of every file in this package and of the Numba version: what compiled code can depend on."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).resolve().parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def folder() -> Path:
    """Where this version's compiled kernels lie."""
    return root() / f"kernels-{source_hash()}"


def writable() -> bool:
    """Whether compiled kernels can be kept for other processes."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder(), os.W_OK)


class _Locator(_CacheLocator):
    def get_cache_path(self) -> str:
        return str(folder())

    def get_source_stamp(self) -> str:
        return source_hash()

    def get_disambiguator(self) -> str:
        return "leaf"

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        locator = cls()
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _Impl(CompileResultCacheImpl):
    _locator_classes: ClassVar[list[Any]] = [_Locator]


class KernelCache(Cache):
    """A Numba function cache in our folder; reports each real compilation to `on_compile`."""

    _impl_class = _Impl

    def save_overload(self, sig: Any, data: Any) -> None:
        for listener in on_compile:
            listener(self._py_func.__name__)
        with contextlib.suppress(OSError):          # a full or read-only disk costs the next start some seconds, never this run
            super().save_overload(sig, data)


def enable(compiled: Any, function: Any) -> None:
    """Give a Numba dispatcher or CFunc our cache; without a writable folder it compiles afresh each process."""
    with contextlib.suppress(RuntimeError):
        compiled._cache = KernelCache(function)
