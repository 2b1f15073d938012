"""Recomputation: a training program that keeps checkpoints of the forward pass and computes the rest again for the backward pass."""
from __future__ import annotations

import dataclasses
import math

from ...graph import Graph, Node, Value, checkpoints
from ...graph.graph import Role
from ...program.program import Program
from ...program.staging import Staging


def recomputed(program: Program) -> Program:
    """The program with the forward pass of its micro-step cut in about sqrt(n) segments, or in its stages.

    Where the program has checkpoints of its own (`Hints.kept`), they are what is kept: besides what enters a stage, or
    in place of segments. Of each segment only what later segments read is kept; before the first backward node that
    needs anything else of it, the needed nodes run again. Random operators draw the same numbers again, as they are
    keyed by micro-batch and position. Inference, and what has been recomputed already, is returned as it is.
    """
    if program.caller is not None:
        return program
    micro = program.micro
    backward = [i for i, n in enumerate(micro.nodes) if n.origin.role == "backward"]
    if not backward or any(n.origin.role == "recompute" for n in micro.nodes):
        return program
    forward = micro.nodes[:backward[0]]
    clones = _Clones(forward, micro.nodes[backward[0]:], set(micro.results()) | set(program.links.values()), program.staging)
    nodes, new = clones.run(), clones.new
    states = [s if s.output is None else dataclasses.replace(s, output=new.get(s.output, s.output)) for s in micro.states]
    graph = Graph(micro.name, list(micro.inputs), [new.get(v, v) for v in micro.outputs], nodes, dict(micro.constants), states)
    links = {inner: new.get(v, v) for inner, v in program.links.items()}
    loss = program.loss if program.loss is None else new.get(program.loss, program.loss)
    return program.with_parts({"micro": graph}, links=links, loss=loss)


class _Clones:
    """Copies the backward nodes so that they read clones of what is not kept."""

    def __init__(self, forward: list[Node], rest: list[Node], results: set[Value], staging: Staging | None) -> None:
        self.forward, self.rest = forward, rest
        length = max(1, math.isqrt(len(forward)))
        marked = checkpoints(forward)
        own = staging is None and not marked
        segments = [i // length if own else (n.origin.hints.stage or 0) if staging is not None else 0
                    for i, n in enumerate(forward)]
        self.segment = {v: segment for n, segment in zip(forward, segments, strict=True) for v in n.outputs}
        self.kept = {v for v in (*results, *marked) if v in self.segment}
        if staging is not None:                                   # the last stage's backward pass follows at once
            self.kept.update(v for v, segment in self.segment.items() if segment == staging.forward - 1)
        for node, segment in zip(forward, segments, strict=True):
            self.kept.update(v for v in node.operands if self.segment.get(v, segment) != segment)
        self.place = {id(n): i for i, n in enumerate(forward)}
        self.again: dict[Value, Value] = {}
        """Clones of forward values."""
        self.new: dict[Value, Value] = {}
        """Values of copied backward nodes."""

    def run(self) -> list[Node]:
        """The nodes of the new micro-step."""
        out = list(self.forward)
        for node in self.rest:
            for v in node.operands:
                if v in self.segment and v not in self.kept and v not in self.again:
                    out += self._again(v)
            inputs = [None if v is None else self.again.get(v, self.new.get(v, v)) for v in node.inputs]
            out.append(node if inputs == node.inputs else self._copy(node, inputs, node.origin.role, "", self.new))
        return out

    def _again(self, value: Value) -> list[Node]:
        """Clones of the nodes that make `value` from what is kept, in order."""
        needed: dict[int, Node] = {}
        stack = [value]
        while stack:
            v = stack.pop()
            node = v.producer
            if v not in self.again and v not in self.kept and v in self.segment and node is not None and id(node) not in needed:
                needed[id(node)] = node
                stack += node.operands
        made = []
        for node in sorted(needed.values(), key=lambda n: self.place[id(n)]):
            inputs = [None if v is None else self.again.get(v, v) for v in node.inputs]
            twins: dict[Value, Value] = {}
            made.append(self._copy(node, inputs, "recompute", ".again", twins))
            self.again.update((v, twin) for v, twin in twins.items() if v not in self.kept)
        return made

    @staticmethod
    def _copy(node: Node, inputs: list[Value | None], role: Role, suffix: str, twins: dict[Value, Value]) -> Node:
        fresh = Node(node.op, inputs, [], dataclasses.replace(node.origin, role=role))
        for v in node.outputs:
            twins[v] = Value(v.name + suffix, v.type, fresh)
            fresh.outputs.append(twins[v])
        return fresh
