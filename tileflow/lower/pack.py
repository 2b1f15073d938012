"""Packing: an operand that only an update or a load changes is laid out once, in the prologue, for all micro-batches that read it.

A host pass after the fork of the street: it makes another Program and leaves the given one as it is.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ..graph import Graph, Node, Region, Regional, TensorType, Value
from ..graph.op import Types
from ..graph.region import captured
from ..host.form import HostOp, Packed, axis_order
from ..host.hosted import hosted
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..program.program import Program
from .prologue import SMALL, Prologue, fixed

MOST_BYTES = 1 << 29
"""What the laid-out copies of one program may take together."""


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
    prologue, before = Prologue(program), {v: node for node in program.parts["prologue"].nodes for v in node.outputs}
    laid: dict[Node, tuple[Packed, Value]] = {}
    for number, (value, packed, readers) in enumerate(wanted):          # readers of one layout may be other operators: each has a form of its own
        node = Node(*_laying(packed, prologue.reads(value), before), [], readers[0][0].origin)
        made = Value(f"{value.name}.packed.{number}", packed.type, node)
        node.outputs.append(made)
        prologue.add(node)
        crossing = prologue.hand(made)
        laid.update({reader: (own_form, crossing) for reader, own_form in readers})
    return prologue.with_micro([_packed(node, laid)[0] for node in program.micro.nodes])


def _laying(packed: Packed, value: Value, before: Mapping[Value, Node]) -> tuple[Pack, list[Value | None]]:
    """What lays a value out, and of what: of a matrix that was only turned, the matrix itself."""
    turn = before.get(value)
    source = None if turn is None or packed.turned is None or len(turn.inputs) != 1 else turn.inputs[0]
    if source is not None and turn is not None and packed.turned is not None \
            and axis_order(turn.op, source.type) == (1, 0):
        calls = packed.turned()
        if calls is not None:
            return Pack(replace(packed, plain=source.type, calls=calls)), [source]
    return Pack(packed), [value]


Readers = list[tuple[Node, Packed]]
"""Nodes that read a layout, each with what it then is."""


def _choose(program: Program, cpu: Cpu) -> list[tuple[Value, Packed, Readers]]:
    """Operands to lay out, each with the nodes that read it so, within the bounds on memory."""
    unchanging = fixed(program)
    asked: list[tuple[Value, Packed, Readers]] = []
    layouts: dict[Value, list[tuple[Packed, Readers]]] = {}
    for node, outside in _everywhere(program.micro, {}):
        packed = hosted(node.op).packing([v and v.type for v in node.inputs], [v.type for v in node.outputs], cpu)
        value = None if packed is None else node.inputs[packed.index]
        value = None if value is None else outside.get(value, value)
        if packed is None or value is None or value not in unchanging:
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
    return Node(hosted(node.op).also(packed=packed), inputs, node.outputs, node.origin)
