"""16-bit floats on the host: an operator whose kernels have no 16-bit form computes in float32 and rounds its results once.

Elementwise operators, moves, matrix products and most convolutions read and write 16-bit memory themselves. For the others this pass casts operands
and results, after the fork of the street: the Program and the tile machine's figures keep the declared types.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph import Graph, Node, Origin, TensorType, Value
from ..graph.op import Types
from ..host.form import ChannelsLast, HostOp, channels_last, takes_halves
from ..kernels.elementwise.expr import Expr, Var, cast
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out


class Rounded(HostOp):
    """The operand as another float type. Made by `widen` only, after the fork of the street."""

    name: ClassVar[str] = "Rounded"

    def __init__(self, to: str) -> None:
        self.to = to

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        assert types[0] is not None
        return (types[0].with_dtype(self.to),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        assert inputs[0] is not None
        return (inputs[0].astype(self.to),)

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Expr:
        assert inputs[0] is not None
        return cast(Var(0, inputs[0].dtype), self.to)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        shape = outputs[0].shape
        return [elementwise_call([self.expression(inputs, outputs)], [In(0, shape)], [Out(0, shape)])] if outputs[0].size else []

    def __str__(self) -> str:
        return f"Rounded(to={self.to})"


@channels_last.register(Rounded)
def _(op: Rounded, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> ChannelsLast | None:
    """Any order of the axes will do."""
    return ChannelsLast(op, (True,), (True,)) if outputs[0].rank >= 3 else None


def widen(graph: Graph, cpu: Cpu) -> Graph:
    """A copy of the graph in which every operator finds types that its kernels have; values keep their identity."""
    if not any(v.type.is_half for node in graph.walk() for v in [*node.operands, *node.outputs]):
        return graph
    nodes: list[Node] = []
    wide: dict[tuple[Value, str], Value] = {}

    def convert(value: Value, to: Value, origin: Origin) -> None:
        nodes.append(Node(Rounded(to.type.dtype), [value], [to], origin))

    def widened(value: Value | None, origin: Origin) -> Value | None:
        if value is None or not value.type.is_half:
            return value
        at = value, origin.role                      # the backward pass widens anew: a copy that waited for it would fill the memory saved
        if at not in wide:
            suffix = "" if origin.role == "forward" else f".{origin.role}"
            wide[at] = Value(f"{value.name}.float32{suffix}", _float32(value.type))
            convert(value, wide[at], origin)
        return wide[at]

    for node in graph.nodes:
        inputs: Types = [None if v is None else v.type for v in node.inputs]
        outputs = [v.type for v in node.outputs]
        if not any(t is not None and t.is_half for t in [*inputs, *outputs]) or _takes_halves(node, inputs, outputs, cpu):
            nodes.append(node)
            continue
        operands = [widened(v, node.origin) for v in node.inputs]
        types = node.op.infer(*[None if v is None else v.type for v in operands])
        results = [v if v.type == t else Value(f"{v.name}.float32", t) for v, t in zip(node.outputs, types, strict=True)]
        nodes.append(Node(node.op, operands, results, node.origin))
        for v, result in zip(node.outputs, results, strict=True):
            if v is not result:
                convert(result, v, node.origin)
    return graph.with_nodes(nodes)


def _takes_halves(node: Node, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    return takes_halves(node.op, inputs, outputs, cpu) or node.op.alias is not None or node.op.expression(inputs, outputs) is not None


def _float32(t: TensorType) -> TensorType:
    return TensorType("float32", t.shape)
