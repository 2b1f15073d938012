"""Elementwise fusion: connected elementwise nodes of one shape become one leaf that reads and writes memory once.

Fusion never changes bits: every operator inside rounds to its declared type, exactly as it does alone.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..graph import Graph, Node, Origin, TensorType, Value
from ..graph.op import Types
from ..host.form import HostOp, elements
from ..host.hosted import hosted
from ..kernels.elementwise.expr import Const, Expr, Var, substitute
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from .groups import FusionGroup, grow, is_number


class Fused(HostOp):
    """Several elementwise operators as one, with one expression per output. Made by `fuse` only, after the fork of the street."""

    name: ClassVar[str] = "Fused"

    def __init__(self, expressions: tuple[Expr, ...], types: tuple[TensorType, ...], position: int | None = None) -> None:
        self.expressions, self.types = expressions, types
        self.position = position           # type: ignore[misc]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.types

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return tuple(elements(self.expressions, inputs, self.types[0].shape if self.types else ()))

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Any:
        return self.expressions

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        operands = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
        return [elementwise_call(self.expressions, operands, [Out(i, t.shape) for i, t in enumerate(outputs)], self.position or 0)]

    def __str__(self) -> str:
        return f"Fused({', '.join(map(str, self.expressions))})"


def fuse(graph: Graph, keep: Iterable[Value] = (), update: bool = False) -> Graph:
    """A copy of the graph with elementwise chains fused; values keep their identity, so results and links stay valid.

    `keep` names values that are wanted besides the graph's results; `update` as `grow` has it.
    """
    groups = grow(graph, update)
    needed_outside, sums = _read_outside(graph, groups) | set(keep), _sums_of_bytes(graph)
    nodes = [_merge(group, graph, needed_outside, sums) if len(group.nodes) > 1 else group.nodes[0][1]
             for group in groups]
    return graph.with_nodes(nodes)


def _read_outside(graph: Graph, groups: Sequence[FusionGroup]) -> set[Value]:
    """Values that something outside their own group reads."""
    home = {v: group for group in groups for _, node, _ in group.nodes for v in node.outputs}
    read = set(graph.results())
    for group in groups:
        for _, node, _ in group.nodes:
            read.update(v for v in node.operands if home.get(v) is not group)
    return read


def _sums_of_bytes(graph: Graph) -> set[Value]:
    """The results of products that scales turn into another type."""
    hows = ((node, hosted(node.op).blockwise) for node in graph.nodes)
    return {v for node, how in hows if how is not None and how.retypes for v in node.outputs}


def _merge(group: FusionGroup, graph: Graph, needed_outside: set[Value], sums: set[Value]) -> Node:
    """One node with one expression per value that is read outside. Numbers are compiled into it, but for those that
    follow `sums`: the scales and zero points of a quantised layer are its own, and the layers one kernel."""
    inputs: list[Value] = []
    built: dict[Value, Expr] = {}
    scaled = not sums.isdisjoint(group.read)

    def operand(value: Value) -> Expr:
        if value in built:
            return built[value]
        if is_number(value, graph) and not scaled:
            return Const(graph.constants[value].reshape(()).item(), value.dtype)
        if value not in inputs:
            inputs.append(value)
        return Var(inputs.index(value), value.dtype)

    origin: Origin | None = None
    for _, node, expression in group.nodes:
        built[node.outputs[0]] = substitute(expression, {i: operand(v) for i, v in enumerate(node.inputs) if v is not None})
        origin = node.origin if origin is None else origin.merged(node.origin)
    outputs = [n.outputs[0] for _, n, _ in group.nodes if n.outputs[0] in needed_outside]
    op = Fused(tuple(built[v] for v in outputs), tuple(v.type for v in outputs), group.position)
    assert origin is not None
    return Node(op, list(inputs), outputs, origin)
