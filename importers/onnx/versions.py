"""Operators whose ONNX form differs from the engine's declaration, by opset. Everything else takes the default path (Site.generic).

A form returns the node's outputs in order: values of the graph, or arrays that are known already (None: an output it does not make).
It returns None where the default path shall be taken after all, and a graph (a branch) to be taken in place of the node.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto

from tileflow.errors import ShapeError
from tileflow.graph import Value
from tileflow.graph.types import broadcast_shapes
from tileflow.ops.gather_nd import GatherND
from tileflow.ops.shape import normal_axes, normal_axis

from .rebatch import rescaled, resolved
from .site import Site

Form = Callable[[Site], Sequence[Value | np.ndarray | None] | GraphProto | None]
FORMS: dict[str, list[tuple[int, Form]]] = {}
ALWAYS = 1 << 30
ABREAST = 12
"""Operands of one elementwise node."""


def form(*names: str, below: int = ALWAYS) -> Callable[[Form], Form]:
    """Register a function for the operators `names` in opsets under `below`; of several the lowest bound that holds wins."""
    def register(function: Form) -> Form:
        for name in names:
            FORMS.setdefault(name, []).append((below, function))
            FORMS[name].sort(key=lambda entry: entry[0])
        return function
    return register


def form_of(op_type: str, opset: int) -> Form | None:
    """The form in force, or None for the default path."""
    return next((function for below, function in FORMS.get(op_type, ()) if opset < below), None)


@form("Identity")
def identity(site: Site) -> Sequence[Value]:
    return (site.value(0),)


@form("Cast")
def cast(site: Site) -> Sequence[Value]:
    to = site.dtype(site.attrs["to"])
    return (site.value(0),) if site.type(0).dtype == to else site.generic(to=to)


@form("CastLike")
def cast_like(site: Site) -> Sequence[Value]:
    to = site.type(1).dtype
    return (site.value(0),) if site.type(0).dtype == to else site.finish("Cast", site.value(0), to=to)


@form("Reshape")
def reshape(site: Site) -> Sequence[Value]:
    """The target in plain sizes; one written for the file's batch is restated where another was chosen."""
    x, allowzero = site.value(0), bool(site.attrs.get("allowzero"))
    given = [int(n) for n in site.static(1).reshape(-1)]
    target = resolved(given, x.shape, allowzero)
    before, batch = site.declared_shape(1), site.scope.binding.declared_batch
    if before is not None and batch is not None:
        wanted = rescaled(before, x.shape, resolved(given, before, allowzero), batch)
        if wanted is not None and wanted != target:
            target = site.restated(given, wanted)
    return site.finish("Reshape", x, shape=target, allowzero=1)


@form("Expand")
def expand(site: Site) -> Sequence[Value]:
    """ONNX broadcasts both ways. A target written for the file's batch is restated where another was chosen."""
    x = site.value(0)
    target = tuple(int(n) for n in site.static(1).reshape(-1))
    before = site.declared_shape(1)
    if before is not None and len(target) == len(before):
        wanted = tuple(now if old == n != now else n for n, old, now in zip(target, before, x.shape, strict=True))
        if wanted != target:
            target = site.restated(target, wanted)
    return site.finish("Expand", x, shape=target)


@form("Squeeze")
def squeeze(site: Site) -> Sequence[Value]:
    x = site.value(0)
    axes = site.static_list(1, "axes")
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    return site.finish("Squeeze", x, axes=normal_axes(axes, x.type.rank))


@form("Unsqueeze")
def unsqueeze(site: Site) -> Sequence[Value]:
    x = site.value(0)
    axes = site.static_list(1, "axes") or []
    return site.finish("Unsqueeze", x, axes=tuple(sorted(normal_axes(axes, x.type.rank + len(axes)))))


@form("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce(site: Site) -> Sequence[Value]:
    """Axes came as an attribute until opset 13 (ReduceSum) or 18 (the others); none means all, or with noop_with_empty_axes none at all."""
    x = site.value(0)
    axes = site.static_list(1, "axes")
    if not axes and site.attrs.get("noop_with_empty_axes"):
        return (x,)
    reduced = normal_axes(axes or range(x.type.rank), x.type.rank)
    return site.finish(site.op_type, x, axes=reduced, keepdims=int(site.attrs.get("keepdims", 1)))


@form("Sum", "Mean", "Max", "Min")
def of_any_number(site: Site) -> Sequence[Value] | None:
    """Many operands are taken a few at a time, from the left: one kernel's code would grow with their number."""
    if len(site.inputs) <= ABREAST:
        return None
    folded, result = "Sum" if site.op_type == "Mean" else site.op_type, site.value(0)
    for i in range(1, len(site.inputs), ABREAST - 1):
        result = site.emit(folded, result, *(site.value(k) for k in range(i, min(i + ABREAST - 1, len(site.inputs)))))
    return (site.emit("Div", result, site.builder.scalar(len(site.inputs), result)),) if site.op_type == "Mean" else (result,)


@form("Softmax", "LogSoftmax", below=13)
def flattened_softmax(site: Site) -> Sequence[Value]:
    """Until opset 13 all dimensions from `axis` on are one."""
    x = site.value(0)
    axis = normal_axis(site.attrs.get("axis", 1), x.type.rank)
    if math.prod(x.shape[axis:-1]) == 1:
        return site.finish(site.op_type, x, axis=-1)
    flat = site.emit("Reshape", x, shape=(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), allowzero=1)
    return site.finish("Reshape", site.emit(site.op_type, flat, axis=-1), shape=x.shape, allowzero=1)


@form("Split")
def split(site: Site) -> Sequence[Value]:
    """Sizes came as an attribute until opset 13; absent, the parts are equal, the last one perhaps smaller."""
    x = site.value(0)
    axis = normal_axis(site.attrs.get("axis", 0), x.type.rank)
    sizes = site.static_list(1, "split")
    if sizes is None:
        chunk = -(-x.shape[axis] // len(site.outputs))
        sizes = [max(min(chunk, x.shape[axis] - i * chunk), 0) for i in range(len(site.outputs))]
    return site.finish("Split", x, axis=axis, sizes=tuple(sizes))


@form("Pad")
def pad(site: Site) -> Sequence[Value]:
    """Pads and the value were attributes before opset 11; from 18 on `axes` may name the padded dimensions."""
    x = site.value(0)
    pads = site.static_list(1, "pads") or []
    if site.has(3):
        axes = normal_axes([int(a) for a in site.static(3).reshape(-1)], x.type.rank)
        if len(pads) != 2 * len(axes):
            raise ShapeError(f"{site.title} has {len(pads)} pads for {len(axes)} axes, and needs two for each; export the model again")
        full = [0] * (2 * x.type.rank)
        for k, axis in enumerate(axes):
            full[axis], full[axis + x.type.rank] = pads[k], pads[k + len(axes)]
        pads = full
    value = site.scalar(2) if site.has(2) else site.attrs.get("value", 0.0)
    return site.finish("Pad", x, pads=tuple(pads), value=float(value), mode=site.attrs.get("mode", "constant"))


@form("Resize", "Upsample", below=11)
def upsample(site: Site) -> Sequence[Value]:
    """Until opset 11 elements lie at multiples of the scale; before 9 Upsample's scales were an attribute."""
    scales = site.static(1).reshape(-1).tolist() if site.has(1) else site.attrs["scales"]
    return site.finish("Resize", site.value(0), scales=tuple(map(float, scales)), mode=site.attrs.get("mode", "nearest"),
                       coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@form("Clip")
def clip(site: Site) -> Sequence[Value]:
    """Bounds that are known are attributes; computed ones become Max and Min."""
    if all(not site.has(i) or site.scope.static(site.inputs[i]) is not None for i in (1, 2)):
        return site.generic()
    x = site.value(0)
    if site.has(1):
        x = site.emit("Max", x, site.value(1))
    return site.finish("Min", x, site.value(2)) if site.has(2) else (x,)


@form("Dropout")
def dropout(site: Site) -> Sequence[Value]:
    """Until opset 12 the file's Dropout does nothing; later it has a training_mode; the importer's `training` overrides both.
    Each node draws random numbers of its own stream."""
    if site.scope.training is None:
        active = site.has(2) and bool(site.scalar(2))
    else:
        active = site.scope.training
    ratio = float(site.scalar(1)) if site.has(1) else float(site.attrs.get("ratio", 0.5))
    mask = site.opset >= 10 and site.wants(1)                # older masks are floats
    return site.finish("Dropout", site.value(0), ratio=ratio, training_mode=int(active), stream=site.scope.next_stream(), mask=int(mask))


@form("BatchNormalization")
def batch_normalization(site: Site) -> Sequence[Value]:
    """Inference as it stands. In training the batch's own mean and population variance normalise, and the running statistics follow them:
    running * momentum + batch * (1 - momentum), ONNX's equation (PyTorch's layer folds the unbiased variance instead)."""
    if site.attrs.get("spatial", 1) != 1:
        raise site.unsupported("the attribute spatial=0")
    training = bool(site.attrs.get("training_mode", 0)) if site.scope.training is None else site.scope.training
    epsilon, momentum = float(site.attrs["epsilon"]), float(site.attrs["momentum"])
    operands = [site.value(i) for i in range(5)]
    if not training:
        y = site.finish("BatchNormalization", *operands, epsilon=epsilon, momentum=momentum)[0]
        return (y, *operands[3:5])
    y, mean, variance = site.finish("BatchNormalization", *operands[:3], None, None, names=(site.outputs[0],), epsilon=epsilon,
                                    momentum=momentum, training_mode=1)[:3]
    running = []
    for name, old, batch in zip(site.inputs[3:5], operands[3:5], (mean, variance), strict=True):
        if batch.type != old.type:
            batch = site.emit("Cast", batch, to=old.dtype)
        kept = site.emit("Mul", old, site.builder.scalar(momentum, old))
        new = site.emit("Add", kept, site.emit("Mul", batch, site.builder.scalar(1 - momentum, old)))
        site.scope.update(name, new)
        running.append(new)
    return (y, *running)


@form("RMSNormalization")
def rms_normalization(site: Site) -> Sequence[Value] | None:
    """A scale that broadcasts is written out; float32 statistics (stash_type) of another type are left to ONNX's own definition."""
    x, scale = site.value(0), site.value(1)
    if x.dtype not in ("float32", "float64"):
        return None
    axis = normal_axis(site.attrs.get("axis", -1), x.type.rank)
    if scale.shape != x.shape[axis:]:
        whole = broadcast_shapes(scale.shape, x.shape[axis:])
        if whole != x.shape[axis:]:
            raise ShapeError(f"{site.title}: the scale {scale.type} does not broadcast to the normalised dimensions {list(x.shape[axis:])} of "
                             f"the input; a scale that differs between rows must be multiplied on its own")
        scale = site.emit("Expand", scale, shape=whole)
    return site.finish("RMSNormalization", x, scale, axis=axis, epsilon=float(site.attrs.get("epsilon", 1e-5)))[:1]


@form("GatherND")
def gather_nd(site: Site) -> None:
    """Known indices are compared with the sizes here, where the file can be named."""
    index = site.known(1)
    if index is not None:
        try:
            GatherND(batch_dims=site.attrs.get("batch_dims", 0)).places(site.type(0), index)
        except ShapeError as error:
            raise ShapeError(f"{site.title} has {error}") from None


@form("If")
def branch(site: Site) -> GraphProto:
    """A branch whose condition is known is imported in place."""
    graph = site.attrs["then_branch" if site.scalar(0) else "else_branch"]
    assert isinstance(graph, GraphProto)
    return graph
