"""Another last layer: the last Gemm, MatMul or Conv of a file with as many outputs as the new task has classes, its weights drawn afresh."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from tileflow.graph.op import plain_domain
from tileflow.memory import budget
from tileflow.system.errors import ModelError, OptionError
from tileflow.system.text import one_line

from .load import wrap_model
from .model import OnnxModel, title
from .tensors import DTYPES

PRODUCTS = ("Gemm", "MatMul", "Conv")
CLASSES = "tileflow.classes"
"""The metadata entry that names the classes of the task before."""


@dataclass(frozen=True)
class _Stored:
    """A stored tensor that a node reads, and its axis of the classes."""

    name: str
    node: NodeProto
    index: int
    axis: int


def with_classes(model: OnnxModel, classes: int, seed: int = 0) -> OnnxModel:
    """The model with a last layer of that many outputs; the file's own proto stays as it is.

    The last product before the first output keeps its names and gets PyTorch's initial weights, U(-k, k) with k = 1 / sqrt(inputs of a unit), as does
    its bias. Shapes that the file declares behind it are made true, or taken away where they are nobody's business.

    Raises:
        OptionError: `classes` is no number of classes.
        ModelError: there is no such layer, or its weights or outputs are used in a way that fits the old number only.
    """
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise OptionError(f"num_classes must be a whole number of at least 1, not {one_line(classes, 60)}.")
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    layer = _Layer(model, proto)
    before = _inferred(proto, model)
    layer.replace(classes, np.random.default_rng([seed, classes]))
    for i in reversed(range(len(proto.metadata_props))):
        if proto.metadata_props[i].key == CLASSES:
            del proto.metadata_props[i]
    _declare(proto, model, layer, before, classes)
    return wrap_model(proto, model.path)


class _Layer:
    """The last layer of a proto: its product, its bias, and the nodes behind it."""

    def __init__(self, model: OnnxModel, proto: ModelProto) -> None:
        self.model, self.proto = model, proto
        self.makers = {name: node for node in proto.graph.node for name in node.output if name}
        self.tensors = {t.name: t for t in proto.graph.initializer} | {
            n.output[0]: a.t for n in proto.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"}
        self.node = self._last()
        self.behind = self._behind()
        self.weight = self._weight()
        self.old = int(self.tensors[self.weight.name].dims[self.weight.axis])
        self.bias = self._bias()

    def _stored(self, name: str, axis: int) -> tuple[str, int] | None:
        """The stored tensor behind a name, through Transpose and Identity, and which of its axes is `axis` here."""
        while name not in self.tensors:
            node = self.makers.get(name)
            if node is None or node.op_type not in ("Transpose", "Identity"):
                return None
            if node.op_type == "Transpose":
                perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
                axis = perm[axis] if perm is not None else -1 - axis
            name = node.input[0]
        dims = self.tensors[name].dims
        floats = DTYPES.get(self.tensors[name].data_type, "").startswith(("float", "bfloat"))
        return (name, axis % len(dims)) if dims and floats else None

    def _last(self) -> NodeProto:
        needed = {self.proto.graph.output[0].name}
        for node in reversed(self.proto.graph.node):
            if needed.isdisjoint(node.output):
                continue
            if node.op_type in PRODUCTS and plain_domain(node.domain) == "" and self._stored(node.input[1], -1) is not None:
                return node
            needed.update(node.input)
        raise ModelError(f"{self.model.where}: its first output comes from no Gemm, MatMul or Conv with stored weights, so there is no last layer "
                         "to replace.")

    def _behind(self) -> set[str]:
        """The values that depend on the layer's result."""
        found = set(self.node.output)
        for node in self.proto.graph.node:
            if not found.isdisjoint(node.input):
                found.update(node.output)
        return found

    def _weight(self) -> _Stored:
        axis = 0 if self.node.op_type == "Conv" or _attribute(self.node, "transB") else -1
        if _attribute(self.node, "group", 1) != 1:
            raise self._refused("it is a convolution in groups")
        stored = self._stored(self.node.input[1], axis)
        assert stored is not None
        return _Stored(stored[0], self.node, 1, stored[1])

    def _bias(self) -> _Stored | None:
        """The addend of the product, or of the node that alone adds a stored number per class to its result."""
        if len(self.node.input) > 2 and self.node.input[2]:
            return self._per_class(self.node, 2)
        readers = [n for n in self.proto.graph.node if self.node.output[0] in n.input]
        if len(readers) == 1 and readers[0].op_type == "Add":
            index = 1 - list(readers[0].input).index(self.node.output[0])
            if self._stored(readers[0].input[index], -1) is not None:
                return self._per_class(readers[0], index)
        return None

    def _per_class(self, node: NodeProto, index: int) -> _Stored:
        stored = self._stored(node.input[index], -1)
        dims = [] if stored is None else list(self.tensors[stored[0]].dims)
        if stored is None or math.prod(dims) != self.old or self.old not in dims:
            raise self._refused(f"its bias in {title(node)} is no stored number per class")
        return _Stored(stored[0], node, index, dims.index(self.old))

    def _refused(self, why: str) -> ModelError:
        return ModelError(f"{self.model.where}: its last layer, {one_line(title(self.node), 100)}, cannot be replaced, as {why}.")

    def replace(self, classes: int, draw: np.random.Generator) -> None:
        dims = self.tensors[self.weight.name].dims
        bound = 1 / math.sqrt(max(1, math.prod(dims) // max(1, self.old)))
        for stored in (self.weight, self.bias):
            if stored is not None:
                self._redraw(stored, classes, bound, draw)

    def _redraw(self, stored: _Stored, classes: int, bound: float, draw: np.random.Generator) -> None:
        tensor = self.tensors[stored.name]
        readers = [n for n in self.proto.graph.node for name in n.input if name == stored.name]
        shape = [classes if i == stored.axis else n for i, n in enumerate(tensor.dims)]
        budget.require(12 * math.prod(shape), f"{self.model.where}: a last layer of {classes:,} classes (num_classes)",
                       "give fewer")
        array = draw.uniform(-bound, bound, shape).astype(DTYPES[tensor.data_type])
        made = numpy_helper.from_array(array, stored.name)
        if len(readers) == 1:
            tensor.CopyFrom(made)
        elif stored is self.weight:
            raise self._refused(f"another node reads its weight '{one_line(stored.name, 60)}' as well")
        else:                                                   # exporters store equal biases once: this one becomes its own
            made.name = _fresh(f"{stored.name}.head", self.tensors)
            self.proto.graph.initializer.append(made)
            stored.node.input[stored.index] = made.name


def _attribute(node: NodeProto, name: str, default: int = 0) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _fresh(stem: str, taken: Mapping[str, TensorProto]) -> str:
    k, name = 0, stem
    while name in taken:
        k += 1
        name = f"{stem}.{k}"
    return name


Dims = Sequence[int | str | None]


def _inferred(proto: ModelProto, model: OnnxModel) -> dict[str, Dims | None]:
    """The outputs' sizes by ONNX's own inference, from the inputs alone."""
    bare = ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    for tensor in bare.graph.initializer:                       # the elements of large tensors shape nothing
        if math.prod(tensor.dims) > 1 << 16:
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        found = onnx.shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True)
    except Exception as error:
        raise ModelError(f"{model.where} cannot have its last layer replaced: behind it the old number of classes is needed "
                         f"({one_line(error, 200)}).") from None
    return {v.name: _dims(v) for v in found.graph.output}


def _dims(value: ValueInfoProto) -> Dims | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in value.type.tensor_type.shape.dim]


def _declare(proto: ModelProto, model: OnnxModel, layer: _Layer, before: Mapping[str, Dims | None], classes: int) -> None:
    """Make the declared shapes of outputs true, and forget those of values behind the layer."""
    for i in reversed(range(len(proto.graph.value_info))):
        if proto.graph.value_info[i].name in layer.behind:
            del proto.graph.value_info[i]
    after = _inferred(proto, model)
    changed = False
    for value in proto.graph.output:
        old, new = before.get(value.name), after.get(value.name)
        if value.name not in layer.behind or old is None or new is None:
            continue
        stays = layer.old in old and classes != layer.old and list(old) == list(new)
        if stays or len(old) != len(new) or any(n != m and (n, m) != (layer.old, classes) for n, m in zip(old, new, strict=True)):
            raise ModelError(f"{model.where} cannot have {classes} classes in place of {layer.old}: its output '{one_line(value.name, 60)}' would be "
                             f"{list(new)} and not {list(old)} with another number of classes; a node behind the last layer is made for {layer.old}.")
        axes = [k for k, (n, m) in enumerate(zip(old, new, strict=True)) if n != m]
        changed = changed or bool(axes)
        for k in axes if value.type.tensor_type.HasField("shape") else ():
            value.type.tensor_type.shape.dim[k].Clear()
            value.type.tensor_type.shape.dim[k].dim_value = classes
    if not changed and classes != layer.old:
        raise ModelError(f"{model.where} cannot have {classes} classes in place of {layer.old}: which size of its outputs that is cannot be told "
                         "from the file.")
