"""Files that may be damaged or hostile: names are text, each value is made once and before it is read, attributes refer to what is there."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto

from tileflow.system.errors import ModelError

from .model import title
from .unfold import every_node, graphs_of


def check_consistent(proto: ModelProto, where: str) -> None:
    """Raise ModelError where the names of a model do not fit together; `where` is how messages call it."""
    _check_texts(proto, where)
    _check_names(proto.graph, where)
    _check_references(proto.graph.node, where)


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
