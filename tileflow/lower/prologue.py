"""The prologue of a program for the host: what passes add to it, and what of a micro-step moves there because only weights decide it.

An operator taken apart after the fork of the street leaves such work behind: of batch normalisation in inference, the factor of each channel.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph import Node, Value
from ..program.program import Program

SMALL = 1 << 21
"""Bytes of a result that is kept from micro-batch to micro-batch whatever computing it anew takes."""


class Prologue:
    """The prologue of a program and what its micro-step reads of it, as they grow. The program stays as it is."""

    def __init__(self, program: Program) -> None:
        old = program.parts["prologue"]
        self._program = program
        self._graph = replace(old, outputs=list(old.outputs), nodes=list(old.nodes), constants=dict(old.constants), states=list(old.states))
        self._links = dict(program.links)
        self._own = {s.input for s in old.states}
        self._states = {s.input: s for s in program.micro.states}
        self._crossings: list[Value] = []

    def reads(self, value: Value) -> Value:
        """What the prologue reads where the micro-step reads the `fixed` value."""
        inside = self._links.get(value, value)
        if inside in self._program.micro.constants:
            self._graph.constants[inside] = self._program.micro.constants[inside]
        elif inside in self._states and inside not in self._own:
            self._own.add(inside)
            self._graph.states.append(replace(self._states[inside], input=inside, output=None))
        return inside

    def add(self, node: Node) -> None:
        """Another node, which reads what the prologue has."""
        self._graph.nodes.append(node)

    def hand(self, made: Value) -> Value:
        """What the micro-step reads for a value that the prologue makes."""
        self._graph.outputs.append(made)
        crossing = Value(made.name, made.type)
        self._links[crossing] = made
        self._crossings.append(crossing)
        return crossing

    def with_micro(self, nodes: Sequence[Node]) -> Program:
        """The program with this prologue, and with these nodes as its micro-step's. What only the prologue still reads
        is no longer handed on, and what nobody reads no longer computed."""
        old, prologue, links = self._program.micro, self._graph, self._links
        micro = replace(old, inputs=[*old.inputs, *self._crossings], nodes=list(nodes))
        read = {v for node in micro.nodes for v in node.operands} | set(micro.results())
        unread = {v: links.pop(v) for v in micro.inputs if v in links and v not in read}
        micro.inputs = [v for v in micro.inputs if v not in unread]
        done = set(unread.values()) - set(links.values())
        prologue.outputs = [v for v in prologue.outputs if v not in done]
        prologue.prune()
        return self._program.with_parts({"micro": micro, "prologue": prologue}, links=links)


def fixed(program: Program) -> set[Value]:
    """Values of the micro-step that change at an update or a load only: no state that follows micro-batches, which the fold writes, is among them."""
    micro, written = program.micro, {s.name for s in program.parts["fold"].states if s.output is not None}
    states = {s.input for s in micro.states if s.output is None and s.kind != "scalar" and s.name not in written}
    made = {v for node in program.parts["prologue"].nodes for v in node.outputs}
    return states | set(micro.constants) | {v for v in micro.inputs if program.links.get(v) in made}


def hoist(program: Program) -> Program:
    """The program whose prologue computes what the micro-step's nodes make of fixed values alone, where that is small.

    Views of the same memory take no time: they go along where what is computed reads them, and stay for all others.
    """
    known, views, moved = fixed(program), dict[Value, Node](), list[Node]()
    wanted = {*program.micro.results(), *program.links.values(), *program.kept("micro")}
    for node in program.micro.nodes:
        if not node.operands or node.op.random or node.op.regions or not all(v in known for v in node.operands):
            continue
        if node.op.alias is not None:
            views.update(dict.fromkeys(node.outputs, node))
            known.update(node.outputs)
        elif wanted.isdisjoint(node.outputs) and sum(v.type.nbytes for v in node.outputs) <= SMALL:
            moved.append(node)
            known.update(node.outputs)
    if not moved:
        return program
    prologue, inside = Prologue(program), {v: v for node in moved for v in node.outputs}

    def within(value: Value) -> Value:
        if value not in inside:
            view = views.get(value)
            if view is None:
                inside[value] = prologue.reads(value)
            else:
                copy = Node(view.op, [v and within(v) for v in view.inputs], [], view.origin)
                copy.outputs.extend(Value(v.name, v.type, copy) for v in view.outputs)
                inside.update(zip(view.outputs, copy.outputs, strict=True))
                prologue.add(copy)
        return inside[value]

    for node in moved:
        prologue.add(Node(node.op, [v and within(v) for v in node.inputs], node.outputs, node.origin))
    gone, read, stay = set(moved), set(wanted), list[Node]()
    for node in reversed(program.micro.nodes):                       # views that only went along are read no more
        if node not in gone and not (node.op.alias is not None and read.isdisjoint(node.outputs)):
            stay.append(node)
            read.update(node.operands)
    crossings = {v: prologue.hand(v) for node in moved for v in node.outputs if v in read}
    return prologue.with_micro([Node(node.op, [v and crossings.get(v, v) for v in node.inputs], node.outputs, node.origin)
                                if any(v in crossings for v in node.operands) else node for node in reversed(stay)])
