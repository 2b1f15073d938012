"""Quantisation: numbers as small integers (or 8-bit floats) with a scale and a zero point, and back.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

Scales are per tensor, per index of an axis, or per block of an axis. Rounding is to nearest, ties to even; NaN becomes the zero of integers.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import FLOATS, HALVES, Builder, Op, TensorType, Value, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise import narrow
from ..kernels.elementwise.expr import Const, Expr, Var, cast, equal, maximum, minimum, round_, where
from ..system.errors import ShapeError, TypeMismatchError
from .shape import Shape, normal_axis, present

BOUNDS: dict[str, tuple[int, int]] = {
    **{f"{sign}int{bits}": (0, 2 ** bits - 1) if sign else (-2 ** (bits - 1), 2 ** (bits - 1) - 1) for sign in ("", "u") for bits in (8, 16)},
    **narrow.INTEGERS}
"""Least and largest number of the integers to which is quantised."""
QUANTIZED = (*BOUNDS, *(name for name in narrow.FORMATS))
"""Element types of quantised tensors."""
NO_GRADIENT = "the output is no float; quantised and dequantised at once, in training, a tensor passes its gradient on (FakeQuantize)"


def aligned(shape: Shape, scale: TensorType, axis: int, block: int, what: str) -> tuple[Shape, int]:
    """How a scale lies along a tensor of `shape`: the shape in which it broadcasts, and elements that share one along `axis` (1: not blocked).

    Raises ShapeError.
    """
    if scale.size == 1 and not block:
        return (), 1
    where_ = normal_axis(axis, len(shape))
    if not block:
        if scale.shape != (shape[where_],):
            raise ShapeError(f"{what} is {scale}; per tensor it has one element, along axis {where_} of {list(shape)} {shape[where_]}.")
        return tuple(n if i == where_ else 1 for i, n in enumerate(shape)), 1
    wanted = tuple(-(-n // block) if i == where_ else n for i, n in enumerate(shape))
    if scale.shape != wanted:
        raise ShapeError(f"{what} is {scale}; in blocks of {block} along axis {where_} of {list(shape)} it has the shape {list(wanted)}.")
    return wanted, block


def spread(b: Builder, value: Value, shape: Shape, axis: int, block: int, what: str) -> Value:
    """A scale or zero point in a shape that broadcasts to the tensor's."""
    target, block = aligned(shape, value.type, axis, block, what)
    if block == 1:
        return value if value.shape == target else b.Reshape(value, shape=target, allowzero=1)
    at = normal_axis(axis, len(shape))
    longer = b.Reshape(value, shape=(*target[:at + 1], 1, *target[at + 1:]), allowzero=1)
    longer = b.Expand(longer, shape=(*target[:at + 1], block, *target[at + 1:]))
    whole = b.Reshape(longer, shape=(*target[:at], target[at] * block, *target[at + 1:]), allowzero=1)
    return whole if whole.shape == shape else b.Slice(whole, starts=(0,), ends=(shape[at],), axes=(at,), steps=(1,))


def quantized(x: Expr, scale: Expr, zero: Expr | None, to: str, saturate: bool = True, precision: str = "") -> Expr:
    """The scalar expression of quantisation."""
    kind = precision or scale.dtype
    quotient = cast(x, kind) / cast(scale, kind)
    if to not in BOUNDS:
        if zero is not None:
            shift = cast(zero, "float32")
            quotient = where(equal(shift, 0.0), quotient, quotient + cast(shift, kind))     # -0 keeps its sign
        return cast(quotient, to, saturate)
    number = round_(cast(quotient, "float32") if kind in HALVES else quotient)
    if zero is not None:
        number = number + cast(cast(zero, "int32"), number.dtype)
    return clipped(number, to)


def clipped(number: Expr, to: str) -> Expr:
    """A whole number in float as the integer type `to`, saturated. By way of int32, to which vectors convert fastest."""
    least, most = BOUNDS[to]
    return cast(cast(minimum(maximum(number, least), most), "int32"), to)


def dequantized(x: Expr, scale: Expr, zero: Expr | None, to: str) -> Expr:
    """The scalar expression of dequantisation: the difference is exact, its product is rounded to float32 (float64) and to the result."""
    kind = "float64" if "float64" in (scale.dtype, to) else "float32"
    if zero is not None and x.dtype not in narrow.FORMATS:
        number = cast(cast(x, "int32") - cast(zero, "int32"), kind)
    else:
        number = cast(x, kind)
        number = number if zero is None else where(equal(cast(zero, "float32"), 0.0), number, number - cast(zero, kind))
    return cast(number * cast(scale, kind), to)


@dataclass(frozen=True, repr=False)
class Linear(Op):
    """Base of QuantizeLinear and DequantizeLinear: operands x, scale and zero point."""

    axis: int = 1
    block_size: int = 0

    def result(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> str:
        """The output's element type. Raises TypeMismatchError."""
        raise NotImplementedError

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale, zero = present(types[0]), present(types[1]), types[2] if len(types) > 2 else None
        if self.block_size < 0:
            raise ShapeError(f"its block_size is {self.block_size}, and sizes cannot be negative.")
        aligned(x.shape, scale, self.axis, self.block_size, "the scale")
        if zero is not None and zero.shape != scale.shape and (zero.size, scale.size) != (1, 1):
            raise ShapeError(f"the zero point is {zero} and the scale {scale}; they have one shape.")
        return (x.with_dtype(self.result(x, scale, zero)),)

    def number(self, x: Expr, scale: Expr, zero: Expr | None, to: str) -> Expr:
        """An element of the output, of type `to`."""
        raise NotImplementedError

    def operands(self, b: Builder, inputs: Sequence[Value | None]) -> list[Value]:
        """x, scale and zero point in shapes that broadcast."""
        x = present(inputs[0])
        return [x, *(spread(b, v, x.shape, self.axis, self.block_size, "the scale") for v in inputs[1:] if v is not None)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        values = self.operands(b, inputs)
        x, scale, *zero = [Var(i, v.dtype) for i, v in enumerate(values)]
        to = self.result(values[0].type, values[1].type, values[2].type if zero else None)
        return [b.Map(*values, exprs=(self.number(x, scale, zero[0] if zero else None, to),))]


@op("QuantizeLinear")
class QuantizeLinear(Linear):
    """saturate(round(x / scale) + zero_point) as the zero point's type, `output_dtype` or uint8.

    The quotient is computed in the scale's type, or in `precision`. Float8 saturates where `saturate` says so; zero points of floats, which usually
    are zero, are added before the numbers are rounded.
    """

    no_gradient = NO_GRADIENT
    output_dtype: str = ""
    precision: str = ""
    saturate: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        zero, x = np.array([3, 0, 7, 1], np.uint8), ("float32", (3, 4), -3, 3)
        return [sample(x, np.array(0.02, np.float32), np.array(7, np.uint8)), sample(x, (4,), zero, axis=-1),
                sample(("float32", (2, 6), -3, 3), (2, 2), block_size=4, output_dtype="int4"),
                sample(("float32", (3, 4), -300, 300), np.array(0.5, np.float32), output_dtype="float8_e4m3fn")]

    def result(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> str:
        to = zero.dtype if zero is not None else self.output_dtype or "uint8"
        if zero is not None and self.output_dtype not in ("", to):
            raise TypeMismatchError(f"output_dtype is {self.output_dtype} and the zero point {to}; they must be one.")
        if to not in QUANTIZED:
            raise TypeMismatchError(f"it cannot quantise to {to}; it can to: {', '.join(QUANTIZED)}.")
        if not scale.is_float or not (x.is_float or x.dtype == "int32"):
            raise TypeMismatchError(f"the input is {x} and the scale {scale}; a float (or int32) and a float are wanted.")
        if self.precision and self.precision not in FLOATS:
            raise TypeMismatchError(f"its precision is {self.precision}; it can be: {', '.join(FLOATS)}.")
        return to

    def number(self, x: Expr, scale: Expr, zero: Expr | None, to: str) -> Expr:
        return quantized(x, scale, zero, to, bool(self.saturate), self.precision)


@op("DequantizeLinear")
class DequantizeLinear(Linear):
    """(x - zero_point) * scale as the scale's type or `output_dtype`."""

    roles = ("moved",)
    stays = True
    output_dtype: str = ""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("uint8", (3, 4), 0, 255), np.array(0.02, np.float32), np.array(7, np.uint8)),
                sample(("int8", (3, 4), -128, 127), (4,), axis=-1),
                sample(("int4", (2, 6), -8, 8), (2, 2), block_size=4), sample(("float8_e5m2", (3, 4), -9, 9), ()),
                sample(("int32", (4, 2), -999, 999), (4,), axis=0)]

    def result(self, x: TensorType, scale: TensorType, zero: TensorType | None) -> str:
        if x.dtype not in (*QUANTIZED, "int32"):
            raise TypeMismatchError(f"it cannot dequantise {x}; it can: {', '.join((*QUANTIZED, 'int32'))}.")
        if zero is not None and zero.dtype != x.dtype:
            raise TypeMismatchError(f"the input is {x} and the zero point {zero}; they must have one element type.")
        to = self.output_dtype or scale.dtype
        if not scale.is_float or to not in FLOATS:
            raise TypeMismatchError(f"the scale is {scale} and the result {to}; floats are wanted.")
        return to

    def number(self, x: Expr, scale: Expr, zero: Expr | None, to: str) -> Expr:
        return dequantized(x, scale, zero, to)


@op("FakeQuantize", onnx=False)
class FakeQuantize(Op):
    """DequantizeLinear of QuantizeLinear, for training: the gradient of x passes unchanged where x / scale + zero_point, rounded, is in the range of
    the type `to`, and is zero beyond it (the straight-through estimator, as PyTorch's fake_quantize has it)."""

    no_gradient = "scale and zero point are no variables of quantisation here"
    to: str = "uint8"
    axis: int = 1
    block_size: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("float32", (3, 4), -3, 3), np.array(0.02, np.float32), np.array(7, np.uint8))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        self.parts()[0].infer(*types)
        return (present(types[0]).with_dtype(present(types[1]).dtype),)

    def parts(self) -> tuple[QuantizeLinear, DequantizeLinear]:
        """The two operators."""
        return (QuantizeLinear(axis=self.axis, block_size=self.block_size, output_dtype=self.to),
                DequantizeLinear(axis=self.axis, block_size=self.block_size))

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        first, second = self.parts()
        return second.expand(b, [*first.expand(b, inputs), *inputs[1:]])

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        values = self.parts()[0].operands(b, inputs)
        x, scale, *zero = [Var(i, v.dtype) for i, v in enumerate(values)]
        number = round_(cast(x, scale.dtype) / scale)
        if zero:
            number = number + cast(cast(zero[0], "int32"), number.dtype)
        least, most = BOUNDS[self.to]
        g = Var(len(values), outputs[0].dtype)
        inside = where((number >= least) & (number <= most), g, Const(0, g.dtype))
        return [b.Map(*values, present(grads[0]), exprs=(cast(inside, x.dtype),)), *[None] * (len(inputs) - 1)]


@op("DynamicQuantizeLinear")
class DynamicQuantizeLinear(Op):
    """x as uint8 with the scale and the zero point that its least and largest element (and 0) ask for: outputs y, y_scale, y_zero_point.

    Of a tensor of zeros the scale is 1, as in ONNX Runtime. All three count as constants for whoever differentiates: a gradient of the scale alone
    would be none of what is quantised.
    """

    no_gradient = "the numbers are rounded to 8 bits by a scale that is found while the model runs"
    stops_gradient = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("float32", (3, 4), -3, 2)), sample(("float32", (5,), 1, 2))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if x.dtype not in ("float32", "float64"):                 # a scale of 16 bits would give other bytes
            raise TypeMismatchError(f"the input is {x}; float32 or float64 is wanted.")
        if x.size == 0:
            raise ShapeError(f"the input {x} is empty: nothing says its range.")
        return x.with_dtype("uint8"), TensorType(x.dtype, ()), TensorType("uint8", ())

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        axes = tuple(range(x.type.rank))
        low, high = (b.ReduceMin(x, axes=axes, keepdims=0), b.ReduceMax(x, axes=axes, keepdims=0)) if axes else (x, x)
        least, most = minimum(Var(0, x.dtype), 0.0), maximum(Var(1, x.dtype), 0.0)
        width = (most - least) / 255.0
        scale = b.Map(low, high, exprs=(where(width > 0.0, width, Const(1, x.dtype)),))
        zero = b.Map(low, scale, exprs=(cast(minimum(maximum(round_(0.0 - least / Var(1, x.dtype)), 0.0), 255.0), "uint8"),))
        return [*QuantizeLinear().expand(b, [x, scale, zero]), scale, zero]
