"""Leaves that other leaves call by an address in their argument block: what is done to finished elements, above all.

    call = caller("follow", "rest, i, j")

    def product(a, b, c, m, n, lo, hi, then, rest):             # Leaf(product, "..., lo, hi" + CALLED)
        ...
        call(then, rest, i, j)                                  # of then == 0 nothing comes

    follow = Leaf(function, "i8, i8, i8")                       # of the words rest, i and j
    Call(leaf, [a, b, c, m, n, Address(follow, parse("f4[:]")), addend], ...)

So the caller's machine code is one, whatever follows. The words lie on the caller's stack, where the called leaf finds
them as it finds any argument block; what it alone reads lies behind the caller's own arguments, at `rest`.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa.paths import PATHS
from ..isa.vector import WORD, Emitter, inlined_code, word

CALLED = ", i8, rest"
"""What the signature of a leaf that calls another ends with: that one's address, and where its arguments begin."""


@functools.cache
def caller(name: str, words: str) -> Any:
    """The function `name(leaf, *words)`, all intp: runs the leaf at that address, whose parameters are those
    words; nothing where it is 0."""
    # A call asks nothing of a path, and one that came with the path of its first use would be part of others' names.
    return inlined_code(f"call_{name}", f"leaf, {words}", PATHS["generic"], _call)


def _call(e: Emitter, leaf: Any, *words: Any) -> None:
    block = e.b.alloca(WORD, size=word(len(words)))
    with e.when(e.b.icmp_signed("!=", leaf, word(0))):
        for i, value in enumerate(words):
            e.b.store(value, e.b.gep(block, [word(i)]))
        function = e.b.inttoptr(leaf, ir.FunctionType(WORD, [WORD] * 4).as_pointer())
        e.b.call(function, [e.b.ptrtoint(block, WORD), word(0), word(1), word(0)])
