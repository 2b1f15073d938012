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
from .candidates import grid, variants
from .contraction import Canonical, canonical, elements
from .cost import Costs, Variant, evaluate
from .lookup import NOTHING, Kept, plan_lookup
from .partition import COSTS, Frontier, Frontiers, build_plan, mark, partials_type
from .pins import check_pin, pinned_plan, plan_to_dict
from .plan import OpPlan, TileOptions
from .putting import plan_put
from .spread import plan_spread
from .staged import plan_staged
from .stepwise import plan_stepwise

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
    joint = _joint(present, separate, travel, chip, bound_bytes, options.precision) if options.joint_plans and len(present) > 1 else None
    together = sum(p.phases.total for p in joint) if joint else np.inf
    chosen = joint if joint and together < apart and all(p.fits for p in joint) else separate
    plans = tuple(replace(p, notes={**p.notes, "joint": chosen is joint}) for p in chosen)
    made = LayerPlans(plans, chosen is joint, float(apart), float(together))
    cache[key] = made
    return made


def _gradient_travel(c: Canonical, chip: Chip) -> float:
    """Cycles that bring the weights' gradient, spread over all tiles, into the weights' layout."""
    share = np.ceil(elements(c.second, c.sizes) / chip.tiles) * itemsize(c.second.dtype)
    return float(np.ceil(share / chip.exchange_bytes_per_cycle)) + chip.sync_cycles


def _axes_of_pass(name: str, f: Canonical, g: Canonical) -> dict[str, tuple[str, ...]] | None:
    """For each axis of a gradient the forward axes it stands for; None where the two do not correspond.

    Convolutions use the same axes in all passes. A product's gradient sums over the forward channels (input) or rows (weight);
    its two other axes are told apart by size.
    """
    if f.sizes == g.sizes:
        roles_f, roles_g = dict(f.roles), dict(g.roles)
        summed = "n" if name == "input" else "m"
        if f.windowed or {a for a, r in roles_g.items() if r == "k"} == {a for a, r in roles_f.items() if r == summed}:
            return {a: (a,) for a in g.sizes}
    if f.windowed or any(len(g.role(r)) != 1 for r in ("m", "n", "k")):
        return None
    summed, kept = ("n", ("m", "k")) if name == "input" else ("m", ("k", "n"))
    size = {r: int(np.prod([f.sizes[a] for a in f.role(r)])) for r in ("m", "n", "k")}
    names = {r: g.role(r)[0] for r in ("m", "n", "k")}
    if g.sizes[names["k"]] != size[summed] or len(f.role("group")) != len(g.role("group")):
        return None
    for pair in (kept, kept[::-1]):
        if (g.sizes[names["m"]], g.sizes[names["n"]]) == (size[pair[0]], size[pair[1]]):
            groups = {b: (a,) for a, b in zip(f.role("group"), g.role("group"), strict=True)}
            return {names["k"]: f.role(summed), names["m"]: f.role(pair[0]), names["n"]: f.role(pair[1]), **groups}
    return None


def _joint(passes: Sequence[tuple[str, Contraction]], separate: Sequence[OpPlan], travel: float, chip: Chip, bound: int | None,
           precision: str) -> list[OpPlan] | None:
    """The cheapest plans that cut all passes alike; None where none within the bound can be cheaper than separate ones.

    No pass is cheaper than its own best plan but for the weights it does not exchange, so only forward plans that lose no more than
    a joint plan can win are looked at.
    """
    forms = [canonical(w, precision) for _, w in passes]
    f, partials = forms[0], partials_type(forms[0], precision)
    base = next((v for v in variants(f, chip, partials) if v.kind == "amp" and not v.swap and not v.expand), None)
    maps = [{a: (a,) for a in f.sizes}, *(_axes_of_pass(name, f, g) for (name, _), g in zip(passes[1:], forms[1:], strict=True))]
    if base is None or None in maps:
        return None
    rows = grid(f, base, chip)
    most = np.inf if bound is None else bound
    forward = evaluate(chip, f, base, {a.name: rows[:, i] for i, a in enumerate(f.axes)})
    rows = rows[(forward.temp <= most) & (forward.cycles <= separate[0].phases.total + travel + _resident(f, chip, rows))]
    if not len(rows):
        return None
    at = {a.name: i for i, a in enumerate(f.axes)}
    total, chosen = np.zeros(len(rows)), []
    for (name, _), g, axes in zip(passes, forms, maps, strict=True):
        assert axes is not None
        made = _cheapest_alike(name, f, g, base, {a: tuple(at[x] for x in axes[a]) for a in g.sizes}, rows, chip, partials, most)
        if made is None:
            return None
        total = total + made[0]
        chosen.append(made[1:])
    winner = int(total.argmin())
    if not np.isfinite(total[winner]):
        return None
    plans = []
    for (name, _), g, (costs, v, parts) in zip(passes, forms, chosen, strict=True):
        plan = build_plan(chip, g, v, None, parts[winner], {n: float(getattr(costs, n)[winner]) for n in COSTS})
        if name == "input":
            plan = replace(plan, notes={**plan.notes, "resident": int(_resident(f, chip, parts[winner:winner + 1])[0])})
        plans.append(mark(plan, bound))
    return plans


def _cheapest_alike(name: str, f: Canonical, g: Canonical, base: Variant, columns: Mapping[str, tuple[int, ...]], rows: np.ndarray, chip: Chip,
                    partials: str, most: float) -> tuple[np.ndarray, Costs, Variant, np.ndarray] | None:
    """One pass cut as the forward rows are: its cycles per row (infinite above `most` bytes), costs, variant and parts; of the matrix
    unit's variants the one with the cheapest row."""
    found: tuple[np.ndarray, Costs, Variant, np.ndarray] | None = None
    grains = {a: int(np.prod([base.grain(f.axes[i].name) for i in columns[a]])) for a in g.sizes}
    parts = np.stack([_tight(np.prod(rows[:, list(columns[a.name])], axis=1), a.size, grains[a.name]) for a in g.axes], 1)
    for v in variants(g, chip, partials):
        if v.kind != "amp":
            continue
        v = replace(v, grains=tuple(sorted(grains.items())))
        costs = evaluate(chip, g, v, {a.name: parts[:, i] for i, a in enumerate(g.axes)})
        if name == "input":
            costs.exchange = np.maximum(0, costs.exchange - _resident(f, chip, parts))
        cycles = np.where(costs.temp <= most, costs.cycles, np.inf)
        if found is None or cycles.min() < found[0].min():
            found = cycles, costs, v, parts
    return found


def _tight(parts: np.ndarray, size: int, grain: int) -> np.ndarray:
    """The smallest numbers of parts with the same extents."""
    runs = -(-size // grain)
    return np.ceil(runs / np.ceil(runs / np.minimum(parts, max(1, runs))))


def _resident(f: Canonical, chip: Chip, parts: np.ndarray) -> np.ndarray:
    """Cycles of exchange saved where a tile's own share of the weights stays with it: weights over all tiles, once."""
    used = np.maximum(1, parts.prod(1))
    share = elements(f.second, f.sizes) * itemsize(f.second.dtype) / used
    return np.floor(share / (chip.exchange_bytes_per_cycle * chip.tiles_per_bus))


def export_plans(plans: Mapping[str, OpPlan]) -> dict[str, Any]:
    """Plans by node name as plain values, for a JSON file; `TileOptions(pinned=...)` takes what comes back."""
    return {name: plan_to_dict(p) for name, p in plans.items()}


def import_plans(table: Any) -> dict[str, Mapping[str, Any]]:
    """Pins from plain values. Raises OptionError where a field is wrong."""
    if not isinstance(table, Mapping):
        raise OptionError(f"Pinned plans must be a table of node names and plans, not {table!r}.")
    return {str(name): check_pin(pin, str(name)) for name, pin in table.items()}
