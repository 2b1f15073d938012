"""Quantised operators of ONNX Runtime: integers with scales and zero points, taken apart into dequantisation, the operator, and quantisation, or into
exact products of integers."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.errors import ShapeError
from tileflow.graph import Value
from tileflow.ops.integer import exact_product, requantize, scaled
from tileflow.ops.quantize import DequantizeLinear, QuantizeLinear
from tileflow.ops.shape import present

from ...site import Site
from .form import fused

POOLED = {"auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0, "kernel_shape": list[int], "pads": list[int] | None,
          "strides": list[int] | None}


def real(site: Site, i: int) -> Value:
    """The number that operand `i` stands for, with its scale and zero point in the two operands after it."""
    return site.emit("DequantizeLinear", site.value(i), site.value(i + 1), *_point(site, i + 2))


def quantised(site: Site, y: Value, scale: int, like: Value) -> Value:
    """y with the scale of operand `scale` and the zero point after it."""
    point = _point(site, scale + 1)
    return site.emit("QuantizeLinear", y, site.value(scale), *point, **({} if point else {"output_dtype": like.dtype}))


def _point(site: Site, i: int) -> list[Value]:
    return [site.value(i)] if site.has(i) else []


@fused("QuantizeLinear", "x:T, y_scale:T, y_zero_point?:V -> y:V", axis=1)
def quantize_linear(site: Site) -> Sequence[Value]:
    return site.builder.emit(QuantizeLinear(axis=site.attrs["axis"]), site.value(0), site.value(1), *_point(site, 2), names=tuple(site.outputs))


@fused("DequantizeLinear", "x:V, x_scale:T, x_zero_point?:V -> y:T", axis=1)
def dequantize_linear(site: Site) -> Sequence[Value]:
    return site.builder.emit(DequantizeLinear(axis=site.attrs["axis"]), site.value(0), site.value(1), *_point(site, 2), names=tuple(site.outputs))


@fused("QLinearAdd", "A:Q, A_scale:F, A_zero_point?:Q, B:Q, B_scale:F, B_zero_point?:Q, C_scale:F, C_zero_point?:Q -> C:Q")
@fused("QLinearMul", "A:Q, A_scale:F, A_zero_point?:Q, B:Q, B_scale:F, B_zero_point?:Q, C_scale:F, C_zero_point?:Q -> C:Q")
def of_two(site: Site) -> Sequence[Value]:
    return (quantised(site, site.emit(site.op_type.removeprefix("QLinear"), real(site, 0), real(site, 3)), 6, site.value(0)),)


@fused("QLinearSigmoid", "X:Q, X_scale:F, X_zero_point?:Q, Y_scale:F, Y_zero_point?:Q -> Y:Q")
def sigmoid(site: Site) -> Sequence[Value]:
    return (quantised(site, site.emit("Sigmoid", real(site, 0)), 3, site.value(0)),)


@fused("QLinearLeakyRelu", "X:Q, X_scale:F, X_zero_point?:Q, Y_scale:F, Y_zero_point?:Q -> Y:Q", alpha=0.01)
def leaky_relu(site: Site) -> Sequence[Value]:
    return (quantised(site, site.emit("LeakyRelu", real(site, 0), alpha=site.attrs["alpha"]), 3, site.value(0)),)


@fused("QLinearGlobalAveragePool", "X:Q, x_scale:F, x_zero_point:Q, y_scale:F, y_zero_point:Q -> Y:Q", channels_last=0)
def global_average_pool(site: Site) -> Sequence[Value]:
    x = real(site, 0)
    axes = tuple(range(1, x.type.rank - 1)) if site.attrs["channels_last"] else tuple(range(2, x.type.rank))
    return (quantised(site, site.emit("ReduceMean", x, axes=axes, keepdims=1), 3, site.value(0)),)


@fused("QLinearAveragePool", "X:Q, x_scale:F, x_zero_point?:Q, y_scale:F, y_zero_point?:Q -> Y:Q", **POOLED)
def average_pool(site: Site) -> Sequence[Value]:
    if site.attrs["channels_last"]:
        raise site.unsupported("the attribute channels_last")
    given = {name: tuple(site.attrs[name]) for name in ("kernel_shape", "pads", "strides") if site.attrs.get(name)}
    numbers = {name: site.attrs[name] for name in ("auto_pad", "ceil_mode", "count_include_pad")}
    return (quantised(site, site.emit("AveragePool", real(site, 0), **given, **numbers), 3, site.value(0)),)


@fused("QLinearConcat", "Y_scale:F, Y_zero_point:Q, inputs*:V -> Y:Q", axis=int)
def concat(site: Site) -> Sequence[Value]:
    if len(site.inputs) % 3 != 2 or len(site.inputs) < 5:
        raise ShapeError(f"{site.title}: it has {len(site.inputs)} operands; each tensor comes with its scale and its zero point.")
    parts = [real(site, i) for i in range(2, len(site.inputs), 3)]
    return (quantised(site, site.emit("Concat", *parts, axis=site.attrs["axis"]), 0, site.value(1)),)


@fused("DynamicQuantizeMatMul", "A:F, B:Q weight, b_scale:F, b_zero_point?:Q, bias?:F bias -> Y:F")
def dynamic_matmul(site: Site) -> Sequence[Value]:
    """A is quantised to uint8 by its own range; the sums are exact and scaled."""
    b = site.builder
    a, scale, zero = b.DynamicQuantizeLinear(site.value(0))
    return (scaled(b, exact_product(b, a, site.value(1), zero, _row(site, 3)), scale, present(_row(site, 2)), site.optional(4)),)


@fused("MatMulIntegerToFloat", "A:Q, B:P weight, a_scale:F, b_scale:F, a_zero_point?:Q, b_zero_point?:P, bias?:F bias -> Y:F")
def matmul_to_float(site: Site) -> Sequence[Value]:
    total = exact_product(site.builder, site.value(0), site.value(1), site.optional(4), _row(site, 5))
    return (scaled(site.builder, total, site.value(2), present(_row(site, 3)), site.optional(6)),)


def _row(site: Site, i: int) -> Value | None:
    """An operand of one element as a number, of more as it is: along the columns."""
    value = site.optional(i)
    return value if value is None or value.type.size != 1 or value.type.rank == 0 else site.builder.Reshape(value, shape=(), allowzero=1)


@fused("QGemm", "A:Q, a_scale:F, a_zero_point:Q, B:P weight, b_scale:F, b_zero_point:P, C?:M bias, y_scale?:F, y_zero_point?:R -> Y:V",
       transA=0, transB=0, alpha=1.0)
def gemm(site: Site) -> Sequence[Value]:
    """alpha * A' B' of dequantised matrices; C is int32 of the scale alpha * a_scale * b_scale. Quantised where a scale for that is given."""
    b = site.builder
    x, y = (b.Transpose(site.value(i), perm=(1, 0)) if site.attrs[name] else site.value(i) for i, name in ((0, "transA"), (3, "transB")))
    total = exact_product(b, x, y, site.value(2), _row(site, 5))
    if site.has(6):
        total = b.Add(total, site.value(6))
    left, right = site.value(1), present(_row(site, 4))
    if site.attrs["alpha"] != 1:
        left = b.Mul(left, b.scalar(site.attrs["alpha"], left))
    if not site.has(7):
        return (scaled(b, total, left, right, None),)
    if not site.has(8):
        raise site.unsupported("y_scale without y_zero_point")
    return (requantize(b, total, [left, right, site.value(7)], site.value(8)),)


@fused("MatMulNBits", "A:T, B:X weight, scales:T, zero_points?:X, g_idx?:M, bias?:T bias -> Y:T", K=int, N=int, bits=4, block_size=int,
       accuracy_level=0, weight_prepacked=0)
def matmul_n_bits(site: Site) -> Sequence[Value]:
    """A @ W^T, W [N, K] of `bits` bits in blocks along K, each with a scale and a zero point (half of the range unless given). W is dequantised
    once."""
    n, k, bits, block = (int(site.attrs[name]) for name in ("N", "K", "bits", "block_size"))
    if site.has(4):
        raise site.unsupported("the operand g_idx")
    if site.attrs["weight_prepacked"]:
        raise site.unsupported("the attribute weight_prepacked: weights laid out for another kind of processor")
    if bits not in (2, 4, 8) or min(n, k) < 1 or block < 16 or block & (block - 1):
        raise site.unsupported(f"bits={bits}, block_size={block}, N={n}, K={k}")
    blocks = -(-k // block)
    stored = site.static(1)
    if stored.dtype != np.uint8 or stored.size != n * blocks * (block * bits // 8):
        raise ShapeError(f"{site.title}: B is {stored.dtype}{list(stored.shape)}; {n} rows of {blocks} blocks of {block} numbers of {bits} bits have "
                         f"{n * blocks * (block * bits // 8)} bytes.")
    b, scales = site.builder, site.value(2)
    if scales.type.size != n * blocks:
        raise ShapeError(f"{site.title}: the scales are {scales.type}; there are {n} x {blocks} blocks.")
    points = np.full((n, blocks), 1 << (bits - 1), np.uint8)
    if site.has(3):
        given = site.static(3)
        wanted = n * -(-blocks * bits // 8)
        if given.dtype != np.uint8 or given.size != wanted:
            raise site.unsupported(f"zero points {given.dtype}{list(given.shape)} in place of {wanted} bytes of {bits} bits each")
        points = np.ascontiguousarray(_unpacked(given.reshape(n, -1), bits)[:, :blocks])
    codes = b.constant(_unpacked(stored.reshape(n, -1), bits).reshape(n, blocks * block))
    lying = b.Reshape(scales, shape=(n, blocks), allowzero=1)
    flat = b.DequantizeLinear(codes, lying, b.constant(points), axis=1, block_size=block)
    weights = flat if blocks * block == k else b.Slice(flat, starts=(0,), ends=(k,), axes=(1,), steps=(1,))
    y = b.FusedMatMul(site.value(0), weights, transB=1)
    return (b.Add(y, site.value(5)) if site.has(5) else y,)


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """Rows of bytes as the numbers in them, the first in the lowest bits."""
    if bits == 8:
        return data
    parts = (data[:, :, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(data.shape[0], -1))
