"""A tensor by name, for who knows no graph."""
from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches NumPy the names of 16-bit and narrow types)
import numpy as np

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
    def room(self) -> int:
        """Bytes that it takes: whole blocks of elements, in which nothing else lies."""
        return blocks(math.prod(self.shape)) * self.numpy.itemsize
