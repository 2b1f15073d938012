"""What onnx itself says of a model and of its operators: its checker's verdict, its schemas."""
from __future__ import annotations

import functools

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from tileflow.graph.op import plain_domain
from tileflow.system.errors import ModelError
from tileflow.system.text import one_line

from .declared import DECLARED
from .tensors import SHOWN, is_external, tensors_of

UNKNOWN_OPERATOR = ("No Op registered for", "No opset import for domain")
MISSING_SHAPE = "Field 'shape' of"
DEPRECATED = "is deprecated in domain_version"
"""What onnx.checker says of things that do not stop an import."""
READ_ALL_THE_SAME = ("GroupNormalization",)
"""Operators that it calls deprecated in opsets in which they meant something else than now, which the importer knows."""


def check_by_onnx(proto: ModelProto, where: str) -> None:
    """onnx.checker's verdict, shortened; tensors in other files, which it does not find where links are, are our own business.

    Operators without a schema are left for the importer, which names all of them; outputs need not declare a shape.
    """
    if any(is_external(t) for t in tensors_of(proto)):
        proto = _without_external(proto)
    try:
        try:
            onnx.checker.check_model(proto)
        except onnx.checker.ValidationError as error:
            if any(words in str(error) for words in (*UNKNOWN_OPERATOR, DEPRECATED)):
                _check_known_nodes(proto)
            elif MISSING_SHAPE in str(error) and not all(_has_shape(v) for v in proto.graph.output):
                check_by_onnx(_with_output_shapes(proto), where)
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
            domain = plain_domain(node.domain)
            known = node.domain in context.opset_imports and find_schema(node.op_type, context.opset_imports[node.domain], domain) is not None
            bodies = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
            graphs += bodies
            if known and not bodies and not (domain == "" and node.op_type in READ_ALL_THE_SAME):
                onnx.checker.check_node(node, context)


def schema_of(node: NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a node's operator as of `opset`, onnx's or our own; None where there is none."""
    domain = plain_domain(node.domain)
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


def _without_external(proto: ModelProto) -> ModelProto:
    """A copy in which tensors in other files are empty ones."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in tensors_of(copy):
        if is_external(tensor):
            texts = tensor.data_type == TensorProto.STRING
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=None if texts else b""))
    return copy


def _with_output_shapes(proto: ModelProto) -> ModelProto:
    """A copy in which each output has some shape."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.output:
        if not _has_shape(value):
            value.type.tensor_type.shape.SetInParent()
    return copy
