"""Reading an ONNX file that may be damaged or hostile: every refusal is one sentence that names the place and the remedy."""
from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from tileflow import memory
from tileflow.errors import ModelError
from tileflow.graph.collector import without_collector
from tileflow.reading import open_regular
from tileflow.text import one_line

from .tensors import SHOWN, check_tensor, dtype_name, external_location, is_external, named_tensors, tensor_array, tensors_of
from .unfold import check_unfolding, every_node, graphs_of

OLDEST_OPSET = 7
PROTOBUF_LIMIT = 2**31 - 1
"""Bytes: protobuf reads no longer message; larger models keep their weights as external data."""
UNKNOWN_OPERATOR = ("No Op registered for", "No opset import for domain")
MISSING_SHAPE = "Field 'shape' of"
"""What onnx.checker says of things that do not stop an import."""


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
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes of the main graph."""
        return self.proto.graph.node

    @property
    def where(self) -> str:
        """How messages call this model."""
        return str(self.path) if self.path else f"the model '{self.proto.graph.name}'"

    @property
    def folder(self) -> Path | None:
        return self.path.parent if self.path else None

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata; the last entry of a name counts."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @property
    def external_files(self) -> tuple[Path, ...]:
        """The files that tensors lie in outside of the model's own."""
        files = (external_location(t, self.folder, self.where)[0] for t in tensors_of(self.proto) if is_external(t))
        return tuple(dict.fromkeys(files))

    def array(self, name: str) -> np.ndarray:
        """The elements of an initializer or Constant node, read only. KeyError where there is none of that name."""
        return tensor_array(self.tensors[name], self.folder, self.where)


def load_model(path: str | os.PathLike[str]) -> OnnxModel:
    """Read and validate an ONNX file; its external data must lie in the same folder.

    Raises:
        ModelError: the file is missing, empty, cut off, not ONNX, too old or too new, or inconsistent.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ModelError(f"{str(path)!r} is not a path: give the path of an ONNX file.")
    proto = ModelProto()
    try:
        proto.ParseFromString(_read(path))
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX model, or it is cut off: export or download it again.") from None
    return wrap_model(proto, path)


@without_collector
def wrap_model(proto: ModelProto, path: Path | None = None) -> OnnxModel:
    """Validate a ModelProto that is already in memory; `path` tells where it came from and where its external data is."""
    try:
        return _wrapped(proto, path)
    except ModelError as error:
        raise type(error)(one_line(error)) from None


def _wrapped(proto: ModelProto, path: Path | None) -> OnnxModel:
    where = str(path) if path else f"the model '{proto.graph.name}'"
    folder = path.parent if path else None
    opset = _versions(proto, where)
    for tensor in tensors_of(proto):
        check_tensor(tensor, folder, where)
    _check_texts(proto, where)
    _check_names(proto.graph, where)
    check_unfolding(proto, where)
    _check_references(proto.graph.node, where)
    check_by_onnx(proto, path, where)
    initializers = {t.name: t for t in proto.graph.initializer}
    skip = initializers.keys() | {s.values.name for s in proto.graph.sparse_initializer}
    return OnnxModel(proto, path, opset, tuple(_port(v) for v in proto.graph.input if v.name not in skip),
                     tuple(_port(v) for v in proto.graph.output), initializers,
                     initializers | {name: t for name, t in named_tensors(proto) if name and name not in initializers})


def _read(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{path} is a folder: give the .onnx file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file: give an .onnx file.")
        if status.st_size == 0:
            raise ModelError(f"{path} is empty: export or download the model again.")
        if status.st_size > PROTOBUF_LIMIT:
            raise ModelError(f"{path} has {status.st_size} bytes and ONNX files end at 2 GiB: save the model with external data.")
        memory.require(2 * status.st_size, str(path), "close other programs, or use a machine with more memory")
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: check the path of the ONNX file.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from None


def _versions(proto: ModelProto, where: str) -> dict[str, int]:
    """Opset by domain ('' is ONNX's own), after checking that they can be read at all."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{where} holds no graph: it is not an ONNX model, or it is cut off; export or download it again.")
    if not proto.graph.output:
        raise ModelError(f"{where} has no outputs, so there is nothing to compute; export it again.")
    opset = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if "" in opset and not OLDEST_OPSET <= opset[""] <= newest:
        remedy = "convert it with onnx.version_converter" if opset[""] < OLDEST_OPSET else "install a newer onnx, or export an older opset"
        raise ModelError(f"{where} uses opset {opset['']}, and tileflow reads {OLDEST_OPSET} to {newest} with onnx {onnx.__version__}: "
                         f"{remedy}.")
    if not opset:
        raise ModelError(f"{where} names no opset: it is not an ONNX model, or it is damaged; export it again.")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"{where} has IR version {proto.ir_version} and onnx {onnx.__version__} knows up to {onnx.IR_VERSION}: "
                         f"install a newer onnx.")
    return opset


def _check_texts(proto: ModelProto, where: str) -> None:
    """Every name is text: protobuf hands damaged ones on as bytes."""
    for text in _texts(proto):
        if isinstance(text, bytes):
            raise ModelError(f"{where} holds the name {text!r}, which is no text; the file is damaged, so export or download it again.")


def _texts(proto: ModelProto) -> Iterator[object]:
    for graph in (proto.graph, *(g for nodes in _all_nodes(proto) for n in nodes for g in graphs_of(n))):
        yield graph.name
        yield from (v.name for values in (graph.input, graph.output, graph.initializer) for v in values)
        yield from (d.dim_param for values in (graph.input, graph.output) for v in values for d in v.type.tensor_type.shape.dim)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    for nodes in _all_nodes(proto):
        for node in nodes:
            yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
            for attribute in node.attribute:
                yield from (attribute.name, attribute.ref_attr_name)
    yield from (entry.domain for holder in (proto, *proto.functions) for entry in holder.opset_import)


def _all_nodes(proto: ModelProto) -> Iterator[Iterator[NodeProto]]:
    """The nodes of the graph and of each function, with those in their branches."""
    return (every_node(holder.node) for holder in (proto.graph, *proto.functions))


def _check_names(graph: GraphProto, where: str) -> None:
    """Each value is made once and before it is read."""
    known = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer} | {""}
    later = {o: node for node in graph.node for o in node.output if o}
    for node in graph.node:
        for name in _reads(node):
            if name in known:
                continue
            if name not in later:
                raise ModelError(f"{where}: {title(node)} reads '{name}', which nothing in the model makes; export the model again.")
            raise ModelError(f"{where}: {title(node)} reads '{name}' before {title(later[name])} makes it"
                             + (f", in a cycle through {cycle}" if (cycle := _cycle(later, name)) else "")
                             + "; a model must list its nodes in execution order, so export it again.")
        for name in node.output:
            if name and name in known:
                raise ModelError(f"{where}: {title(node)} makes '{name}', which exists already; every value must have one maker, "
                                 f"so export the model again.")
            known.add(name)
    for output in graph.output:
        if output.name not in known or not output.name:
            raise ModelError(f"{where}: nothing makes the output '{output.name}'; export the model again.")


def _check_references(nodes: Iterable[NodeProto], where: str) -> None:
    """Attributes stand for those of a caller inside of functions only."""
    for node in every_node(nodes):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(f"{where}: {title(node)} takes its attribute '{attribute.name}' from the caller's '{attribute.ref_attr_name}', "
                                 f"but it is in no function; export the model again.")


def _cycle(makers: dict[str, NodeProto], start: str) -> str:
    """Names of the values on a cycle through `start`, or ''. Depth first without recursion: hostile graphs are deep."""
    came_from: dict[str, str] = {}
    stack = [start]
    while stack:
        name = stack.pop()
        for read in _reads(makers[name]):
            if read == start:
                trail = [name]
                while trail[-1] != start:
                    trail.append(came_from[trail[-1]])
                return " <- ".join(f"'{n}'" for n in trail[::-1][:6])
            if read in makers and read not in came_from:
                came_from[read] = name
                stack.append(read)
    return ""


def _reads(node: NodeProto) -> Iterable[str]:
    return (name for name in node.input if name)


def title(node: NodeProto) -> str:
    """How messages call a node: operator and name."""
    kind = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return f"{kind} node '{label(node)}'"


def label(node: NodeProto) -> str:
    """The node's name, or its operator and first output where it has none."""
    return node.name or f"{node.op_type}({next(filter(None, node.output), '')})"


def check_by_onnx(proto: ModelProto, path: Path | None, where: str) -> None:
    """onnx.checker's verdict, shortened.

    Operators without a schema are left for the importer, which names all of them; outputs need not declare a shape.
    """
    try:
        try:
            external = path is not None and any(is_external(t) for t in tensors_of(proto))
            onnx.checker.check_model(os.fspath(path) if external and path is not None else proto)
        except onnx.checker.ValidationError as error:
            if any(words in str(error) for words in UNKNOWN_OPERATOR):
                _check_known_nodes(proto)
            elif MISSING_SHAPE in str(error) and not all(_has_shape(v) for v in proto.graph.output):
                check_by_onnx(_with_output_shapes(proto), None, where)
            else:
                raise
    except onnx.checker.ValidationError as error:
        shown = one_line(str(error).split("==> Context")[0], SHOWN)
        raise ModelError(f"{where} is not valid ONNX ({shown.rstrip('.')}): "
                         f"export it again, or mend it with the tool that made it.") from None
    except (ValueError, RuntimeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{where} cannot be checked by onnx ({one_line(error, SHOWN)}): export it again.") from None


def _check_known_nodes(proto: ModelProto) -> None:
    """Check the nodes that have a schema one by one."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    for node in proto.graph.node:
        if node.domain in context.opset_imports and schema_of(node, context.opset_imports[node.domain]) is not None:
            onnx.checker.check_node(node, context)


def schema_of(node: NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator as of `opset`, or None where onnx has none."""
    return _schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain)


@functools.lru_cache(1 << 10)
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except (onnx.defs.SchemaError, TypeError):             # TypeError: a version that no integer of C++ holds
        return None


def _has_shape(value: ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape")


def _with_output_shapes(proto: ModelProto) -> ModelProto:
    """A copy in which each output has some shape, and tensors in other files, which were checked before, are empty ones."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in tensors_of(copy):
        if is_external(tensor):
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b""))
    for value in copy.graph.output:
        if not _has_shape(value):
            value.type.tensor_type.shape.SetInParent()
    return copy


def _port(value: ValueInfoProto) -> Port:
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
