"""Arithmetic on the numbers of an update: those that are known while it is built are computed then, the others become nodes."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ..memory.types import TensorType

if TYPE_CHECKING:
    from ..graph import Builder, Value

Number = Union[float, "Value"]
"""A float64 number: a constant, or a 0-d value that every update reads."""
SCALAR = TensorType("float64", ())


class Scalars:
    """float64 whatever the weights' type, because 1 - b^t cancels in float32. A constant and a variable of the same value give the same bits.

    Each distinct number is made once, so that updates of many weights read the same ones.
    """

    def __init__(self, b: Builder) -> None:
        self._b = b
        self._made: dict[tuple[Any, ...], Value] = {}

    def value(self, x: Number) -> Value:
        """As a 0-d value."""
        return x if not isinstance(x, int | float) else self._once(("constant", x),
                                                                   lambda: self._b.constant(np.array(x, np.float64)))

    def like(self, x: Number, other: Value) -> Value:
        """As a 0-d value of the other's element type."""
        if not isinstance(x, int | float):
            return x if x.dtype == other.dtype else self._once(("cast", x, other.dtype), lambda: self._b.Cast(x, to=other.dtype))
        return self._once(("like", x, other.dtype), lambda: self._b.scalar(x, other))

    def add(self, x: Number, y: Number) -> Number:
        return self._apply("Add", lambda p, q: p + q, x, y)

    def sub(self, x: Number, y: Number) -> Number:
        return self._apply("Sub", lambda p, q: p - q, x, y)

    def mul(self, x: Number, y: Number) -> Number:
        if 1.0 in (x, y):
            return y if x == 1.0 else x
        return self._apply("Mul", lambda p, q: p * q, x, y)

    def div(self, x: Number, y: Number) -> Number:
        return x if y == 1.0 else self._apply("Div", lambda p, q: float(np.float64(p) / np.float64(q)), x, y)

    def power(self, x: Number, y: Number) -> Number:
        return self._apply("Pow", lambda p, q: float(np.power(p, q)), x, y)

    def least(self, x: Number, y: Number) -> Number:
        """The smaller one; NaN where one is NaN."""
        return self._apply("Min", lambda p, q: float(np.minimum(p, q)), x, y)

    def root(self, x: Number) -> Number:
        if isinstance(x, int | float):
            return math.sqrt(x)
        return self._once(("Sqrt", x), lambda: self._b.Sqrt(x))

    def where_equal(self, x: Value, y: float, then: Number, otherwise: Number) -> Number:
        """`then` where x is y."""
        if then == otherwise:
            return then
        b = self._b
        return self._once(("where", x, y, then, otherwise), lambda: b.Where(b.Equal(x, self.value(y)), self.value(then), self.value(otherwise)))

    def _apply(self, name: str, compute: Callable[[float, float], float], x: Number, y: Number) -> Number:
        if isinstance(x, int | float) and isinstance(y, int | float):
            return compute(x, y)
        return self._once((name, x, y), lambda: getattr(self._b, name)(self.value(x), self.value(y)))

    def _once(self, key: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
