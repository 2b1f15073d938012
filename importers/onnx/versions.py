"""Operators whose ONNX form differs from the engine's declaration, by opset. Everything else takes the default path (Site.generic).

A form returns the node's outputs in order: values of the graph, or arrays that are known already (None: an output it does not make).
It returns None where the default path shall be taken after all, and a graph (a branch) to be taken in place of the node.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto, TensorProto

from tileflow.graph import TensorType, Value
from tileflow.memory.types import broadcast_shapes
from tileflow.ops.quantize import BOUNDS, QuantizeLinear
from tileflow.ops.shape import normal_axes, normal_axis
from tileflow.system.errors import ShapeError

from .fold import rounding
from .inner import Control, Results
from .rebatch import rescaled, resolved
from .site import Site

Form = Callable[[Site], Results | GraphProto | Control | None]
FORMS: dict[tuple[str, str], list[tuple[int, Form]]] = {}
"""By domain and operator."""
ALWAYS = 1 << 30
ABREAST = 12
"""Operands of one elementwise node."""


def form(*names: str, below: int = ALWAYS, domain: str = "") -> Callable[[Form], Form]:
    """Register a function for the operators `names` of a domain in opsets under `below`; of several the lowest bound that holds wins."""
    def register(function: Form) -> Form:
        for name in names:
            FORMS.setdefault((domain, name), []).append((below, function))
            FORMS[domain, name].sort(key=lambda entry: entry[0])
        return function
    return register


def form_of(op_type: str, opset: int, domain: str = "") -> Form | None:
    """The form in force, or None for the default path."""
    return next((function for below, function in FORMS.get((domain, op_type), ()) if opset < below), None)


@form("Identity")
def identity(site: Site) -> Sequence[Value | None]:
    if site.inputs[0] in site.scope.sequences:
        site.scope.sequences[site.outputs[0]] = site.scope.sequences[site.inputs[0]]
        return [None]
    return (site.value(0),)


@form("Cast")
def cast(site: Site) -> Sequence[Value]:
    to = site.dtype(site.attrs["to"])
    return (site.value(0),) if site.type(0).dtype == to else site.finish("Cast", site.value(0), to=to, **rounding(site))


@form("CastLike")
def cast_like(site: Site) -> Sequence[Value]:
    to = site.type(1).dtype
    return (site.value(0),) if site.type(0).dtype == to else site.finish("Cast", site.value(0), to=to, **rounding(site))


@form("BitCast")
def bit_cast(site: Site) -> Sequence[Value]:
    return site.generic(to=site.dtype(site.attrs["to"]))


@form("QuantizeLinear", "DequantizeLinear")
def linear(site: Site) -> Sequence[Value]:
    """Element types by name. In training, what is quantised and dequantised at once passes its gradient on."""
    if site.op_type == "DequantizeLinear" and site.scope.training and (fake := faked(site)) is not None:
        return fake
    types = {name: site.dtype(site.attrs[name]) for name in ("output_dtype", "precision") if site.attrs.get(name)}
    return site.generic(**{name: "" for name in ("output_dtype", "precision") if name in site.attrs} | types)


def faked(site: Site) -> Sequence[Value] | None:
    """The dequantised output of a QuantizeLinear, by the same scale and zero point, as one operator; None: it is something else."""
    made = site.value(0).producer
    operands = [site.value(i) for i in range(1, len(site.inputs)) if site.has(i)]
    if made is None or not isinstance(made.op, QuantizeLinear) or made.op.precision or site.attrs.get("output_dtype"):
        return None
    known = site.builder.graph.constants
    same = len(made.inputs) == 1 + len(operands) and site.type(0).dtype in BOUNDS and all(
        v is w or (v in known and w in known and bool((known[v] == known[w]).all())) for v, w in zip(made.inputs[1:], operands, strict=True))
    place = (made.op.axis, made.op.block_size) == (site.attrs.get("axis", 1), site.attrs.get("block_size", 0))
    if not same or not (place or operands[0].type.size == 1):
        return None
    return site.finish("FakeQuantize", *made.inputs, to=site.type(0).dtype, axis=made.op.axis, block_size=made.op.block_size)


@form("Reshape")
def reshape(site: Site) -> Sequence[Value]:
    """The target in plain sizes; one written for the file's batch is restated where another was chosen."""
    x, allowzero = site.value(0), bool(site.attrs.get("allowzero"))
    given = [int(n) for n in site.listed(1)]
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
    target = tuple(int(n) for n in site.listed(1))
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
        axes = normal_axes([int(a) for a in site.listed(3)], x.type.rank)
        if len(pads) != 2 * len(axes):
            raise ShapeError(f"{site.title} has {len(pads)} pads for {len(axes)} axes, and needs two for each; export the model again")
        full = [0] * (2 * x.type.rank)
        for k, axis in enumerate(axes):
            full[axis], full[axis + x.type.rank] = pads[k], pads[k + len(axes)]
        pads = full
    value = site.scalar(2) if site.has(2) else site.attrs.get("value", 0.0)
    value = float(value) if x.type.is_float else value
    return site.finish("Pad", x, pads=tuple(pads), value=value, mode=site.attrs.get("mode", "constant"))


@form("Resize", "Upsample", below=11)
def upsample(site: Site) -> Sequence[Value]:
    """Until opset 11 elements lie at multiples of the scale; before 9 Upsample's scales were an attribute."""
    scales = site.listed(1).tolist() if site.has(1) else site.attrs["scales"]
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


@form("STFT")
def stft(site: Site) -> Sequence[Value]:
    """A real signal may lack its axis of parts, as ONNX Runtime takes it: [n, elements]."""
    if site.value(0).type.rank != 2:
        return site.generic()
    op, (_, *others) = site.declared()
    signal = site.builder.Unsqueeze(site.value(0), axes=(2,))
    return site.builder.emit(op, signal, *[None if i is None else site.value(i) for i in others], names=tuple(site.outputs))


@form("Dropout")
def dropout(site: Site) -> Sequence[Value | np.ndarray]:
    """Until opset 12 the file's Dropout does nothing; later it has a training_mode; the importer's `training` overrides both.
    Each node draws random numbers of its own stream."""
    if site.scope.training is None:
        active = site.has(2) and bool(site.scalar(2))
    else:
        active = site.scope.training
    ratio = float(site.scalar(1)) if site.has(1) else float(site.attrs.get("ratio", 0.5))
    stream = site.scope.next_stream()
    if not active:                                           # a mask of ones takes no memory unless it is read
        y, = site.finish("Dropout", site.value(0), ratio=ratio, stream=stream, names=site.outputs[:1])
        return y, np.broadcast_to(np.ones((), bool if site.opset >= 10 else y.type.numpy), y.shape)
    found = site.finish("Dropout", site.value(0), ratio=ratio, training_mode=1, stream=stream, mask=int(site.wants(1)))
    if site.opset < 10 and site.wants(1):                    # older masks have the input's type
        return found[0], site.emit("Cast", found[1], to=found[0].dtype)
    return found


@form("BatchNormalization")
def batch_normalization(site: Site) -> Sequence[Value]:
    """Inference as it stands. In training the batch's own mean and population variance normalise, and the running statistics follow them:
    running * momentum + batch * (1 - momentum), ONNX's equation (PyTorch's layer folds the unbiased variance instead).
    A frozen one (`modes.py`) normalises by its running statistics, which stay, in training, too."""
    if site.attrs.get("spatial", 1) != 1:
        raise site.unsupported("the attribute spatial=0")
    training = site.scope.training
    training = bool(site.attrs.get("training_mode",
                                   0)) if training is None else training and not site.scope.modes.is_frozen(site.node)
    epsilon, momentum = float(site.attrs["epsilon"]), float(site.attrs["momentum"])
    operands = [site.value(i) if i < 3 else site.scope.whole(site.inputs[i]) for i in range(5)]
    if not training:
        y = site.finish("BatchNormalization", *operands, epsilon=epsilon, momentum=momentum)[0]
        return (y, *(site.value(i) for i in (3, 4)))
    y, mean, variance = site.finish("BatchNormalization", *operands[:3], None, None, names=(site.outputs[0],), epsilon=epsilon,
                                    momentum=momentum, training_mode=1)[:3]
    running = []
    for name, old, batch in zip(site.inputs[3:5], operands[3:5], (mean, variance), strict=True):
        if batch.type != old.type:
            batch = site.emit("Cast", batch, to=old.dtype)
        kept = site.emit("Mul", old, site.builder.scalar(momentum, old))
        new = site.emit("Add", kept, site.emit("Mul", batch, site.builder.scalar(1 - momentum, old)))
        site.scope.update(name, new)
        read = site.scope.value(name).dtype
        running.append(new if new.dtype == read else site.emit("Cast", new, to=read))
    return (y, *running)


@form("RMSNormalization")
def rms_normalization(site: Site) -> Sequence[Value] | None:
    """A scale that broadcasts is written out, one that has rows of its own multiplies afterwards (PyTorch writes ones as large as x where a layer has
    no scale); float32 statistics (stash_type) of another type are left to ONNX's own definition."""
    x, scale, known = site.value(0), site.value(1), site.known(1)
    if x.dtype not in ("float32", "float64"):
        return None
    axis = normal_axis(site.attrs.get("axis", -1), x.type.rank)
    shape, epsilon = x.shape[axis:], float(site.attrs.get("epsilon", 1e-5))
    if known is not None and known.ndim > len(shape) and known.size and (known == known.flat[0]).all():
        scale = site.builder.constant(np.full(shape, known.flat[0]))                 # the same for all rows
    if scale.shape != shape and broadcast_shapes(scale.shape, shape) == shape:
        scale = site.emit("Expand", scale, shape=shape)
    if scale.shape == shape:
        return site.finish("RMSNormalization", x, scale, axis=axis, epsilon=epsilon)[:1]
    if broadcast_shapes(scale.shape, x.shape) != x.shape:
        raise ShapeError(f"{site.title}: the scale {scale.type} does not broadcast to the input {x.type}; export the model again")
    ones = site.builder.constant(np.ones(shape, x.type.numpy))
    return site.finish("Mul", site.emit("RMSNormalization", x, ones, axis=axis, epsilon=epsilon), scale)


@form("GroupNormalization")
def group_normalization(site: Site) -> Sequence[Value]:
    """Until opset 21 scale and bias were those of groups. A stash_type other than float32 is the type in which x is normalised."""
    x, groups = site.value(0), int(site.attrs["num_groups"])
    epsilon = float(site.attrs["epsilon"])
    scale, shift = (site.value(i) for i in (1, 2))
    if site.opset < 21:
        scale, shift = (_of_channels(site, v, x.shape[1]) for v in (scale, shift))
    stash = site.dtype(site.attrs.get("stash_type", TensorProto.FLOAT))
    if stash in ("float32", x.dtype):
        return site.finish("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=epsilon)
    ones, zeros = (site.builder.constant(np.full(x.shape[1], n).astype(TensorType(stash, ()).numpy)) for n in (1, 0))
    y = site.emit("GroupNormalization", site.emit("Cast", x, to=stash), ones, zeros, num_groups=groups, epsilon=epsilon)
    column = (x.shape[1], *[1] * (x.type.rank - 2))
    scale, shift = (site.emit("Reshape", v, shape=column, allowzero=1) for v in (scale, shift))
    return site.finish("Add", site.emit("Mul", site.emit("Cast", y, to=x.dtype), scale), shift)


def _of_channels(site: Site, v: Value, channels: int) -> Value:
    """One number for each group as one for each channel."""
    groups = int(site.attrs["num_groups"])
    if v.shape != (groups,) or groups < 1 or channels % groups:
        raise ShapeError(f"{site.title}: in opset {site.opset} scale and bias have an element for each of the {groups} groups, which divide the "
                         f"{channels} channels; here is {v.type}. Those of channels are opset 21's.")
    table = site.emit("Expand", site.emit("Reshape", v, shape=(groups, 1), allowzero=1), shape=(groups, channels // groups))
    return site.emit("Reshape", table, shape=(channels,), allowzero=1)
