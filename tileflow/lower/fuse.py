"""Elementwise fusion: connected elementwise nodes of one shape become one leaf that reads and writes memory once.

Fusion never changes bits: every operator inside rounds to its declared type, exactly as it does alone.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ..graph import Graph, Node, Op, Origin, TensorType, Value
from ..graph.op import Types
from ..kernels.call import Call, In, Out
from ..kernels.cpu import Cpu
from ..kernels.elementwise import elementwise_call
from ..kernels.expr import Const, Expr, Var, substitute
from ..work import Work

MOST_OPERANDS = 14
"""Arrays that one leaf reads and writes: more would spill address registers."""
MOST_OPERATIONS = 96
"""Expression nodes of one leaf: bounds its compile time."""


class Fused(Op):
    """Several elementwise operators as one, with one expression per output. Made by `fuse` only, after the fork of the street."""

    name: ClassVar[str] = "Fused"

    def __init__(self, expressions: tuple[Expr, ...], types: tuple[TensorType, ...]) -> None:
        self.expressions, self.types = expressions, types

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.types

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        raise AssertionError("a fused node has no work of its own: cost is counted before the host lowering")

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Any:
        return self.expressions

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        operands = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
        return [elementwise_call(self.expressions, operands, [Out(i, t.shape) for i, t in enumerate(outputs)])]

    def __str__(self) -> str:
        return f"Fused({', '.join(map(str, self.expressions))})"


class _Group:
    """Elementwise nodes that become one. `below` = groups and nodes it depends on from outside itself."""

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        self.shape, self.nodes, self.below = shape, list[tuple[int, Node]](), set[_Group]()


def fuse(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph with elementwise chains fused; values keep their identity, so results and links stay valid.

    `keep` names values that are wanted besides the graph's results.
    """
    groups = _grow(graph)
    order = _schedule(groups)
    needed_outside = _read_outside(graph, groups) | set(keep)
    nodes = [_merge(group, graph, needed_outside) if len(group.nodes) > 1 else group.nodes[0][1] for group in order]
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, graph.constants, graph.states)


def _grow(graph: Graph) -> list[_Group]:
    """Greedily join each elementwise node to the groups of its inputs, where no path leaves a group and comes back."""
    home: dict[Value, _Group] = {}
    groups: list[_Group] = []
    for position, node in enumerate(graph.nodes):
        own = _Group(node.outputs[0].shape if _expression(node) is not None else None)
        own.nodes = [(position, node)]
        sources = list(dict.fromkeys(home[v] for v in node.operands if v in home))
        for source in sources:
            own.below |= source.below | {source}
        groups.append(own)
        for source in sources:
            if source.shape is None or source.shape != own.shape or not _mergeable(source, own, graph):
                continue
            _absorb(own, source, groups, home)
        for v in node.outputs:
            home[v] = own
    return groups


def _expression(node: Node) -> Any:
    if len(node.outputs) != 1 or node.outputs[0].type.size == 0:
        return None
    return node.op.expression([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def _mergeable(source: _Group, own: _Group, graph: Graph) -> bool:
    """No third group lies between the two, and the result stays small."""
    if any(source in other.below for other in own.below if other is not source):
        return False
    nodes = [n for _, n in source.nodes + own.nodes]
    inside = {v for n in nodes for v in n.outputs}
    arrays = {v for n in nodes for v in n.operands if v not in inside and not _is_scalar_constant(v, graph)}
    return len(arrays) + len(inside) <= 2 * MOST_OPERANDS and len(arrays) <= MOST_OPERANDS and len(nodes) <= MOST_OPERATIONS // 2


def _absorb(own: _Group, source: _Group, groups: list[_Group], home: dict[Value, _Group]) -> None:
    """Move `source` into `own`, which comes later."""
    own.nodes = sorted(source.nodes + own.nodes, key=lambda item: item[0])
    own.below = (own.below | source.below) - {source, own}
    groups.remove(source)
    for v, group in home.items():
        if group is source:
            home[v] = own
    for group in groups:
        if source in group.below:
            group.below = (group.below - {source}) | {own} | own.below


def _schedule(groups: list[_Group]) -> list[_Group]:
    """Groups in an order that respects their dependences, else as their first nodes stood."""
    made = {v: group for group in groups for _, n in group.nodes for v in n.outputs}
    waiting = {g: {made[v] for _, n in g.nodes for v in n.operands if v in made and made[v] is not g} for g in groups}
    order: list[_Group] = []
    done: set[_Group] = set()
    pending = sorted(groups, key=lambda g: g.nodes[0][0])
    while pending:
        ready = next(g for g in pending if waiting[g] <= done)
        pending.remove(ready)
        done.add(ready)
        order.append(ready)
    return order


def _read_outside(graph: Graph, groups: list[_Group]) -> set[Value]:
    """Values that something outside their own group reads."""
    home = {v: group for group in groups for _, n in group.nodes for v in n.outputs}
    read = set(graph.results())
    for group in groups:
        for _, node in group.nodes:
            read.update(v for v in node.operands if home.get(v) is not group)
    return read


def _is_scalar_constant(value: Value, graph: Graph) -> bool:
    return value in graph.constants and value.type.size == 1


def _merge(group: _Group, graph: Graph, needed_outside: set[Value]) -> Node:
    """One node with one expression per value that is read outside."""
    inputs: list[Value] = []
    built: dict[Value, Expr] = {}

    def operand(value: Value) -> Expr:
        if value in built:
            return built[value]
        if _is_scalar_constant(value, graph):
            return Const(graph.constants[value].reshape(()).item(), value.dtype)
        if value not in inputs:
            inputs.append(value)
        return Var(inputs.index(value), value.dtype)

    origin: Origin | None = None
    for _, node in group.nodes:
        expression = _expression(node)
        built[node.outputs[0]] = substitute(expression, {i: operand(v) for i, v in enumerate(node.inputs) if v is not None})
        origin = node.origin if origin is None else origin.merged(node.origin)
    outputs = [n.outputs[0] for _, n in group.nodes if n.outputs[0] in needed_outside]
    op = Fused(tuple(built[v] for v in outputs), tuple(v.type for v in outputs))
    assert origin is not None
    return Node(op, list(inputs), outputs, origin)
