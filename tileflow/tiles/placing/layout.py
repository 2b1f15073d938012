"""Where every tensor of a schedule lives, and what it costs to bring it where an operator wants it."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...graph import Node, Value
from ...graph.work import Contraction, Map, Move, Operand, Reduce, Scatter, Work
from ..hardware.chip import ITEMSIZE, Chip
from ..plans.lookup import named_table
from ..plans.mapping import Mapping, linear, owned, slab
from ..plans.plan import OpPlan, Phases
from ..plans.putting import put_along
from ..plans.spread import aligned, brought, copy_cycles, exchange_cycles, map_along, move_along, reduce_along, splits_along
from ..program.schedule import MemorySchedule, Storage
from .sending import resident_elements, sent_elements

SMALL_PIECE = 8
"""Pieces of fewer bytes arrive in whole words and are put together on the tile afterwards."""
CROWDED = 2
"""Times an even share on the fullest tile."""
STEPS_BACK = 3
"""How many operators before a state's new value to look for where it comes from."""


@dataclasses.dataclass(frozen=True)
class Rearrangement:
    """What it takes to have an operator's inputs where its plan wants them, beyond the plan's own exchange."""

    phases: Phases
    nbytes: int = 0

    def __add__(self, other: Rearrangement) -> Rearrangement:
        return Rearrangement(self.phases + other.phases, self.nbytes + other.nbytes)


NOTHING = Rearrangement(Phases())


class Layouts:
    """Mappings of all storages, made in schedule order: results where their operator's plan leaves them, weights as their first
    reader wants them, optimizer states as their weight, inputs linear."""

    def __init__(self, made: MemorySchedule, chip: Chip) -> None:
        self.made, self.chip = made, chip
        self._same: dict[Mapping, Mapping] = {}
        self._along: dict[tuple[int, Mapping], OpPlan] = {}
        self._next_tile = 0
        self._places: set[Mapping] | None = None
        self._groups: dict[object, tuple[np.ndarray, int]] = {}
        """By group of operators that run side by side: bytes that each tile has sent for its members so far, and the
        cycles counted for receiving."""
        self._written = {s.name: s.output for s in made.states if s.output is not None and s.kind in ("buffer", "accumulator")}
        self._weights = {s.name: s for s in made.storages if s.kind == "weights"}

    def _one(self, mapping: Mapping) -> Mapping:
        """One object for equal mappings, so that what is counted of it is counted once."""
        return self._same.setdefault(mapping, mapping)

    def linear(self, storage: Storage) -> Mapping:
        """A mapping of equal intervals of the flattened tensor to consecutive tiles, from where the last such tensor
        ended, so that small ones do not all lie on tile 0."""
        found = linear(math.prod(storage.shape), storage.itemsize, self.chip.tiles, self._next_tile)
        self._next_tile = (self._next_tile + found.tiles_used) % self.chip.tiles
        return found

    def known(self, value: Value) -> Mapping | None:
        """The mapping of a value, reshaped to its own shape where the mapping is a grid; None where none has been
        chosen yet."""
        storage = self.made.of[value]
        if storage.mapping is None and storage.kind == "optimizer" and storage.state is not None:
            weight = self._weights.get(storage.state.owner)
            if weight is not None and weight.mapping is not None and weight.shape == storage.shape and storage.state.kind == "optimizer":
                storage.mapping = weight.mapping
        if storage.mapping is None and storage.state is not None:
            storage.mapping = self._where_written(storage)
        if storage.mapping is None and storage in self.made.inputs:
            storage.mapping = self.linear(storage)
        if storage.mapping is None:
            return None
        return storage.mapping.reshaped(value.shape) or storage.mapping

    def _where_written(self, storage: Storage) -> Mapping | None:
        """The mapping of a tensor of the same shape from which a state's new value is computed (the batch's mean, for a
        running mean), looked for up to `STEPS_BACK` operators back; None where there is none yet."""
        assert storage.state is not None
        ahead = [v.producer for v in [self._written.get(storage.state.name)] if v is not None and v.producer is not None]
        for _ in range(STEPS_BACK):
            sources = [v for node in ahead for v in node.operands if v.shape == storage.shape]
            found = next((m for v in sources if (m := self.made.of[v].mapping) is not None and m.shape == storage.shape), None)
            if found is not None:
                return found
            ahead = [v.producer for v in sources if v.producer is not None]
        return None

    def settle(self, value: Value, wanted: Mapping | None) -> Mapping:
        """The mapping of a value. Where none has been chosen yet it becomes `wanted`, or a linear one."""
        found = self.known(value)
        if found is not None:
            return found
        storage = self.made.of[value]
        if wanted is not None and wanted.shape != storage.shape:
            wanted = wanted.reshaped(storage.shape)
        storage.mapping = self._one(wanted) if wanted is not None else self.linear(storage)
        return storage.mapping.reshaped(value.shape) or storage.mapping

    def produce(self, node: Node, work: Work, plan: OpPlan) -> None:
        """Choose the mappings of an operator's outputs that have none: where its plan leaves them."""
        for i, value in enumerate(node.outputs):
            storage = self.made.of[value]
            if storage.mapping is not None:
                continue
            operand = work.outputs[min(i, len(work.outputs) - 1)] if work.outputs else None
            if plan.layout is not None and plan.layout.size == value.type.size:
                storage.mapping = plan.layout
            elif operand is None or len(operand.dims) != len(value.shape) or plan.vertex == "none":
                storage.mapping = self.linear(storage)
            else:
                storage.mapping = self._one(
                    owned(work, named_table(work, operand, i, True), value.shape, plan, self.chip.tiles)
                )

    # ---- plans that follow their inputs ---------------------------------------------------------------------------------

    def follow(self, node: Node, work: Work) -> OpPlan | None:
        """The plan that computes where an input or the result already lies, for element-wise operators, reductions and
        rearrangements; None for other operators, and where no such plan exists."""
        onto = isinstance(work, Scatter) and work.onto
        if not (isinstance(work, (Map, Reduce, Move)) or onto) or not work.points:
            return None
        if isinstance(work, Move):
            return self._staying(node, work)
        if isinstance(work, Map):
            target = self._result_place(node)
            if target is not None:
                return self._map_along(work, work.outputs[0], target)
        best = self._leading(node, work)
        if best is None:
            return None
        operand, layout = best
        if (
            isinstance(work, Map)
            and any(a.kind in ("whole", "staged") for a in work.axes)
            and splits_along(work, operand, layout) is None
        ):
            return None                                          # it cannot be where an axis is cut that it needs whole
        if isinstance(work, Scatter):
            return put_along(work, self.chip, operand, layout)
        return self._map_along(work, operand, layout) if isinstance(work, Map) else reduce_along(work, self.chip, operand, layout)

    def crowded(self, node: Node, plan: OpPlan) -> bool:
        """Whether an element-wise operator would run on so few tiles that bringing its input to more may pay. What replaces a state stays with it."""
        layout, chip = plan.layout, self.chip
        if layout is None or plan.phases.compute <= chip.sync_cycles or layout.worst * chip.tiles <= CROWDED * layout.size:
            return False
        return self._result_place(node) is None

    def _staying(self, node: Node, work: Work) -> OpPlan | None:
        """The plan of a rearrangement that leaves its largest input on its tiles; None where there is none."""
        value, operand = max(((v, o) for v, o in zip(node.inputs, work.inputs, strict=False) if v is not None and o is not None),
                             key=lambda pair: pair[0].type.size, default=(None, None))
        layout = None if value is None else self.known(value)
        if value is None or operand is None or layout is None or layout.shape != value.shape or len(operand.dims) != len(value.shape):
            return None
        return move_along(work, self.chip, operand, layout)

    def _map_along(self, work: Work, operand: Operand, layout: Mapping) -> OpPlan:
        """`map_along`, remembered. Operands of an element-wise operator that have its whole space name the same axes."""
        key = id(work), layout                                  # the analysis keeps its works, so they keep their identity
        if key not in self._along:
            self._along[key] = map_along(work, self.chip, operand, layout)
        return self._along[key]

    def _result_place(self, node: Node) -> Mapping | None:
        """The mapping that the first output has because it is the new value of a state; None where it is none."""
        storage = self.made.of[node.outputs[0]]
        return self.known(node.outputs[0]) if storage.state is not None else None

    def _leading(self, node: Node, work: Work) -> tuple[Operand, Mapping] | None:
        """The mapping on which most bytes of the operator's full-sized inputs lie, with one of these; in an update
        mappings of weights go first."""
        shape = node.outputs[0].shape if isinstance(work, Map) else None
        if shape is not None and work.points != math.prod(shape):
            return None                                          # where a result lies does not say how much is computed
        updates = node.origin.role == "update"
        votes: dict[Mapping, tuple[bool, int, Operand]] = {}
        for value, operand in zip(node.inputs, work.inputs, strict=False):
            if value is None or operand is None or (value.shape != shape if shape is not None else value.type.size < max_size(node)):
                continue
            layout = self.known(value)
            if layout is None or (layout.shape != value.shape and not isinstance(work, Map)):
                continue
            home, size, first = votes.get(layout, (False, 0, operand))
            votes[layout] = (home or (updates and layout in self._homes()), size + value.type.nbytes, first)
        if not votes:
            return None
        layout = max(votes, key=lambda m: votes[m][:2])
        return votes[layout][2], layout

    def _homes(self) -> set[Mapping]:
        """The mappings of all weights."""
        if self._places is None:
            self._places = {w.mapping for w in self._weights.values() if w.mapping is not None}
        return self._places

    # ---- what is not in place -------------------------------------------------------------------------------------------

    def arrange(self, node: Node, work: Work, plan: OpPlan, settle: bool = True) -> Rearrangement:
        """What it takes to bring all inputs to where the plan reads them; with `settle` inputs without a mapping get
        the one that the plan wants."""
        total = NOTHING
        sources: dict[tuple[Value, Operand], Mapping] = {}
        for i, (value, operand) in enumerate(zip(node.inputs, work.inputs, strict=False)):
            if value is None or operand is None or not value.type.size:
                continue
            operand = named_table(work, operand, i)
            if len(operand.dims) != len(value.shape):
                layout = self.known(value)
                if layout is not None and value.type.size > 1:           # a rearrangement, described in its output's shape
                    sources[value, operand] = layout
                continue
            full = plan.layout is not None and value.type.size == plan.layout.size
            wanted = plan.layout if full else owned(work, operand, value.shape, plan, self.chip.tiles)
            layout = self.settle(value, wanted) if settle else self.known(value) or wanted
            if value.type.size <= 1:
                continue
            in_place = layout == wanted
            if not in_place and not isinstance(work, Contraction):       # a contraction's plan counts all of it
                total = total + self._moved(value, operand, work, plan, layout, wanted)
            if not (in_place and (full or aligned(operand, plan.splits))):
                sources[value, operand] = layout
        if total.phases.exchange and not plan.phases.exchange:
            total = total + Rearrangement(Phases(sync=self.chip.sync_cycles))
        strayed = self._strayed(work, plan, sources)
        waits = strayed + self._waits(node, work, plan, sources, total.phases.exchange + strayed)
        return total + Rearrangement(Phases(exchange=waits)) if waits else total

    def _strayed(self, work: Work, plan: OpPlan, sources: dict[tuple[Value, Operand], Mapping]) -> int:
        """Exchange cycles to add to a joint plan. Its cost assumes that each tile owns a share of the weights that it
        reads; added is what it saved by that for weights whose mapping is another one."""
        saved = plan.notes.get("resident", 0)
        if not saved:
            return 0
        weights = [(key, layout) for key, layout in sources.items() if self.made.of[key[0]].kind == "weights"]
        kept = sum(resident_elements(layout, work, operand, value.shape, plan) * self.made.of[value].itemsize for (value, operand), layout in weights)
        return max(0, saved - int(kept / (self.chip.exchange_bytes_per_cycle * self.chip.tiles_per_bus)))

    def _waits(self, node: Node, work: Work, plan: OpPlan, sources: dict[tuple[Value, Operand], Mapping], arranged: int) -> int:
        """Exchange cycles by which the tile that sends most takes longer than the tiles that receive.

        arranged: cycles of receiving beside those of the plan. A bound is looked at first: where even sending
            everything that any tile owns takes no longer than receiving does, elements are not counted.
        """
        received = plan.phases.exchange - plan.gathered + arranged
        together = plan.notes.get("planned") == "parallel"
        own = sum(layout.worst * self.made.of[value].itemsize for (value, _), layout in sources.items())
        if exchange_cycles(own, self.chip) <= received and not together:
            return 0
        sent, produced = np.zeros(self.chip.tiles, np.int64), sum(v.type.size for v in node.outputs)
        for (value, operand), layout in sources.items():
            sent += sent_elements(layout, work, operand, value.shape, plan, produced) * self.made.of[value].itemsize
        if together:                                                     # the group's operands travel at once; its first operator receives for all
            group = node.origin.hints.multi_conv, node.origin.role, type(node.op)
            earlier, counted = self._groups.get(group, (np.zeros_like(sent), 0))
            sent, received = sent + earlier, received + counted
        waits = max(0, exchange_cycles(int(sent.max()), self.chip) - received)
        if together:
            self._groups[group] = sent, received + waits
        return waits

    def _moved(self, value: Value, operand: Operand, work: Work, plan: OpPlan, layout: Mapping, wanted: Mapping) -> Rearrangement:
        """What bringing one input from `layout` to `wanted` takes."""
        full = plan.layout is not None and value.type.size == plan.layout.size
        itemsize = ITEMSIZE[operand.dtype]
        if full:
            elements, extents = plan.layout.worst, None
        else:
            extents = slab(work, operand, value.shape, plan)
            elements = math.prod(extents)
        counted = elements * itemsize
        if (isinstance(work, Move) and plan.exchange_bytes) or (not full and brought(work, operand, plan)):
            counted = 0                                              # the plan has counted the bytes, not their pieces
        pieces, run = scattered(layout, extents, value.shape, elements, wanted)
        transform = copy_cycles(elements * itemsize, self.chip) if run * itemsize < SMALL_PIECE and elements > run else 0
        return Rearrangement(Phases(exchange=exchange_cycles(counted, self.chip) + pieces * self.chip.piece_cycles, transform=transform), counted)


def max_size(node: Node) -> int:
    """Elements of the largest input."""
    return max((v.type.size for v in node.operands), default=0)


def scattered(layout: Mapping, extents: Sequence[int] | None, shape: Sequence[int], elements: int, wanted: Mapping) -> tuple[int, int]:
    """How many pieces a worst tile's `elements` come in, and the shortest run of elements among them.

    With both on grids over the same dimensions a piece is the meeting of two blocks; otherwise runs of the flattened order count.
    """
    if extents is not None and len(layout.cuts) == len(extents) and layout.shape == tuple(shape) and len(extents) > 1:
        pieces, run = layout.share_count, 1
        for extent, cut in zip(extents, layout.cuts, strict=True):
            pieces *= min(cut.parts, -(-extent // cut.step) + (1 if cut.parts > 1 and extent % cut.step else 0))
        return max(1, min(pieces, elements)), max(run, elements // max(1, pieces))
    run = max(1, min(layout.run, wanted.run if extents is None else run_of(extents, shape)))
    return -(-elements // run), run


def run_of(extents: Sequence[int], shape: Sequence[int]) -> int:
    """Elements side by side in a box of a tensor."""
    run = 1
    for extent, size in zip(reversed(extents), reversed(shape), strict=True):
        run *= extent
        if extent < size:
            break
    return max(1, run)
