"""What onnx itself says of a model and of its operators: its checker's verdict, its schemas."""
from __future__ import annotations

import functools
import os
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from tileflow.errors import ModelError
from tileflow.text import one_line

from .declared import DECLARED
from .tensors import SHOWN, is_external, tensors_of

UNKNOWN_OPERATOR = ("No Op registered for", "No opset import for domain")
MISSING_SHAPE = "Field 'shape' of"
DEPRECATED = "is deprecated in domain_version"
"""What onnx.checker says of things that do not stop an import."""
READ_ALL_THE_SAME = ("GroupNormalization",)
"""Operators that it calls deprecated in opsets in which they meant something else than now, which the importer knows."""


def check_by_onnx(proto: ModelProto, path: Path | None, where: str) -> None:
    """onnx.checker's verdict, shortened.

    Operators without a schema are left for the importer, which names all of them; outputs need not declare a shape.
    """
    try:
        try:
            external = path is not None and any(is_external(t) for t in tensors_of(proto))
            onnx.checker.check_model(os.fspath(path) if external and path is not None else proto)
        except onnx.checker.ValidationError as error:
            if any(words in str(error) for words in (*UNKNOWN_OPERATOR, DEPRECATED)):
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
    """Check the nodes that have a schema one by one, but for those that are read though onnx.checker has given them up, and for those with bodies,
    of whose surroundings it cannot be told: the nodes in these are checked, too."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    graphs = [proto.graph]
    while graphs:
        for node in graphs.pop().node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            known = node.domain in context.opset_imports and find_schema(node.op_type, context.opset_imports[node.domain], domain) is not None
            bodies = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
            graphs += bodies
            if known and not bodies and not (domain == "" and node.op_type in READ_ALL_THE_SAME):
                onnx.checker.check_node(node, context)


def schema_of(node: NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator as of `opset`, onnx's or our own; None where there is none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return find_schema(node.op_type, opset, domain) or DECLARED.get((domain, node.op_type))


@functools.lru_cache(1 << 10)
def find_schema(op_type: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """The schema of an operator as of `opset`, or None where onnx has none."""
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
