"""The best k of n elements, in order, by their bits alone: the first of equals first, and NaN above all numbers.

An element's *key* is an unsigned integer of its size that is the smaller the better it is. A few of very many are kept in a heap, whose worst
key is what a block of keys is compared with at once. Otherwise the keys' leading bits are counted, which tells those that can be among the best,
and these are sorted by their bytes: no branch depends on the numbers.
"""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .dtypes import BITS, ELEMENTS
from .machine.call import Call, In, Out, Work
from .machine.leaf import Leaf

STRIP = 16                # lines whose keys are made together where they lie side by side
LEADING = 11              # bits that are counted
BLOCK = 64                # keys that are compared with the worst at once
MANTISSAS = {"f2": 10, "b2": 7, "f4": 23, "f8": 52}
"""Bits of the fraction of the floats that are ranked."""


def _key(dtype: str, largest: bool) -> Any:
    """The key of an element's bits."""
    width = 8 * int(dtype[1:])
    number = np.dtype(f"u{width // 8}").type
    top, ones, zero = number(1 << (width - 1)), number((1 << width) - 1), number(0)
    mantissa = MANTISSAS.get(dtype, 0)
    infinity = number((1 << (width - 1)) - (1 << mantissa))
    kind = ELEMENTS[dtype].kind

    def of_float(b: Any) -> Any:
        size = number(b & (ones ^ top))
        if size > infinity:
            rank = ones                                   # not a number
        elif b & top:
            rank = number(top - size)                     # -0 is 0
        else:
            rank = number(b | top)
        return number(ones ^ rank) if largest else rank

    def of_int(b: Any) -> Any:
        rank = number(b ^ top)
        return number(ones ^ rank) if largest else rank

    def of_uint(b: Any) -> Any:
        return number(ones ^ b) if largest else number(b ^ zero)
    return {"float": of_float, "int": of_int}.get(kind, of_uint)


def _sift(keys: Any, places: Any, n: int, key: Any, place: int) -> None:
    """Put (key, place) at the root of a heap of n, whose worst is its root, and down to where it belongs."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and (keys[child + 1] > keys[child] or (keys[child + 1] == keys[child] and places[child + 1] > places[child])):
            child += 1
        if keys[child] < key or (keys[child] == key and places[child] < place):
            break
        keys[at], places[at] = keys[child], places[child]
        at = child
    keys[at], places[at] = key, place


def _select(keys: Any, n: int, k: int, best: Any, places: Any) -> None:
    """The places of the k smallest keys, in order."""
    filled = 0
    while filled < k:                                     # a heap of the first k, each new one brought up
        at = filled
        key = keys[filled]
        while at > 0:
            parent = (at - 1) // 2
            if best[parent] > key:
                break
            best[at], places[at] = best[parent], places[parent]
            at = parent
        best[at], places[at] = key, filled
        filled += 1
    for first in range(k, n, BLOCK):
        last = min(first + BLOCK, n)
        block = keys[first:last]
        least = block[0]
        for i in range(block.shape[0]):
            least = min(least, block[i])
        if least >= best[0]:
            continue
        for i in range(first, last):
            if keys[i] < best[0]:
                _sift(best, places, k, keys[i], i)
    for end in range(k - 1, 0, -1):                       # the worst to the end, again and again
        key, place = best[end], places[end]
        best[end], places[end] = best[0], places[0]
        _sift(best, places, end, key, place)


def _candidates(size: int) -> Any:
    shift = max(0, 8 * size - LEADING)

    def candidates(keys: Any, n: int, k: int, found: Any, places: Any, counts: Any) -> int:
        """Write the keys and places of all whose leading bits are at most those of the k-th best, in order of place; returns how many."""
        last = (1 << LEADING) - 1
        if k < n:
            for i in range(last + 1):
                counts[i] = 0
            for i in range(n):
                counts[keys[i] >> shift] += 1
            total, last = counts[0], 0
            while total < k:
                last += 1
                total += counts[last]
        count = 0
        for i in range(n):
            found[count], places[count] = keys[i], i
            count += int(int(keys[i] >> shift) <= last)
        return count
    return candidates


def _sort(size: int) -> Any:
    def sort(keys: Any, n: int, other: Any, places: Any, spare: Any, counts: Any) -> None:
        """Put keys, and their places, in order, equal ones as they come: byte by byte, the lowest first."""
        for byte in range(size):
            shift = 8 * byte
            for i in range(256):
                counts[i] = 0
            for i in range(n):
                counts[(keys[i] >> shift) & 255] += 1
            if counts[(keys[0] >> shift) & 255] == n:      # all alike
                continue
            at = 0
            for i in range(256):
                count = counts[i]
                counts[i] = at
                at += count
            for i in range(n):
                digit = (keys[i] >> shift) & 255
                to = counts[digit]
                counts[digit] = to + 1
                other[to], spare[to] = keys[i], places[i]
            for i in range(n):
                keys[i], places[i] = other[i], spare[i]
    return sort


def _top_k(key: Any, candidates: Any, sort: Any) -> Any:
    def top_k(x: Any, values: Any, indices: Any, keys: Any, other: Any, places: Any, spare: Any, counts: Any, lo: int, hi: int,
              n: int, k: int, inner: int, sorts: int) -> None:
        """The best k of x[o, :, i] into values[o, :, i] and their places into indices; a unit of range is STRIP lines (o, i) side by side."""
        strips = (inner + STRIP - 1) // STRIP
        for unit in range(lo, hi):
            o, left = unit // strips, unit % strips * STRIP
            width = min(STRIP, inner - left)
            start, to = o * n * inner + left, o * k * inner + left
            if inner == 1:
                line = x[start:start + n]
                for j in range(n):
                    keys[j] = key(line[j])
            else:
                for j in range(n):
                    row = x[start + j * inner:start + j * inner + width]
                    for i in range(width):
                        keys[i * n + j] = key(row[i])
            for i in range(width):
                own = keys[i * n:(i + 1) * n]
                if sorts:
                    sort(other, candidates(own, n, k, other, places, counts), own, places, spare, counts)
                else:
                    _select(own, n, k, other, places)
                for j in range(k):
                    place, at = places[j], to + j * inner + i
                    values[at], indices[at] = x[start + place * inner + i], place
    return top_k


@functools.cache
def top_k_leaf(dtype: str, largest: bool) -> Leaf:
    """x, values, indices flat, five arrays of scratch; n, k, inner, whether to sort all."""
    bits = BITS[ELEMENTS[dtype].bytes]
    size = int(bits[1:])
    body = _top_k(_key(dtype, largest), _candidates(size), _sort(size))
    return Leaf(body, f"{bits}[:], {bits}[:], i8[:], {bits}[w,:], {bits}[w,:], i8[w,:], i8[w,:], i8[w,:], lo, hi, i8, i8, i8, i8",
                key=f"{dtype}, {largest}")


def top_k_calls(dtype: str, outer: int, n: int, inner: int, k: int, largest: bool) -> list[Call]:
    """The Calls from x [outer, n, inner] to values and int64 places [outer, k, inner], 0 < k <= n."""
    bits = BITS[ELEMENTS[dtype].bytes]
    selecting = 0.6 * n + 8.0 * math.log2(k + 1) * k * (1.0 + math.log(n / k))
    sorting = (2.0 * n + 2000.0 if k < n else 1.0 * n) + int(bits[1:]) * (2.2 * min(n, k + n / 16) + 150.0)
    sorts = sorting < selecting
    width = min(inner, STRIP)
    units, ns = outer * -(-inner // STRIP), width * (min(selecting, sorting) + 1.0 * n)
    spare, lines = n if sorts else 1, outer * inner
    args = (In(0, (lines * n,)), Out(0, (lines * k,)), Out(1, (lines * k,)), Work("keys", (width * n,), bits), Work("other", (max(spare, k),), bits),
            Work("places", (max(spare, k),), "i8"), Work("spare", (spare,), "i8"), Work("counts", (1 << LEADING,), "i8"), n, k, inner, int(sorts))
    return [Call(top_k_leaf(dtype, largest), args, units, max(1, int(2000 / ns)), units * ns)]
