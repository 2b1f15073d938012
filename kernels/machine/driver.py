"""The driver's functions (`claim`) as Python calls them, which lets go of its lock meanwhile: one object, for no CPU
path in particular."""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

from ..isa.paths import PATHS
from ..isa.target import Target
from . import content, sources, stored

_FUNCTIONS = {"serve": 4, "drive": 1, "quit": 1}
"""How many words they take. Each returns one."""


@dataclass(frozen=True)
class Driver:
    """`claim`'s functions of these names."""

    serve: Callable[..., int]
    drive: Callable[..., int]
    quit: Callable[..., int]


class Slice:
    """What `drive` is asked for, in memory that lives as long as this: six words."""

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * 6)()
        self._address = ctypes.addressof(self._words)
        self._drive = driver().drive
        self._asked: tuple[int, ...] = ()

    def run(self, *asked: int) -> int:
        """A slice for (pool, root, boards, tasks, workers, nanoseconds): as it ended."""
        if asked != self._asked:
            self._words[:] = [*asked]
            self._asked = asked
        return self._drive(self._address)


@functools.cache
def driver() -> Driver:
    """The compiled functions, from the cache where it has them."""
    target = Target.of(PATHS["generic"])
    key = _key(target)
    name = f"{sources.PACKAGE}.machine.driver-{key}"
    code = stored.load(name) or _compiled(name, key, target)
    words = [ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count) for count in _FUNCTIONS.values()]
    return Driver(*(kind(address) for kind, address in zip(words, code.addresses, strict=True)))


def _key(target: Target) -> str:
    """Of what the functions say, and of what writes their code."""
    return content.digest(*(sources.digest(f"{sources.PACKAGE}.machine.{name}") for name in ("claim", "words")), target)


def _compiled(name: str, key: str, target: Target) -> stored.Code:

    from . import build, claim, words  # a start with the driver in the cache needs no compiler
    entries = [build.Entry(f"tileflow_{what}_{key}", words.emitted(getattr(claim, f"_{what}")), count)
               for what, count in _FUNCTIONS.items()]
    made, given = build.built(entries, target)
    return stored.keep(name, "driver", [entry.symbol for entry in entries], given, made)
