"""Groups for fusion: elementwise nodes joined where no path leaves a group and comes back, found in a time that is nearly linear in the graph.

Groups are the nodes of a graph without cycles. A node may join the group of an operand unless another group lies between the two. Whether one
does is searched from both ends at once, between the levels of the two (a group's level is above those of all it reads), so that the search ends
as soon as either side has nothing left; in a chain that is at once.
"""
from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..graph import Graph, Node, Value

MOST_OPERANDS = 14
"""Arrays that one leaf reads and writes: more would spill address registers."""
MOST_NUMBERS = 40
"""Numbers that the leaf of an update reads: they are splat once, before its loop, and need no address register in it."""
MOST_OPERATIONS = 96
"""Expression nodes of one leaf: bounds its compile time."""
STEPS = 200
"""Groups looked at for each node, on average: a graph that needs more is fused less, and takes no longer."""


class FusionGroup:
    """Nodes that become one.

    nodes: (position in the graph, node, its expression), in no order. made, read: values made inside, and read from outside, without numbers.
    sources, readers: the groups this one reads, and those that read it (ordered sets). position: where element 0 is counted among all that draw
    random numbers (`Op.position`), if one of the nodes does.
    """

    __slots__ = ("level", "made", "nodes", "position", "read", "readers", "shape", "sources")

    def __init__(self, position: int, node: Node, expression: Any) -> None:
        self.nodes: list[tuple[int, Node, Any]] = [(position, node, expression)]
        self.shape = node.outputs[0].shape if expression is not None else None
        self.position = node.op.position
        self.made: set[Value] = set()
        self.read: set[Value] = set()
        self.sources: dict[FusionGroup, None] = {}
        self.readers: dict[FusionGroup, None] = {}
        self.level = 0


def grow(graph: Graph, update: bool = False) -> list[FusionGroup]:
    """Greedily join each elementwise node to the groups of its inputs.

    Args:
        update: the graph is an optimizer's update, in which all that is done to one weight shall be one group: it may
            read many numbers (rates, decays, corrections), and few of the values made in it are results.

    Returns:
        the groups in topological order, ties as their first nodes stand in the graph; the nodes of each in graph order.
    """
    return _Growth(graph, update).run()


def is_number(value: Value, graph: Graph) -> bool:
    """Whether a value is a constant of one element, which is compiled into the leaf."""
    return value in graph.constants and value.type.size == 1


def expression_of(node: Node) -> Any:
    """The scalar expression of a node that can be fused, else None."""
    if len(node.outputs) != 1 or node.outputs[0].type.size == 0:
        return None
    return node.op.expression([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def waits(source: Node, node: Node) -> bool:
    """Whether `node` casts 16-bit values of another pass to more bits (what `source` made in the forward pass, say, for
    the backward pass). Fused with `source`, the wider copy would be kept in memory between the passes."""
    if source.origin.role == node.origin.role or len(node.inputs) != 1 or node.inputs[0] is None:
        return False
    return node.inputs[0].type.is_half and node.outputs[0].type.itemsize > node.inputs[0].type.itemsize


class _Growth:
    def __init__(self, graph: Graph, update: bool) -> None:
        self.graph, self.update = graph, update
        self.home: dict[Value, FusionGroup] = {}
        self.groups: dict[FusionGroup, None] = {}
        self.steps = STEPS * len(graph.nodes)

    def run(self) -> list[FusionGroup]:
        for position, node in enumerate(self.graph.nodes):
            own = self._alone(position, node)
            for source in list(own.sources):
                if own.shape is None or source.shape != own.shape or (len(own.nodes) == 1 and waits(source.nodes[0][1], node)):
                    continue
                if _crosses(source, own):
                    continue
                if self._fit(source, own) and self._apart(source, own):
                    own = self._join(source, own)
        for group in self.groups:
            group.nodes.sort(key=lambda item: item[0])
        return _in_order(self.groups)

    def _alone(self, position: int, node: Node) -> FusionGroup:
        own = FusionGroup(position, node, expression_of(node))
        operands = dict.fromkeys(node.operands)
        own.sources = dict.fromkeys(self.home[v] for v in operands if v in self.home)
        if own.shape is not None:
            own.made.update(node.outputs)
            own.read.update(v for v in operands if not is_number(v, self.graph))
        for source in own.sources:
            source.readers[own] = None
        own.level = _level(own)
        self.home.update(dict.fromkeys(node.outputs, own))
        self.groups[own] = None
        return own

    def _fit(self, source: FusionGroup, own: FusionGroup) -> bool:
        """Whether the union of two groups keeps the limits of one leaf (operands, numbers, operations) and, where it
        draws random numbers, counts its elements in one way."""
        if not _agree(source, own):
            return False
        operands = (source.read | own.read) - source.made - own.made
        made, read = len(source.made) + len(own.made), len(operands)
        if self.update:
            arrays = sum(v.shape == own.shape for v in operands)
            return arrays <= MOST_OPERANDS and read - arrays <= MOST_NUMBERS and made <= MOST_OPERATIONS // 2
        return read + made <= 2 * MOST_OPERANDS and read <= MOST_OPERANDS and made <= MOST_OPERATIONS // 2

    def _apart(self, source: FusionGroup, own: FusionGroup) -> bool:
        """Whether no path leads from `source` to `own` through a third group, which would make a cycle of the two as
        one. When the graph's budget of steps is spent, only what is seen without a search counts."""
        if len(own.sources) == 1 or len(source.readers) == 1:
            return True
        above = dict.fromkeys(g for g in own.sources if g is not source and g.level > source.level)
        below = dict.fromkeys(g for g in source.readers if g is not own and g.level < own.level)
        self.steps -= len(own.sources) + len(source.readers)
        up, down = deque(above), deque(below)
        met = any(g in below for g in above)
        while up and down and not met and self.steps >= 0:
            for waiting, seen, others, near in ((up, above, below, up.popleft().sources), (down, below, above, down.popleft().readers)):
                self.steps -= len(near)
                for g in near:
                    if source.level < g.level < own.level and g not in seen:
                        met = met or g in others
                        seen[g] = None
                        waiting.append(g)
        return not met and self.steps >= 0

    def _join(self, source: FusionGroup, own: FusionGroup) -> FusionGroup:
        """The union of two groups, made in the one with more neighbours, which then has less to rewrite."""
        kept, gone = (source, own) if len(source.readers) + len(source.sources) >= len(own.readers) + len(own.sources) else (own, source)
        kept.nodes += gone.nodes
        kept.position = gone.position if kept.position is None else kept.position
        kept.made |= gone.made
        kept.read = (kept.read | gone.read) - kept.made
        for v in gone.made:
            self.home[v] = kept
        del self.groups[gone]
        for g in gone.sources:
            del g.readers[gone]
            g.readers[kept] = None
        for g in gone.readers:
            del g.sources[gone]
            g.sources[kept] = None
        kept.sources |= gone.sources
        kept.readers |= gone.readers
        for side in (kept.sources, kept.readers):
            side.pop(kept, None)
            side.pop(gone, None)
        kept.level = _level(kept)
        self._lift(kept)
        return kept

    def _lift(self, group: FusionGroup) -> None:
        """Restore topological levels after the level of `group` has grown: that of every group exceeds those of all
        groups that it reads."""
        waiting = [(0, 0, group)]
        lifted = {group}
        while waiting:
            g = heapq.heappop(waiting)[-1]
            self.steps -= len(g.readers)
            for reader in g.readers:
                if reader.level <= g.level:
                    if reader not in lifted:
                        lifted.add(reader)
                        heapq.heappush(waiting, (reader.level, len(lifted), reader))
                    reader.level = g.level + 1


def _agree(a: FusionGroup, b: FusionGroup) -> bool:
    """Whether two groups may draw random numbers in one leaf: at most one draws, or both number their elements alike,
    and all arrays that are read have one shape."""
    if a.position is None and b.position is None:
        return True
    alike = a.position is None or b.position is None or a.position == b.position
    return alike and all(v.type.size == 1 or v.shape == a.shape for v in (*a.read, *b.read))


def _crosses(a: FusionGroup, b: FusionGroup) -> bool:
    """Whether fusion would join a node that is computed again for the backward pass with one of the forward pass: its
    result would then be kept."""
    roles = {node.origin.role for group in (a, b) for _, node, _ in group.nodes} if _again(a) != _again(b) else ()
    return "forward" in roles


def _again(group: FusionGroup) -> bool:
    return any(node.origin.role == "recompute" for _, node, _ in group.nodes)


def _level(group: FusionGroup) -> int:
    return 1 + max((g.level for g in group.sources), default=0)


def _in_order(groups: Iterable[FusionGroup]) -> list[FusionGroup]:
    left = {group: len(group.sources) for group in groups}
    ready = [(group.nodes[0][0], i, group) for i, group in enumerate(left) if not left[group]]
    heapq.heapify(ready)
    order: list[FusionGroup] = []
    while ready:
        _, _, group = heapq.heappop(ready)
        order.append(group)
        for reader in group.readers:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, (reader.nodes[0][0], len(left), reader))
    assert len(order) == len(left), "groups lie in a circle"
    return order
