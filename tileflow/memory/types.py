"""Element types and tensor types."""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16; comes with onnx)
import numpy as np

from ..kernels.dtypes import CODES, ELEMENTS, FLOATS, HALVES, NARROW

__all__ = ["CODES", "FLOATS", "HALVES", "HIGHEST_RANK", "NARROW", "TensorType", "broadcast_shapes", "dtype_of",
           "packing", "type_of", "widest"]

HIGHEST_RANK = 32
"""Dimensions of a tensor: as many as NumPy broadcasts."""


@dataclass(frozen=True)
class TensorType:
    """An element type (a key of CODES, NumPy's names) and a static shape."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.dtype in CODES, self.dtype
        assert all(isinstance(n, int) and n >= 0 for n in self.shape), self.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(self.dtype)

    @property
    def code(self) -> str:
        """The kernels' letters: 'f4' for float32 and so on."""
        return CODES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_half(self) -> bool:
        return self.dtype in HALVES

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def widest(dtypes: set[str]) -> str:
    """The narrowest type that holds the numbers of all these floats; float16 and bfloat16 together make float32."""
    return "float32" if dtypes == set(HALVES) else max(dtypes, key=FLOATS.index)


def dtype_of(code: str) -> str:
    """The element type that kernels call `code`."""
    return ELEMENTS[code].name


def packing(dtype: str) -> int:
    """Elements of a type in a byte of a file: 2 of int4, 4 of int2, else 1. In memory each has bytes of its own."""
    return ELEMENTS[CODES[dtype]].packed


def type_of(array: np.ndarray) -> TensorType:
    """The type of a NumPy array."""
    return TensorType(array.dtype.name, array.shape)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that multidirectional (NumPy) broadcasting gives, of any rank and size, or None where the shapes do not fit."""
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return first
    result = []
    for sizes in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1 or min(wide, default=1) < 0:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result[::-1])
