"""Looks at floats as bits: whether any is infinite or NaN, and how many are large. Without its sign bit a float's bits grow with its magnitude,
infinity lies above all numbers and NaN above infinity, in every type.

A leaf that finds something sets a word, from 0 to 1; whichever of several threads does so, the word is the same.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .dtypes import BITS, ELEMENTS
from .machine.call import Call, In, Out, Work
from .machine.guard import clear
from .machine.leaf import Leaf, leaf
from .machine.status import INFINITE, NAN

BLOCK = 16384
"""Elements of which one count is made."""
INFINITY = {"f2": 0x7C00, "b2": 0x7F80, "f4": 0x7F800000, "f8": 0x7FF0000000000000}
"""The bits of infinity."""


@functools.cache
def look(dtype: str) -> Leaf:
    """x, seen: seen[INFINITE] = 1 where the largest magnitude of a chunk is infinite, seen[NAN] = 1 where there is a NaN."""
    infinity = INFINITY[dtype]
    magnitude = (1 << 8 * ELEMENTS[dtype].bytes - 1) - 1

    def look(x: Any, seen: Any) -> None:
        most: Any = 0
        for i in range(x.shape[0]):
            most = max(most, np.int64(x[i]) & magnitude)
        if most > infinity:
            seen[NAN] = 1
        elif most == infinity:
            seen[INFINITE] = 1
    return Leaf(look, f"{BITS[ELEMENTS[dtype].bytes]}[r], i8[:]", key=dtype)


@leaf("i8[:], b1[:]")
def nothing_seen(seen, y):                              # type: ignore[no-untyped-def]
    """y[0]: neither NaN nor infinity was seen."""
    y[0] = seen[INFINITE] == 0 and seen[NAN] == 0


@leaf("i8[:], i8[:]")
def join(seen, into):                                   # type: ignore[no-untyped-def]
    """What was seen in one was seen in both."""
    for i in range(2):
        into[i] = into[i] | seen[i]


@leaf("i8[:], i8[:]", checked=True)
def judge(made, given):                                 # type: ignore[no-untyped-def]
    """Status NOT_FINITE (1) where NaN was made of numbers and infinities, or an infinity of numbers."""
    return 1 if (made[NAN] > given[NAN]) or (made[INFINITE] > max(given[INFINITE], given[NAN])) else 0


@functools.cache
def _count(dtype: str) -> Leaf:
    magnitude = (1 << 8 * ELEMENTS[dtype].bytes - 1) - 1

    def count_large(x: Any, y: Any, lo: int, hi: int, least: int) -> None:
        """y[i] = how many of block i have at least these bits."""
        for block in range(lo, hi):
            part = x[block * BLOCK:min((block + 1) * BLOCK, x.shape[0])]
            found: Any = 0
            for i in range(part.shape[0]):
                found += (np.int64(part[i]) & magnitude) >= least
            y[block] = found
    return Leaf(count_large, f"{BITS[ELEMENTS[dtype].bytes]}[:], i8[:], lo, hi, i8", key=dtype)


@leaf("i8[:], f8[:]")
def _total(x, y):                                       # type: ignore[no-untyped-def]
    found = 0
    for i in range(x.shape[0]):
        found += x[i]
    y[0] = found


def looks(dtypes: Sequence[str], sizes: Sequence[int], seen: Any) -> list[Call]:
    """The Calls that look at inputs 0, 1, … and leave in `seen` (two int64) what they found."""
    found = [Call(look(dtype), (In(i, (n,)), seen), n, 4096, 10.0 + n * ELEMENTS[dtype].bytes / 30.0, True)
             for i, (dtype, n) in enumerate(zip(dtypes, sizes, strict=True)) if n]
    return [Call(clear["u8"], (seen,), 2, 2, 5.0), *found]


def all_finite_calls(dtypes: Sequence[str], sizes: Sequence[int]) -> list[Call]:
    """The Calls that say in output 0 whether inputs 0, 1, … are finite everywhere."""
    seen = Work("seen", (2,), "i8")
    return [*looks(dtypes, sizes, seen), Call(nothing_seen, (seen, Out(0, (1,))), 1, 1, 5.0)]


def judge_calls(inputs: int) -> list[Call]:
    """The Calls that fail where input 0 saw what none of the inputs that follow it saw."""
    given = Work("given", (2,), "i8")
    joined = [Call(join, (In(i, (2,)), given), 1, 1, 5.0) for i in range(1, inputs)]
    return [Call(clear["u8"], (given,), 2, 2, 5.0), *joined, Call(judge, (In(0, (2,)), given), 1, 1, 5.0)]


def count_calls(dtype: str, size: int, edge: float) -> list[Call]:
    """The Calls that count in output 0 the elements of input 0 whose magnitude is at least `edge`, NaN being larger than anything."""
    blocks = -(-size // BLOCK)
    counts = Work("counts", (max(1, blocks),), "i8")
    first = Call(_count(dtype), (In(0, (size,)), counts, bits_at_least(dtype, edge)), blocks, 1, 10.0 + 0.1 * size)
    last = Call(_total, (Work("counts", (blocks,), "i8"), Out(0, (1,))), 1, 1, 10.0 + blocks)
    return [first, last] if size else [Call(clear["u8"], (Out(0, (1,)),), 1, 1, 5.0)]


def bits_at_least(dtype: str, edge: float) -> int:
    """The bits of the smallest number of the type that is not below `edge` (>= 0)."""
    low, high = 0, INFINITY[dtype]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _number(dtype, middle) >= edge else (middle + 1, high)
    return low


def _number(dtype: str, bits: int) -> float:
    """The number with these bits."""
    if bits == INFINITY[dtype]:
        return math.inf
    if dtype == "b2":
        return float(np.array(bits << 16, np.uint32).view(np.float32))
    return float(np.array(bits, BITS[ELEMENTS[dtype].bytes]).view(dtype))
