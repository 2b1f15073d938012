"""Tensors' methods that change element types. In a file of their own: a class that has a method `float` cannot annotate with it."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import CODES
from ..system.errors import TypeMismatchError
from .methods import Made, Methods


class Casts(Methods[Made]):
    """What the class of tensors has from here, named as torch.Tensor's methods."""

    __slots__ = ()

    def to(self, dtype: Any) -> Made:
        """As another element type: NumPy's name ("float16"), or whatever NumPy takes for one."""
        name = dtype if isinstance(dtype, str) and dtype in CODES else _name(dtype)
        return self if name == self.dtype else self.apply("Cast", to=name)          # type: ignore[return-value]

    def type_as(self, other: Casts[Any]) -> Made:
        return self.to(other.dtype)

    def float(self) -> Made:
        return self.to("float32")

    def double(self) -> Made:
        return self.to("float64")

    def half(self) -> Made:
        return self.to("float16")

    def bfloat16(self) -> Made:
        return self.to("bfloat16")

    def long(self) -> Made:
        return self.to("int64")

    def int(self) -> Made:
        return self.to("int32")

    def bool(self) -> Made:
        return self.to("bool")


def _name(dtype: Any) -> str:
    """Our name of an element type."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        raise TypeMismatchError(f"There is no element type {dtype!r}; they are {', '.join(CODES)}.") from None
