"""How tensors lie in memory: they begin on cache lines and take whole blocks of elements."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..memory.types import TensorType

ALIGN = 64
"""Bytes: one cache line and one AVX-512 register."""
BLOCK = 64
"""Elements: tensors that lie side by side begin at multiples of it, whatever their types, so that rows over neighbours of several types are one."""


def padded(nbytes: int, align: int = ALIGN) -> int:
    """`nbytes` rounded up to whole lines, or to a multiple of `align`."""
    return -(-nbytes // align) * align


def blocks(count: int) -> int:
    """`count` elements rounded up to whole blocks."""
    return -(-count // BLOCK) * BLOCK


def padded_nbytes(t: TensorType) -> int:
    """Bytes that a tensor takes: whole blocks of elements, in which nothing else lies."""
    return blocks(t.size) * t.itemsize


def aligned(nbytes: int) -> np.ndarray:
    """Zeroed bytes that start on a cache line, with the last line whole."""
    raw = np.zeros(padded(nbytes) + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start:start + padded(nbytes)]
