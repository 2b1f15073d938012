"""Leaves that are LLVM's code from the beginning: emitted over the argument block itself, so that any number of
arguments compiles, and sooner: no syntax tree is walked."""
from __future__ import annotations

import functools
from typing import Any

from ..isa import cpu
from ..isa.vector import WORD, Emit, Emitter, define
from . import build
from .leaf import Leaf


class EmittedLeaf(Leaf):
    """A leaf whose code `emit(emitter, block, lo, hi)` makes for a path, and after which it is called; a `checked` one
    gives the status. `key` tells all that shapes it."""

    def __init__(self, emit: Emit, signature: str, *, key: str, path: cpu.Cpu, checked: bool = False) -> None:
        super().__init__(emit, signature, key=key, checked=checked)
        self._define = functools.partial(define, name=f"{self.name}_{key}", parameters=3, path=path, emit=emit,
                                         status=checked)

    def _entry(self) -> build.Emitted:
        return build.Emitted(self._define)


def signature_of(names: str) -> str:
    """The signature of a leaf of these whole numbers."""
    return ", ".join(["i8"] * (names.count(",") + 1))


def words_of(e: Emitter, block: Any, names: str) -> list[Any]:
    """The words of a block that names of whole numbers, separated by commas, stand for."""
    return [e.load(e.address(block, 8 * i), WORD) for i in range(names.count(",") + 1)]
