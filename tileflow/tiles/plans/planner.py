"""Plans for any operator's work: dispatch, memo, settings by node name, joint plans of a layer's passes."""
from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import first_fitting
from ...graph.work import Contraction, Gather, Scatter, Staged, Stepwise, Work
from ...system.errors import OptionError
from ..hardware.chip import Chip
from ..hardware.vertex import itemsize
from .contraction import Canonical, canonical, elements
from .joint import Alike
from .lookup import NOTHING, Kept, plan_lookup
from .partition import Frontier, Frontiers, partials_type
from .pins import check_pin, pinned_plan, plan_to_dict
from .plan import OpPlan, TileOptions
from .putting import plan_put
from .spread import plan_spread
from .staged import plan_staged
from .stepwise import plan_stepwise

MOST_JOINT = 64
"""Layers whose joint plans are kept for other bounds: a megabyte each."""
PlanCache = MutableMapping[Any, Any]
"""Plans already made: any mutable mapping. Contractions keep their whole frontier, so another bound costs no search."""


def contraction_frontier(work: Contraction, chip: Chip, precision: str, cache: PlanCache,
                         slow: bool = False) -> Frontier:
    """The best plans of a contraction for every bound, as `partition.explore` gives them; equal canonical forms share
    them."""
    key = "frontier", work, chip.key, precision, slow
    made = cache.get(key)
    if made is None:
        c = canonical(work, precision)
        partials = partials_type(c, precision)
        inner = "canonical frontier", c.key, chip.key_of_cycles, partials, slow
        several = cache.get(inner)
        if several is None:
            several = cache[inner] = Frontiers(c, partials, slow)
        made = cache[key] = several.on(chip)
    return made


def plan_work(work: Work, chip: Chip, bound_bytes: int | None, options: TileOptions | None = None, cache: PlanCache | None = None, *,
              pin: Mapping[str, Any] | None = None, where: str = "an operator") -> OpPlan:
    """How an operator is cut over the chip's tiles, and what it costs there.

    bound_bytes: what its temporaries may take on a tile (`Chip.bound(proportion)`), None for no bound. For a contraction the plan is the
    fastest of the enumerated space within the bound, ties by bytes, or the leanest with `fits` False. A contraction's exchange counts
    every byte of its operands as received, so nothing is added for operands that lie in another layout.
    pin: a plan as `plan_to_dict` exports it, used instead of a search. where: what an error calls the operator.

    Raises:
        OptionError: the pin does not fit.
    """
    options = options or TileOptions()
    cache = {} if cache is None else cache
    if isinstance(work, Contraction) and _splittable(work):
        if pin is not None:
            return pinned_plan(canonical(work, options.precision), chip, bound_bytes, pin, options.precision, where)
        found = contraction_frontier(work, chip, options.precision, cache)
        if not found.holds(bound_bytes):
            found = contraction_frontier(work, chip, options.precision, cache, slow=True)
        return found.best(bound_bytes)
    key = "spread", type(work), work, tuple(sorted(work.notes.items())), chip.key, bound_bytes
    plan = cache.get(key)
    if plan is None and isinstance(work, Stepwise):
        return plan_steps(work, chip, bound_bytes, options, cache)
    if plan is None:
        plan = cache[key] = plan_cut(work, chip, bound_bytes)
    if pin is not None:
        _check_spread_pin(pin, plan, where)
    return plan


def plan_cut(work: Work, chip: Chip, bound_bytes: int | None, kept: Kept = NOTHING) -> OpPlan:
    """The plan of anything but contractions and steps; `kept` as `plan_lookup` takes it."""
    if isinstance(work, Scatter) and work.onto:
        return plan_put(work, chip, bound_bytes)
    if isinstance(work, Gather | Scatter):
        return plan_lookup(work, chip, bound_bytes, kept)
    return plan_staged(work, chip, bound_bytes) if isinstance(work, Staged) else plan_spread(work, chip, bound_bytes)


def plan_uncut(work: Work, chip: Chip, bound_bytes: int | None) -> list[OpPlan]:
    """Other plans for what is cut apart and put together: those that cut along what is not."""
    if isinstance(work, Scatter) and work.onto:
        return [plan_put(work, chip, bound_bytes, apart=False)]
    return [plan_spread(work, chip)] if isinstance(work, Staged) else []


def plan_steps(work: Stepwise, chip: Chip, bound_bytes: int | None, options: TileOptions, cache: PlanCache) -> OpPlan:
    """The plan of steps one after the other."""
    key = "steps", work, chip.key, bound_bytes, options.precision
    plan = cache.get(key)
    if plan is None:
        plan = cache[key] = plan_stepwise(work, chip, bound_bytes, options.precision)
    return plan


def _check_spread_pin(pin: Mapping[str, Any], plan: OpPlan, where: str) -> None:
    asked, made = ({a: n for a, n in splits.items() if n != 1} for splits in (dict(check_pin(pin, where).get("splits", {})), dict(plan.splits)))
    if asked != made:
        raise OptionError(f"The pinned plan of {where} has splits {asked}; only contractions can be pinned to another plan than the "
                          f"planner's own, which is {made}.")


def _splittable(work: Contraction) -> bool:
    return work.points > 0 and len(work.inputs) >= 2 and work.inputs[0] is not None and work.inputs[1] is not None


def by_name(table: Mapping[str, Any], sources: Sequence[str], default: Any = None) -> Any:
    """The value of the first pattern (fnmatch) that one of a node's origin sources matches."""
    pattern = first_fitting(table, sources)
    return default if pattern is None else table[pattern]


def bound_for(sources: Sequence[str], chip: Chip, options: TileOptions, ipu: int = 0) -> int:
    """Bytes of temporaries that a node may take: its own proportion by name, else its IPU's, else the program's. Raises OptionError."""
    rest = options.per_ipu.get(f"IPU{ipu}", options.available_memory_proportion)
    return chip.bound(by_name(options.per_op, sources, rest))


@dataclass(frozen=True)
class LayerPlans:
    """Plans of a layer's forward pass and of its gradients, in the order given.

    joint: one layout of the weights serves all passes; else each pass has the best plan of its own.
    separate_cycles, joint_cycles: sums over the passes, what the weights' way between layouts costs included; joint_cycles is
    infinite where no joint plan fits the bound.
    """

    plans: tuple[OpPlan, ...]
    joint: bool
    separate_cycles: float
    joint_cycles: float


def plan_layer(forward: Contraction, input_gradient: Contraction | None, weight_gradient: Contraction | None, chip: Chip,
               bound_bytes: int | None, options: TileOptions | None = None, cache: PlanCache | None = None) -> LayerPlans:
    """Plan the passes of a layer (second operand of `forward` = weights) separately and jointly; take the cheaper.

    Jointly all passes cut the same axes alike: weights stay where the forward pass has them (their own tile's share is not
    exchanged again for the input gradient), and their gradient arises where they lie. Separately the gradient travels to the
    weights' tiles first. No serial splits in a joint plan.
    """
    options = options or TileOptions()
    cache = {} if cache is None else cache
    passes = [("forward", forward), ("input", input_gradient), ("weight", weight_gradient)]
    present = [(name, w) for name, w in passes if w is not None and _splittable(w)]
    key = "layer", tuple(w for _, w in passes), chip.key, bound_bytes, options.precision, options.joint_plans
    if key in cache:
        return cache[key]
    separate = [plan_work(w, chip, bound_bytes, options, cache) for _, w in present]
    travel = _gradient_travel(canonical(forward, options.precision), chip) if weight_gradient is not None else 0.0
    apart = sum(p.phases.total for p in separate) + travel
    joint = None
    if options.joint_plans and len(present) > 1:
        joint = _alike(present, chip, options.precision, cache).best(bound_bytes, separate[0].phases.total + travel)
    together = sum(p.phases.total for p in joint) if joint else np.inf
    chosen = joint if joint and together < apart and all(p.fits for p in joint) else separate
    plans = tuple(replace(p, notes={**p.notes, "joint": chosen is joint}) for p in chosen)
    made = LayerPlans(plans, chosen is joint, float(apart), float(together))
    cache[key] = made
    return made


def _alike(passes: Sequence[tuple[str, Contraction]], chip: Chip, precision: str, cache: PlanCache) -> Alike:
    """The joint plans of a layer for every bound; the latest are kept."""
    held: dict[Any, Alike] = cache.setdefault("joint", {})
    key = tuple(passes), chip.key_of_cycles, precision
    found = held.pop(key, None) or Alike([(name, canonical(work, precision)) for name, work in passes], chip, precision)
    held[key] = found
    if len(held) > MOST_JOINT:
        del held[next(iter(held))]
    return found


def _gradient_travel(c: Canonical, chip: Chip) -> float:
    """Cycles that bring the weights' gradient, spread over all tiles, into the weights' layout."""
    share = np.ceil(elements(c.second, c.sizes) / chip.tiles) * itemsize(c.second.dtype)
    return float(np.ceil(share / chip.exchange_bytes_per_cycle)) + chip.sync_cycles


def export_plans(plans: Mapping[str, OpPlan]) -> dict[str, Any]:
    """Plans by node name as plain values, for a JSON file; `TileOptions(pinned=...)` takes what comes back."""
    return {name: plan_to_dict(p) for name, p in plans.items()}


def import_plans(table: Any) -> dict[str, Mapping[str, Any]]:
    """Pins from plain values. Raises OptionError where a field is wrong."""
    if not isinstance(table, Mapping):
        raise OptionError(f"Pinned plans must be a table of node names and plans, not {table!r}.")
    return {str(name): check_pin(pin, str(name)) for name, pin in table.items()}
