"""Small leaves the engine itself needs: clear memory, copy memory, check that a loss or a gradient is finite."""
from __future__ import annotations

import numpy as np

from .leaf import generic, leaf


@leaf("u8[r]")
def clear(x):                                          # type: ignore[no-untyped-def]
    """Zero 8-byte words."""
    for i in range(x.shape[0]):
        x[i] = 0


@generic("T[r], T[r]", dtypes=("u1", "u2", "u4", "u8"))
def copy(x, y):                                        # type: ignore[no-untyped-def]
    """Copy elements x -> y, whatever they mean."""
    for i in range(x.shape[0]):
        y[i] = x[i]


@generic("T[r]", checked=True)
def finite(x):                                         # type: ignore[no-untyped-def]
    """Status NOT_FINITE (1) where an element is NaN or infinite."""
    bad = 0
    for i in range(x.shape[0]):                        # no early return: it would keep the loop scalar
        bad += not np.isfinite(x[i])
    return min(bad, 1)
