"""Regions: graphs inside of nodes (branches and bodies of loops), and the operators that have them.

A region is closed: its inputs stand for operands of its node, also for what it captures, so that passes over the outer graph see captures as
ordinary operands and need to know nothing of regions. A region never changes: a pass that changes what is inside makes another one (`inside`).
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..memory.types import HALVES, TensorType
from ..system.errors import TypeMismatchError
from .builder import Builder
from .copy import copied
from .digest import digest
from .graph import Graph, Node, Value
from .op import Op

Array = np.ndarray
Evaluate = Callable[[Graph, Sequence[Array]], "list[Array]"]
"""Computes a graph's outputs from the elements of its inputs."""


@dataclass(frozen=True, eq=False)
class Region:
    """A graph with inputs, outputs and constants, and without states. Regions that compute the same are equal."""

    graph: Graph

    @cached_property
    def key(self) -> Any:
        """What equal regions have in common. Operators of the host's lowering say nothing of what they are: a region of theirs is itself only."""
        declared = all(dataclasses.is_dataclass(node.op) for node in self.graph.walk())
        return digest(_unnamed(self.graph)) if declared else id(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Region) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{len(self.graph.nodes)} nodes>"


def _unnamed(graph: Graph) -> Graph:
    """A copy in which inputs and outputs are called by their numbers."""
    graph = copied(graph)
    for i, v in enumerate((*graph.inputs, *graph.outputs)):
        v.name = str(i)
    return graph


class Regional(Op):
    """An operator with regions, which are attributes. All inputs and outputs have the types that the regions say."""

    halves = True

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(v for v in self.attributes().values() if isinstance(v, Region))

    def with_regions(self, regions: Sequence[Region]) -> Regional:
        """The same operator over other regions, which take and give values of the same types."""
        names = [name for name, v in self.attributes().items() if isinstance(v, Region)]
        return dataclasses.replace(self, **dict(zip(names, regions, strict=True)))      # type: ignore[type-var]

    @property
    def random(self) -> bool:                   # type: ignore[override]
        return any(node.op.random for region in self.regions for node in region.graph.walk())

    def interpret(self, evaluate: Evaluate, inputs: Sequence[Array | None]) -> list[Array]:
        """The outputs, `evaluate` computing the regions that are run."""
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(self.interpret(evaluated, inputs))

    def check(self, what: str, region: Region, types: Sequence[TensorType | None]) -> None:
        """Raise TypeMismatchError where a region is given other types than it takes."""
        wanted = [v.type for v in region.graph.inputs]
        if wanted != list(types):
            shown = [", ".join(map(str, t)) for t in (wanted, types)]
            raise TypeMismatchError(f"the {what} takes ({shown[0]}) and is given ({shown[1]})")


class Branches(Regional):
    """(condition, captures...) -> the outputs of one of two regions over the captures: of `then` where the condition is true, else of `other`.
    The other region is not computed.

    wanted: of which captures gradients are asked for; empty: of all.
    """

    then: Region
    other: Region
    wanted: tuple[bool, ...]


class Turns(Regional):
    """(turns, condition, carried..., scanned..., captures...) -> (carried..., scans...): a region over and over again.

    Region: (turn int64 [], carried..., slices of scanned..., captures...) -> (whether to go on, if `conditional`; carried..., slices of scans...)

    `turns` (int64, one element; absent: `count` of them) and `condition` (absent: true) say how many turns there are; a conditional
    region's own word ends it early. Slices are along a new first axis. Fewer turns than `count` leave zeros in the scans.

    carried, scanned: how many there are. count: turns, or the most of them; -1: not known, where nothing is scanned. reverse: the turns are
    numbered from the last to 0, and slices follow the number.
    wanted: of which of the carried, the scanned and the captures gradients are asked for. kept: how many of the last scans are there for them.
    """

    body: Region
    carried: int
    scanned: int
    count: int
    conditional: bool
    reverse: bool
    wanted: tuple[bool, ...]
    kept: int


def inside(graph: Graph, change: Callable[[Graph], object]) -> Graph:
    """Change the regions of a graph's nodes in place; returns the graph. `change` is given copies, which it changes in place; those inside of
    them are its own affair, as a pass that begins so sees them all."""
    for node in graph.nodes:
        if node.op.regions:
            node.op = _changed(node.op, change)
            node.set_inferred()
    return graph


def with_inside(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with other regions in its nodes; the given one is not changed, nor are its nodes."""
    if not any(node.op.regions for node in graph.nodes):
        return graph

    def changed(node: Node) -> Node:
        regions = [Region(change(region.graph)) for region in node.op.regions]
        made = Node(_regional(node.op).with_regions(regions), node.inputs, node.outputs, node.origin)
        made.set_inferred()
        return made
    return graph.with_nodes(changed(node) if node.op.regions else node for node in graph.nodes)


def _regional(op: Op) -> Regional:
    assert isinstance(op, Regional), op
    return op


def _changed(op: Op, change: Callable[[Graph], object]) -> Op:
    regions = []
    for region in op.regions:
        graph = copied(region.graph)
        change(graph)
        regions.append(Region(graph))
    return _regional(op).with_regions(regions)


def evaluated(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """A graph's outputs by the references of its operators."""
    values: dict[Any, Array] = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
    for node in graph.nodes:
        values.update(zip(node.outputs, computed(node, [None if v is None else values[v] for v in node.inputs]), strict=True))
    return [np.array(values[v], order="C") for v in graph.outputs]


def computed(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """What the host would compute: 16-bit floats in float32, rounded once, unless the operator takes them itself."""
    if not node.op.halves:
        arrays = [a.astype(np.float32) if a is not None and a.dtype.name in HALVES else a for a in arrays]
    with np.errstate(all="ignore"):
        found = node.op.reference(*arrays)
    return [np.array(a, v.type.numpy, order="C").reshape(v.shape) for a, v in zip(found, node.outputs, strict=True)]


def steps(op: Op) -> float:
    """How many operators run, at most, when one with regions is evaluated; 1 for all others."""
    inner = [sum(steps(node.op) for node in region.graph.nodes) for region in op.regions]
    if isinstance(op, Turns):
        return 1 + sum(inner) * (op.count if op.count >= 0 else math.inf)
    return 1 + max(inner, default=0)


def draws(op: Op) -> bool:
    """It draws random numbers. (Dropout that does nothing does not.)"""
    return op.random and bool(getattr(op, "training_mode", True))


def closed(b: Builder, outputs: Sequence[Value]) -> Region:
    """The region that a builder has made, with these outputs: each a value of its own that a node makes."""
    distinct: list[Value] = []
    for v in outputs:
        distinct.append(b.Identity(v) if v.producer is None or v in distinct else v)
    b.graph.outputs = distinct
    b.graph.prune()
    return Region(b.graph)


def captured(node: Node, region: Region) -> dict[Value, Value]:
    """What a region of a node captures: inputs of the region -> operands of the node."""
    own = 1 + node.op.carried + node.op.scanned if isinstance(node.op, Turns) else 0
    formals = region.graph.inputs[own:]
    return dict(zip(formals, node.operands[len(node.operands) - len(formals):], strict=True))
