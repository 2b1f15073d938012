"""Automatic mixed precision: what a policy says of each operator becomes Casts. After it nothing knows a policy.

Run on the forward graph as it was recorded or imported, before the loss and autograd: gradients then have the types of what they belong to, so that
a weight's arrives in the type that it is stored and updated in. Outputs and states keep their types.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..graph import HALVES, Builder, Graph, Hints, Node, Value, inside, widest
from ..system.errors import TileflowError

CASTABLE = ("float32", *HALVES)
"""Types that casts go from and to. Whoever computes in float64 wants it everywhere."""
Rule = Literal["fp16", "fp32", "promote", "demote", "follow", "off"]


@dataclass(frozen=True)
class CastRule:
    """How one operator is computed.

    rule: fp16 = its operands in the low type; fp32 = in float32; promote and demote = in the widest type or the low one, where they differ;
        follow = in that of its data; off = all in the types that it was written with.
    low: "float16" or "bfloat16".
    """

    rule: Rule
    low: str


def autocast(graph: Graph, choose: Callable[[Node], CastRule]) -> Graph:
    """Cast operands as `choose` says of each node, in place; returns the graph.

    A value has its type at the place where it is made, and at most one cast to each other type, which all its readers share. Weights (what depends on
    states and constants only) follow the data that they meet, as the bias after a product does; so does a constant of one element, unless it
    would become infinite or zero. What regions are given and give keeps its type.
    """
    inside(graph, lambda region: autocast(region, choose))
    return _Caster(graph, choose).run()


class _Caster:
    """Walks the graph once, in order."""

    def __init__(self, graph: Graph, choose: Callable[[Node], CastRule]) -> None:
        self.graph, self.choose, self.b = graph, choose, Builder(graph)
        self.declared: dict[Value, str] = {}
        """The types that values had before, where they have another one now."""
        self.made: dict[tuple[Value, str], Value] = {}
        self.weights = {*graph.constants, *(s.input for s in graph.states)}

    def run(self) -> Graph:
        nodes, self.graph.nodes = self.graph.nodes, []
        for node in nodes:
            self._node(node)
        for state in self.graph.states:
            if state.output is not None:
                state.output = self._as(state.output, self._written(state.output), state.output.producer)
        for i, v in enumerate(self.graph.outputs):
            if v in self.declared:
                self.graph.outputs[i] = self._output(v)
        return self.graph

    def _node(self, node: Node) -> None:
        choice = self.choose(node)
        given = list(node.inputs)
        self._cast_operands(node, choice)
        if (node.inputs != given or any(v in self.declared for v in node.operands)) and not self._retype(node):
            node.inputs = [None if v is None else self._as(v, self._written(v), node) for v in given]
            assert self._retype(node), f"{node!r} took these types before"
        node.origin = replace(node.origin, hints=replace(node.origin.hints, casting=None))          # it is done
        if node.operands and not node.op.random and all(v in self.weights for v in node.operands):
            self.weights.update(node.outputs)
        self.graph.nodes.append(node)

    def _cast_operands(self, node: Node, choice: CastRule) -> None:
        """Give the node operands of the types that it is computed in."""
        castable = [v for v in node.operands if v.dtype in CASTABLE]
        if choice.rule == "off":
            node.inputs = [None if v is None else self._as(v, self._written(v), node) for v in node.inputs]
        elif choice.rule == "follow" and self._keeps_its_own(node):
            return
        elif castable:
            wanted = self._common(castable, choice)
            if wanted is not None:
                node.inputs = [self._as(v, wanted, node) if v is not None and v.dtype in CASTABLE else v for v in node.inputs]

    def _common(self, operands: list[Value], choice: CastRule) -> str | None:
        """The type that these operands are to have; None: they stay."""
        if choice.rule == "fp16":
            return choice.low
        if choice.rule == "fp32":
            return "float32"
        types = {v.dtype for v in operands}
        if len(types) == 1:
            return None
        if choice.rule == "demote":
            return choice.low
        deciding = types if choice.rule == "promote" else {v.dtype for v in operands if v not in self.weights or self._promotes(v)}
        wanted = widest(deciding or types)
        return wanted if all(self._fits(v, wanted) for v in operands) else "float32"

    def _promotes(self, v: Value) -> bool:
        """A constant of several elements (a mask, a table) is data; parameters and single numbers join the others."""
        return v in self.graph.constants and v.type.size > 1

    def _fits(self, v: Value, dtype: str) -> bool:
        """No single number becomes infinite or zero as `dtype`."""
        if v not in self.graph.constants or v.type.size > 1 or dtype not in HALVES:
            return True
        array = self.graph.constants[v]
        with np.errstate(all="ignore"):
            rounded = array.astype(dtype).astype(array.dtype)
        return bool(np.all((np.isfinite(rounded) == np.isfinite(array)) & ((rounded == 0) == (array == 0))))

    def _keeps_its_own(self, node: Node) -> bool:
        """The operator takes 16-bit data beside float32 weights as they are: it is made for mixed precision (batch normalisation, as ONNX has it)."""
        types = {v.dtype for v in node.operands if v.dtype in CASTABLE}
        if len(types) == 1 or not all(v in self.weights for v in node.operands[1:]):
            return False
        try:
            node.op.infer(*[None if v is None else v.type for v in node.inputs])
        except (TileflowError, AssertionError):
            return False
        return True

    def _retype(self, node: Node) -> bool:
        """Let the outputs have the types that follow from the operands; False where the operator does not take those."""
        try:
            types = node.op.infer(*[None if v is None else v.type for v in node.inputs])
        except (TileflowError, AssertionError):              # an operator whose attributes name types
            return False
        for v, t in zip(node.outputs, types, strict=True):
            if v.type != t:
                self.declared[v] = v.dtype
                v.type = t
        node.set_inferred()
        return True

    def _written(self, v: Value) -> str:
        """The type that a value was written with."""
        return self.declared.get(v, v.dtype)

    def _as(self, v: Value, dtype: str, reader: Node | None) -> Value:
        """The value as that type: itself, or its one cast, made where it is first wanted."""
        if v.dtype == dtype:
            return v
        key = v, dtype
        if key not in self.made:
            if v in self.graph.constants and v.type.size == 1:
                self.made[key] = self.b.constant(self.graph.constants[v].astype(dtype), v.name)
            else:
                origin = reader.origin if reader is not None else self.b.origin
                origin = replace(origin, hints=Hints(kept=origin.hints.kept))
                with self.b.at(origin):
                    self.made[key] = self.b.Cast(v, to=dtype)
            if v in self.weights:
                self.weights.add(self.made[key])
        return self.made[key]

    def _output(self, v: Value) -> Value:
        """A result in the type that it was written with, by its public name."""
        cast = self._as(v, self._written(v), v.producer)
        if cast not in self.graph.outputs:
            v.name, cast.name = self.b.name(f"{v.name}.{v.dtype}"), v.name
        return cast
