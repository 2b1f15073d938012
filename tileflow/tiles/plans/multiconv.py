"""Several independent contractions side by side on one chip (multi-convolution), or one after the other."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...graph.work import Contraction
from ...system.errors import OptionError
from ..hardware.chip import Chip
from .contraction import canonical
from .partition import COSTS, Candidates, explore, mark, partials_type
from .plan import OpPlan, Phases, TileOptions
from .planner import PlanCache, plan_work

_PHASES = COSTS[:5]


@dataclass(frozen=True)
class MultiPlan:
    """Plans in the order of the works. `phases`: of the group, per phase the slowest plan side by side, or the sum in turn.

    notes: what the planner had to give up, as sentences.
    """

    plans: tuple[OpPlan, ...]
    kind: Literal["parallel", "serial"]
    phases: Phases
    notes: tuple[str, ...] = ()


def plan_multi(works: Sequence[Contraction], chip: Chip, bounds: Sequence[int | None], options: TileOptions | None = None,
               cache: PlanCache | None = None, *, plan_type: str = "parallel", per_conv_reserved_tiles: int = 50,
               cycle_back_off: float = 0.1) -> MultiPlan:
    """Plan contractions that do not depend on each other.

    parallel: the largest is planned on all tiles but the reserved ones, then on as few tiles as `cycle_back_off` per further
    contraction allows; the others, smallest first, follow it with as little excess per phase as they can on as few tiles;
    the second largest takes what is left (PopLibs, getParallelMultiPlan). Tiles of the plans do not overlap.
    serial: each has the whole chip in turn; also what happens where side by side is not possible, and `notes` says so.

    Raises:
        OptionError: a wrong option, or as many bounds as works are not given.
    """
    options = options or TileOptions()
    cache = {} if cache is None else cache
    if plan_type not in ("parallel", "serial"):
        raise OptionError(f"plan_type must be 'parallel' or 'serial', not {plan_type!r}.")
    if isinstance(per_conv_reserved_tiles, bool) or not isinstance(per_conv_reserved_tiles, int) or per_conv_reserved_tiles < 1:
        raise OptionError(f"per_conv_reserved_tiles must be a whole number of at least 1, not {per_conv_reserved_tiles!r}.")
    if not isinstance(cycle_back_off, (int, float)) or not 0 <= cycle_back_off < np.inf:
        raise OptionError(f"cycle_back_off must be a number of at least 0, not {cycle_back_off!r}.")
    if len(bounds) != len(works):
        raise OptionError(f"A multi-convolution of {len(works)} needs {len(works)} memory proportions, not {len(bounds)}.")
    notes: list[str] = []
    if plan_type == "parallel" and len(works) > 1:
        plans = _parallel(works, chip, bounds, options, per_conv_reserved_tiles, cycle_back_off, notes)
        if plans is not None:
            return MultiPlan(tuple(plans), "parallel", _slowest(plans), tuple(notes))
        notes.append(f"{len(works)} contractions do not fit side by side on {chip.tiles} tiles; they are planned one after the other.")
    serial = [plan_work(w, chip, b, options, cache) for w, b in zip(works, bounds, strict=True)]
    total = Phases()
    for plan in serial:
        total = total + plan.phases
    return MultiPlan(tuple(serial), "serial", total, tuple(notes))


def _slowest(plans: Sequence[OpPlan]) -> Phases:
    return Phases(*(max(getattr(p.phases, name) for p in plans) for name in _PHASES))


def _parallel(works: Sequence[Contraction], chip: Chip, bounds: Sequence[int | None], options: TileOptions, reserved: int,
              back_off: float, notes: list[str]) -> list[OpPlan] | None:
    count = len(works)
    if chip.tiles < count:
        return None
    if chip.tiles < count * reserved:
        reserved = max(1, chip.tiles // count)
        notes.append(f"{chip.tiles} tiles are too few to set aside for {count} contractions; {reserved} each are.")
    order = sorted(range(count), key=lambda i: -works[i].flops)
    plans: dict[int, OpPlan] = {}
    start = 0

    def place(i: int, plan: OpPlan) -> int:
        plans[i] = replace(plan, start_tile=start)
        return start + -(-plan.tiles // chip.tiles_per_bus) * chip.tiles_per_bus

    largest, second = order[0], order[1]
    room = chip.tiles - (count - 1) * reserved
    space = _space(works[largest], chip, room, options)
    cycles, tiles, open_ = _tables(space, bounds[largest])
    limit = cycles[open_].min() * (1 + (count - 1) * back_off)
    start = place(largest, _plan(space, chip, np.where(open_ & (cycles <= limit), tiles, np.inf), cycles, bounds[largest]))
    reference = np.array([getattr(plans[largest].phases, name) for name in _PHASES], float)
    waiting = count - 1
    for i in reversed(order[2:]):
        waiting -= 1
        room = chip.tiles - start - waiting * reserved
        if room < 1:
            return None
        space = _space(works[i], chip, room, options)
        _, tiles, open_ = _tables(space, bounds[i])
        plan = _plan(space, chip, np.where(open_, _excess(space, reference), np.inf), tiles, bounds[i])
        reference = np.maximum(reference, [getattr(plan.phases, name) for name in _PHASES])
        start = place(i, plan)
    if chip.tiles - start < 1:
        return None
    space = _space(works[second], chip, chip.tiles - start, options)
    _, _, open_ = _tables(space, bounds[second])
    start = place(second, _plan(space, chip, np.where(open_, _excess(space, reference), np.inf), space.table("temp"), bounds[second]))
    return [plans[i] for i in range(count)]


def _space(work: Contraction, chip: Chip, tiles: int, options: TileOptions) -> Candidates:
    c = canonical(work, options.precision)
    return explore(c, chip.variant(tiles=tiles), partials_type(c, options.precision))


def _tables(space: Candidates, bound: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cycles, tiles, and which candidates are open: those within the bound, or the leanest where none is."""
    cycles = sum((space.table(name) for name in _PHASES[1:]), space.table(_PHASES[0]))
    temp = space.table("temp")
    open_ = temp <= max(np.inf if bound is None else bound, temp.min())
    return cycles, space.table("tiles"), open_


def _excess(space: Candidates, reference: np.ndarray) -> np.ndarray:
    """Cycles by which candidates exceed the reference, phase by phase."""
    total = np.zeros_like(space.table("temp"))
    for name, limit in zip(_PHASES, reference, strict=True):
        total = total + np.maximum(0, space.table(name) - limit)
    return total


def _plan(space: Candidates, chip: Chip, first: np.ndarray, then: np.ndarray, bound: int | None) -> OpPlan:
    plan = space.plan(chip, int(np.lexsort((then, first))[0]))
    return mark(plan, bound)
