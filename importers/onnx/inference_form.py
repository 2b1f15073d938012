"""The form of a model that is meant to be run: batch normalisation by its running statistics, dropout that drops nothing."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from tileflow.graph.op import plain_domain
from tileflow.system.errors import ModelError

from .model import title

RUNNING = {1: 3, 2: 4}
"""BatchNormalization in inference leaves its statistics alone: what output 1 and 2 held are inputs 3 and 4."""


def to_inference(proto: ModelProto) -> None:
    """Change `proto` in place: what behaves differently in training behaves as in inference, in subgraphs and functions too.

    BatchNormalization loses `training_mode` and the outputs that only training makes, Dropout its training_mode and an unread mask;
    the constants that only said `training_mode` go as well. Everything else stays as it is.

    Raises:
        ModelError: a batch's own statistics are read by another node.
    """
    for scope in (proto.graph, *proto.functions):
        read = _read_names(scope)
        freed: set[str] = set()
        for nodes in _node_lists(scope):
            for i in reversed(range(len(nodes))):
                node = nodes[i]
                if plain_domain(node.domain) == "" and node.op_type == "BatchNormalization":
                    for copy in _batch_normalization(node, read):
                        nodes.insert(i + 1, copy)
                elif plain_domain(node.domain) == "" and node.op_type == "Dropout":
                    freed.update(_dropout(node, read))
        _remove_unread(scope, freed)


def _batch_normalization(node: NodeProto, read: set[str]) -> list[NodeProto]:
    """Leave one output, by running statistics; returns copies of these where somebody reads what training made of them."""
    for attribute in [a for a in node.attribute if a.name == "training_mode"]:
        node.attribute.remove(attribute)
    statistics = {i: name for i, name in enumerate(node.output) if i and name in read}
    if not statistics.keys() <= RUNNING.keys():
        raise ModelError(f"{title(node)} gives the statistics of a batch to another node, so the model has no form for inference; "
                         f"write it as it was trained (keep_training_mode).")
    del node.output[1:]
    return [helper.make_node("Identity", [node.input[RUNNING[i]]], [name], name=name) for i, name in statistics.items()]


def _dropout(node: NodeProto, read: set[str]) -> list[str]:
    """Take training_mode away (opset 12 and later; before, a Dropout does nothing); the names that were its operands."""
    freed = list(node.input[2:])
    del node.input[2:]
    if freed and len(node.output) > 1 and node.output[1] not in read:
        del node.output[1:]
    return freed


def _remove_unread(scope: GraphProto | FunctionProto, names: set[str]) -> None:
    """Remove the constants `names` that nothing reads any more."""
    names = names - _read_names(scope)
    for nodes in _node_lists(scope):
        for i in reversed(range(len(nodes))):
            if nodes[i].op_type == "Constant" and names.issuperset(nodes[i].output):
                del nodes[i]
    if isinstance(scope, GraphProto):
        ports = {p.name for p in scope.input}
        for i in reversed(range(len(scope.initializer))):
            if scope.initializer[i].name in names - ports:
                del scope.initializer[i]


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _node_lists(scope: GraphProto | FunctionProto) -> Iterator[Any]:
    """The node lists of a graph or function and of all graphs inside, outermost first."""
    yield scope.node
    for node in scope.node:
        for graph in _graphs(node):
            yield from _node_lists(graph)


def _read_names(scope: GraphProto | FunctionProto) -> set[str]:
    """Names that a node reads or that are results, here and inside."""
    found = {v.name for v in scope.output} if isinstance(scope, GraphProto) else set(scope.output)
    for node in scope.node:
        found.update(node.input)
        for graph in _graphs(node):
            found |= _read_names(graph)
    return found - {""}
