"""Activations with the biases before them."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Value
from tileflow.ops.dropout import Dropout
from tileflow.system.errors import ShapeError

from ...site import Site
from .form import fused


def _biased(site: Site) -> Value:
    return site.emit("Add", site.value(0), site.value(1)) if site.has(1) else site.value(0)


@fused("BiasGelu", "A:T, B:T bias -> C:T")
@fused("Gelu", "X:T -> Y:T")
def gelu(site: Site) -> Sequence[Value]:
    """By the error function."""
    return site.finish("Gelu", _biased(site))


@fused("FastGelu", "X:T, bias?:T bias -> Y:T")
def fast_gelu(site: Site) -> Sequence[Value]:
    """By tanh."""
    return site.finish("Gelu", _biased(site), approximate="tanh")


@fused("QuickGelu", "X:T -> Y:T", alpha=1.702)
def quick_gelu(site: Site) -> Sequence[Value]:
    """x * sigmoid(alpha x)."""
    x = site.value(0)
    return site.finish("Mul", x, site.emit("Sigmoid", site.emit("Mul", x, site.builder.scalar(site.attrs["alpha"], x))))


@fused("BiasAdd", "X:T, bias:T bias, skip:T -> Y:T")
def bias_add(site: Site) -> Sequence[Value]:
    return site.finish("Add", site.emit("Add", site.value(0), site.value(1)), site.value(2))


@fused("BiasSplitGelu", "X:T, bias:T bias -> Y:T")
def bias_split_gelu(site: Site) -> Sequence[Value]:
    """The first half of the channels times Gelu of the second."""
    x = _biased(site)
    if not x.shape or x.shape[-1] % 2:
        raise ShapeError(f"{site.title} halves the last dimension of {x.type}, which is odd")
    half, axis = x.shape[-1] // 2, (x.type.rank - 1,)
    left, right = (site.emit("Slice", x, starts=(k * half,), ends=((k + 1) * half,), axes=axis, steps=(1,)) for k in range(2))
    return site.finish("Mul", left, site.emit("Gelu", right))


@fused("BiasSoftmax", "data:T, bias:T -> output:T", axis=1, is_inner_broadcast=int)
def bias_softmax(site: Site) -> Sequence[Value]:
    """Softmax over all dimensions from `axis` on of data + bias. The bias has the dimensions from some one on (inner), or is of size 1 before."""
    x, bias = site.value(0), site.value(1)
    axis = site.attrs["axis"] % max(x.type.rank, 1)
    if not site.attrs["is_inner_broadcast"] and bias.type.rank < x.type.rank:
        raise site.unsupported("a bias of lower rank that is not broadcast from inside")
    total = site.emit("Add", x, bias)
    if total.shape != x.shape:
        raise ShapeError(f"{site.title}: the bias {bias.type} does not broadcast to {x.type}")
    rows = 1
    for n in x.shape[:axis]:
        rows *= n
    flat = site.emit("Reshape", total, shape=(rows, total.type.size // max(rows, 1)), allowzero=1)
    return site.finish("Reshape", site.emit("Softmax", flat, axis=1), shape=x.shape, allowzero=1)


@fused("BiasDropout", "data:T, bias:T bias, residual?:T, ratio?:U, training_mode?:B -> output:T, mask?:B", seed=int | None)
def bias_dropout(site: Site) -> Sequence[Value | None]:
    """dropout(data + bias) + residual."""
    active = site.scope.training if site.scope.training is not None else site.has(4) and bool(site.scalar(4))
    y = site.emit("Add", site.value(0), site.value(1))
    ratio = float(site.scalar(3)) if site.has(3) else 0.5
    y, *mask = site.builder.emit(_dropout(ratio, bool(active), site.scope.next_stream(), site.wants(1)), y)
    return (site.emit("Add", y, site.value(2)) if site.has(2) else y, *mask)


def _dropout(ratio: float, active: bool, stream: int, mask: bool) -> Dropout:
    return Dropout(ratio=ratio, training_mode=int(active), stream=stream, mask=int(mask))
