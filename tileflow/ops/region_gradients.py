"""Backward passes of regions, as regions: what the gradients of If and Loop are made of."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Builder, Graph, Region, TensorType, Turns, Value
from ..graph.backward import backward
from ..graph.copy import copied
from ..graph.region import closed


def branch_backward(region: Region, given: Sequence[int], wanted: Sequence[bool]) -> Region:
    """(captures..., gradients of the outputs `given`...) -> gradients of the captures that are wanted."""
    graph = copied(region.graph)
    captures = list(graph.inputs)
    sources = [v for v, w in zip(captures, wanted, strict=True) if w]
    b, found = _backward(graph, [graph.outputs[i] for i in given], sources)
    return closed(b, [found.get(v) or zeros(b, v.type) for v in sources])


@dataclass(frozen=True)
class TurnBackward:
    """The backward pass of one turn.

    region: (turn, gradients of carried values at its end..., sums..., carried values at its beginning..., slices..., gradients of slices...,
    captures...) -> (gradients of carried values at its beginning..., sums..., gradients of slices...)

    carried, summed, scanned: which carried values, captures and slices have gradients here.
    """

    region: Region
    carried: tuple[int, ...]
    summed: tuple[int, ...]
    scanned: tuple[int, ...]


def turn_backward(op: Turns, given: Sequence[int]) -> TurnBackward | None:
    """Of a loop whose scans `given` have gradients; None where nothing that is wanted has any."""
    graph = copied(op.body.graph)
    turn, *rest = graph.inputs
    carried, slices, captures = rest[:op.carried], rest[op.carried:op.carried + op.scanned], rest[op.carried + op.scanned:]
    ends = graph.outputs[op.conditional:]
    asked = [v for v, w in zip(rest, op.wanted, strict=True) if w and v.type.is_float]
    through = _through(graph, carried, ends, asked)
    targets = [*(ends[i] for i in through), *(ends[op.carried + i] for i in given)]
    sources = dict.fromkeys([*(carried[i] for i in through), *asked])
    b, found = _backward(graph, targets, list(sources))
    own = graph.inputs[1 + len(rest):]
    summed = [i for i, v in enumerate(captures) if v in found]
    scanned = [i for i, v in enumerate(slices) if v in found]
    if not (through or summed or scanned):
        return None
    sums = [b.input(f"{captures[i].name}.sum", captures[i].type) for i in summed]
    graph.inputs = [turn, *own[:len(through)], *sums, *carried, *slices, *own[len(through):], *captures]
    with b.at(ends[0].producer.origin if ends and ends[0].producer else b.origin):
        handed = [found.get(carried[i]) or zeros(b, carried[i].type) for i in through]
        added = [b.Add(total, found[captures[i]]) for total, i in zip(sums, summed, strict=True)]
    return TurnBackward(closed(b, [*handed, *added, *(found[slices[i]] for i in scanned)]), tuple(through), tuple(summed), tuple(scanned))


def _through(graph: Graph, carried: Sequence[Value], ends: Sequence[Value], asked: Sequence[Value]) -> list[int]:
    """Which carried values depend on what gradients are asked of, in this turn or through earlier ones."""
    reached = set(asked)
    while True:
        before = len(reached)
        for node in graph.nodes:
            if not node.op.stops_gradient and any(v in reached for v in node.operands):
                reached.update(v for v in node.outputs if v.type.is_float)
        reached.update(v for v, end in zip(carried, ends, strict=False) if end in reached)
        if len(reached) == before:
            return [i for i, v in enumerate(carried) if v in reached]


def _backward(graph: Graph, targets: Sequence[Value], sources: Sequence[Value]) -> tuple[Builder, dict[Value, Value]]:
    """The backward pass appended, with new inputs for the gradients of the targets."""
    def seeds(b: Builder) -> dict[Value, Value]:
        return {v: b.input(f"{v.name}.grad", v.type) for v in targets}
    return backward(graph, targets, sources, seeds)


def zeros(b: Builder, t: TensorType) -> Value:
    """Zeros of a floating type."""
    zero = b.constant(0 * t.numpy.type(1))
    made: Value = b.Expand(zero, shape=t.shape) if t.shape else zero
    return made
