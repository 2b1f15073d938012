"""Machine code in the cache, or in the pack that came with the package: objects that stand alone (`build`), which are
linked as they are and need no compiler, nor Numba."""
from __future__ import annotations

import ctypes
import functools
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import binding

from . import cache, pack

_MATHEMATICS = ("acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor fmod log log1p pow rint sin "
                "sinh sqrt tan tanh ceilf expf floorf fmodf logf nearbyintf powf rintf roundf sqrtf truncf")
OUTSIDE = frozenset({"memset", "memcpy", "memmove", "sched_yield", "clock_gettime", "syscall", "pthread_mutex_lock",
                     "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast", *_MATHEMATICS.split()})
"""What objects may ask of others: the system's memory, threads and clock, and the C library's mathematics, for float64
mostly."""
_linking = threading.RLock()


@dataclass(frozen=True)
class Code:
    """Machine code that is ready: the C addresses of its entries."""

    addresses: tuple[int, ...]

    @property
    def address(self) -> int:
        """Of the one entry."""
        return self.addresses[0]


@functools.cache
def _engine() -> Any:
    """What links objects into the process."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    return binding.create_mcjit_compiler(binding.parse_assembly(""), target.create_target_machine(jit=True))


_linked: dict[str, Code] = {}
"""Objects in the process, by their names: a symbol is there once."""


def load(name: str) -> Code | None:
    """The code that the cache or the pack has under that name, ready to run; None where they have none."""
    with _linking:
        if name in _linked:
            return _linked[name]
        payload = cache.read(name) or pack.read(name)
        return None if payload is None else _link(name, payload)


def keep(name: str, shown: str, symbols: Sequence[str], given: str, made: bytes) -> Code:
    """An object just compiled, which goes into the cache under that name.

    Args:
        shown: what those who listen to compilations are told.
        symbols: its entries.
        given: a hash of what the compiler was given.
    """
    cache.told(shown)
    payload = json.dumps({"symbols": list(symbols), "given": given}).encode() + b"\n" + made
    cache.write(name, payload)
    with _linking:
        return _linked[name] if name in _linked else _link(name, payload)


def given(name: str) -> str:
    """The hash of what the compiler was given for the code of that name, which is in the cache."""
    payload = cache.read(name)
    assert payload is not None, name
    return str(json.loads(payload.partition(b"\n")[0])["given"])


@functools.cache
def _mathematics() -> dict[str, int]:
    """Where the C library's mathematics lies."""
    library = ctypes.CDLL(None)
    return {name: int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
            for name in _MATHEMATICS.split() if hasattr(library, name)}


def _link(name: str, payload: bytes) -> Code:
    head, _, made = payload.partition(b"\n")
    engine = _engine()
    if "numba" in sys.modules:                             # names other versions of these, whose NaN have another sign
        for symbol, address in _mathematics().items():
            binding.add_symbol(symbol, address)
    engine.add_object_file(binding.ObjectFileRef.from_data(made))
    engine.finalize_object()
    return _linked.setdefault(name, Code(tuple(engine.get_function_address(symbol)
                                               for symbol in json.loads(head)["symbols"])))
