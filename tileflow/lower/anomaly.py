"""Which operator makes the first NaN or infinity: every value is looked at when it is made, and an operator fails that made one out of operands
without. Nothing is fused, which changes no bit; what writes states is left as it is, since it must be done whole or not at all."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph import Graph, Node, TensorType, Value
from ..graph.op import Types
from ..host.form import HostOp
from ..kernels.finite import judge_calls, looks
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, Out


class Seen(HostOp):
    """x -> whether it has infinities but no NaN in the same chunk, and whether it has NaN: two int64."""

    name: ClassVar[str] = "Seen"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType("int64", (2,)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, = inputs
        assert x is not None
        return (np.array([np.isinf(x).any(), np.isnan(x).any()], np.int64),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, = inputs
        assert x is not None
        return looks([x.code], [x.size], Out(0, (2,)))

    def __str__(self) -> str:
        return self.name


class Judge(HostOp):
    """(seen in an output, seen in each operand) -> nothing; fails where the operator made what it was not given."""

    name: ClassVar[str] = "Judge"

    def __init__(self, node: Node, output: Value) -> None:
        self.node, self.output = node, output

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return ()

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return ()

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return judge_calls(len(inputs))

    def __str__(self) -> str:
        return f"Judge({self.node.op.name})"


def judged(graph: Graph) -> Graph:
    """A copy of a lowered graph in which each operator is judged by its floats as soon as they are made."""
    nodes: list[Node] = []
    seen: dict[Value, Value] = {}

    def look(v: Value, at: Node) -> None:
        if v.type.is_float and v not in seen:
            node = Node(Seen(), [v], [], at.origin)
            seen[v] = Value(f"{v.name}.seen", TensorType("int64", (2,)), node)
            node.outputs.append(seen[v])
            nodes.append(node)
    for node in graph.nodes:
        for v in node.operands:
            look(v, node)
        nodes.append(node)
        viewed = None if node.op.alias is None else node.inputs[node.op.alias]
        if viewed is not None and viewed in seen and len(node.outputs) == 1:
            seen[node.outputs[0]] = seen[viewed]
            continue
        given = list(dict.fromkeys(seen[v] for v in node.operands if v in seen))
        for v in node.outputs:
            look(v, node)
            if v in seen:
                nodes.append(Node(Judge(node, v), [seen[v], *given], [], node.origin))
    return graph.with_nodes(nodes)
