"""Reverse-mode differentiation, graph to graph. Each operator's own `vjp` emits its part; no operator is named here."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .errors import UnsupportedError
from .graph import Builder, Graph, Node, Origin, Value
from .graph.composite import declares, expanded


def gradients(graph: Graph, loss: Value, wrt: Sequence[Value], seed: float = 1.0) -> list[Value]:
    """Append nodes that compute d(seed * sum(loss)) / d(value) for each value of `wrt`, in its type.

    Gradients of a value with several readers are added in the reverse order of the readers, so the sum has one order.
    A value the loss does not depend on gets a gradient of zeros. Operators without a gradient of their own give way to their expansions.

    Raises:
        UnsupportedError: an operator between `wrt` and the loss has no gradient; all such operators are named.
    """
    _expand(graph, loss, set(wrt))
    b = Builder(graph)
    nodes = _between(graph, loss, set(wrt))
    found: dict[Value, Value] = {}
    loss_origin = loss.producer.origin if loss.producer else Origin()
    with b.at(_backward(loss_origin)):
        found[loss] = _ones(b, loss, seed)
    blocked: list[str] = []
    needs = {v for node in nodes for v in node.outputs} | set(wrt)
    for node in reversed(nodes):
        grads = [found.get(v) for v in node.outputs]
        if all(g is None for g in grads):
            continue
        with b.at(_backward(node.origin)):
            contributions = node.op.vjp(b, grads, node.inputs, node.outputs)
            assert len(contributions) == len(node.inputs), f"{node.op}: {len(contributions)} gradients for {len(node.inputs)} inputs"
            for value, g in zip(node.inputs, contributions, strict=True):
                if value is None or value not in needs:
                    continue
                if g is None:
                    if value.type.is_float:
                        why = f", as {node.op.no_gradient}" if node.op.no_gradient else ""
                        blocked.append(f"{node.op.name} ({node.origin}){why}")
                    continue
                assert g.type == value.type, f"{node.op}: gradient {g!r} of {value!r}"
                found[value] = b.Add(found[value], g) if value in found else g
    if blocked:
        raise UnsupportedError(f"These operators between the trained weights and the loss have no gradient: "
                               f"{', '.join(dict.fromkeys(blocked))}; freeze the weights before them (option frozen).")
    results = []
    for value in wrt:
        if value not in found:
            with b.at(Origin((value.name,), "backward")):
                found[value] = b.Mul(value, b.scalar(0.0, value))
        results.append(found[value])
    return results


def _expand(graph: Graph, loss: Value, sources: set[Value]) -> None:
    """Put the expansions of the composites on the way to the loss, which leave their gradients to their parts, in their places."""
    other = set(graph.nodes) - set(_between(graph, loss, sources))
    found = expanded(graph, lambda node: node not in other and not declares(node.op, "vjp"))
    if found is graph:
        return
    graph.nodes, graph.constants = found.nodes, found.constants
    for node in graph.nodes:
        for v in node.outputs:
            v.producer = node


def reached(graph: Graph, loss: Value, values: Sequence[Value]) -> list[bool]:
    """Whether the loss depends on each of the values."""
    read = {loss, *(v for node in _between(graph, loss, set(values)) for v in node.operands)}
    return [v in read for v in values]


def _between(graph: Graph, loss: Value, sources: set[Value]) -> list[Node]:
    """Nodes on a path from a source to the loss, in graph order."""
    reached = set(sources)
    forward = []
    for node in graph.nodes:
        if any(v in reached for v in node.operands):
            reached.update(v for v in node.outputs if v.type.is_float)
            forward.append(node)
    needed = {loss}
    path = []
    for node in reversed(forward):
        if any(v in needed for v in node.outputs):
            needed.update(node.operands)
            path.append(node)
    return path[::-1]


def _backward(origin: Origin) -> Origin:
    return replace(origin, role="backward")


def _ones(b: Builder, loss: Value, seed: float) -> Value:
    one = b.scalar(seed, loss)
    return one if loss.shape == () else b.Expand(one, shape=loss.shape)
