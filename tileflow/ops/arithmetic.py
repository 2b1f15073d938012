"""Arithmetic and the functions of one number: powers, exponentials, trigonometry, rounding."""
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..graph import Builder, TensorType, Value, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise import expr as scalar
from ..kernels.elementwise.expr import Expr, Var, abs_, cast, derivative, erf, exp, is_zero, log, maximum, minimum, pow_, sign, sqrt, times, where
from .elementwise import NUMBERS, Elementwise, apply
from .shape import sum_to, zeros


@op("Add")
class Add(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] + x[1]


@op("Sub")
class Sub(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] - x[1]


@op("Mul")
class Mul(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] * x[1]


@op("Div")
class Div(Elementwise):
    """Integers divide towards zero; by 0 they give 0."""

    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return x[0] / x[1]

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g / x[1] if index == 0 else -g * (y / x[1])


@op("Neg")
class Neg(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return -x[0]


@op("Pow")
class Pow(Elementwise):
    """x to the power y, in x's element type; y may have another type.

    The gradient by x is y x^(y-1), 0 where y is 0; by y it is x^y log x, 0 where x is 0 and y >= 0, and made only where y is
    not a constant of the graph.
    """

    accepts = NUMBERS

    def check(self, types: Sequence[TensorType]) -> None:
        for t in types:
            super().check([t])

    def expr(self, *x: Expr) -> Expr:
        base, exponent = x
        if exponent.is_float and not base.is_float:
            return cast(pow_(cast(base, "float64"), cast(exponent, "float64")), base.dtype)
        return pow_(base, cast(exponent, base.dtype))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        base, exponent = inputs
        known = b.graph.constants.get(exponent) if exponent is not None else None
        if known is None or known.size != 1 or base is None or not base.type.is_float or grads[0] is None:
            return super().vjp(b, grads, inputs, outputs)
        x, g = Var(0, base.dtype), Var(1, base.dtype)
        slope = times(derivative(pow_(x, known.item()), 0), g)
        if is_zero(slope):
            return zeros(b, base), None
        return sum_to(b, apply(b, slope, [base, grads[0]]), base.shape), None


@op("Reciprocal")
class Reciprocal(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return 1 / x[0]

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return -g * y * y


@op("Sqrt")
class Sqrt(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return sqrt(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g / (2 * y)


@op("Mod")
class Mod(Elementwise):
    """The remainder: with the divisor's sign, or with fmod=1 the dividend's. By 0 integers give the dividend, floats NaN."""

    accepts = NUMBERS
    fmod: int = 0

    def expr(self, *x: Expr) -> Expr:
        a, b = x
        rest = scalar.fmod(a, b)
        if self.fmod or a.dtype.startswith("uint"):
            return rest
        return where(scalar.not_equal(rest, 0) & ((rest < 0) ^ (b < 0)), rest + b, rest)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g if index == 0 else -g * round_towards(self.fmod, x[0], x[1])


def round_towards(zero: int, a: Expr, b: Expr) -> Expr:
    """a / b rounded towards zero, or else down."""
    quotient = a / b
    down = scalar.floor(quotient)
    return where(quotient < 0, scalar.ceil(quotient), down) if zero else down


@op("Sum")
class Sum(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return reduce(lambda a, b: a + b, x)


@op("Mean")
class Mean(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return reduce(lambda a, b: a + b, x) / len(x)


@op("Max")
class Max(Elementwise):
    """The largest of the inputs; NaN where any is NaN. Ties share the gradient, pair by pair from the left."""

    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return reduce(maximum, x)


@op("Min")
class Min(Elementwise):
    """The smallest of the inputs; NaN where any is NaN. Ties share the gradient, pair by pair from the left."""

    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return reduce(minimum, x)


@op("Clip")
class Clip(Elementwise):
    """x limited to [min, max]; a bound of None is none. The gradient passes at the bounds, as in torch."""

    accepts = NUMBERS
    min: float | None = None
    max: float | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), min=0.0, max=1.0)]

    def expr(self, *x: Expr) -> Expr:
        y = x[0] if self.min is None else maximum(x[0], self.min)
        return y if self.max is None else minimum(y, self.max)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        if self.min is not None:
            g = where(x[0] >= self.min, g, 0)
        return g if self.max is None else where(x[0] <= self.max, g, 0)


# ---- functions ----------------------------------------------------------------------------------------------------------

@op("Exp")
class Exp(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return exp(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g * y


@op("Log")
class Log(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return log(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g / x[0]


@op("Sin")
class Sin(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.sin(x[0])


@op("Cos")
class Cos(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.cos(x[0])


@op("Tan")
class Tan(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.tan(x[0])


@op("Asin")
class Asin(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.asin(x[0])


@op("Acos")
class Acos(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.acos(x[0])


@op("Atan")
class Atan(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.atan(x[0])


@op("Sinh")
class Sinh(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.sinh(x[0])


@op("Cosh")
class Cosh(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.cosh(x[0])


@op("Asinh")
class Asinh(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.asinh(x[0])


@op("Acosh")
class Acosh(Elementwise):
    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("float32", (3, 4), 1.1, 2.5)), sample(("float32", (3, 4), -2.5, 2.5))]

    def expr(self, *x: Expr) -> Expr:
        return scalar.acosh(x[0])


@op("Atanh")
class Atanh(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.atanh(x[0])


@op("Erf")
class Erf(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return erf(x[0])


@op("Abs")
class Abs(Elementwise):
    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return abs_(x[0])


@op("Sign")
class Sign(Elementwise):
    """-1, 0 or 1; NaN stays NaN."""

    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return sign(x[0])


@op("Floor")
class Floor(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.floor(x[0])


@op("Ceil")
class Ceil(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return scalar.ceil(x[0])


@op("Round")
class Round(Elementwise):
    """The nearest integer, ties to even."""

    def expr(self, *x: Expr) -> Expr:
        return scalar.round_(x[0])
