"""Nodes that stand for other nodes: functions of the model itself, and operators that ONNX defines by simpler ones (HardSwish, Gelu)."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from tileflow.graph import TensorType
from tileflow.graph.op import plain_domain

from .unfold import graphs_of

if TYPE_CHECKING:
    from .site import Site

Functions = Mapping[tuple[str, str], FunctionProto]
Definition = Callable[[NodeProto], FunctionProto | None]
_STANDS_FOR: dict[tuple[str, str], Definition] = {}


def stands_for(*names: str, domain: str) -> Callable[[Definition], Definition]:
    """Register what defines nodes of these operators, which onnx does not define, as a function; None where there is no such definition."""
    def register(definition: Definition) -> Definition:
        for name in names:
            _STANDS_FOR[domain, name] = definition
        return definition
    return register


def body_of(node: NodeProto, opset: Mapping[str, int], functions: Functions,
            types: Sequence[TensorType | None] | None) -> FunctionProto | None:
    """The function that defines a node, or None. `types` of the inputs choose the body where it depends on them."""
    if (node.domain, node.op_type) in functions:
        return functions[node.domain, node.op_type]
    domain = plain_domain(node.domain)
    version = opset.get(domain, 0)
    definition = _STANDS_FOR.get((domain, node.op_type))
    if definition is not None:
        return definition(node)
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return _newest(schema, version)
    if schema.has_context_dependent_function and types is not None:
        return _for_types(schema, node, version, types)
    return schema.function_body if schema.has_context_dependent_function else None


def _newest(schema: Any, opset: int) -> FunctionProto | None:
    """The body written for the newest opset that is not newer than the model's."""
    versions = [v for v in schema.function_opset_versions if v <= opset]
    return FunctionProto.FromString(schema.get_function_with_opset_version(max(versions))) if versions else None


def _for_types(schema: Any, node: NodeProto, opset: int, types: Sequence[TensorType | None]) -> FunctionProto | None:
    protos = [onnx.TypeProto() if t is None else
              onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(t.numpy), t.shape) for t in types]
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    try:
        return FunctionProto.FromString(schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), [p.SerializeToString() for p in protos]))
    except (DecodeError, RuntimeError, onnx.checker.ValidationError):
        return None


def inlined(body: FunctionProto, site: Site) -> tuple[list[NodeProto], list[str], dict[str, int]]:
    """The body's nodes with the caller's operands and attributes, the names of the caller's outputs in them ('' where not wanted), and
    the opsets the body is written in.

    Other names inside get the caller's first output as prefix, so that they are new.
    """
    prefix = next(filter(None, site.outputs), "") + "/"
    names = {formal: actual for formal, actual in zip(body.output, site.outputs, strict=False) if actual}
    names |= {"": ""} | {formal: site.inputs[i] if i < len(site.inputs) else "" for i, formal in enumerate(body.input)}
    attributes = {a.name: a for a in body.attribute_proto} | _caller_attributes(site)
    nodes = [_renamed(node, names, prefix, attributes) for node in body.node]
    opset = dict(site.opsets) | {plain_domain(o.domain): o.version for o in body.opset_import}
    wanted = [names[formal] if actual else "" for formal, actual in zip(body.output, site.outputs, strict=False)]
    return nodes, wanted, opset


def _caller_attributes(site: Site) -> dict[str, AttributeProto]:
    defaults = {} if site.schema is None else {k: a.default_value for k, a in site.schema.attributes.items() if a.default_value.name}
    return defaults | {a.name: a for a in site.node.attribute}


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """A copy of a body's node in the caller's names, references to the caller's attributes filled in."""
    result = NodeProto()
    result.CopyFrom(node)
    result.input[:] = [names.get(n, prefix + n) for n in node.input]
    result.output[:] = [names.get(n, prefix + n) for n in node.output]
    del result.attribute[:]
    for attribute in node.attribute:
        source = attribute
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attributes:
                continue
            source = attributes[attribute.ref_attr_name]
        copy = result.attribute.add()
        copy.CopyFrom(source)
        copy.name = attribute.name
        if copy.HasField("g"):
            _rename_graph(copy.g, names, prefix, attributes)
    return result


def renamed_graph(graph: GraphProto, names: Mapping[str, str], prefix: str) -> GraphProto:
    """A copy of an inner graph whose own names begin with `prefix`, but for those in `names`."""
    copy = GraphProto()
    copy.CopyFrom(graph)
    _rename_graph(copy, {"": "", **{free: free for free in free_names(graph)}, **names}, prefix, {})
    return copy


def free_names(graph: GraphProto) -> Iterator[str]:
    """Names that a graph reads and does not make."""
    made = {*(v.name for v in graph.input), *(t.name for t in graph.initializer), *(s.values.name for s in graph.sparse_initializer)}
    for node in graph.node:
        inner = itertools.chain.from_iterable(free_names(g) for g in graphs_of(node))
        yield from (name for name in (*node.input, *inner) if name and name not in made)
        made.update(node.output)
    yield from (v.name for v in graph.output if v.name not in made)


def read_names(graph: GraphProto) -> Iterator[str]:
    """Every name that a node reads, those of its inner graphs and what they give included, and what the graph gives,
    each time that it is read."""
    for node in graph.node:
        yield from node.input
        for inner in graphs_of(node):
            yield from read_names(inner)
    yield from (v.name for v in graph.output)


def _rename_graph(graph: GraphProto, names: Mapping[str, str], prefix: str, attributes: Mapping[str, AttributeProto]) -> None:
    nodes = [_renamed(node, names, prefix, attributes) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for item in (*graph.input, *graph.output, *graph.initializer, *(s.values for s in graph.sparse_initializer)):
        item.name = names.get(item.name, prefix + item.name)
