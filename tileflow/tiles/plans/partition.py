"""The planner for contractions: price every partition of an enumerated space, keep those that are best for some bound on memory.

The space depends on sizes, types and chip only, never on the bound. What is kept is its frontier of cycles against bytes, so a
higher bound never costs more cycles and a lower one never needs more bytes, exactly.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..hardware import vertex
from ..hardware.chip import Chip
from .candidates import grid, serial_splits, variants
from .contraction import Canonical, step
from .cost import Costs, Serial, Variant, evaluate
from .plan import OpPlan, Phases, Standing

SERIAL_FROM = 1 / 64
"""Serial splits are looked at where the leanest parallel plan takes more than this share of a tile, down to about half of it."""
SLOW_VERTEX = 3.0
"""A vertex kind is left out where even its peak rate on all tiles is so many times slower than a plan already found."""

COSTS = ("compute", "exchange", "sync", "transform", "reduce", "temp", "received", "tiles", "stages", "second_last", "gathered")


@dataclass
class Candidates:
    """Priced candidates: `origin[i]` is the group (variant, serial split) of candidate i, `parts[group]` its rows of parts per axis."""

    c: Canonical
    groups: list[tuple[Variant, Serial]] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)
    costs: list[Costs] = field(default_factory=list)

    def add(self, chip: Chip, v: Variant, rows: np.ndarray, serial: Serial = None) -> Costs:
        """Price the rows of `parts` for a variant."""
        made = evaluate(chip, self.c, v, {a.name: rows[:, i] for i, a in enumerate(self.c.axes)}, serial)
        self.groups.append((v, serial))
        self.parts.append(rows)
        self.costs.append(made)
        return made

    def table(self, name: str) -> np.ndarray:
        """One cost over all candidates."""
        return np.concatenate([np.asarray(getattr(costs, name), float) for costs in self.costs])

    def plan(self, chip: Chip, at: int) -> OpPlan:
        """The OpPlan of candidate `at`."""
        group = 0
        while at >= len(self.parts[group]):
            at -= len(self.parts[group])
            group += 1
        v, serial = self.groups[group]
        row = {name: float(getattr(self.costs[group], name)[at]) for name in COSTS}
        return build_plan(chip, self.c, v, (serial[0], int(serial[1][at])) if serial else None, self.parts[group][at], row)


def explore(c: Canonical, chip: Chip, partials: str) -> Candidates:
    """Price the whole space of a contraction."""
    space = Candidates(c)
    best, leanest = np.inf, np.inf
    for v in variants(c, chip, partials):
        if v.kind != "amp" and c.macs / (chip.vector(c.first.dtype) * chip.tiles) > SLOW_VERTEX * best and v.kind != "slic":
            continue
        made = space.add(chip, v, grid(c, v, chip))
        best, leanest = min(best, float(made.cycles.min())), min(leanest, float(made.temp.min()))
        excess = leanest / (SERIAL_FROM * chip.bytes_per_tile)
        if excess > 1:
            rows = grid(c, v, chip, serial=True)
            for axis, steps in serial_splits(c, v, 2 * excess):
                space.add(chip, v, np.tile(rows, (len(steps), 1)), (axis, np.repeat(np.asarray(steps, float), len(rows))))
    return space


def frontier_indices(cycles: np.ndarray, temp: np.ndarray) -> np.ndarray:
    """Candidates that no other beats in cycles without taking more bytes, in ascending cycles (so descending bytes); ties by order."""
    least = temp[cycles == cycles.min()].min()
    near = np.flatnonzero(temp <= least)
    bucket = np.floor(np.log2(temp[near] + 1) * 4).astype(np.intp)
    best = np.full(bucket.max() + 2, np.inf)
    np.minimum.at(best, bucket + 1, cycles[near])
    alive = near[cycles[near] < np.minimum.accumulate(best)[bucket]]      # not beaten by any candidate of a lower bucket
    order = alive[np.lexsort((alive, temp[alive], cycles[alive]))]
    lower = np.minimum.accumulate(np.concatenate(([np.inf], temp[order][:-1])))
    return order[temp[order] < lower]


@dataclass
class Frontier:
    """The best plans of a contraction: ascending cycles, strictly descending temporary bytes."""

    plans: list[OpPlan]

    def best(self, bound: int | None) -> OpPlan:
        """The fewest cycles whose temporaries fit `bound` bytes (None: no bound), ties by bytes; where none fits, the
        least-memory plan with `fits` False."""
        at = next((i for i, p in enumerate(self.plans) if bound is None or p.temp_bytes <= bound), len(self.plans) - 1)
        faster, leaner = ([(p.phases.total, p.temp_bytes) for p in plans[:1]] for plans in (self.plans[:at][::-1], self.plans[at + 1:]))
        chosen = replace(self.plans[at], choice=Standing(len(self.plans), *(next(iter(found), None) for found in (faster, leaner))))
        return mark(chosen, bound, at == 0)


def mark(plan: OpPlan, bound: int | None, fastest: bool = True) -> OpPlan:
    """The plan with its bound filled in, and memory named as the limit where a faster plan did not fit."""
    limit = plan.limit if fastest else "memory"
    return replace(plan, bound_bytes=bound, fits=bound is None or plan.temp_bytes <= bound, limit=limit)


def frontier(c: Canonical, chip: Chip, partials: str) -> Frontier:
    """Search a contraction's space."""
    space = explore(c, chip, partials)
    phases = [space.table(name) for name in COSTS[:5]]
    indices = frontier_indices(sum(phases[1:], phases[0]), space.table("temp"))
    return Frontier([space.plan(chip, int(i)) for i in indices])


def partials_type(c: Canonical, precision: str) -> str:
    """Element type of partial sums: float16 only where the precision says so and the operands are float16; bytes add up in 32 bits."""
    if c.first.dtype == "int8":
        return "int32"
    return "float16" if precision == "16.16" and c.first.dtype == "float16" else "float32"


def build_plan(chip: Chip, c: Canonical, v: Variant, serial: tuple[str, int] | None, parts: np.ndarray, row: Mapping[str, float]) -> OpPlan:
    """An OpPlan from a candidate and its costs."""
    per_axis = {a.name: int(n) for a, n in zip(c.axes, parts, strict=True)}
    order = (*c.role("group"), *c.role("k"), *(c.role("m") + c.role("n") if row["second_last"] else c.role("n") + c.role("m")))
    phases = Phases(*(int(row[name]) for name in COSTS[:5]))
    steps = serial[1] if serial else 1
    code = vertex.CODE_BYTES[v.kind] + (vertex.CODE_BYTES["reduce"] if row["stages"] else 0)
    code += vertex.CODE_BYTES["copy"] * bool(phases.transform) + int(row["received"] / steps) // 64
    return OpPlan(splits={name: per_axis[name] for name in order if per_axis[name] > 1}, vertex=v.kind, phases=phases,
                  temp_bytes=int(row["temp"]), exchange_bytes=int(row["received"]), gathered=int(row["gathered"]), code_bytes=code,
                  grains={a: g for a, g in v.grains if g > 1}, serial=dict([serial]) if serial else {}, partials=v.partials,
                  reduce_stages=int(row["stages"]), tiles=int(row["tiles"]), flops=c.macs * c.flops_per_point,
                  limit=_limit(chip, c, v, per_axis, serial, phases), notes={"swap": v.swap, "expand": v.expand})


def _limit(chip: Chip, c: Canonical, v: Variant, parts: Mapping[str, int], serial: tuple[str, int] | None, phases: Phases) -> str:
    """What takes the most cycles; "grain" where compute does and a quarter of it is padding."""
    cycles: dict[str, Any] = {"compute": phases.compute + phases.transform, "exchange": phases.exchange, "reduce": phases.reduce,
                              "sync": phases.sync}
    most = max(cycles, key=lambda name: cycles[name])
    if most != "compute":
        return most
    worst, useful = 1.0, 1.0
    for axis in c.axes:
        size = step(axis.size, serial[1], v.grain(axis.name)) if serial and serial[0] == axis.name else axis.size
        grain = v.grain(axis.name)
        worst *= grain * -(-step(size, parts[axis.name], grain) // grain)
        useful *= size / parts[axis.name]
    return "grain" if worst > 1.25 * useful else "compute"
