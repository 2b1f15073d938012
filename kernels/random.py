"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011) and dropout.

A number depends only on its key (seed, stream) and its counter (element, micro-batch), so a recomputed or split pass, a
resumed run or another schedule draws the same ones. Element i takes word i % 4 of the block with counter
(i // 4 low, i // 4 high, micro-batch, seed high) and key (seed low, stream).
"""
from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import njit

from .leaf import Leaf

U4, U8 = np.uint32, np.uint64
MULTIPLIERS = (U8(0xD2511F53), U8(0xCD9E8D57))
WEYL = (U4(0x9E3779B9), U4(0xBB67AE85))
ROUNDS = 10
_M0, _M1 = MULTIPLIERS
_W0, _W1 = WEYL
_LOW, _32 = U8(0xFFFFFFFF), U8(32)


@njit
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four random uint32 from four uint32 of counter and two of key."""
    for _ in range(ROUNDS):
        p0, p1 = _M0 * U8(c0), _M1 * U8(c2)
        c0, c1, c2, c3 = U4(U4(p1 >> _32) ^ c1 ^ k0), U4(p1 & _LOW), U4(U4(p0 >> _32) ^ c3 ^ k1), U4(p0 & _LOW)
        k0, k1 = U4(k0 + _W0), U4(k1 + _W1)
    return c0, c1, c2, c3


def philox_numpy(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """The same in NumPy: counters [n, 4] uint32 to [n, 4] uint32."""
    c0, c1, c2, c3 = (counter[:, i].astype(U8) for i in range(4))
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ U8(k0), p1 & _LOW, (p0 >> _32) ^ c3 ^ U8(k1), p0 & _LOW
        k0, k1 = (k0 + int(_W0)) & 0xFFFFFFFF, (k1 + int(_W1)) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], 1).astype(U4)


def uniform_bits(n: int, seed: int, stream: int, micro: int) -> np.ndarray:
    """The random uint32 of elements 0..n-1 (the NumPy twin of what the kernels draw)."""
    block = np.arange(-(-n // 4), dtype=U8)
    counter = np.empty((block.size, 4), U4)
    counter[:, 0], counter[:, 1] = block & _LOW, block >> _32
    counter[:, 2], counter[:, 3] = micro & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    return philox_numpy(counter, (seed & 0xFFFFFFFF, stream & 0xFFFFFFFF)).reshape(-1)[:n]


def threshold(ratio: float) -> int:
    """An element is dropped where its random uint32 lies below this: a share `ratio` of them, to 2^-32."""
    return round(ratio * 2 ** 32)


def _dropout(x: Any, y: Any, lo: int, hi: int, seed: int, micro: int, stream: int, below: int, scale: Any) -> None:
    """y = x * scale where kept, 0 where dropped; a unit of range is a block of four elements."""
    n, limit = y.shape[0], U8(below)
    k0, k1, c2, c3 = U4(seed), U4(stream), U4(micro), U4(seed >> 32)
    for block in range(lo, hi):
        words = philox(U4(block), U4(block >> 32), c2, c3, k0, k1)
        first = block * 4
        source, target = x[first:min(first + 4, n)], y[first:min(first + 4, n)]
        if target.shape[0] == 4:
            target[0] = source[0] * scale if U8(words[0]) >= limit else 0
            target[1] = source[1] * scale if U8(words[1]) >= limit else 0
            target[2] = source[2] * scale if U8(words[2]) >= limit else 0
            target[3] = source[3] * scale if U8(words[3]) >= limit else 0
        else:
            for i in range(target.shape[0]):
                word = words[0] if i == 0 else words[1] if i == 1 else words[2]
                target[i] = source[i] * scale if U8(word) >= limit else 0


def _mask(y: Any, lo: int, hi: int, seed: int, micro: int, stream: int, below: int) -> None:
    """y = 1 where kept, 0 where dropped."""
    limit = U8(below)
    k0, k1, c2, c3 = U4(seed), U4(stream), U4(micro), U4(seed >> 32)
    for block in range(lo, hi):
        words = philox(U4(block), U4(block >> 32), c2, c3, k0, k1)
        target = y[block * 4:block * 4 + 4]
        for i in range(target.shape[0]):
            word = words[0] if i == 0 else words[1] if i == 1 else words[2] if i == 2 else words[3]
            target[i] = U8(word) >= limit


@functools.cache
def dropout(dtype: str) -> Leaf:
    """x, y flat; range: blocks of four; seed, micro-batch, stream, threshold, scale."""
    return Leaf(_dropout, f"{dtype}[:], {dtype}[:], lo, hi, i8, i8, i8, i8, {dtype}")


@functools.cache
def dropout_mask() -> Leaf:
    """y flat (bool as bytes); range: blocks of four; seed, micro-batch, stream, threshold."""
    return Leaf(_mask, "u1[:], lo, hi, i8, i8, i8, i8")
