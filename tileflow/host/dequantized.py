"""Quantised models in QDQ form computed in integers: DequantizeLinear, an operator, QuantizeLinear become one operator on bytes.

What is equal to what. Let x = (qx - zx) sx and w = (qw - zw) sw with scales in float32, and n = sum (qx - zx)(qw - zw) + qb, an integer. The
operator's exact value is y = sx sw n, where the bias is (qb - 0) sb and sb = sx sw; what is quantised is y / sy = m n with m = sx sw / sy.

- The float way rounds products and sums in float32 (and each dequantised number), divides, and rounds to a whole number.
- The integer way has n exactly, in 32 bits (which is proved from the weights, or from the length of the sums), rounds it to float32, multiplies by m,
  which is rounded twice, and rounds to a whole number.

Before the last rounding both lie within (k + 8) 2^-24 m (sum |qx - zx| |qw - zw| + |qb|) of the exact value, k being the products of a sum: so they
differ by at most one step wherever that is less than a half (its factor m sum|..| is the result in steps, as large as it would be without
cancellation), and mostly not at all. The integer way is the nearer one. Where sb is sx sw up to 2^-20 only, as it is rounded in files, the bias
moves by as much.

A Relu or Clip in between changes nothing of that: quantisation never decreases, so Q(min(max(y, a), b)) = min(max(Q(y), Q(a)), Q(b)), exactly; and
Q(0) is the zero point. Bounds at or beyond those of the type are the type's own saturation.

A product that nothing quantises is (sx sw) n, and its bias is added in float32: n, sx sw and the product of the two are
rounded once each, where the float way rounds every number, product and sum. So it, too, is the nearer one.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..graph import Builder, Index, Node, TensorType, Value
from ..kernels.elementwise.expr import Var, maximum, minimum
from ..ops.activation import Relu
from ..ops.arithmetic import Clip
from ..ops.conv import Conv
from ..ops.elementwise import Map
from ..ops.integer import BYTES, ByteProduct, QLinearConv, exact_product, requantize, scaled
from ..ops.matmul import Gemm, MatMul
from ..ops.quantize import BOUNDS, DequantizeLinear, QuantizeLinear
from ..ops.shape import present
from .form import HostOp
from .integer import HostConv, serves
from .rewrite import Replacement, composite_rule, node_of

NEAR = 2.0 ** -20
"""How far a bias' scale may be from that of the products, as a part of it."""
MOST = 2 ** 31
"""What sums stay below."""


class QuantizedProduct(HostOp):
    """The product of quantised matrices, quantised: operands a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point and a bias
    (int32 [n], optional). Made by `in_integers` only, and taken apart at once."""

    name: ClassVar[str] = "QuantizedProduct"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (ByteProduct().infer(types[0], types[3])[0].with_dtype(present(types[7]).dtype),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, sx, zx, y, sy, zy, s, z = (present(v) for v in inputs[:8])
        total = exact_product(b, x, y, zx, zy)
        return [requantize(b, total, [sx, sy, s], z, inputs[8] if len(inputs) > 8 else None)]

    def __str__(self) -> str:
        return self.name


class ScaledProduct(HostOp):
    """The product of quantised matrices in float32: operands a, a_scale, a_zero_point, b, b_scale, b_zero_point and a
    bias (float32, optional). Made by `sums_in_integers` only, and taken apart at once."""

    name: ClassVar[str] = "ScaledProduct"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (ByteProduct().infer(types[0], types[3])[0].with_dtype("float32"),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, sx, zx, y, sy, zy = (present(v) for v in inputs[:6])
        return [scaled(b, exact_product(b, x, y, zx, zy), sx, sy, inputs[6] if len(inputs) > 6 else None)]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quantized:
    """A dequantised tensor before that: its integers, scale and zero point (arrays of one element, or one for each index of `axis`)."""

    integers: Value
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None

    def span(self) -> int:
        """The largest |q - zero|, by the type."""
        least, most = BOUNDS[self.integers.dtype]
        return max(int(self.zero.max()) - least, most - int(self.zero.min()))


def _dequantized(index: Index, value: Value | None, types: Sequence[str]) -> Quantized | None:
    """What `value` was made of by a DequantizeLinear to float32 from one of those types, with constant scales that are sound numbers; else None."""
    node = None if value is None else index.maker(value)
    if node is None or not isinstance(node.op, DequantizeLinear) or node.op.block_size or present(value).dtype != "float32":
        return None
    x, scale, *zeros = node.operands
    scales, points = _numbers(index, scale), _numbers(index, zeros[0]) if zeros else np.zeros(scale.shape, x.type.numpy)
    if x.dtype not in types or scale.dtype != "float32" or scales is None or points is None or not _sound(scales):
        return None
    per_axis = max(scales.size, points.size) > 1
    return Quantized(x, scales.reshape(-1), points.reshape(-1), node.op.axis % x.type.rank if per_axis else None)


def _numbers(index: Index, value: Value) -> np.ndarray | None:
    """A constant's elements."""
    return index.constants.get(value)


def _sound(scale: np.ndarray) -> bool:
    """Numbers whose products and quotients are far from the ends of float32's range."""
    return bool((np.isfinite(scale) & (scale > 2.0 ** -40) & (scale < 2.0 ** 40)).all())


@composite_rule
def in_integers(index: Index, node: Node) -> Replacement | None:
    """DequantizeLinear of images and of constant weights (per tensor or per output channel), Conv or MatMul or Gemm, perhaps with a bias that is
    dequantised by the product of both scales, perhaps Relu or Clip, QuantizeLinear: in integers; see above. Everything else is left alone."""
    if not isinstance(node.op, QuantizeLinear) or node.op.block_size or node.op.precision or node.outputs[0].dtype not in BYTES:
        return None
    y, scale, *zeros = node.operands
    sy, zy = _numbers(index, scale), _numbers(index, zeros[0]) if zeros else np.zeros((), node.outputs[0].type.numpy)
    if sy is None or zy is None or (sy.size, zy.size) != (1, 1) or y.dtype != "float32" or sy.dtype != np.float32 or not _sound(sy):
        return None
    steps, bounds = [node], BOUNDS[zy.dtype.name]
    made = index.maker(y) if index.only_reader(y) is node else None
    while made is not None and isinstance(made.op, Relu | Clip):
        if isinstance(made.op, Clip) and any(bound is not None and math.isnan(bound) for bound in (made.op.min, made.op.max)):
            return None
        bounds = _within(bounds, made.op, float(sy.reshape(-1)[0]), int(zy.reshape(-1)[0]))
        steps.append(made)
        made = index.maker(made.operands[0]) if index.only_reader(made.operands[0]) is steps[-1] else None
    if made is None or not isinstance(made.op, Conv | MatMul | Gemm):
        return None
    x, w, bias = [_dequantized(index, v, types) for v, types in zip([*made.inputs, None][:3], (BYTES, BYTES, ("int32",)), strict=True)]
    biased = len(made.inputs) > 2 and made.inputs[2] is not None
    if x is None or w is None or x.axis is not None or biased != (bias is not None):
        return None
    m = x.scale.astype(np.float64) * w.scale / sy.reshape(-1)
    fits = _conv_fits if isinstance(made.op, Conv) else _product_fits
    if not _sound(m) or (bias is not None and not _bias_fits(bias, x, w)) or not fits(index, made, x, w, bias):
        return None
    return _replaced(index, node, made, (x, w, bias), (sy, zy), steps, bounds)


@composite_rule
def sums_in_integers(index: Index, node: Node) -> Replacement | None:
    """DequantizeLinear of both operands, as above, of a MatMul or Gemm that is not quantised again: exact sums, scaled
    once, and any bias in float32. Everything else is left alone."""
    if not isinstance(node.op, MatMul | Gemm):
        return None
    after = index.only_reader(node.outputs[0])
    while after is not None and isinstance(after.op, Relu | Clip):
        after = index.only_reader(after.outputs[0])
    if after is not None and in_integers(index, after) is not None:
        return None
    x, w = (_dequantized(index, v, BYTES) for v in node.inputs[:2])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or w is None or x.axis is not None or not _product_fits(index, node, x, w, None):
        return None
    if bias is not None and isinstance(node.op, Gemm) and node.op.beta != 1:
        return None
    constants = _Constants(node.outputs[0].name)
    given = _given(index, node, x, w, constants)
    made = node_of(ScaledProduct(), [*given, *([bias] if bias is not None else [])], node.origin, node.outputs)
    return Replacement(frozenset((node,)), ((node, (made,)),), constants.arrays)


def _within(bounds: tuple[int, int], op: Relu | Clip, scale: float, zero: int) -> tuple[int, int]:
    """The quantised bounds, cut by those of an activation that comes before the others."""
    least, most = (0.0, None) if isinstance(op, Relu) else (op.min, op.max)
    low, high = bounds
    for number, upper in ((most, True), (least, False)):                # what is done last comes first
        if number is not None:
            cut = np.rint(np.float32(number) / np.float32(scale)) + zero
            at = int(min(max(cut, low), high))
            low, high = (low, at) if upper else (at, high)
    return low, high


def _bias_fits(bias: Quantized, x: Quantized, w: Quantized) -> bool:
    """It has the products' scale, channel by channel, and no zero point."""
    wanted = x.scale.astype(np.float64) * w.scale
    sizes = {1, wanted.size, bias.scale.size}
    if bias.zero.any() or bias.axis not in (None, bias.integers.type.rank - 1) or len(sizes) > 2:
        return False
    return bool((np.abs(bias.scale / wanted - 1) <= NEAR).all())


def _in_range(index: Index, x: Quantized, w: Quantized, bias: Quantized | None, count: int, along: tuple[int, ...]) -> bool:
    """Sums over the axes `along` of the weights, of `count` products, stay in 32 bits whatever x is."""
    more = 0
    if bias is not None:
        numbers = _numbers(index, bias.integers)
        if numbers is None:
            return False
        more = int(np.abs(numbers.astype(np.int64)).max(initial=0))
    if (weights := _numbers(index, w.integers)) is None:
        return count * x.span() * w.span() + more < MOST
    lying = [1] * weights.ndim
    lying[w.axis or 0] = -1
    sums = np.abs(weights.astype(np.int64) - w.zero.astype(np.int64).reshape(lying if w.axis is not None else ())).sum(axis=along)
    return int(sums.max(initial=0)) * x.span() + more < MOST


def _conv_fits(index: Index, node: Node, x: Quantized, w: Quantized, bias: Quantized | None) -> bool:
    rank = w.integers.type.rank
    return w.axis in (None, 0) and _numbers(index, w.integers) is not None and \
        _in_range(index, x, w, bias, math.prod(w.integers.shape[1:]), tuple(range(1, rank)))


def _product_fits(index: Index, node: Node, x: Quantized, w: Quantized, bias: Quantized | None) -> bool:
    """Gemm without factors, and with nothing transposed but constant weights; channels are columns."""
    op, shape = node.op, w.integers.shape
    turned = isinstance(op, Gemm) and bool(op.transB)
    if isinstance(op, Gemm) and (op.alpha != 1 or op.transA):
        return False
    if isinstance(op, Gemm) and bias is not None and (op.beta != 1 or bias.integers.shape != (node.outputs[0].shape[1],)):
        return False
    if len(shape) < 2 or x.integers.type.rank < 2 or (turned and _numbers(index, w.integers) is None) or (w.axis is not None and len(shape) != 2):
        return False
    depth = 1 if turned else len(shape) - 2
    return w.axis in (None, 1 - depth) and _in_range(index, x, w, bias, shape[depth], (depth,))


class _Constants:
    """Values for arrays that a replacement brings, named after what it makes."""

    def __init__(self, name: str) -> None:
        self.arrays: dict[Value, np.ndarray] = {}
        self._name = name

    def made(self, array: np.ndarray, what: str) -> Value:
        """A value for an array."""
        value = Value(f"{self._name}.{what}", TensorType(array.dtype.name, array.shape))
        self.arrays[value] = array
        return value

    def point(self, array: np.ndarray, number: int) -> Value:
        """Likewise for scales or zero points, one or one for each channel."""
        return self.made(array.reshape(() if array.size == 1 else -1), f"point{number}")


def _given(index: Index, made: Node, x: Quantized, w: Quantized, constants: _Constants) -> list[Value]:
    """The operands in integers: x, its scale and zero point, weights as columns, theirs."""
    weights = w.integers
    if isinstance(made.op, Gemm) and made.op.transB:
        turned = present(_numbers(index, weights)).T                                            # type: ignore[type-var]
        weights = constants.made(np.ascontiguousarray(turned), "weights")
    points = [constants.point(a, i) for i, a in enumerate([x.scale, x.zero, w.scale, w.zero])]
    return [x.integers, *points[:2], weights, *points[2:]]


def _replaced(index: Index, node: Node, made: Node, operands: tuple[Quantized, Quantized, Quantized | None], result: tuple[np.ndarray, np.ndarray],
              steps: list[Node], bounds: tuple[int, int]) -> Replacement:
    """The operator in integers in place of all."""
    x, w, bias = operands
    constants = _Constants(node.outputs[0].name)
    given = _given(index, made, x, w, constants)
    points = [constants.point(a, 4 + i) for i, a in enumerate(result)]
    inputs = [*given, *points, *([bias.integers] if bias is not None else [])]
    limited = bounds != BOUNDS[result[1].dtype.name]
    op: HostOp | QLinearConv = QuantizedProduct()
    if isinstance(made.op, Conv):
        own = made.op
        conv = QLinearConv(auto_pad=own.auto_pad, dilations=own.dilations or (), group=own.group, pads=own.pads or (), strides=own.strides or ())
        op = HostConv(conv) if serves(conv, x.integers.type, w.integers.type) else conv
    origin = node.origin.merged(made.origin)
    nodes = [node_of(op, inputs, origin, () if limited else node.outputs)]
    if limited:
        number, low, high = (Var(i, node.outputs[0].dtype) for i in range(3))
        least, most = BOUNDS[number.dtype]
        limits = [constants.made(np.array(min(max(at, least), most), number.dtype), what)
                  for at, what in zip(bounds, ("low", "high"), strict=True)]
        nodes.append(node_of(Map(exprs=(minimum(maximum(number, low), high),)), [*nodes[0].outputs, *limits], origin,
                             node.outputs))
    return Replacement(frozenset((*steps, made)), ((node, tuple(nodes)),), constants.arrays)
