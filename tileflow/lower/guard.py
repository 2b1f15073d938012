"""Guards: an update that would leave a weight infinite or NaN is refused.

A float16 weight, or moment, may overflow where its update in float32 does not; an infinite moment would make every later step nothing, or NaN. Before
anything is written the update's expression runs once for those states and writes nothing (`check_part`), so that an update is done whole or not
at all; that takes as long again. Other weights, and bfloat16's, which reach as far as float32, are looked at as they are written (`watch`): that
costs nothing, and says that they are lost.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from ml_dtypes import finfo

from ..graph import Graph, Index, Node, Origin, State, TensorType, Value, needed_for
from ..graph.op import Types
from ..host.form import HostOp
from ..kernels.elementwise.expr import Expr, certain
from ..kernels.elementwise.guarded import guarded_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.guard import finite
from ..memory.types import FLOATS
from .fuse import Fused


class Refuse(HostOp):
    """Fails where its input is not finite; makes nothing. Made here only, after the fork of the street."""

    name: ClassVar[str] = "Refuse"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return ()

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return ()

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, = inputs
        assert x is not None
        return [Call(finite(x.code), [In(0, (x.size,))], x.size, 4096, 0.1 * x.size, True)] if x.size else []

    def __str__(self) -> str:
        return "Refuse"


class Guarded(Fused):
    """Elementwise work that fails where one of the `watched` expressions is not finite. Made here only."""

    name: ClassVar[str] = "Guarded"

    def __init__(self, expressions: tuple[Expr, ...], types: tuple[TensorType, ...], watched: tuple[Expr, ...], position: int | None = None) -> None:
        super().__init__(expressions, types, position)
        self.watched = watched

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Any:
        return self.expressions or None

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        operands = [In(i, t.shape) for i, t in enumerate(inputs) if t is not None]
        return [guarded_call(self.expressions, self.watched, operands, [Out(i, t.shape) for i, t in enumerate(outputs)],
                             self.position or 0)]

    def __str__(self) -> str:
        return f"Guarded({', '.join(map(str, self.watched))})"


NARROW = tuple(t for t in FLOATS if finfo(t).maxexp < finfo("float32").maxexp)
"""What an update in float32 may overflow."""


def _written(update: Graph, narrow: bool) -> list[State]:
    """The states to look at: weights, and what else is kept in a type that an update may overflow."""
    kinds = ("parameter", "optimizer") if narrow else ("parameter",)
    return [s for s in update.states if s.kind in kinds and s.output is not None and s.input.type.is_float and (s.input.dtype in NARROW) == narrow]


def _refusals(states: list[State]) -> list[Node]:
    return [Node(Refuse(), [s.output], [], Origin((s.name,), "update")) for s in states]


def check_part(update: Graph) -> Graph:
    """What fails if the update would leave a float16 weight or moment that is not finite, and writes nothing; without nodes where there are none."""
    checks = _refusals(_written(update, True))
    kept, needed = needed_for([v for node in checks for v in node.operands], update.nodes)
    states = [s.read_only() for s in update.states if s.input in needed]
    constants = {v: a for v, a in update.constants.items() if v in needed}
    return Graph("check", [v for v in update.inputs if v in needed], [], [*kept, *checks], constants, states)


def watch(update: Graph) -> Graph:
    """The update, which also fails where another weight that it wrote is not finite."""
    return update.with_nodes([*update.nodes, *_refusals(_written(update, False))])


def join(graph: Graph) -> Graph:
    """A copy of the graph in which elementwise nodes themselves refuse what a Refuse after them would (after `fuse`); the graph itself
    where there is none."""
    if not any(isinstance(node.op, Refuse) for node in graph.nodes):
        return graph
    index = Index(graph)
    joined: dict[Node, Node | None] = {}
    for refuse in graph.nodes:
        if not isinstance(refuse.op, Refuse):
            continue
        value = refuse.operands[0]
        maker = index.maker(value)
        found = None if maker is None or maker in joined else _joined(maker, value, index.only_reader(value) is refuse)
        if maker is not None and found is not None:
            joined.update({maker: found, refuse: None})
    nodes = [joined.get(node, node) for node in graph.nodes]
    return graph.with_nodes(n for n in nodes if n is not None)


def _joined(maker: Node, value: Value, alone: bool) -> Node | None:
    """The node that makes `value` as one that watches it, and does not write it where the check alone reads it."""
    types: Types = [v.type for v in maker.operands]
    exprs = maker.op.expression(types, [v.type for v in maker.outputs])
    if exprs is None or value.type.size == 0 or any(v.type.size not in (1, value.type.size) for v in maker.operands):
        return None
    exprs = exprs if isinstance(exprs, tuple) else (exprs,)
    watched = exprs[maker.outputs.index(value)]
    left = [(v, e) for v, e in zip(maker.outputs, exprs, strict=True) if not (alone and v is value)]
    if not left:                                           # what chance might make infinite is refused: nothing need be drawn to look
        watched = certain(watched)
    op = Guarded(tuple(e for _, e in left), tuple(v.type for v, _ in left), (watched,), maker.op.position)
    return Node(op, maker.inputs, [v for v, _ in left], maker.origin)
