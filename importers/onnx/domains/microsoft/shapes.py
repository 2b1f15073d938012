"""Operators that ONNX has by now, under the same or another name, and some of movement."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, helper

from tileflow.graph import Value
from tileflow.ops.shape import normal_axis

from ...declared import declare
from ...site import Site
from .form import DOMAIN, alike, fused

declare(DOMAIN, "Unique", "x:V -> y:V, idx:L, counts:L")                # Python runs it: hosted/select.py


@fused("Trilu", "X:V, k?:L -> Y:V", upper=1)
def trilu(site: Site) -> GraphProto:
    return alike(site, "Trilu", **site.given)


@fused("Range", "start:N, limit:N, delta?:N -> Y:N")
def range_(site: Site) -> GraphProto:
    """The step is 1 where it is left out."""
    if site.has(2):
        return alike(site, "Range")
    one = f"{site.outputs[0]}/step"
    graph = alike(site, "Range", [*site.inputs[:2], one])
    kind = helper.np_dtype_to_tensor_dtype(site.type(0).numpy)
    graph.node.insert(0, helper.make_node("Constant", [], [one], value=helper.make_tensor("one", kind, [], [1])))
    return graph


@fused("Pad", "data:T, pads:L, value?:T -> output:T", mode="constant")
def pad(site: Site) -> GraphProto:
    return alike(site, "Pad", **site.given)


@fused("ExpandDims", "X:V, axis:M -> Y:V")
def expand_dims(site: Site) -> Sequence[Value]:
    x = site.value(0)
    return site.finish("Unsqueeze", x, axes=(normal_axis(int(site.scalar(1)), x.type.rank + 1),))


@fused("TorchEmbedding", "weight:T table, indices:L, padding_idx?:L, scale_grad_by_freq?:B -> Y:T")
def torch_embedding(site: Site) -> Sequence[Value]:
    """Rows of a table. What gradients do with padding_idx and frequencies is not computed."""
    if site.scope.training and (site.has(2) or site.has(3)):
        raise site.unsupported("padding_idx and scale_grad_by_freq in training")
    return site.finish("Gather", site.value(0), site.value(1), axis=0)


@fused("Inverse", "X:T -> Y:T")
def inverse(site: Site) -> Sequence[Value]:
    """Cofactors, transposed, divided by the determinant."""
    x, b = site.value(0), site.builder
    det = site.emit("Det", x)
    cofactors = site.emit("DetGrad", b.constant(np.ones(det.shape, x.type.numpy)), x)
    rank = x.type.rank
    turned = site.emit("Transpose", cofactors, perm=(*range(rank - 2), rank - 1, rank - 2))
    return site.finish("Div", turned, site.emit("Reshape", det, shape=(*det.shape, 1, 1), allowzero=1))


@fused("CDist", "A:T, B:T -> C:T", metric="sqeuclidean")
def cdist(site: Site) -> Sequence[Value]:
    """Distances from each row of A [m, n] to each of B [k, n]."""
    if site.attrs["metric"] not in ("euclidean", "sqeuclidean"):
        raise site.unsupported(f"the attribute metric={site.attrs['metric']!r}"[:120])
    a, c = site.emit("Unsqueeze", site.value(0), axes=(1,)), site.emit("Unsqueeze", site.value(1), axes=(0,))
    apart = site.emit("Sub", a, c)
    squares = site.emit("ReduceSum", site.emit("Mul", apart, apart), axes=(2,), keepdims=0)
    return (squares,) if site.attrs["metric"] == "sqeuclidean" else site.finish("Sqrt", squares)


@fused("ComplexMul", "A:T, B:T -> C:T")
@fused("ComplexMulConj", "A:T, B:T -> C:T")
def complex_mul(site: Site) -> Sequence[Value]:
    """Products of complex numbers, whose last dimension holds the real and the imaginary part; Conj: by the conjugate of B."""
    (a, b), (c, d) = ([site.emit("Slice", site.value(i), starts=(k,), ends=(k + 1,), axes=(site.type(i).rank - 1,), steps=(1,)) for k in (0, 1)]
                      for i in (0, 1))
    plus, minus = ("Sub", "Add") if site.op_type == "ComplexMul" else ("Add", "Sub")
    real = site.emit(plus, site.emit("Mul", a, c), site.emit("Mul", b, d))
    pair = (site.emit("Mul", b, c), site.emit("Mul", a, d))
    imaginary = site.emit(minus, *pair)
    return site.finish("Concat", real, imaginary, axis=-1)
