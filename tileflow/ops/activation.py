"""Activation functions."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import TensorType, op
from ..kernels.elementwise.expr import Expr, abs_, erf, exp, expm1, gelu, log1p, maximum, minimum, sigmoid, tanh, where
from ..system.errors import ShapeError
from .elementwise import NUMBERS, Elementwise


@op("Relu")
class Relu(Elementwise):
    """max(x, 0); the gradient at 0 is 0."""

    accepts = NUMBERS

    def expr(self, *x: Expr) -> Expr:
        return maximum(x[0], 0)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(y <= 0, 0, g)


@op("LeakyRelu")
class LeakyRelu(Elementwise):
    """x, or alpha x below 0; the gradient at 0 is alpha."""

    alpha: float = 0.01

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] < 0, self.alpha * x[0], x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(x[0] > 0, g, self.alpha * g)


@op("PRelu")
class PRelu(Elementwise):
    """x, or slope x below 0; the slope broadcasts to x."""

    roles = ("data", "slope")

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] < 0, x[1] * x[0], x[0])

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, slope = types
        inferred = super().infer(*types)
        assert x is not None
        if inferred[0].shape != x.shape:
            raise ShapeError(f"the slope {slope} does not broadcast to the input {x}: it must not have more or larger dimensions.")
        return inferred

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(x[0] > 0, g, x[1] * g) if index == 0 else where(x[0] > 0, 0, x[0] * g)


@op("ThresholdedRelu")
class ThresholdedRelu(Elementwise):
    """x where it exceeds alpha, else 0."""

    alpha: float = 1.0

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] > self.alpha, x[0], 0)


@op("Shrink")
class Shrink(Elementwise):
    """x + bias below -lambd, x - bias above lambd, else 0."""

    lambd: float = 0.5
    bias: float = 0.0

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] < -self.lambd, x[0] + self.bias, where(x[0] > self.lambd, x[0] - self.bias, 0))


@op("Elu")
class Elu(Elementwise):
    """x, or alpha (e^x - 1) below 0; the gradient at 0 is alpha."""

    alpha: float = 1.0

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] > 0, x[0], self.alpha * expm1(x[0]))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(x[0] > 0, g, g * (y + self.alpha))


@op("Celu")
class Celu(Elementwise):
    """max(x, 0) + min(0, alpha (e^(x / alpha) - 1))."""

    alpha: float = 1.0

    def expr(self, *x: Expr) -> Expr:
        return where(x[0] > 0, x[0], self.alpha * expm1(x[0] / self.alpha))


@op("Selu")
class Selu(Elementwise):
    """gamma x, or gamma alpha (e^x - 1) below 0 (Klambauer et al. 2017)."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def expr(self, *x: Expr) -> Expr:
        return self.gamma * where(x[0] > 0, x[0], self.alpha * expm1(x[0]))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(x[0] > 0, self.gamma * g, g * (y + self.gamma * self.alpha))


@op("Softplus")
class Softplus(Elementwise):
    """log(1 + e^x), computed so that e^x does not overflow."""

    def expr(self, *x: Expr) -> Expr:
        return maximum(x[0], 0) + log1p(exp(-abs_(x[0])))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g * sigmoid(x[0])


@op("Softsign")
class Softsign(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return x[0] / (1 + abs_(x[0]))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        scale = 1 + abs_(x[0])
        return g / (scale * scale)


@op("Sigmoid")
class Sigmoid(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return sigmoid(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g * (1 - y) * y


@op("HardSigmoid")
class HardSigmoid(Elementwise):
    """alpha x + beta limited to [0, 1]; the gradient at the limits is 0."""

    alpha: float = 0.2
    beta: float = 0.5

    def expr(self, *x: Expr) -> Expr:
        return maximum(minimum(self.alpha * x[0] + self.beta, 1), 0)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where((y > 0) & (y < 1), self.alpha * g, 0)


@op("HardSwish")
class HardSwish(Elementwise):
    """x HardSigmoid(x) with alpha 1/6 and beta 1/2."""

    def expr(self, *x: Expr) -> Expr:
        return x[0] * maximum(minimum(x[0] / 6 + 0.5, 1), 0)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return where(x[0] <= -3, 0, where(x[0] >= 3, g, g * (x[0] / 3 + 0.5)))


@op("Swish")
class Swish(Elementwise):
    """x sigmoid(alpha x)."""

    alpha: float = 1.0

    def expr(self, *x: Expr) -> Expr:
        return x[0] * sigmoid(self.alpha * x[0])


@op("Mish")
class Mish(Elementwise):
    """x tanh(softplus(x))."""

    def expr(self, *x: Expr) -> Expr:
        return x[0] * tanh(maximum(x[0], 0) + log1p(exp(-abs_(x[0]))))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        t = tanh(maximum(x[0], 0) + log1p(exp(-abs_(x[0]))))
        return g * (t + x[0] * (1 - t * t) * sigmoid(x[0]))


@op("Tanh")
class Tanh(Elementwise):
    def expr(self, *x: Expr) -> Expr:
        return tanh(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return g * (1 - y * y)


@op("Gelu")
class Gelu(Elementwise):
    """x times the normal distribution function at x (Hendrycks & Gimpel 2016), exact or by tanh (approximate="tanh")."""

    approximate: str = "none"

    def expr(self, *x: Expr) -> Expr:
        if self.approximate == "tanh":
            cube = x[0] * x[0] * x[0]
            return 0.5 * x[0] * (1 + tanh(math.sqrt(2 / math.pi) * (x[0] + 0.044715 * cube)))
        return gelu(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        if self.approximate == "tanh":
            return super().pullback(index, x, y, g)
        density = exp(-0.5 * x[0] * x[0]) * (1 / math.sqrt(2 * math.pi))
        return g * (0.5 * (1 + erf(x[0] * math.sqrt(0.5))) + x[0] * density)
