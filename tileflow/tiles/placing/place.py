"""Where every operator of a schedule runs and every tensor lies, operator after operator; and whether it would come out
the same on another chip."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...graph import Node, Value
from ...graph.work import Map, Staged, Work
from ..hardware.chip import Chip
from ..plans.plan import OpPlan, Phases
from ..program.schedule import MemorySchedule
from .choose import Chooser
from .layout import NOTHING, Layouts, Rearrangement
from .widened import widening

_SAID = ("bound_bytes", "fits", "limit", "choice")
"""What a plan says of its bound, and nothing else depends on."""
_what_is_done: Callable[[OpPlan], Any] = operator.attrgetter(
    *(f.name for f in dataclasses.fields(OpPlan) if f.name not in _SAID)
)


@dataclass(frozen=True)
class Choice:
    """What the plan of a step was chosen from.

    along: where an input lies, if that was looked at. offered: the operator's own plan, and others. beyond: of all, the
    last ones `offered`, whether its temporaries exceed the own plan's bound; empty where there was nothing to choose.
    taken: the place of the plan among all.
    """

    step: int
    along: OpPlan | None
    offered: tuple[OpPlan, ...]
    beyond: tuple[bool, ...]
    taken: int


@dataclass
class Placement:
    """A schedule whose tensors have places.

    works, plans, brought: of each step what it does, how, and what brings its inputs. facts: what follows from these
    alone and was counted already, by name: analyses that share a placement share it.
    """

    made: MemorySchedule
    works: Sequence[Work]
    plans: list[OpPlan] = field(default_factory=list)
    brought: list[Rearrangement] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def again(self, chooser: Chooser) -> list[OpPlan] | None:
        """The plans of the same placement with other bounds of temporaries: what they say of them is new; None where a
        step would be given another plan. The chip must be the same but for the bytes of its tiles."""
        plans = list(self.plans)
        for choice in self.choices:
            offered = chooser.offered(self.made.entries[choice.step].node, self.works[choice.step])
            before, now = choice.offered, offered
            if len(before) != len(now) or not all(_alike(a, b) for a, b in zip(before, now, strict=True)):
                return None
            if choice.beyond != _beyond(choice.along, offered):
                return None
            plans[choice.step] = _all(choice.along, offered)[choice.taken]
        return plans


def placed(made: MemorySchedule, works: Sequence[Work], chip: Chip, chooser: Chooser,
           alike: Iterable[Sequence[Value]]) -> Placement:
    """Place a schedule, whose tensors have no places yet.

    Args:
        alike: values that lie in one place, so that nothing travels within the update of what is shared out.
    """
    layouts = Layouts(made, chip)
    for values in alike:
        mapping = layouts.linear(made.of[values[0]]) if values else None
        for value in values:
            made.of[value].mapping = mapping
    found = Placement(made, works)
    for i, (entry, work) in enumerate(zip(made.entries, works, strict=True)):
        _place(found, i, entry.node, work, layouts, chooser, chip)
    for storage in made.storages:
        if storage.mapping is None:
            storage.mapping = layouts.linear(storage)
    return found


def _place(found: Placement, i: int, node: Node, work: Work, layouts: Layouts, chooser: Chooser, chip: Chip) -> None:
    """Plan a node where its inputs are, and fix the places of its outputs."""
    if node.op.alias is not None or not work.points:
        plan, extra = OpPlan({}, "none", Phases(), 0), NOTHING
        for value in node.operands:
            if layouts.made.of[value].kind == "activations":
                layouts.settle(value, None)
    else:
        plan = _plan(found, i, node, work, layouts, chooser)
        extra = layouts.arrange(node, work, plan) + widening(node, work, plan, chip)
    layouts.produce(node, work, plan)
    found.plans.append(plan)
    found.brought.append(extra)


def _plan(found: Placement, i: int, node: Node, work: Work, layouts: Layouts, chooser: Chooser) -> OpPlan:
    """Where an input lies, or as is best without regard to that, whichever takes fewer cycles with what must be
    brought; element-wise operators stay where their input lies, unless that is few tiles."""
    along = layouts.follow(node, work)
    follows = isinstance(work, Map) and not isinstance(work, Staged)
    if along is not None and follows and not layouts.crowded(node, along):
        return along
    offered = chooser.offered(node, work)
    every, beyond = _all(along, offered), _beyond(along, offered)
    taken = 0
    if len(every) > 1:
        extras = [layouts.arrange(node, work, plan, settle=False) for plan in every]
        costs = [(over, plan.phases.total + extra.phases.total, plan.temp_bytes + extra.nbytes)
                 for over, plan, extra in zip(beyond, every, extras, strict=True)]
        taken = costs.index(min(costs))
    found.choices.append(Choice(i, along, offered, beyond, taken))
    return every[taken]


def _all(along: OpPlan | None, offered: tuple[OpPlan, ...]) -> tuple[OpPlan, ...]:
    return offered if along is None else (along, *offered)


def _beyond(along: OpPlan | None, offered: tuple[OpPlan, ...]) -> tuple[bool, ...]:
    every, bound = _all(along, offered), offered[0].bound_bytes
    return tuple(bound is not None and plan.temp_bytes > bound for plan in every) if len(every) > 1 else ()


def _alike(a: OpPlan, b: OpPlan) -> bool:
    """Whether two plans do the same, whatever they say of their bounds."""
    return a is b or bool(_what_is_done(a) == _what_is_done(b))
