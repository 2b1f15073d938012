"""Elementwise operators. Each declares one scalar expression; type inference, kernel, cost and gradient follow from it."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import numpy as np

from ..errors import ShapeError, TypeMismatchError
from ..graph import FLOATS, Builder, Op, TensorType, Value, broadcast_shapes, op
from ..graph.op import Types
from ..kernels import expr as scalar
from ..kernels.call import Call, In, Out
from ..kernels.cpu import Cpu
from ..kernels.elementwise import elementwise_call
from ..kernels.expr import (
    Expr,
    Var,
    abs_,
    cast,
    derivative,
    equal,
    erf,
    exp,
    expm1,
    flops,
    is_zero,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    plus,
    pow_,
    sigmoid,
    sign,
    sqrt,
    substitute,
    tanh,
    times,
    where,
)
from ..work import Work, map_work

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ANY = (*NUMBERS, "bool")


class Elementwise(Op):
    """Base of operators that compute each output element from the same elements of the broadcast inputs.

    A subclass gives `expr`, the scalar expression, and where the derived gradient is not the best one `pullback`.
    """

    accepts: ClassVar[tuple[str, ...]] = FLOATS
    """Element types the inputs may have; all inputs have the same one unless `check` says otherwise."""

    def expr(self, *x: Expr) -> Expr:
        """The output element from the input elements."""
        raise NotImplementedError

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        """The gradient of input `index`, given inputs, output and the output's gradient."""
        return times(derivative(self.expr(*x), index), g)

    def check(self, types: Sequence[TensorType]) -> None:
        """Raise TypeMismatchError where the element types do not fit."""
        for t in types:
            if t.dtype not in self.accepts:
                raise TypeMismatchError(f"an input is {t}, which it does not take; cast it to one of: {', '.join(self.accepts)}.")
        if len({t.dtype for t in types}) > 1:
            raise TypeMismatchError(f"the inputs must have one element type, not {_listed(types)}; cast them to the same one.")

    def expressions(self, inputs: Types) -> tuple[Expr, ...]:
        """The expressions of all outputs over variables typed as `inputs`."""
        return (self.expr(*_variables(inputs)),)

    def gradient(self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]) -> Expr:
        """The gradient of input `index` from those of all outputs (None: zero)."""
        assert g[0] is not None
        return self.pullback(index, x, y[0], g[0])

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        present = [t for t in types if t is not None]
        assert len(present) == len(types), f"{self.name} has no optional inputs"
        self.check(present)
        shape = broadcast_shapes(*[t.shape for t in present])
        if shape is None:
            raise ShapeError(f"the inputs {_listed(present)} do not broadcast to one shape: counted from the right, "
                             "dimensions must be equal or 1.")
        return tuple(TensorType(e.dtype, shape) for e in self.expressions(present))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        arrays = [np.asarray(x) for x in inputs]
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
        expressions = self.expressions([TensorType(a.dtype.name, a.shape) for a in arrays])
        return tuple(np.array(np.broadcast_to(scalar.evaluate(e, arrays), shape)) for e in expressions)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """A Map node per float input that is not a constant, summed over the dimensions it was broadcast along."""
        values = [*inputs, *outputs, *grads]
        x = _variables([None if v is None else v.type for v in inputs])
        y = tuple(Var(len(x) + k, v.dtype) for k, v in enumerate(outputs))
        g = [None if v is None else Var(len(x) + len(y) + k, v.dtype) for k, v in enumerate(grads)]
        results: list[Value | None] = []
        for i, v in enumerate(inputs):
            if v is None or not v.type.is_float or v in b.graph.constants:
                results.append(None)
                continue
            e = _rounded(self.gradient(i, x, y, g), v.dtype)
            results.append(zeros(b, v.type) if is_zero(e) else unbroadcast(b, apply(b, e, values), v.shape))
        return results

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        shapes = [None if t is None else t.shape for t in inputs]
        work = map_work(shapes, outputs[0].shape, outputs[0].dtype, flops(*self.expressions(inputs)))
        ins = tuple(dataclasses.replace(o, dtype=t.dtype) for o, t in zip(work.inputs, inputs, strict=True) if o is not None and t is not None)
        return dataclasses.replace(work, inputs=ins, outputs=tuple(dataclasses.replace(work.outputs[0], dtype=t.dtype) for t in outputs))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        if outputs[0].size == 0:
            return []
        ins = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
        return [elementwise_call(self.expressions(inputs), ins, [Out(k, t.shape) for k, t in enumerate(outputs)])]

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Expr | None:
        found = self.expressions(inputs)
        return found[0] if len(found) == 1 else None


def _variables(types: Types) -> tuple[Expr, ...]:
    return tuple(Var(i, t.dtype) for i, t in enumerate(types) if t is not None)


def _rounded(e: Expr, dtype: str) -> Expr:
    """`e` as `dtype`, a literal zero staying one."""
    return scalar.Const(0, dtype) if is_zero(e) else cast(e, dtype)


def _listed(types: Sequence[TensorType]) -> str:
    return " and ".join(map(str, types))


def apply(b: Builder, e: Expr, values: Sequence[Value | None]) -> Value:
    """The value of `e` over `values` (variable i being values[i]): a Map node over those it reads, or the value itself."""
    read = list(scalar.variables(e))
    operands = [values[i] for i in read]
    if e.op == "var":
        assert operands[0] is not None
        return operands[0]
    renumbered = substitute(e, {i: Var(k, v.dtype) for k, (i, v) in enumerate(zip(read, operands, strict=True)) if v is not None})
    return b.Map(*operands, exprs=(renumbered,))


def zeros(b: Builder, t: TensorType) -> Value:
    """Zeros of type `t`."""
    zero = b.constant(np.zeros((), t.numpy))
    return b.Expand(zero, shape=t.shape) if t.rank else zero


def unbroadcast(b: Builder, g: Value, shape: tuple[int, ...]) -> Value:
    """Sum `g` over the dimensions along which something of `shape` was broadcast; the transpose of broadcasting."""
    padded = (1,) * (g.type.rank - len(shape)) + shape
    axes = tuple(i for i, (n, own) in enumerate(zip(g.shape, padded, strict=True)) if n != own)
    if axes:
        g = b.ReduceSum(g, axes=axes, keepdims=0)
    return g if g.shape == shape else b.Reshape(g, shape=shape)


@op("Map", onnx=False)
class Map(Elementwise):
    """Any scalar expressions over broadcast inputs, one output each: what gradients, optimizers and fusion are made of."""

    exprs: tuple[Expr, ...]

    def expressions(self, inputs: Types) -> tuple[Expr, ...]:
        return self.exprs

    def check(self, types: Sequence[TensorType]) -> None:
        for i, variable in scalar.variables(*self.exprs).items():
            assert i < len(types), f"Map reads input {i} of {len(types)}"
            assert types[i].dtype == variable.dtype, f"Map reads input {i} as {variable.dtype}, it is {types[i]}"

    def gradient(self, index: int, x: Sequence[Expr], y: Sequence[Expr], g: Sequence[Expr | None]) -> Expr:
        total = scalar.Const(0, x[index].dtype)
        for e, upper in zip(self.exprs, g, strict=True):
            if upper is not None and e.is_float:
                total = plus(total, _rounded(times(derivative(e, index), upper), x[index].dtype))
        return total


# ---- arithmetic ---------------------------------------------------------------------------------------------------------

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
            return zeros(b, base.type), None
        return unbroadcast(b, apply(b, slope, [base, grads[0]]), base.shape), None


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


# ---- activations --------------------------------------------------------------------------------------------------------

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
        return 0.5 * x[0] * (1 + erf(x[0] * math.sqrt(0.5)))

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        if self.approximate == "tanh":
            return super().pullback(index, x, y, g)
        density = exp(-0.5 * x[0] * x[0]) * (1 / math.sqrt(2 * math.pi))
        return g * (0.5 * (1 + erf(x[0] * math.sqrt(0.5))) + x[0] * density)


# ---- comparison and logic -----------------------------------------------------------------------------------------------

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
