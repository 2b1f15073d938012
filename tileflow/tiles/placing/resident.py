"""What lies where a lookup's table does, and what runs there: read off the schedule, before anything has a place."""
from __future__ import annotations

from collections.abc import Sequence

from ...graph import Node
from ...graph.work import Gather, Map, Scatter, Work
from ..hardware.chip import Chip
from ..plans.lookup import NOTHING, Kept
from ..plans.spread import item_bytes, worker_cycles
from ..program.schedule import MemorySchedule, ScheduledNode, Storage

MANY = 1 << 20
"""Elements of an imagined piece of work, so many that a vertex's fixed cycles do not count."""


class Residents:
    """What a lookup's plan decides beside the mapping of its table. Optimizer states of a weight have the weight's
    mapping, and element-wise steps of its update run on those tiles; so do element-wise steps that read a table's
    gradient, on the gradient's tiles."""

    def __init__(self, made: MemorySchedule, works: Sequence[Work], chip: Chip) -> None:
        self.made, self.works, self.chip = made, works, chip
        self._parts: dict[Node, str] = {}
        self._by_shape: dict[tuple[int, ...], list[tuple[ScheduledNode, Work]]] = {}
        """Element-wise steps by the shape of their result."""

    def where(self, node: Node, work: Gather | Scatter) -> Kept:
        """Bytes and cycles per element of the table of a Gather or Scatter that follow the table's mapping; nothing for
        tables whose mapping other operators choose."""
        if not self._parts:
            self._read()
        value = node.outputs[0] if isinstance(work, Scatter) else node.inputs[0]
        if value is None:
            return NOTHING
        table = self.made.of[value]
        if isinstance(work, Scatter):
            return Kept(table.itemsize, sum(self._cycles(e, w, node) for e, w in self._maps(table) if value in e.node.operands))
        if table.kind == "weights":
            beside = [s for s in self.made.storages if s.state is not None and (s.state.owner or s.name) == table.name and s.shape == table.shape]
            updates = ((e, w) for e, w in self._maps(table) if e.node.origin.role == "update" and self.made.layer(e.node) == table.layer)
            return Kept(sum(s.itemsize for s in beside), sum(self._cycles(e, w, node) for e, w in updates))
        return Kept(table.itemsize) if table.always_live else NOTHING

    def _read(self) -> None:
        for entry, work in zip(self.made.entries, self.works, strict=True):
            self._parts[entry.node] = entry.part
            if isinstance(work, Map):
                self._by_shape.setdefault(entry.node.outputs[0].shape, []).append((entry, work))

    def _maps(self, table: Storage) -> Sequence[tuple[ScheduledNode, Work]]:
        """Element-wise steps over tensors of the table's shape."""
        return self._by_shape.get(table.shape, ())

    def _cycles(self, entry: ScheduledNode, work: Work, node: Node) -> float:
        """Cycles of an element-wise step per element on a tile, times how often it runs for each run of `node`."""
        often = self.made.repeats[entry.part] / max(1, self.made.repeats[self._parts[node]])
        return often * worker_cycles(work, MANY, max(item_bytes(o) for o in work.outputs), self.chip) / MANY
