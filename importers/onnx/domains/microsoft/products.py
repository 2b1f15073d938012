"""Matrix products and convolutions with what stands before and behind them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import GraphProto, helper

from tileflow.graph import Value
from tileflow.system.errors import ShapeError

from ...site import Site
from .form import alike, fused

CHANNELS_LAST: dict[str, Any] = {"group": 1, "pads": list[int] | None, "auto_pad": "NOTSET", "strides": list[int] | None,
                                 "dilations": list[int] | None, "kernel_shape": list[int] | None}
"""Attributes of convolutions."""
ACTIVATED: dict[str, Any] = {"activation": str | None, "activation_params": list[float] | None}
ACTIVATIONS = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": (("alpha", 0.01),), "Clip": (),
               "HardSigmoid": (("alpha", 0.2), ("beta", 0.5))}
"""What may stand behind a product, and the names and defaults of its numbers."""


@fused("FusedMatMul", "A:T, B:T weight -> Y:T", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)
@fused("TransposeMatMul", "A:T, B:T weight -> Y:T", alpha=1.0, transA=0, transB=0)
def fused_matmul(site: Site) -> Sequence[Value]:
    """alpha * A B, either operand transposed before."""
    return (_product(site),)


def _product(site: Site) -> Value:
    a, b = (turned(site, site.value(i), bool(site.attrs[f"trans{x}"]), bool(site.attrs.get(f"transBatch{x}"))) for i, x in enumerate("AB"))
    product = site.emit("MatMul", a, b)
    alpha = site.attrs["alpha"]
    return product if alpha == 1 else site.emit("Mul", product, site.builder.scalar(alpha, product))


def turned(site: Site, x: Value, matrix: bool, batch: bool) -> Value:
    """An operand as it is multiplied. trans: its last two dimensions are exchanged (a vector stays); transBatch: its first stands before the
    last one in memory: [a, b, ..., m, k] is stored as [b, ..., m, a, k], or with trans as [b, ..., k, a, m] are."""
    rank = x.type.rank
    order = list(range(rank))
    if batch:
        if rank < 3:
            raise ShapeError(f"{site.title}: an operand with transBatch is {x.type}; it must have three dimensions or more")
        order = [rank - 2, *range(rank - 2), rank - 1]
    if matrix and rank > 1:
        order[-1], order[-2] = order[-2], order[-1]
    return x if order == list(range(rank)) else site.emit("Transpose", x, perm=tuple(order))


@fused("FusedMatMulActivation", "A:T, B:T weight -> Y:T", alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0, activation=str,
       activation_alpha=float | None, activation_beta=float | None, activation_gamma=float | None, activation_axis=int | None)
def fused_matmul_activation(site: Site) -> Sequence[Value]:
    if "activation_gamma" in site.given or "activation_axis" in site.given:
        raise site.unsupported("the attributes activation_gamma and activation_axis")
    return (_activated(site, _product(site), _numbers(site)),)


@fused("FusedGemm", "A:T, B:T weight, C?:T bias -> Y:T", alpha=1.0, beta=1.0, transA=0, transB=0, activation=str | None,
       activation_alpha=float | None, activation_beta=float | None, activation_gamma=float | None)
def fused_gemm(site: Site) -> Sequence[Value]:
    """A Gemm and an activation."""
    if "activation_gamma" in site.given:
        raise site.unsupported("the attribute activation_gamma")
    attributes = {name: site.attrs[name] for name in ("alpha", "beta", "transA", "transB")}
    y = site.emit("Gemm", site.value(0), site.value(1), *([site.value(2)] if site.has(2) else []), **attributes)
    return (_activated(site, y, _numbers(site)),)


def _numbers(site: Site) -> list[float]:
    """activation_alpha and activation_beta, as many as are given."""
    given = [site.given.get(f"activation_{name}") for name in ("alpha", "beta")]
    return [float(n) for n in given if n is not None] if given[0] is not None or given[1] is None else [float("nan"), float(given[1])]


def _activated(site: Site, y: Value, numbers: Sequence[float]) -> Value:
    """y through the activation that the node names."""
    name = site.attrs.get("activation") or ""
    if not name:
        return y
    if name not in ACTIVATIONS:
        raise site.unsupported(f"the activation {name!r}"[:120])
    if name == "Clip":
        if len(numbers) != 2:
            raise site.unsupported("a Clip without both of its bounds")
        return site.emit("Clip", y, min=numbers[0], max=numbers[1])
    known = ACTIVATIONS[name]
    given = {key: default if i >= len(numbers) or numbers[i] != numbers[i] else numbers[i] for i, (key, default) in enumerate(known)}
    return site.emit(name, y, **given)


@fused("FusedConv", "X:T, W:T weight, B?:T bias, Z?:T -> Y:T", **CHANNELS_LAST, **ACTIVATED)
def fused_conv(site: Site) -> GraphProto:
    """A convolution, to which Z is added, and an activation."""
    return _convolved(site, False)


@fused("NhwcFusedConv", "X:T, W:T weight, B?:T bias, Z?:T -> Y:T", **CHANNELS_LAST, **ACTIVATED)
def channels_last_fused_conv(site: Site) -> GraphProto:
    """The same over images with their channels last; the weights' channels are where ONNX has them."""
    return _convolved(site, True)


@fused("NhwcConv", "X:T, W:T weight, B?:T bias -> Y:T", **CHANNELS_LAST)
def channels_last_conv(site: Site) -> GraphProto:
    """A convolution over images with their channels last; so are the weights', [outputs, *kernel, inputs of a group], as the optimizer for
    transformers writes them (fusion_nhwc_conv.py)."""
    return _convolved(site, True, weights_last=True)


def _convolved(site: Site, last: bool, weights_last: bool = False) -> GraphProto:
    """Nodes of ONNX's own domain in the node's place."""
    name, prefix = site.outputs[0], f"{site.outputs[0]}/"
    rank = site.type(0).rank
    first, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    conv = {k: v for k, v in site.given.items() if k in CHANNELS_LAST}
    nodes = [helper.make_node("Transpose", site.inputs[:1], [f"{prefix}x"], perm=first)] if last else []
    at, w = f"{prefix}conv", f"{prefix}w" if weights_last else site.inputs[1]
    if weights_last:
        nodes.append(helper.make_node("Transpose", site.inputs[1:2], [w], perm=first))
    nodes.append(helper.make_node("Conv", [f"{prefix}x" if last else site.inputs[0], w, *site.inputs[2:3]], [at], **conv))
    if last:
        nodes.append(helper.make_node("Transpose", [at], [f"{prefix}y"], perm=back))
        at = f"{prefix}y"
    if site.has(3):
        nodes.append(helper.make_node("Add", [at, site.inputs[3]], [f"{prefix}sum"]))
        at = f"{prefix}sum"
    inner = helper.make_graph(nodes, "conv", [], [helper.make_empty_tensor_value_info(at)])
    kind = site.attrs.get("activation") or ""
    numbers = [float(n) for n in site.attrs.get("activation_params") or []]
    if not kind:
        return inner
    if kind not in ACTIVATIONS or (kind == "Clip" and len(numbers) != 2):
        raise site.unsupported(f"the activation {kind!r} with {len(numbers)} numbers"[:120])
    if kind == "Clip":
        like = helper.np_dtype_to_tensor_dtype(site.type(0).numpy)
        for bound, number in zip(("min", "max"), numbers, strict=True):
            inner.node.append(helper.make_node("Constant", [], [prefix + bound], value=helper.make_tensor(bound, like, [], [number])))
        inner.node.append(helper.make_node("Clip", [at, f"{prefix}min", f"{prefix}max"], [f"{prefix}{name}"]))
    else:
        given: dict[str, Any] = dict(zip([key for key, _ in ACTIVATIONS[kind]], numbers, strict=False))
        inner.node.append(helper.make_node(kind, [at], [f"{prefix}{name}"], **given))
    inner.output[0].name = f"{prefix}{name}"
    return inner


@fused("GemmFastGelu", "X:T, W:T weight, bias?:T bias -> Y:T")
def gemm_fast_gelu(site: Site) -> Sequence[Value]:
    y = site.emit("MatMul", site.value(0), site.value(1))
    return (site.emit("Gelu", site.emit("Add", y, site.value(2)) if site.has(2) else y, approximate="tanh"),)


@fused("ConvTransposeWithDynamicPads", "X:T, W:T weight, Pads?:L, B?:T bias -> Y:T",
       **{name: default for name, default in CHANNELS_LAST.items() if name != "pads"}, output_padding=list[int] | None)
def conv_transpose_with_dynamic_pads(site: Site) -> GraphProto:
    """A transposed convolution whose pads are known when the model is imported."""
    given = {**site.given, **({"pads": [int(n) for n in site.static(2).reshape(-1)]} if site.has(2) else {})}
    return alike(site, "ConvTranspose", [*site.inputs[:2], *([site.inputs[3]] if site.has(3) else [])], **given)
