"""Packing: an operand that only an update or a load changes is laid out once, in the prologue, for all micro-batches that read it.

A host pass after the fork of the street: it makes another Program and leaves the given one as it is.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..graph import Graph, Node, Region, Regional, State, TensorType, Value
from ..graph.op import Types
from ..graph.region import captured
from ..host.form import HostOp, Packed
from ..host.form import packed as packed_form
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..program import Program
from .through import verified

MOST_BYTES = 1 << 29
"""What the laid-out copies of one program may take together."""
SMALL = 1 << 21
"""Bytes of a copy that is kept even where only one run of one node reads it between two updates."""


class Pack(HostOp):
    """One operand in the layout that a kernel wants. Made by `pack` only, after the fork of the street."""

    name: ClassVar[str] = "Pack"

    def __init__(self, layout: Packed) -> None:
        self.layout = layout

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (self.layout.type,)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return list(self.layout.calls)

    def __str__(self) -> str:
        return f"Pack({self.layout.type})"


def pack(program: Program, cpu: Cpu) -> Program:
    """The program with weights laid out in its prologue, where an operator of the micro-step has such a form (`host.form.packed`)."""
    wanted = _choose(program, cpu)
    if not wanted:
        return program
    old = program.parts["prologue"]
    prologue = replace(old, outputs=list(old.outputs), nodes=list(old.nodes), constants=dict(old.constants), states=list(old.states))
    links = dict(program.links)
    leaves = _leaves(program.micro)
    own = {s.input for s in prologue.states}
    crossings: list[Value] = []
    laid: dict[Node, tuple[Packed, Value]] = {}
    for value, packed, readers in wanted:          # readers of one layout may be other operators: each has a form of its own
        inside = links.get(value, value)
        leaf = leaves.get(inside)
        if isinstance(leaf, State):
            if inside not in own:
                own.add(inside)
                prologue.states.append(replace(leaf, input=inside, output=None))
        elif leaf is not None:
            prologue.constants[inside] = leaf
        node = Node(Pack(packed), [inside], [], readers[0][0].origin)
        made = Value(f"{value.name}.packed.{len(crossings)}", packed.type, node)
        node.outputs.append(made)
        prologue.nodes.append(node)
        prologue.outputs.append(made)
        crossing = Value(made.name, made.type)
        links[crossing] = made
        crossings.append(crossing)
        laid.update({reader: (own_form, crossing) for reader, own_form in readers})
    nodes = [_packed(node, laid)[0] for node in program.micro.nodes]
    micro = replace(program.micro, inputs=[*program.micro.inputs, *crossings], nodes=nodes)
    _drop_unread(micro, prologue, links)
    return program.with_parts({"micro": verified(micro), "prologue": verified(prologue)}, links=links)


def _drop_unread(micro: Graph, prologue: Graph, links: dict[Value, Value]) -> None:
    """What only packings read need not be kept in its own layout."""
    read = {v for node in micro.nodes for v in node.operands} | set(micro.results())
    unread = {v: links.pop(v) for v in micro.inputs if v in links and v not in read}
    micro.inputs = [v for v in micro.inputs if v not in unread]
    done = set(unread.values()) - set(links.values())
    prologue.outputs = [v for v in prologue.outputs if v not in done]


Readers = list[tuple[Node, Packed]]
"""Nodes that read a layout, each with what it then is."""


def _choose(program: Program, cpu: Cpu) -> list[tuple[Value, Packed, Readers]]:
    """Operands to lay out, each with the nodes that read it so, within the bounds on memory."""
    fixed = _fixed(program)
    asked: list[tuple[Value, Packed, Readers]] = []
    layouts: dict[Value, list[tuple[Packed, Readers]]] = {}
    for node, outside in _everywhere(program.micro, {}):
        packed = packed_form(node.op, [None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs], cpu)
        value = None if packed is None else node.inputs[packed.index]
        value = None if value is None else outside.get(value, value)
        if packed is None or value is None or value not in fixed:
            continue
        same = next((readers for p, readers in layouts.get(value, ()) if p.type == packed.type and p.calls == packed.calls), None)
        if same is None:
            asked.append((value, packed, [(node, packed)]))
            layouts.setdefault(value, []).append((packed, asked[-1][-1]))
        else:
            same.append((node, packed))
    runs = program.batching.per_update if program.training else 2        # a weight serves many inferences
    kept, total = [], 0
    for value, packed, readers in asked:
        nbytes = packed.type.nbytes
        if (nbytes <= SMALL or runs * len(readers) > 1) and total + nbytes <= MOST_BYTES:
            kept.append((value, packed, readers))
            total += nbytes
    return kept


def _fixed(program: Program) -> set[Value]:
    """Values of the micro-step that change at an update or a load only."""
    states = {s.input for s in program.micro.states if s.output is None and s.kind != "scalar"}
    made = {v for node in program.parts["prologue"].nodes for v in node.outputs}
    return states | set(program.micro.constants) | {v for v in program.micro.inputs if program.links.get(v) in made}


def _leaves(graph: Graph) -> dict[Value, np.ndarray | State]:
    """The constants and the states of a graph by their values."""
    return {**{s.input: s for s in graph.states}, **graph.constants}


def _everywhere(graph: Graph, outside: Mapping[Value, Value]) -> Iterator[tuple[Node, Mapping[Value, Value]]]:
    """The nodes of a graph and those in their regions, each with the values of the whole graph that its region's captures stand for."""
    for node in graph.nodes:
        yield node, outside
        for region in node.op.regions:
            if isinstance(region, Region):
                inside = {inner: outside.get(outer, outer) for inner, outer in captured(node, region).items()}
                yield from _everywhere(region.graph, inside)


def _packed(node: Node, laid: Mapping[Node, tuple[Packed, Value]]) -> tuple[Node, list[Value]]:
    """The node with laid-out operands, and which of these it reads; those that its regions read are captured."""
    if node in laid:
        return _packed_node(node, *laid[node]), [laid[node][1]]
    if not isinstance(node.op, Regional):
        return node, []
    inner = [[_packed(n, laid) for n in region.graph.nodes] for region in node.op.regions]
    read = list(dict.fromkeys(v for nodes in inner for _, found in nodes for v in found))
    if not read:
        return node, []
    regions = []
    for region, nodes in zip(node.op.regions, inner, strict=True):
        formals = {v: Value(v.name, v.type) for v in read}
        made = [n if not found else Node(n.op, [None if v is None else formals.get(v, v) for v in n.inputs], n.outputs, n.origin)
                for n, found in nodes]
        regions.append(Region(replace(region.graph, inputs=[*region.graph.inputs, *formals.values()], nodes=made)))
    return Node(node.op.with_regions(regions), [*node.inputs, *read], node.outputs, node.origin), read


def _packed_node(node: Node, packed: Packed, crossing: Value) -> Node:
    """The node that reads the laid-out operand; its outputs are the old node's."""
    inputs = [*node.inputs, *([node.inputs[packed.index]] if packed.keeps else [])]
    inputs[packed.index] = crossing
    return Node(packed.op, inputs, node.outputs, node.origin)
