"""Where things lie, inside of leaf bodies: addresses of arrays, and the part of a strided walk that stays on an axis."""
from __future__ import annotations

from typing import Any

import numpy as np

from .inner import register_jitable


@register_jitable
def address_of(x: Any) -> Any:
    """The address of an array, signed: mixed with Numba's unsigned one, sums would become floats."""
    return np.intp(x.ctypes.data)


@register_jitable
def within(first: int, count: int, step: int, limit: int) -> tuple[int, int]:
    """The part i0..i1 of i < count for which first + i * step is in 0..limit."""
    i0 = min(count, max(0, (step - 1 - first) // step))
    i1 = min(count, max(i0, (limit - 1 - first) // step + 1))
    return i0, i1
