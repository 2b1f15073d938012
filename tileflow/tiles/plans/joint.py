"""Joint plans of a layer's passes: all cut the same axes alike, so that its weights lie in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..hardware.chip import Chip
from ..hardware.vertex import itemsize
from .candidates import grid, variants
from .contraction import Canonical, elements
from .cost import Costs, Variant, evaluate
from .partition import COSTS, build_plan, mark, partials_type
from .plan import OpPlan


@dataclass
class _Priced:
    """A variant of a pass: of each forward row of parts cycles and temporary bytes, where `done` says that they are
    known."""

    variant: Variant
    cycles: np.ndarray
    temp: np.ndarray
    done: np.ndarray


@dataclass
class _Pass:
    """A pass: its parts for each forward row, and the matrix unit's variants."""

    name: str
    form: Canonical
    parts: np.ndarray
    variants: list[_Priced]


class Alike:
    """Plans that cut all passes of a layer alike. What they cost is looked at once, whatever the bounds.

    passes: by name ("forward", which is the first, "input", "weight") the products.
    """

    def __init__(self, passes: Sequence[tuple[str, Canonical]], chip: Chip, precision: str) -> None:
        self.chip, self.passes = chip, list[_Pass]()
        self.first = f = passes[0][1]
        partials = partials_type(f, precision)
        every = variants(f, chip, partials)
        base = next((v for v in every if v.kind == "amp" and not v.swap and not v.expand), None)
        maps = [{a: (a,) for a in f.sizes}, *(_axes_of_pass(name, f, g) for name, g in passes[1:])]
        if base is None or None in maps:
            return
        self.rows = rows = grid(f, base, chip)
        self.forward = evaluate(chip, f, base, {a.name: rows[:, i] for i, a in enumerate(f.axes)})
        self.saved = _resident(f, chip, rows)
        at = {a.name: i for i, a in enumerate(f.axes)}
        for (name, g), axes in zip(passes, maps, strict=True):
            assert axes is not None
            columns = {a: [at[x] for x in axes[a]] for a in g.sizes}
            grains = {a: int(np.prod([base.grain(f.axes[i].name) for i in columns[a]])) for a in g.sizes}
            parts = [_tight(np.prod(rows[:, columns[a.name]], axis=1), a.size, grains[a.name]) for a in g.axes]
            units = [replace(v, grains=tuple(sorted(grains.items())))
                     for v in variants(g, chip, partials) if v.kind == "amp"]
            fresh = [_Priced(v, np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), bool)) for v in units]
            self.passes.append(_Pass(name, g, np.stack(parts, 1), fresh))

    def best(self, bound: int | None, separate: float) -> list[OpPlan] | None:
        """The cheapest plans within a bound; None where none can be cheaper than separate ones.

        No pass is cheaper than its own best plan but for the weights it does not exchange, so only forward plans that
        lose no more than a joint plan can win are looked at.

        Args:
            separate: cycles of the best separate forward plan, and of the weights' gradient's way to the weights.
        """
        if not self.passes:
            return None
        most = np.inf if bound is None else bound
        looked_at = np.flatnonzero((self.forward.temp <= most) & (self.forward.cycles <= separate + self.saved))
        if not len(looked_at):
            return None
        total, chosen = np.zeros(len(looked_at)), []
        for one in self.passes:
            cheapest: tuple[np.ndarray, Variant] | None = None
            for priced in one.variants:
                self._price(one, priced, looked_at)
                cycles = np.where(priced.temp[looked_at] <= most, priced.cycles[looked_at], np.inf)
                if cheapest is None or cycles.min() < cheapest[0].min():
                    cheapest = cycles, priced.variant
            if cheapest is None:
                return None
            total = total + cheapest[0]
            chosen.append(cheapest[1])
        winner = int(total.argmin())
        if not np.isfinite(total[winner]):
            return None
        at = looked_at[winner:winner + 1]
        return [self._plan(one, v, at, bound) for one, v in zip(self.passes, chosen, strict=True)]

    def _price(self, one: _Pass, priced: _Priced, rows: np.ndarray) -> None:
        """Look at those rows of a variant that nobody has looked at."""
        missing = rows[~priced.done[rows]]
        if len(missing):
            costs = self._costs(one, priced.variant, missing)
            priced.cycles[missing], priced.temp[missing], priced.done[missing] = costs.cycles, costs.temp, True

    def _costs(self, one: _Pass, v: Variant, rows: np.ndarray) -> Costs:
        parts = one.parts[rows]
        costs = evaluate(self.chip, one.form, v, {a.name: parts[:, i] for i, a in enumerate(one.form.axes)})
        if one.name == "input":
            costs.exchange = np.maximum(0, costs.exchange - _resident(self.first, self.chip, parts))
        return costs

    def _plan(self, one: _Pass, v: Variant, row: np.ndarray, bound: int | None) -> OpPlan:
        costs, parts = self._costs(one, v, row), one.parts[row]
        found: dict[str, Any] = {n: float(getattr(costs, n)[0]) for n in COSTS}
        plan = build_plan(self.chip, one.form, v, None, parts[0], found)
        if one.name == "input":
            resident = int(_resident(self.first, self.chip, parts)[0])
            plan = replace(plan, notes={**plan.notes, "resident": resident})
        return mark(plan, bound)


def _axes_of_pass(name: str, f: Canonical, g: Canonical) -> dict[str, tuple[str, ...]] | None:
    """For each axis of a gradient the forward axes it stands for; None where the two do not correspond.

    Convolutions use the same axes in all passes. A product's gradient sums over the forward channels (input) or rows
    (weight); its two other axes are told apart by size.
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


def _tight(parts: np.ndarray, size: int, grain: int) -> np.ndarray:
    """The smallest numbers of parts with the same extents."""
    runs = -(-size // grain)
    return np.ceil(runs / np.ceil(runs / np.minimum(parts, max(1, runs))))


def _resident(f: Canonical, chip: Chip, parts: np.ndarray) -> np.ndarray:
    """Cycles of exchange saved where a tile's own share of the weights stays with it: weights over all tiles, once."""
    used = np.maximum(1, parts.prod(1))
    share = elements(f.second, f.sizes) * itemsize(f.second.dtype) / used
    return np.floor(share / (chip.exchange_bytes_per_cycle * chip.tiles_per_bus))
