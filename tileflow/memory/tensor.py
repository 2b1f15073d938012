"""Tensors for who knows no graph: by name, their kinds, the reach of their types."""
from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches NumPy the names of 16-bit and narrow types)
import numpy as np

from ..kernels.dtypes import FLOATS, NARROW
from ..system.errors import DataError
from .alignment import blocks


@dataclass(frozen=True)
class Tensor:
    """A name, an element type (NumPy's name) and a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.numpy.itemsize

    @property
    def padded_nbytes(self) -> int:
        """Bytes that it takes: whole blocks of elements, in which nothing else lies."""
        return blocks(math.prod(self.shape)) * self.numpy.itemsize


def kind_of(dtype: np.dtype) -> str:
    """NumPy's kind letter, with bfloat16 (which NumPy takes for a stranger) among the floats: b, i, u, f ...; V for
    narrow elements."""
    return "f" if dtype.name in FLOATS else "V" if dtype.name in NARROW else dtype.kind


def check_reach(array: np.ndarray, dtype: str, name: str) -> None:
    """Raise DataError where numbers that are finite would not be so as `dtype`."""
    if kind_of(array.dtype) == "f" and np.dtype(dtype).itemsize < array.dtype.itemsize:
        with np.errstate(over="ignore"):
            lost = np.isfinite(array) & ~np.isfinite(array.astype(dtype))
        if lost.any():
            largest = float(np.max(np.abs(array), where=lost, initial=0.0))
            raise DataError(f"{name!r} holds {largest:.4g}, which is beyond the reach of {dtype}; take bfloat16 or "
                            f"float32 for it (keep_float32='{name}'), or scale it.")
