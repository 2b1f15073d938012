"""Quantised operators of ONNX Runtime: integers with scales and zero points, taken apart into dequantisation, the operator, and quantisation, or into
exact products of integers."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, helper

from tileflow.graph import Value
from tileflow.ops.integer import exact_product, requantize, scaled
from tileflow.ops.quantize import DequantizeLinear, QuantizeLinear
from tileflow.ops.shape import normal_axis, present
from tileflow.system.errors import ShapeError

from ...site import Site
from .attention import from_product, refuse
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
    x, last = real(site, 0), bool(site.attrs["channels_last"])
    given = {name: tuple(site.attrs[name]) for name in ("kernel_shape", "pads", "strides") if site.attrs.get(name)}
    numbers = {name: site.attrs[name] for name in ("auto_pad", "ceil_mode", "count_include_pad")}
    y = site.emit("AveragePool", _channels(site, x, False) if last else x, **given, **numbers)
    return (quantised(site, _channels(site, y, True) if last else y, 3, site.value(0)),)


def _channels(site: Site, x: Value, last: bool) -> Value:
    """The channels moved to the last place, or from there to the first behind the batch."""
    rank = x.type.rank
    return site.emit("Transpose", x, perm=(0, *range(2, rank), 1) if last else (0, rank - 1, *range(1, rank - 1)))


@fused("NhwcMaxPool", "x:Q -> y:Q", auto_pad="NOTSET", ceil_mode=0, dilations=list[int] | None, kernel_shape=list[int], pads=list[int] | None,
       strides=list[int] | None)
def max_pool(site: Site) -> GraphProto:
    """Over images of bytes with their channels last."""
    return _planar(site, helper.make_node("MaxPool", [], [], **site.given), site.inputs[1:])


@fused("QLinearConv", "x:Q, x_scale:F, x_zero_point:Q, w:P weight, w_scale:F, w_zero_point:P, y_scale:F, y_zero_point:R, B?:M bias -> y:R",
       channels_last=0, group=1, pads=list[int] | None, strides=list[int] | None, dilations=list[int] | None, kernel_shape=list[int] | None,
       auto_pad="NOTSET")
def conv(site: Site) -> GraphProto:
    """ONNX's, over images that may have their channels last; those of the weights are where ONNX has them."""
    given = {name: value for name, value in site.given.items() if name != "channels_last"}
    return _planar(site, helper.make_node("QLinearConv", [], [], **given), site.inputs[1:], bool(site.attrs["channels_last"]))


def _planar(site: Site, node: NodeProto, others: Sequence[str], last: bool = True) -> GraphProto:
    """A node of ONNX's own domain in the place of one over channels-last images: between two Transposes."""
    rank, prefix = site.type(0).rank, f"{site.outputs[0]}/"
    made = helper.make_graph([node], node.op_type, [], [helper.make_empty_tensor_value_info(f"{prefix}{'last' if last else 'y'}")])
    inner = made.node[0]
    inner.input.extend([f"{prefix}x" if last else site.inputs[0], *others])
    inner.output.append(f"{prefix}y")
    if last:
        made.node.insert(0, helper.make_node("Transpose", site.inputs[:1], [f"{prefix}x"], perm=[0, rank - 1, *range(1, rank - 1)]))
        made.node.append(helper.make_node("Transpose", [f"{prefix}y"], [f"{prefix}last"], perm=[0, *range(2, rank), 1]))
    return made


@fused("QLinearSoftmax", "X:Q, X_scale:F, x_zero_point?:Q, y_scale:F, y_zero_point:Q -> Y:Q", axis=-1, opset=int)
def softmax(site: Site) -> Sequence[Value]:
    """Along `axis`; of opsets before 13 over all dimensions from `axis` on."""
    x, axis = real(site, 0), int(site.attrs["axis"])
    axis = normal_axis(axis, x.type.rank)
    if int(site.attrs["opset"]) >= 13:
        return (quantised(site, site.emit("Softmax", x, axis=axis), 3, site.value(0)),)
    rows = math.prod(x.shape[:axis])
    flat = site.emit("Reshape", x, shape=(rows, x.type.size // max(rows, 1)), allowzero=1)
    return (quantised(site, site.emit("Reshape", site.emit("Softmax", flat, axis=1), shape=x.shape, allowzero=1), 3, site.value(0)),)


@fused("QLinearWhere", "condition:B, X:Q, x_scale:F, x_zero_point:Q, Y:Q, y_scale:F, y_zero_point:Q, z_scale:F, z_zero_point:Q -> Z:Q")
def where(site: Site) -> Sequence[Value]:
    return (quantised(site, site.emit("Where", site.value(0), real(site, 1), real(site, 4)), 7, site.value(1)),)


@fused("QLinearReduceMean", "data:Q, data_scale:F, data_zero_point?:Q, reduced_scale:F, reduced_zero_point?:Q -> reduced:Q", axes=list[int],
       keepdims=int)
def reduce_mean(site: Site) -> Sequence[Value]:
    x = real(site, 0)
    axes = tuple(normal_axis(int(axis), x.type.rank) for axis in site.attrs["axes"]) or tuple(range(x.type.rank))
    return (quantised(site, site.emit("ReduceMean", x, axes=axes, keepdims=int(site.attrs["keepdims"])), 3, site.value(0)),)


@fused("QAttention", "input:Q, weight:P weight, bias:F bias, input_scale:F, weight_scale:F, mask_index?:M, input_zero_point?:Q, "
                     "weight_zero_point?:P, past?:F -> output:F, present?:F", num_heads=int, unidirectional=0, mask_filter_value=float | None,
       scale=float | None, do_rotary=int | None, past_present_share_buffer=int | None)
def attention(site: Site) -> Sequence[Value | None]:
    """Attention whose product with the weights is one of bytes; its sums are exact."""
    refuse(site, "do_rotary", "past_present_share_buffer")
    total = exact_product(site.builder, site.value(0), site.value(1), _row(site, 6), _row(site, 7))
    product = scaled(site.builder, total, present(_row(site, 3)), present(_row(site, 4)), site.value(2))
    return from_product(site, product, mask=5, past=8, bias=len(site.inputs))


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
