"""Which plan each operator of a schedule gets: by its name's settings, with its layer's other passes, with its group, in pieces."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...graph import MultiConv, Node
from ...graph.work import Contraction, Gather, Reduce, Scatter, Staged, Stepwise, Work
from ..hardware.chip import Chip
from ..hardware.vertex import vector_sizes
from ..plans.lookup import NOTHING
from ..plans.multiconv import plan_multi
from ..plans.plan import OpPlan, Phases, TileOptions, node_name, step_names
from ..plans.planner import PlanCache, bound_for, by_name, plan_cut, plan_layer, plan_steps, plan_uncut, plan_work
from ..plans.spread import plan_spread, worker_cycles
from ..program.schedule import MemorySchedule, ScheduledNode
from .resident import Residents


class Chooser:
    """Plans by operator, without regard to where inputs lie (see layout.py for that)."""

    def __init__(self, made: MemorySchedule, works: Sequence[Work], chip: Chip, options: TileOptions, cache: PlanCache,
                 ipus: Mapping[Node, int] | None = None) -> None:
        """ipus: on which IPU each node runs; None: all on IPU 0."""
        self.chip, self.options, self.cache = chip, options, cache
        self.ipus = ipus or {}
        self.made, self.works = made, works
        self.kept = Residents(made, works, chip)
        self.names = step_names([e.node for e in made.entries]) if options.pinned else {}
        self.fixed: dict[Node, OpPlan] = {}
        """Plans that were made together with others."""
        self._groups()
        if options.joint_plans:
            self._layers()

    def plan(self, node: Node, work: Work) -> OpPlan:
        """The plan of a node."""
        if node in self.fixed:
            return self.fixed[node]
        if isinstance(work, Contraction) and work.serial:
            return self._in_pieces(node, work)
        if isinstance(work, Contraction):
            return self._contraction(node, work)
        if isinstance(work, Gather | Scatter | Staged):
            return self._cut(node, work)
        if isinstance(work, Stepwise):
            return plan_steps(work, self.chip, self.bound(node), self.options_for(node), self.cache)
        plan = self._spread(work, self.chip)
        return self._within(node, work, plan) if isinstance(work, Reduce) else plan

    def _spread(self, work: Work, chip: Chip) -> OpPlan:
        key = "own plan", type(work), work, chip.key_of_cycles
        plan = self.cache.get(key)
        if plan is None:
            plan = self.cache[key] = plan_spread(work, chip)
        return plan

    def _within(self, node: Node, work: Reduce, plan: OpPlan) -> OpPlan:
        """The plan of a reduction; where its temporaries exceed the operator's bound, another one that keeps it."""
        bound = self.bound(node)
        if plan.temp_bytes <= bound:
            return dataclasses.replace(plan, bound_bytes=bound)
        key = "own plan", type(work), work, self.chip.key_of_cycles, bound
        found = self.cache.get(key)
        if found is None:
            found = self.cache[key] = plan_spread(work, self.chip, bound)
        return found

    def _cut(self, node: Node, work: Gather | Scatter | Staged) -> OpPlan:
        bound, kept = self.bound(node), NOTHING
        if isinstance(work, Gather) or (isinstance(work, Scatter) and not work.onto):
            kept = self.kept.where(node, work)
        key = "cut", type(work), work, tuple(work.notes.items()), self.chip.key, bound, kept
        plan = self.cache.get(key)
        if plan is None:
            plan = self.cache[key] = plan_cut(work, self.chip, bound, kept)
        return plan

    def offered(self, node: Node, work: Work) -> tuple[OpPlan, ...]:
        """The plan of a node, and others."""
        return self.plan(node, work), *self.others(node, work)

    def others(self, node: Node, work: Work) -> list[OpPlan]:
        """Plans beside the one that is best without regard to where inputs lie, which may be better with it."""
        if isinstance(work, Reduce):
            return [self._spread(work, self.chip.variant(vector_bytes=n)) for n in vector_sizes(self.chip)[1:]]
        if not isinstance(work, Scatter | Staged):
            return []
        key = "uncut", type(work), work, tuple(work.notes.items()), self.chip.key, self.bound(node)
        if key not in self.cache:
            self.cache[key] = plan_uncut(work, self.chip, self.bound(node))
        found: list[OpPlan] = self.cache[key]
        return found

    def bound(self, node: Node) -> int:
        """Bytes of a tile that a node's temporaries may take: by its own hint, by a pattern of its name, by its IPU, or the program's."""
        asked = node.origin.hints.available_memory_proportion
        if asked is not None:
            return self.chip.bound(asked)
        return bound_for(node.origin.sources, self.chip, self.options, self.ipus.get(node, 0))

    def options_for(self, node: Node) -> TileOptions:
        """The options with the type of partial sums that a node asks for."""
        asked, precision = node.origin.hints.partials, self.options.precision
        halves = all(v.type.is_half for v in node.operands if v.type.is_float)
        if asked is None or not (halves or precision.startswith("16")):
            return self.options
        return dataclasses.replace(self.options, precision="16.16" if asked == "float16" else "16.32")

    def _pin(self, node: Node) -> Mapping[str, Any] | None:
        """The plan that a node is pinned to by its own name in the schedule or by a source; None: it is not."""
        return by_name(self.options.pinned, (self.names[node], *node.origin.sources)) if self.options.pinned else None

    def _contraction(self, node: Node, work: Contraction) -> OpPlan:
        pin = self._pin(node)
        return plan_work(work, self.chip, self.bound(node), self.options_for(node), self.cache, pin=pin, where=self.names.get(node, node_name(node)))

    def _in_pieces(self, node: Node, work: Contraction) -> OpPlan:
        """The plan of one piece, repeated; pieces of a summed axis are added in place. A piece takes at most half of the temporaries
        that the whole would take at once, where that is possible: serializing is to save memory.
        """
        (axis, pieces), *more = work.serial
        assert not more, "one axis is cut"
        bound, options = self.bound(node), self.options_for(node)
        if work.notes.get("keep_precision") and options.precision == "16.16":
            options = dataclasses.replace(options, precision="16.32")
        at_once = plan_work(dataclasses.replace(work, serial=()), self.chip, bound, options, self.cache)
        axes = tuple(dataclasses.replace(a, size=-(-a.size // pieces)) if a.name == axis else a for a in work.axes)
        piece = dataclasses.replace(work, axes=axes, serial=())
        plan = plan_work(piece, self.chip, min(bound, at_once.temp_bytes // 2), options, self.cache)
        phases = plan.phases.times(pieces)
        if any(a.name == axis and a.kind == "reduce" for a in work.axes):
            elements = -(-_elements(work) // max(1, plan.tiles))
            phases = phases + Phases(reduce=(pieces - 1) * worker_cycles(work, elements, 4, self.chip))
        return dataclasses.replace(plan, phases=phases, serial={**plan.serial, axis: pieces * plan.serial.get(axis, 1)}, flops=work.flops,
                                   exchange_bytes=plan.exchange_bytes * pieces, gathered=plan.gathered * pieces, bound_bytes=bound,
                                   fits=plan.temp_bytes <= bound)

    # ---- several operators together -------------------------------------------------------------------------------------

    def _groups(self) -> None:
        """Multi-convolutions: the first of a group that runs carries the cycles of all."""
        groups: dict[tuple[MultiConv, str, type], list[tuple[Node, Contraction]]] = {}
        for entry, work in zip(self.made.entries, self.works, strict=True):
            group = entry.node.origin.hints.multi_conv
            if group is not None and isinstance(work, Contraction) and work.points and not work.serial:
                key = group, entry.node.origin.role, type(entry.node.op)
                groups.setdefault(key, []).append((entry.node, work))
        for (group, *_), members in groups.items():
            nodes, works = [n for n, _ in members], [w for _, w in members]
            made = plan_multi(works, self.chip, [self.bound(n) for n in nodes], self.options_for(nodes[0]), self.cache,
                              plan_type=group.plan, per_conv_reserved_tiles=max(1, group.reserved_tiles),
                              cycle_back_off=group.cycle_back_off)
            for i, (node, plan) in enumerate(zip(nodes, made.plans, strict=True)):
                notes = {**plan.notes, "multi_conv": group.name, "planned": made.kind}
                if made.kind == "parallel":
                    plan = dataclasses.replace(plan, phases=made.phases if i == 0 else Phases(),
                                               gathered=max(p.gathered for p in made.plans) if i == 0 else 0)
                self.fixed[node] = dataclasses.replace(plan, notes=notes)

    def _layers(self) -> None:
        """Layers with weights: the forward pass and both gradients, planned jointly where that is cheaper."""
        passes: dict[tuple[str, ...], list[tuple[ScheduledNode, Contraction]]] = {}
        often = self.made.often
        for entry, work in zip(self.made.entries, self.works, strict=True):
            if entry.part in often and isinstance(work, Contraction) and work.points and not work.serial and entry.node not in self.fixed:
                passes.setdefault(entry.node.origin.sources, []).append((entry, work))
        for sources, members in passes.items():
            if not sources or any(self._pin(e.node) is not None for e, _ in members):
                continue
            forward = [m for m in members if m[0].node.origin.role == "forward"]
            backward = [m for m in members if m[0].node.origin.role == "backward"]
            if len(forward) == 1 and 1 <= len(backward) <= 2:
                self._layer(forward[0], backward, [m for m in members if m[0].node.origin.role == "recompute"])

    def _layer(self, forward: tuple[ScheduledNode, Contraction], backward: Sequence[tuple[ScheduledNode, Contraction]],
               again: Sequence[tuple[ScheduledNode, Contraction]]) -> None:
        node = forward[0].node
        weights = node.inputs[1] if len(node.inputs) > 1 else None
        if weights is None or self.made.of[weights].kind != "weights":
            return
        stored = self.made.of[weights]
        inner = [m for m in backward if any(self.made.of[v] is stored for v in m[0].node.operands)]
        outer = [m for m in backward if m not in inner]
        if len(inner) > 1 or len(outer) > 1:
            return
        found = plan_layer(forward[1], inner[0][1] if inner else None, outer[0][1] if outer else None, self.chip, self.bound(node),
                           self.options_for(node), self.cache)
        if not found.joint:
            return
        for (entry, _), plan in zip([forward, *inner, *outer], found.plans, strict=True):
            self.fixed[entry.node] = plan
        for entry, _ in again:
            self.fixed[entry.node] = found.plans[0]


def _elements(work: Work) -> int:
    """Elements of the first output."""
    sizes = {a.name: a.size for a in work.axes}
    total = 1
    for dim in work.outputs[0].dims:
        total *= sizes.get(dim, 1) if isinstance(dim, str) else 1
    return total
