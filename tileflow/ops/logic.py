"""Comparisons, logic, selection, and operations on the bits of integers."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import TensorType, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise import expr as scalar
from ..kernels.elementwise.expr import Expr, equal, isnan, shift_left, shift_right, where
from ..system.errors import OptionError, TypeMismatchError
from .elementwise import ANY, INTEGERS, NUMBERS, Elementwise


@op("Equal")
class Equal(Elementwise):
    accepts = ANY

    def expr(self, *x: Expr) -> Expr:
        return equal(x[0], x[1])


@op("Greater")
class Greater(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] > x[1]


@op("GreaterOrEqual")
class GreaterOrEqual(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] >= x[1]


@op("Less")
class Less(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] < x[1]


@op("LessOrEqual")
class LessOrEqual(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] <= x[1]


@op("And")
class And(Elementwise):
    accepts = ("bool",)

    def expr(self, *x: Expr) -> Expr:
        return x[0] & x[1]


@op("Or")
class Or(Elementwise):
    accepts = ("bool",)

    def expr(self, *x: Expr) -> Expr:
        return x[0] | x[1]


@op("Xor")
class Xor(Elementwise):
    accepts = ("bool",)

    def expr(self, *x: Expr) -> Expr:
        return x[0] ^ x[1]


@op("Not")
class Not(Elementwise):
    accepts = ("bool",)

    def expr(self, *x: Expr) -> Expr:
        return ~x[0]


@op("IsNaN")
class IsNaN(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return isnan(x[0])


@op("IsInf")
class IsInf(Elementwise):
    """Whether x is +Inf (unless detect_positive is 0) or -Inf (unless detect_negative is 0)."""

    detect_negative: int = 1
    detect_positive: int = 1

    def expr(self, *x: Expr) -> Expr:
        positive, negative = equal(x[0], math.inf), equal(x[0], -math.inf)
        if self.detect_positive and self.detect_negative:
            return positive | negative
        if self.detect_positive or self.detect_negative:
            return positive if self.detect_positive else negative
        return scalar.Const(False, "bool")


@op("Where")
class Where(Elementwise):
    """The second input where the first (bool) holds, else the third."""

    accepts = ANY

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("bool", (3, 4)), (4,), (3, 1))]

    def check(self, types: Sequence[TensorType]) -> None:
        condition, *rest = types
        if condition.dtype != "bool":
            raise TypeMismatchError(f"the condition must be bool, not {condition}; cast it.")
        super().check(rest)

    def expr(self, *x: Expr) -> Expr:
        return where(x[0], x[1], x[2])


# ---- bits ---------------------------------------------------------------------------------------------------------------

@op("BitwiseAnd")
class BitwiseAnd(Elementwise):
    accepts = INTEGERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] & x[1]


@op("BitwiseOr")
class BitwiseOr(Elementwise):
    accepts = INTEGERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] | x[1]


@op("BitwiseXor")
class BitwiseXor(Elementwise):
    accepts = INTEGERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] ^ x[1]


@op("BitwiseNot")
class BitwiseNot(Elementwise):
    accepts = INTEGERS

    def expr(self, *x: Expr) -> Expr:
        return ~x[0]


@op("BitShift")
class BitShift(Elementwise):
    """The bits of x moved by y places, LEFT or RIGHT; signed numbers keep their sign to the right.

    No bit is left where y is negative or too large.
    """

    accepts = INTEGERS
    direction: str = "LEFT"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("uint8", (3, 4), 0, 256), ("uint8", (4,), 0, 10)), sample(("int32", (3, 4), -99, 99), ("int32", (3, 1), -2, 40)),
                sample(("int16", (3, 4), -99, 99), ("int16", (4,), -2, 18), direction="RIGHT"),
                sample(("uint64", (5,), 0, 99), ("uint64", (5,), 0, 70), direction="RIGHT")]

    def check(self, types: Sequence[TensorType]) -> None:
        if self.direction not in ("LEFT", "RIGHT"):
            raise OptionError(f"direction {self.direction!r} is unknown; it must be LEFT or RIGHT.")
        super().check(types)

    def expr(self, *x: Expr) -> Expr:
        return (shift_left if self.direction == "LEFT" else shift_right)(x[0], x[1])
