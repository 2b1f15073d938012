"""What is left to do of a model or of a body: steps, each a node with the opsets it is written in."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, helper

from ..domains.marks import DOMAIN
from ..functions import free_names, renamed_graph
from ..model import Port, port_of
from ..unfold import graphs_of
from .turns import ManyTurns, many_turns

MOST_KEPT = 256
"""Frames that are kept to follow one, and expansions of a step: ever new sizes make ever new ones."""


@dataclass(eq=False)
class Step:
    """A node. reads: the names that it reads, its inner graphs included; writes: those that it makes."""

    node: NodeProto
    opset: Mapping[str, int]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    bodies: dict[str, Frame] = field(default_factory=dict)
    """What its inner graphs are, by attribute, once they were asked for."""
    expansions: dict[object, list[Step]] = field(default_factory=dict)
    """What it became where it stood for other nodes, by what decided that: the same steps each time."""
    together: tuple[ManyTurns, Frame] | None = None
    """The turns of a Loop as a frame of one step, once it was asked for, where it has such a form."""
    _asked: bool = False
    attributes: dict[str, Any] | None = None
    """Those of the node, the schema's defaults included, graphs as they are: once they were asked for."""

    def __post_init__(self) -> None:
        captured = itertools.chain.from_iterable(free_names(graph) for graph in graphs_of(self.node))
        self.reads = tuple(dict.fromkeys(name for name in (*self.node.input, *captured) if name))
        self.writes = tuple(name for name in self.node.output if name)

    def body(self, name: str) -> Frame:
        """An inner graph as a frame of its own."""
        if name not in self.bodies:
            graph = next(a.g for a in self.node.attribute if a.name == name)
            steps = [*(Step(node, self.opset) for node in constants_of(graph)), *(Step(node, self.opset) for node in graph.node)]
            self.bodies[name] = frame_of(steps, [v.name for v in graph.output], tuple(port_of(v) for v in graph.input),
                                         tuple(port_of(v) for v in graph.output))
        return self.bodies[name]

    def turns(self) -> tuple[ManyTurns, Frame] | None:
        """Many turns of a Loop as one step, and the frame of it; None where it has no such form."""
        if not self._asked:
            self._asked = True
            many = many_turns(self.node)
            if many is not None:
                step = Step(many.node, {**self.opset, DOMAIN: 1})
                formals = tuple(Port(name, "", None) for name in many.inputs)
                frame = frame_of([step], step.writes, formals)
                if many.guessed:
                    frame.baked.add(many.inputs[0])
                self.together = many, frame
        return self.together


_numbers = itertools.count()


@dataclass(eq=False)
class Frame:
    """Steps that are still to be done, in order, of a model or a body; only those that `wanted` needs.

    reads: names that nothing in the frame makes. baked: names whose values decide shapes, as far as is known: compiled in, they are part of what
    a program is for. formals, results: the ports of a body. following: the frames that stay when pieces of this one are done.
    """

    steps: tuple[Step, ...]
    wanted: tuple[str, ...]
    formals: tuple[Port, ...] = ()
    results: tuple[Port, ...] = ()
    reads: tuple[str, ...] = ()
    baked: set[str] = field(default_factory=set)
    following: dict[tuple[int, ...], Frame] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    def after(self, steps: Sequence[Step]) -> Frame:
        """The frame of these of its steps, or what they became; the same one each time."""
        key = tuple(map(id, steps))
        if key not in self.following:
            if len(self.following) >= MOST_KEPT:
                self.following.clear()
            self.following[key] = frame_of(steps, self.wanted, self.formals, self.results)
        return self.following[key]


def frame_of(steps: Sequence[Step], wanted: Iterable[str], formals: tuple[Port, ...] = (), results: tuple[Port, ...] = ()) -> Frame:
    """A frame of the steps on which a wanted name depends."""
    wanted = tuple(wanted)
    needed, kept = set(wanted), []
    for step in reversed(steps):
        if any(name in needed for name in step.writes):
            kept.append(step)
            needed.update(step.reads)
    kept.reverse()
    made = {name for step in kept for name in step.writes}
    read = dict.fromkeys(itertools.chain(itertools.chain.from_iterable(step.reads for step in kept), wanted))
    return Frame(tuple(kept), wanted, formals, results, tuple(name for name in read if name not in made))


def constants_of(graph: GraphProto) -> list[NodeProto]:
    """The initializers of an inner graph as nodes."""
    dense = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    sparse = []
    for tensor in graph.sparse_initializer:
        node = helper.make_node("Constant", [], [tensor.values.name])
        node.attribute.append(AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=tensor))
        sparse.append(node)
    return dense + sparse


def branch_steps(step: Step, name: str) -> list[Step]:
    """The branch `name` in place of its node: its own names get the node's first output as prefix."""
    if name not in step.expansions:
        graph = next(a.g for a in step.node.attribute if a.name == name)
        prefix = f"{step.writes[0] if step.writes else name}/"
        inner = renamed_graph(graph, {}, prefix)
        nodes = [*constants_of(inner), *inner.node]
        nodes += [helper.make_node("Identity", [v.name], [output]) for v, output in zip(inner.output, step.node.output, strict=False) if output]
        step.expansions[name] = [Step(node, step.opset) for node in nodes]
    return step.expansions[name]
