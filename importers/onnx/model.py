"""A model as its file declares it, checked, and how messages call its parts."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

from tileflow.graph.op import qualified
from tileflow.system.text import one_line

from .tensors import dtype_name, external_location, folders_of, is_external, tensor_array, tensors_of

OTHER_TYPES = ("STRING", "sequence", "optional")
"""What inputs and outputs may be that is no tensor of numbers, as `Port.dtype` calls it: only models that run in pieces have them."""


@dataclass(frozen=True)
class Port:
    """An input or output as the file declares it.

    Each dimension is a size, a symbol, or None (unnamed); dims is None where the rank is not declared.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        dims = "?" if self.dims is None else ", ".join("?" if d is None else str(d) for d in self.dims)
        return one_line(f"{self.name}: {self.dtype}[{dims}]")


@dataclass(frozen=True)
class OnnxModel:
    """A validated ONNX model. `proto` is the original and stays as it is: the exporter copies it.

    `path` is None for a model that did not come from a file; `inputs` are without initializers.
    """

    proto: ModelProto = field(repr=False)
    path: Path | None
    opset: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    initializers: dict[str, TensorProto] = field(repr=False)
    tensors: dict[str, TensorProto] = field(repr=False)
    """The initializers, and by output name the tensors of Constant nodes."""

    @property
    def plain(self) -> bool:
        """All inputs and outputs are tensors of numbers."""
        return not any(port.dtype in OTHER_TYPES for port in (*self.inputs, *self.outputs))

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes of the main graph."""
        return self.proto.graph.node

    @property
    def where(self) -> str:
        """How messages call this model."""
        return str(self.path) if self.path else f"the model '{self.proto.graph.name}'"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where its other files may be; none where it did not come from a file."""
        return folders_of(self.path) if self.path else ()

    @property
    def sparse(self) -> dict[str, SparseTensorProto]:
        """The sparse initializers by name."""
        return {s.values.name: s for s in self.proto.graph.sparse_initializer}

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata; the last entry of a name counts."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @property
    def external_files(self) -> tuple[Path, ...]:
        """The files that tensors lie in outside of the model's own."""
        files = (external_location(t, self.folders, self.where)[0] for t in tensors_of(self.proto) if is_external(t))
        return tuple(dict.fromkeys(files))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that an initializer or Constant node has as a state; the file may hold it with axes of one element more."""
        return tuple(self.tensors[name].dims)

    def array(self, name: str) -> np.ndarray:
        """The elements of an initializer or Constant node, read only. KeyError where there is none of that name."""
        return tensor_array(self.tensors[name], self.folders, self.where)


def port_of(value: ValueInfoProto) -> Port:
    """What a file says of an input or output."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, (kind or "undeclared").removesuffix("_type"), None)
    tensor = value.type.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Port(value.name, dtype, None)
    dims: list[int | str | None] = []
    for d in tensor.shape.dim:
        if any(c.isalnum() for c in d.dim_param):        # some exporters write "?" for every open size
            dims.append(d.dim_param)
        else:
            dims.append(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None)
    return Port(value.name, dtype, tuple(dims))


def title(node: NodeProto) -> str:
    """How messages call a node: operator and name."""
    kind = qualified(node.domain, node.op_type)
    return f"{kind} node '{label(node)}'"


def label(node: NodeProto) -> str:
    """The node's name, or its operator and first output where it has none."""
    return node.name or f"{node.op_type}({next(filter(None, node.output), '')})"
