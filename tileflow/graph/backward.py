"""The backward pass of a graph from gradients of some of its values; each operator's own `vjp` emits its part. No operator is named here.

`autograd` differentiates whole graphs by it, operators with regions (`ops/control.py`) what is inside of them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..system.errors import UnsupportedError
from .builder import Builder
from .composite import declares, expanded
from .graph import Graph, Node, Origin, Value

Seeds = Callable[[Builder], Mapping[Value, Value]]
"""Makes the gradients that a backward pass begins with."""


class NoGradientError(UnsupportedError):
    """Operators on the way have no gradient; `operators` are sentences about them."""

    def __init__(self, operators: Iterable[str]) -> None:
        self.operators = list(dict.fromkeys(operators))
        super().__init__(f"These operators have no gradient: {', '.join(self.operators)}.")


def backward(graph: Graph, targets: Iterable[Value], wrt: Iterable[Value], seeds: Seeds) -> tuple[Builder, dict[Value, Value]]:
    """Append nodes that compute gradients of the values of `wrt` that the targets depend on; gives their builder, and all gradients by value.

    Gradients of a value with several readers are added in the reverse order of the readers, so the sum has one order. Operators without a
    gradient of their own give way to their expansions, others to what also gives what their gradients read (`Op.differentiable`).

    Raises:
        NoGradientError: an operator on the way has none; all such operators are named.
    """
    targets, sources = list(targets), set(wrt)
    _expand(graph, targets, sources)
    nodes = between(graph, targets, sources)
    needs = {v for node in nodes for v in node.outputs} | sources
    _extend(graph, nodes, needs)
    b = Builder(graph)
    found = dict(seeds(b))
    blocked: list[str] = []
    for node in reversed(nodes):
        grads = [found.get(v) for v in node.outputs]
        if any(g is not None for g in grads):
            with b.at(replace(node.origin, role="backward")):
                try:
                    blocked += _through(b, node, grads, needs, found)
                except NoGradientError as error:
                    blocked += error.operators
    if blocked:
        raise NoGradientError(blocked)
    return b, found


def _through(b: Builder, node: Node, grads: list[Value | None], needs: set[Value], found: dict[Value, Value]) -> list[str]:
    """Add a node's contributions to the gradients that were found; what blocks it."""
    contributions = node.op.vjp(b, grads, node.inputs, node.outputs)
    assert len(contributions) == len(node.inputs), f"{node.op}: {len(contributions)} gradients for {len(node.inputs)} inputs"
    blocked = []
    for value, g in zip(node.inputs, contributions, strict=True):
        if value is None or value not in needs:
            continue
        if g is not None:
            assert g.type == value.type, f"{node.op}: gradient {g!r} of {value!r}"
            found[value] = b.Add(found[value], g) if value in found else g
        elif value.type.is_float:
            why = f", as {node.op.no_gradient}" if node.op.no_gradient else ""
            blocked.append(f"{node.op.name} ({node.origin}){why}")
    return blocked


def _expand(graph: Graph, targets: Iterable[Value], sources: set[Value]) -> None:
    """Put the expansions of the composites on the way, which leave their gradients to their parts, in their places."""
    other = set(graph.nodes) - set(between(graph, targets, sources))
    found = expanded(graph, lambda node: node not in other and not declares(node.op, "vjp"))
    if found is graph:
        return
    graph.nodes, graph.constants = found.nodes, found.constants
    for node in graph.nodes:
        for v in node.outputs:
            v.producer = node


def _extend(graph: Graph, nodes: Iterable[Node], needs: set[Value]) -> None:
    """Let operators also give what their gradients read."""
    b: Builder | None = None
    for node in nodes:
        types = [None if v is None else v.type for v in node.inputs]
        op = node.op.differentiable(types, [v is not None and v in needs and v.type.is_float for v in node.inputs])
        if op is None:
            continue
        b = b or Builder(graph)
        node.op = op
        for t in op.infer(*types)[len(node.outputs):]:
            node.outputs.append(Value(b.name(f"{op.name.lower()}.kept"), t, node))
        node.set_inferred()


def between(graph: Graph, targets: Iterable[Value], sources: set[Value]) -> list[Node]:
    """Nodes on a path from a source to a target, in graph order."""
    reached = set(sources)
    forward = []
    for node in graph.nodes:
        if not node.op.stops_gradient and any(v in reached for v in node.operands):
            reached.update(v for v in node.outputs if v.type.is_float)
            forward.append(node)
    needed = set(targets)
    path = []
    for node in reversed(forward):
        if any(v in needed for v in node.outputs):
            needed.update(node.operands)
            path.append(node)
    return path[::-1]


def backward_origin(v: Value) -> Origin:
    """Of the first node of the backward pass from a value."""
    return replace(v.producer.origin if v.producer else Origin(), role="backward")
