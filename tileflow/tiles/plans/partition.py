"""The planner for contractions: price every partition of an enumerated space, keep those that are best for some bound on memory.

The space depends on sizes, types and chip only, never on the bound. What is kept is its frontier of cycles against bytes, so a
higher bound never costs more cycles and a lower one never needs more bytes, exactly.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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
"""A vertex kind is left out at first where even its peak rate on all tiles is so many times slower than a plan already
found."""

COSTS = ("compute", "exchange", "sync", "transform", "reduce", "temp", "received", "tiles", "stages", "second_last", "gathered")


@dataclass
class Candidates:
    """Priced candidates: `origin[i]` is the group (variant, serial split) of candidate i, `parts[group]` its rows of
    parts per axis.

    floor: no candidate of the vertex kinds that were left out takes fewer cycles.
    leanest: of each variant, when it had been priced, the fewest temporary bytes of any plan without serial splits.
    """

    c: Canonical
    groups: list[tuple[Variant, Serial]] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)
    costs: list[Costs] = field(default_factory=list)
    floor: float = np.inf
    leanest: list[tuple[Variant, float]] = field(default_factory=list)

    def add(self, chip: Chip, v: Variant, rows: np.ndarray, serial: Serial = None) -> Costs:
        """Price the rows of `parts` for a variant."""
        made = evaluate(chip, self.c, v, {a.name: rows[:, i] for i, a in enumerate(self.c.axes)}, serial)
        self.groups.append((v, serial))
        self.parts.append(rows)
        self.costs.append(made)
        return made

    def parallel(self, chip: Chip, v: Variant) -> Costs:
        """Price the partitions of a variant, all at once."""
        return self.add(chip, v, grid(self.c, v, chip))

    def serial(self, chip: Chip, v: Variant, splits: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        """Price coarser partitions of a variant in steps along one axis, for each (axis, numbers of steps)."""
        rows = grid(self.c, v, chip, serial=True) if splits else np.ones((0, len(self.c.axes)))
        for axis, steps in splits:
            self.add(chip, v, np.tile(rows, (len(steps), 1)), (axis, np.repeat(np.asarray(steps, float), len(rows))))

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


def explore(c: Canonical, chip: Chip, partials: str, slow: bool = False, space: Candidates | None = None) -> Candidates:
    """Price the space of a contraction; slow: with vertex kinds that are much slower, of which some plans may take
    fewer bytes. space: where candidates go."""
    space = Candidates(c) if space is None else space
    best, leanest = np.inf, np.inf
    peak = c.macs / (chip.vector(c.first.dtype) * chip.tiles)
    for v in variants(c, chip, partials):
        if v.kind not in ("amp", "slic") and peak > SLOW_VERTEX * best and not slow:
            space.floor = peak
            continue
        made = space.parallel(chip, v)
        best, leanest = min(best, float(made.cycles.min())), min(leanest, float(made.temp.min()))
        space.leanest.append((v, leanest))
        space.serial(chip, v, _looked_at(c, v, leanest, chip))
    return space


def _looked_at(c: Canonical, v: Variant, leanest: float, chip: Chip) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The serial splits of a variant that are looked at: all that the bytes of a tile decide of a frontier."""
    excess = leanest / (SERIAL_FROM * chip.bytes_per_tile)
    return tuple(serial_splits(c, v, 2 * excess)) if excess > 1 else ()


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


Piece = tuple[np.ndarray, Costs]
"""Of priced partitions those that no other of them beats: parts per axis, and costs."""


@dataclass
class _Remembered(Candidates):
    """Candidates that a frontier may have. Those of a variant (axis "") and of a number of steps along an axis are
    priced once for all chips that differ in the bytes of their tiles only."""

    pieces: dict[tuple[Variant, str, int], Piece] = field(default_factory=dict)

    def parallel(self, chip: Chip, v: Variant) -> Costs:
        if (v, "", 1) not in self.pieces:
            rows = grid(self.c, v, chip)
            self.pieces[v, "", 1] = _unbeaten(rows, self._priced(chip, v, rows))
        return self._take(v, "", 1)

    def serial(self, chip: Chip, v: Variant, splits: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        missing = [(axis, s) for axis, steps in splits for s in steps if (v, axis, s) not in self.pieces]
        rows = grid(self.c, v, chip, serial=True) if missing else np.ones((0, len(self.c.axes)))
        for axis in dict.fromkeys(axis for axis, _ in missing):
            fresh = [s for a, s in missing if a == axis]
            steps = np.repeat(np.asarray(fresh, float), len(rows))
            made = self._priced(chip, v, np.tile(rows, (len(fresh), 1)), (axis, steps))
            for i, s in enumerate(fresh):
                own = np.arange(i * len(rows), (i + 1) * len(rows))
                self.pieces[v, axis, s] = _unbeaten(rows, _at(made, own))
        for axis, numbers in splits:
            for s in numbers:
                self._take(v, axis, s)

    def _take(self, v: Variant, axis: str, steps: int) -> Costs:
        """Add what was priced."""
        rows, costs = self.pieces[v, axis, steps]
        self.groups.append((v, (axis, np.full(len(rows), float(steps))) if axis else None))
        self.parts.append(rows)
        self.costs.append(costs)
        return costs

    def _priced(self, chip: Chip, v: Variant, rows: np.ndarray, serial: Serial = None) -> Costs:
        return evaluate(chip, self.c, v, {a.name: rows[:, i] for i, a in enumerate(self.c.axes)}, serial)


def _at(costs: Costs, indices: np.ndarray) -> Costs:
    return Costs(**{f.name: getattr(costs, f.name)[indices] for f in fields(costs)})


def _unbeaten(rows: np.ndarray, costs: Costs) -> Piece:
    found = frontier_indices(costs.cycles, costs.temp)
    return rows[found], _at(costs, found)


@dataclass
class Frontier:
    """The best plans of a contraction: ascending cycles, strictly descending temporary bytes. floor: as that of
    `Candidates`."""

    plans: list[OpPlan]
    floor: float = np.inf

    def holds(self, bound: int | None) -> bool:
        """Whether what was left out has no better plan for this bound: one fits, and is quicker than any of those could
        be. A better chip leaves out more, as it has quicker plans; what it then gives is still the best of all."""
        plan = self.best(bound)
        return plan.fits and plan.phases.total <= self.floor

    def best(self, bound: int | None) -> OpPlan:
        """The fewest cycles whose temporaries fit `bound` bytes (None: no bound), ties by bytes; where none fits, the
        least-memory plan with `fits` False."""
        at = next((i for i, p in enumerate(self.plans) if bound is None or p.temp_bytes <= bound), len(self.plans) - 1)
        faster, leaner = ([(p.phases.total, p.temp_bytes) for p in plans[:1]] for plans in (self.plans[:at][::-1], self.plans[at + 1:]))
        chosen = replace(self.plans[at],
                         choice=Standing(len(self.plans), *(next(iter(found), None) for found in (faster, leaner))))
        return mark(chosen, bound, at == 0)


def mark(plan: OpPlan, bound: int | None, fastest: bool = True) -> OpPlan:
    """The plan with its bound filled in, and memory named as the limit where a faster plan did not fit."""
    limit = plan.limit if fastest else "memory"
    return replace(plan, bound_bytes=bound, fits=bound is None or plan.temp_bytes <= bound, limit=limit)


def _best_of(space: Candidates, chip: Chip) -> Frontier:
    phases = [space.table(name) for name in COSTS[:5]]
    indices = frontier_indices(sum(phases[1:], phases[0]), space.table("temp"))
    return Frontier([space.plan(chip, int(i)) for i in indices], space.floor)


@dataclass
class Frontiers:
    """The frontiers of a contraction, as `explore` gives its space, on chips that differ in the bytes of their tiles
    only: those for which the same serial splits are looked at share one, and others what both look at."""

    c: Canonical
    partials: str
    slow: bool = False
    leanest: list[tuple[Variant, float]] | None = None
    made: dict[Any, Frontier] = field(default_factory=dict)
    pieces: dict[tuple[Variant, str, int], Piece] = field(default_factory=dict)

    def on(self, chip: Chip) -> Frontier:
        """The frontier on one of these chips."""
        found = None if self.leanest is None else self.made.get(self._key(chip))
        if found is None:
            space = explore(self.c, chip, self.partials, self.slow, _Remembered(self.c, pieces=self.pieces))
            self.leanest = space.leanest
            found = self.made[self._key(chip)] = _best_of(space, chip)
        return found

    def _key(self, chip: Chip) -> Any:
        return tuple(_looked_at(self.c, v, leanest, chip) for v, leanest in self.leanest or ())


def partials_type(c: Canonical, precision: str) -> str:
    """Element type of partial sums: float16 only where the precision says so and the operands are float16; bytes add up
    in 32 bits."""
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
