"""Products and convolutions of 8-bit integers: exact sums in int32, and QLinear operators, which quantise them again."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import Builder, Op, TensorType, Value, op
from ..graph.op import Types
from ..graph.sample import Sample, sample
from ..graph.work import Work
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.elementwise.expr import Expr, Var, cast, round_
from ..kernels.gemm.problem import GemmProblem
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.quantized import product
from ..system.errors import ShapeError, TypeMismatchError
from .matmul import MatMul, product_problem
from .quantize import clipped
from .shape import Shape, present
from .window import Windows
from .window import windows as find_windows

BYTES = ("int8", "uint8")


def check_bytes(*types: TensorType | None) -> None:
    """Raise TypeMismatchError where an operand is no tensor of 8-bit integers."""
    for t in types:
        if t is not None and t.dtype not in BYTES:
            raise TypeMismatchError(f"an input is {t}; int8 or uint8 is wanted.")


@op("ByteProduct", onnx=False)
class ByteProduct(Op):
    """A @ B of 8-bit integers with MatMul's shapes. Sums are int32 and exact; beyond 32 bits they wrap.

    `by_row` tells the host that rows are the channels of what is done to the product.
    """

    by_row: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("uint8", (2, 3, 4), 0, 256), ("int8", (4, 5), -128, 128)), sample(("int8", (3, 4), -128, 128), ("uint8", (2, 4, 5), 0, 256)),
                sample(("uint8", (3, 7), 0, 256), ("uint8", (7, 5), 0, 256)), sample(("int8", (6,), -128, 128), ("int8", (6, 5), -128, 128))]

    def problem(self, a: TensorType, b: TensorType) -> GemmProblem:
        """The sizes. Raises ShapeError."""
        return product_problem(a, b, False, False)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, b = present(types[0]), present(types[1])
        check_bytes(a, b)
        p = self.problem(a, b)
        return (TensorType("int32", (*p.batch, *(p.m,) * (a.rank > 1), *(p.n,) * (b.rank > 1))),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        a, b = (present(x).astype(np.int64) for x in inputs[:2])
        return (np.asarray(a @ b).astype(np.int32),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        a, b = present(inputs[0]), present(inputs[1])
        work = MatMul().work([a.with_dtype("float32"), b.with_dtype("float32")], [outputs[0].with_dtype("float32")])
        operands = [replace(present(o), dtype=t.dtype) for o, t in zip(work.inputs, (a, b), strict=True)]
        return replace(work, inputs=tuple(operands), outputs=(replace(work.outputs[0], dtype="int32"),))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        a, b = present(inputs[0]), present(inputs[1])
        return self.calls(self.problem(a, b), (a.code, b.code), inputs, outputs)

    def calls(self, p: GemmProblem, codes: tuple[str, str], inputs: Types, outputs: Sequence[TensorType],
              packed: bool = False, epilogue: Epilogue | None = None) -> list[Call]:
        """The kernel of problem `p` for element types `codes`; with `packed` B is laid out in panels."""
        zeros = [In(i, t.shape or (1,)) if len(inputs) > i and (t := inputs[i]) is not None else None for i in (2, 3)]
        return product.calls(codes, p, In(0, present(inputs[0]).shape), In(1, present(inputs[1]).shape), zeros[0], zeros[1], Out(0, outputs[0].shape),
                             packed=packed, epilogue=epilogue, by_row=bool(self.by_row))


@op("IntegerProduct", onnx=False)
class IntegerProduct(ByteProduct):
    """ByteProduct of A and B less their zero points (int32; each may be absent): one, or one for each row of A and column of B."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("uint8", (3, 7), 0, 256), ("uint8", (7, 5), 0, 256), ("int32", (3,), -9, 99), ("int32", (5,), -99, 255)),
                sample(("int8", (2, 4, 6), -128, 128), ("int8", (6, 5), -128, 128), ("int32", (), -9, 99), ("int32", (), -9, 99)),
                sample(("uint8", (2, 4, 6), 0, 256), ("int8", (2, 6, 5), -128, 128), None, ("int32", (1,), -9, 99))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, b = present(types[0]), present(types[1])
        made = super().infer(a, b)
        p = self.problem(a, b)
        for i, n in ((2, p.m), (3, p.n)):
            zero = types[i] if len(types) > i else None
            if zero is not None and (zero.dtype != "int32" or zero.shape not in ((), (1,), (n,))):
                raise ShapeError(f"a zero point is {zero}; it has one int32 number, or {n}.")
        return made

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        a, b, za, zb = (None if x is None else x.astype(np.int64) for x in [*inputs, None, None][:4])
        a, b = present(a), present(b)
        left = a if za is None else a - (za if a.ndim < 2 or za.ndim == 0 else za.reshape(-1, 1))
        return (np.asarray(left @ (b if zb is None else b - zb)).astype(np.int32),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, y, zx, zy = [*inputs, None, None][:4]
        return [corrected(b, present(x), present(y), zx, zy)]

    work = Op.work


def exact_product(b: Builder, x: Value, y: Value, zero_x: Value | None, zero_y: Value | None, by_row: int = 0) -> Value:
    """(x - zero_x) @ (y - zero_y) in int32; zero points are 8-bit and have any shape that broadcasts. `by_row`: see ByteProduct."""
    zeros = [None if z is None else b.cast(z, "int32") for z in (zero_x, zero_y)]
    if all(z is None or z.type.rank <= 1 for z in zeros):
        if all(z is None for z in zeros):
            return b.ByteProduct(x, y, by_row=by_row)
        return b.IntegerProduct(x, y, *_trimmed(zeros), by_row=by_row)
    return corrected(b, x, y, zeros[0], zeros[1])


def corrected(b: Builder, x: Value, y: Value, zero_x: Value | None, zero_y: Value | None) -> Value:
    """The same from the plain product: sums of rows and columns take the zero points (int32) off."""
    result = b.ByteProduct(x, y)
    rows = b.ReduceSum(b.Cast(x, to="int32"), axes=(-1,), keepdims=int(y.type.rank > 1)) if zero_y is not None else None
    axis = -2 if y.type.rank > 1 else -1
    columns = b.ReduceSum(b.Cast(y, to="int32"), axes=(axis,), keepdims=int(x.type.rank > 1 and y.type.rank > 1)) if zero_x is not None else None
    za, zb = (None if z is None else _lying(b, z, last) for z, last in ((zero_x, y.type.rank < 2), (zero_y, True)))
    if za is not None and columns is not None:
        result = b.Sub(result, b.Mul(za, columns))
    if zb is not None and rows is not None:
        result = b.Sub(result, b.Mul(rows, zb))
    if za is not None and zb is not None:
        result = b.Add(result, b.Mul(b.Mul(za, zb), b.scalar(x.shape[-1], za)))
    return result


def _trimmed(values: Sequence[Value | None]) -> list[Value | None]:
    """Without absent ones at the end."""
    kept = list(values)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def _lying(b: Builder, zero: Value, columns: bool) -> Value:
    """A zero point as it lies along the product: vectors along rows ([m, 1]) or columns."""
    if zero.type.rank == 1 and not columns and zero.type.size > 1:
        return b.Reshape(zero, shape=(zero.shape[0], 1), allowzero=1)
    return zero


def check_zero(zero: TensorType | None, x: TensorType, axis: int, what: str) -> None:
    """Raise where a zero point (or scale) of `x` has no shape that ONNX allows: one number, one for each index of `axis`, or those of all rows."""
    if zero is None or zero.size == 1:
        return
    one = tuple(1 if i == len(x.shape) + axis else n for i, n in enumerate(x.shape))
    kept = x.shape[-2 if axis == -1 else -1]
    if zero.shape not in ((kept,), one):
        raise ShapeError(f"{what} is {zero}; for {x} it has one element, the shape [{kept}] or {list(one)}.")


@op("MatMulInteger")
class MatMulInteger(Op):
    """(A - a_zero_point) @ (B - b_zero_point) of 8-bit integers, in int32. Zero points: one, one for each row of A or column of B, or one for
    each row and column of every matrix."""

    roles = ("data", "weight")

    @classmethod
    def samples(cls) -> list[Sample]:
        zeros = np.array([[[3], [1], [0]], [[7], [9], [200]]], np.uint8)
        return [sample(("uint8", (2, 3, 4), 0, 256), ("int8", (4, 5), -128, 128), np.array(3, np.uint8), np.array([1, 0, -4, 7, 100], np.int8)),
                sample(("uint8", (2, 3, 4), 0, 256), ("uint8", (4, 5), 0, 256), zeros, np.array(128, np.uint8))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, b = present(types[0]), present(types[1])
        check_bytes(*types)
        for i, (x, axis) in enumerate(((a, -1), (b, -2)), 2):
            zero = types[i] if len(types) > i else None
            if zero is not None and zero.dtype != x.dtype:
                raise TypeMismatchError(f"an input is {x} and its zero point {zero}; they must have one element type.")
            if x.rank > 1:
                check_zero(zero, x, axis, "a zero point")
        return ByteProduct().infer(a, b)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, y, zx, zy = [*inputs, None, None][:4]
        return [exact_product(b, present(x), present(y), zx, zy)]


def requantize(b: Builder, total: Value, scales: Sequence[Value], zero: Value, bias: Value | None = None) -> Value:
    """int32 sums (+ bias) as 8-bit integers: round(sum * (sx * sw / sy)) + zero, in float32 as ONNX Runtime does. Scales and bias broadcast."""
    x, w, y = (cast(Var(i, v.dtype), "float32") for i, v in enumerate(scales))
    values = [total, b.Map(*scales, exprs=(x * w / y,)), zero, *([bias] if bias is not None else [])]
    sums = Var(0, "int32") if bias is None else Var(0, "int32") + Var(3, "int32")
    number = round_(cast(sums, "float32") * Var(1, "float32")) + cast(cast(Var(2, zero.dtype), "int32"), "float32")
    return b.Map(*values, exprs=(clipped(number, zero.dtype),))


def scaled(b: Builder, total: Value, left: Value, right: Value, bias: Value | None) -> Value:
    """int32 sums * (left * right) + bias, in float32."""
    values = [total, left, right, *([] if bias is None else [bias])]
    y = cast(Var(0, "int32"), "float32") * (Var(1, "float32") * Var(2, "float32"))
    return b.Map(*values, exprs=(y if bias is None else y + Var(3, "float32"),))


@op("QLinearMatMul")
class QLinearMatMul(Op):
    """The product of quantised tensors, quantised: operands a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point.

    The sums are exact; times a_scale * b_scale / y_scale (float32) they are rounded once, ties to even.
    """

    no_gradient = "the output is no float"
    roles = ("data", "data", "data", "weight")

    @classmethod
    def samples(cls) -> list[Sample]:
        one, zero, scale = np.array(0.02, np.float32), np.array(11, np.uint8), np.array(0.1, np.float32)
        return [sample(("uint8", (2, 3, 4), 0, 256), one, zero, ("int8", (4, 5), -128, 128), (5,), np.zeros(5, np.int8), scale, zero)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        a, sa, za, b, sb, zb, sy, zy = (present(t) for t in types)
        check_bytes(a, za, b, zb, zy)
        for x, s, z, axis in ((a, sa, za, -1), (b, sb, zb, -2)):
            if z.dtype != x.dtype or not s.is_float:
                raise TypeMismatchError(f"an input is {x}, its scale {s} and its zero point {z}; the zero point has the input's type, the scale is a "
                                        f"float.")
            if x.rank > 1:
                check_zero(z, x, axis, "a zero point")
                check_zero(s, x, axis, "a scale")
        if not sy.is_float or (sy.size, zy.size) != (1, 1):
            raise ShapeError(f"the result's scale is {sy} and its zero point {zy}; one number each is wanted.")
        return (ByteProduct().infer(a, b)[0].with_dtype(zy.dtype),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, sx, zx, y, sy, zy, s, z = (present(v) for v in inputs)
        total = exact_product(b, x, y, zx, zy)
        sx = _lying(b, sx, False) if x.type.rank > 1 else sx
        one = [b.Reshape(v, shape=(), allowzero=1) if v.type.size == 1 and v.type.rank else v for v in (sx, sy, s, z)]
        return [requantize(b, total, one[:3], one[3])]


# ---- convolutions

@dataclass(frozen=True, repr=False)
class IntegerConv(Op):
    """Base of ConvInteger and QLinearConv: ONNX's attributes of a convolution."""

    auto_pad: str = "NOTSET"
    dilations: Shape = ()
    group: int = 1
    kernel_shape: Shape = ()
    pads: Shape = ()
    strides: Shape = ()

    def windows(self, x: Shape, w: Shape) -> Windows:
        """Where the taps meet the image. Raises ShapeError."""
        return find_windows(x[2:], w[2:], self.strides or None, self.pads or None, self.dilations or None, self.auto_pad)

    def image(self, x: TensorType, w: TensorType) -> TensorType:
        """The type of the sums. Raises where a convolution of `x` with `w` cannot be."""
        check_bytes(x, w)
        if x.rank < 3 or w.rank != x.rank:
            raise ShapeError(f"the input is {x} and the weights {w}; both have a batch axis, channels and the same spatial axes.")
        if self.group < 1 or w.shape[0] % self.group or x.shape[1] != w.shape[1] * self.group:
            raise ShapeError(f"the input {list(x.shape)} has {x.shape[1]} channels, weights {list(w.shape)} in {self.group} groups take others.")
        if 0 in w.shape[1:] or 0 in x.shape[2:]:
            raise ShapeError(f"the weights {list(w.shape)} and the spatial axes of the input {list(x.shape)} may not be empty.")
        if self.kernel_shape and tuple(self.kernel_shape) != w.shape[2:]:
            raise ShapeError(f"kernel_shape is {list(self.kernel_shape)} and the weights are {list(w.shape)}.")
        return TensorType("int32", (x.shape[0], w.shape[0], *self.windows(x.shape, w.shape).out))

    def operands(self, inputs: Sequence[Value | None]) -> tuple[Value, Value, Value | None, Value | None]:
        """Images, weights, and their zero points."""
        raise NotImplementedError

    def finish(self, b: Builder, inputs: Sequence[Value | None], total: Value, lying: Shape) -> Sequence[Value]:
        """The outputs from what `sums` gives."""
        raise NotImplementedError

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        return self.finish(b, inputs, *self.sums(b, *self.operands(inputs)))

    def shaped(self, b: Builder, inputs: Sequence[Value | None], y: Value) -> list[Value]:
        """The result in its shape."""
        x, w, *_ = self.operands(inputs)
        shape = self.image(x.type, w.type).shape
        return [y if y.shape == shape else b.Reshape(y, shape=shape, allowzero=1)]

    def sums(self, b: Builder, x: Value, w: Value, zero_x: Value | None, zero_w: Value | None) -> tuple[Value, Shape]:
        """The exact sums in int32 in the order of [n, channels, *out], and the shape in which channels lie along them. `zero_w`: one, or one for
        each output channel."""
        win, (n, c), rank = self.windows(x.shape, w.shape), x.shape[:2], len(w.shape) - 2
        padded = _padded(b, x, zero_x, win)
        taps = [_tap(b, padded, win, at) for at in np.ndindex(*win.kernel)]
        outputs, per = w.shape[0], w.shape[1]
        pixels = math.prod(win.out)
        if per == 1 and outputs == c and c > 1:
            return _depthwise(b, taps, w, zero_x, zero_w), (c, *(1,) * rank)
        joined = taps[0] if len(taps) == 1 else b.Concat(*(b.Reshape(t, shape=(n, c, 1, *win.out), allowzero=1) for t in taps), axis=2)
        patches = b.Reshape(joined, shape=(n, *((self.group, per) if self.group > 1 else (c,)), len(taps), pixels), allowzero=1)
        depth = per * len(taps)
        patches = b.Reshape(patches, shape=(n, *(self.group,) * (self.group > 1), depth, pixels), allowzero=1)
        weights = b.Reshape(w, shape=(*((self.group, outputs // self.group) if self.group > 1 else (outputs,)), depth), allowzero=1)
        zx, zw = _flat(b, zero_x), _flat(b, zero_w)
        if self.group > 1 and zw is not None and zw.type.size > 1:
            zw = b.Reshape(zw, shape=(self.group, outputs // self.group, 1), allowzero=1)
        lying = (self.group, outputs // self.group, 1) if self.group > 1 else (outputs, 1)
        return exact_product(b, weights, patches, zw, zx, by_row=1), lying


def _flat(b: Builder, zero: Value | None) -> Value | None:
    """A zero point of one element as a number."""
    return zero if zero is None or zero.type.size > 1 else b.Reshape(zero, shape=(), allowzero=1)


def _padded(b: Builder, x: Value, zero: Value | None, win: Windows) -> Value:
    """The image in a frame of its zero point."""
    if not any((*win.begin, *win.end)):
        return x
    for axis, (before, after) in enumerate(zip(win.begin, win.end, strict=True), 2):
        sides = []
        for size in (max(before, 0), max(after, 0)):
            shape = tuple(size if i == axis else n for i, n in enumerate(x.shape))
            fill = b.constant(np.zeros((), x.type.numpy)) if zero is None else b.Reshape(zero, shape=(), allowzero=1)
            sides.append(b.Expand(fill, shape=shape) if size else None)
        parts = [v for v in (sides[0], x, sides[1]) if v is not None]
        x = b.Concat(*parts, axis=axis) if len(parts) > 1 else x
    return x


def _tap(b: Builder, padded: Value, win: Windows, at: Sequence[int]) -> Value:
    """What one tap meets, [n, c, *out]."""
    starts = tuple(i * d for i, d in zip(at, win.dilations, strict=True))
    ends = tuple(s + (o - 1) * step + 1 for s, o, step in zip(starts, win.out, win.strides, strict=True))
    axes = tuple(range(2, 2 + len(starts)))
    if all(s == 0 for s in starts) and ends == padded.shape[2:] and all(s == 1 for s in win.strides):
        return padded
    return b.Slice(padded, starts=starts, ends=ends, axes=axes, steps=win.strides)


ABREAST = 10
"""Taps that one pass of a depthwise convolution adds."""


def _depthwise(b: Builder, taps: Sequence[Value], w: Value, zero_x: Value | None, zero_w: Value | None) -> Value:
    """A channel each: sums of taps times their weights, a few taps in a pass."""
    channels, rank = w.shape[0], w.type.rank - 2
    lying = (channels, *(1,) * rank)
    wide = b.Cast(w, to="int32")
    if zero_w is not None:
        zero = b.Cast(zero_w, to="int32")
        wide = b.Sub(wide, b.Reshape(zero, shape=(channels, *(1,) * (rank + 1)) if zero.type.size > 1 else (), allowzero=1))
    flat = b.Reshape(wide, shape=(channels, len(taps)), allowzero=1)
    columns = b.Split(flat, axis=1, sizes=(1,) * len(taps)) if len(taps) > 1 else [flat]
    point = None if zero_x is None else _flat(b, b.Cast(zero_x, to="int32"))
    total = None
    for first in range(0, len(taps), ABREAST):
        some = list(taps[first:first + ABREAST])
        weights = [b.Reshape(v, shape=lying, allowzero=1) for v in columns[first:first + ABREAST]]
        values = [*some, *weights, *([point] if point is not None else []), *([total] if total is not None else [])]
        less = Var(2 * len(some), "int32")
        result: Expr | None = Var(len(values) - 1, "int32") if total is not None else None
        for i, tap in enumerate(some):
            pixel = cast(Var(i, tap.dtype), "int32")
            term = (pixel if point is None else pixel - less) * Var(len(some) + i, "int32")
            result = term if result is None else result + term
        assert result is not None
        total = b.Map(*values, exprs=(result,))
    assert total is not None
    return total


@op("ConvInteger")
class ConvInteger(IntegerConv):
    """The convolution of x - x_zero_point with w - w_zero_point, 8-bit integers, in int32; beyond the borders lies x_zero_point."""

    roles = ("data", "weight")

    @classmethod
    def samples(cls) -> list[Sample]:
        x, w = ("uint8", (2, 4, 5, 6), 0, 256), ("int8", (6, 4, 3, 2), -128, 128)
        return [sample(x, w, np.array(7, np.uint8), np.array([1, 0, -3, 5, 9, 2], np.int8), pads=(1, 0, 2, 1), strides=(1, 2)),
                sample(x, ("uint8", (6, 2, 3, 2), 0, 256), np.array(200, np.uint8), np.arange(6, dtype=np.uint8), group=2),
                sample(x, ("int8", (4, 1, 3, 3), -128, 128), np.array(3, np.uint8), group=4, dilations=(2, 1), pads=(1, 1, 1, 1)),
                sample(("int8", (1, 3, 9), -128, 128), ("int8", (2, 3, 1), -128, 128))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, w = present(types[0]), present(types[1])
        made = self.image(x, w)
        _check_points([*types, None, None][2], [*types, None, None][3], x, w)
        return (made,)

    def operands(self, inputs: Sequence[Value | None]) -> tuple[Value, Value, Value | None, Value | None]:
        x, w, zx, zw = [*inputs, None, None][:4]
        return present(x), present(w), zx, zw

    def finish(self, b: Builder, inputs: Sequence[Value | None], total: Value, lying: Shape) -> Sequence[Value]:
        return self.shaped(b, inputs, total)


def _check_points(zx: TensorType | None, zw: TensorType | None, x: TensorType, w: TensorType) -> None:
    for zero, t, wanted in ((zx, x, ()), (zw, w, (w.shape[0],))):
        if zero is not None and (zero.dtype != t.dtype or (zero.size != 1 and zero.shape != wanted)):
            raise TypeMismatchError(f"the zero point of {t} is {zero}; it has the same element type, and one element"
                                    + (f" or {wanted[0]}." if wanted else "."))


@op("QLinearConv")
class QLinearConv(IntegerConv):
    """The convolution of quantised tensors, quantised: operands x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point and a bias
    (int32, of scale x_scale * w_scale; optional). Rounded as QLinearMatMul is."""

    no_gradient = "the output is no float"
    roles = ("data", "data", "data", "weight", "data", "data", "data", "data", "bias")

    @classmethod
    def samples(cls) -> list[Sample]:
        one, nine, hundred = np.array(0.02, np.float32), np.array(9, np.uint8), np.array(100, np.uint8)
        return [sample(("uint8", (2, 4, 5, 6), 0, 256), one, nine, ("int8", (6, 4, 3, 3), -128, 128), (6,), np.zeros(6, np.int8),
                       np.array(9.5, np.float32), hundred, ("int32", (6,), -900, 900), pads=(1, 1, 1, 1)),
                sample(("uint8", (1, 4, 5, 6), 0, 256), one, nine, ("uint8", (4, 1, 3, 3), 0, 256), one, hundred, np.array(0.4, np.float32), hundred,
                       group=4)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, sx, zx, w, sw, zw, sy, zy = (present(t) for t in types[:8])
        bias = types[8] if len(types) > 8 else None
        made = self.image(x, w)
        check_bytes(zy)
        _check_points(zx, zw, x, w)
        if not (sx.is_float and sw.is_float and sy.is_float) or (sx.size, sy.size, zy.size) != (1, 1, 1) or sw.shape not in ((), (1,), (w.shape[0],)):
            raise ShapeError(f"the scales are {sx}, {sw} and {sy}: one number each, or one for each of {w.shape[0]} output channels of the weights.")
        if bias is not None and (bias.dtype != "int32" or bias.shape != (w.shape[0],)):
            raise ShapeError(f"the bias is {bias}; int32[{w.shape[0]}] is wanted.")
        return (made.with_dtype(zy.dtype),)

    def operands(self, inputs: Sequence[Value | None]) -> tuple[Value, Value, Value | None, Value | None]:
        return present(inputs[0]), present(inputs[3]), inputs[2], inputs[5]

    def finish(self, b: Builder, inputs: Sequence[Value | None], total: Value, lying: Shape) -> Sequence[Value]:
        _, sx, _, _, sw, _, sy, zy = (present(v) for v in inputs[:8])
        bias = inputs[8] if len(inputs) > 8 else None
        along = [b.Reshape(v, shape=lying if v.type.size > 1 or v is bias else (), allowzero=1) for v in (sx, sw, sy, zy)]
        made = requantize(b, total, along[:3], along[3], None if bias is None else b.Reshape(bias, shape=lying, allowzero=1))
        return self.shaped(b, inputs, made)
