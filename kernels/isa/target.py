"""What machine code is made for: the processor and the features of a CPU path, never the very processor that compiles.

So code of one path is the same wherever it is made, and may be carried to every machine that has the path.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .features import x86
from .paths import Cpu

_UNUSED = "movbe gfni vaes vpclmulqdq avxvnni"
"""Features that a path's processor may have, the compiler would use by itself, and a machine may lack that has all the
path needs."""
_forced: list[Target] = []


@dataclass(frozen=True)
class Target:
    """A processor and its features, as LLVM writes them ("+avx2,-movbe")."""

    processor: str
    features: str

    @staticmethod
    def of(path: Cpu) -> Target:
        """What code of a path is made for."""
        if _forced:
            return _forced[-1]
        if not x86():
            return Target("generic", "")
        left_out = {*_UNUSED.split()} | ({"avx512fp16"} if path.amx and not path.multiplies_halves else set())
        has = [f"+{name}" for name in path.features.split() if name not in left_out]
        return Target(path.processor, ",".join([*has, *(f"-{name}" for name in sorted(left_out))]))


@contextmanager
def forced(target: Target) -> Iterator[None]:
    """Make code for another processor that has the path's features within the block: to see that its bits are the same
    (tests)."""
    _forced.append(target)
    try:
        yield
    finally:
        _forced.pop()
