"""Small leaves the engine itself needs: clear memory, copy memory, check that a loss or a gradient is finite."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .leaf import Leaf, generic


@generic("T[r]", dtypes=("u1", "u2", "u4", "u8"))
def clear(x):                                          # type: ignore[no-untyped-def]
    """Zero elements, whatever they mean."""
    for i in range(x.shape[0]):
        x[i] = 0


@generic("T[r], T[r]", dtypes=("u1", "u2", "u4", "u8"))
def copy(x, y):                                        # type: ignore[no-untyped-def]
    """Copy elements x -> y, whatever they mean."""
    for i in range(x.shape[0]):
        y[i] = x[i]


@functools.cache
def finite(dtype: str) -> Leaf:
    """The leaf that refuses (status NOT_FINITE) elements that are NaN or infinite."""
    if dtype in EXPONENTS:
        return Leaf(_finite_half(EXPONENTS[dtype]), "u2[r]", checked=True, key=dtype)
    return _finite[dtype]


EXPONENTS = {"f2": 0x7C00, "b2": 0x7F80}
"""The exponent bits of 16-bit floats: all set in NaN and infinities."""


def _finite_half(exponent: int) -> Any:
    def finite_half(x):                                # type: ignore[no-untyped-def]
        bad = 0
        for i in range(x.shape[0]):
            bad += (x[i] & exponent) == exponent
        return min(bad, 1)
    return finite_half


@generic("T[r]", checked=True)
def _finite(x):                                         # type: ignore[no-untyped-def]
    """Status NOT_FINITE (1) where an element is NaN or infinite."""
    bad = 0
    for i in range(x.shape[0]):                        # no early return: it would keep the loop scalar
        bad += not np.isfinite(x[i])
    return min(bad, 1)
