"""Finding the available-memory proportions that make a program fastest and still let it fit.

First a sweep: one proportion for all operators. Of a program in stages then each IPU gets the proportion with which it was fastest and fitted:
what an IPU holds and does follows from its own. Then a search per operator: from the fastest point of the sweep the operators that
break the bound are lowered until the program fits. In that program, and in the best of the sweep, operators are then raised, many at a
time where that goes well, as long as it pays. A proportion belongs to a source operator of the model, so its backward passes follow it.
"""
from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..graph import Node
from ..graph.work import Contraction, Gather, Scatter
from ..program.program import Program
from ..tiles.hardware.chip import Chip
from ..tiles.machine import TileProgram, analyze
from ..tiles.plans.plan import TileOptions, TileStep
from .search import Progress, Search

PROPORTIONS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
EVALUATIONS = 96
"""Programs analysed after the sweep, at most: the search is bounded by work, not by time, so that its result is always the same."""

Move = tuple[str, float]
"""An operator and the proportion it is to have."""


@dataclass(frozen=True)
class TunePoint:
    """One program that was tried: its setting and what it costs. `bytes` is the worst tile's demand; per_ipu: proportions by "IPU0" and so on."""

    label: str
    kind: str
    proportion: float
    per_op: Mapping[str, float]
    cycles: int
    bytes: int
    fits: bool
    per_ipu: Mapping[str, float] = field(default_factory=dict)

    @property
    def proportions(self) -> dict[str, float]:
        """The setting as the option available_memory_proportion takes it: by pattern, by IPU, "*" for the rest."""
        return {**self.per_op, **self.per_ipu, "*": self.proportion}

    @property
    def rank(self) -> tuple[Any, ...]:
        """Smaller is better: what fits before what does not, then few cycles (few bytes where nothing fits), then few bytes."""
        return (0, self.cycles, self.bytes) if self.fits else (1, self.bytes, self.cycles)

    def to_dict(self, best: bool = False) -> dict[str, Any]:
        """As report.json has it."""
        return {"label": self.label, "kind": self.kind, "proportion": self.proportion, "per_op": dict(self.per_op),
                "per_ipu": dict(self.per_ipu), "cycles": self.cycles,
                "bytes": self.bytes, "fits": self.fits, "best": best}


def tune_available_memory(program: Program, chip: Chip, options: TileOptions | None = None, *, proportions: Sequence[float] = PROPORTIONS,
                          evaluations: int = EVALUATIONS, progress: Progress | None = None,
                          analyze: Callable[[Program, Chip, TileOptions], TileProgram] = analyze) -> Tuning:
    """Search for the fastest program that fits the chip.

    Args:
        options: everything but the proportion; operators named in its `per_op`, and IPUs in its `per_ipu`, keep their proportion.
        proportions: shares of tile memory to try, each from 0 to 1.
        evaluations: programs to analyse after the sweep, at most.
    """
    grid = tuple(sorted(set(proportions)))
    search = Tuning(program, chip, options or TileOptions(), grid, analyze, most=len(grid) + evaluations,
                    progress=progress)
    search.sweep()
    search.each_ipu()
    swept = search.best
    repaired = search.repair()
    tops = [search.climb(start, together=True) for start in (repaired, swept) if start is not None and start.fits]
    if tops:
        search.climb(min(tops, key=lambda p: p.rank), together=False)
    return search


@dataclass
class Tuning(Search[TunePoint]):
    """The search, and what it found: the points, the best one and its program (which fits, unless none does).

    grid: the proportions of the sweep. base: what settings have in common.
    """

    program: Program
    chip: Chip
    base: TileOptions
    grid: tuple[float, ...]
    analyze: Callable[[Program, Chip, TileOptions], TileProgram]
    own: dict[str, dict[float, int]] = field(default_factory=dict)
    """Cycles per update of each operator at each proportion of the sweep."""
    of_ipu: dict[int, dict[float, tuple[int, int]]] = field(default_factory=dict)
    """Of a program in stages: what each IPU computes in an update, and bytes on its fullest tile, at each proportion of the sweep."""
    places: dict[str, int] = field(default_factory=dict)
    """The IPU that each operator's forward pass is on."""
    tiled: TileProgram = field(init=False)
    """The best point's program."""
    fastest: tuple[TunePoint, TileProgram] | None = None
    """The point of the sweep with fewest cycles, whether it fits or not."""

    @property
    def best(self) -> TunePoint:
        """Of equals the first."""
        return min(self.points.values(), key=lambda p: p.rank)

    def sweep(self) -> None:
        """One proportion for all."""
        for p in self.grid:
            point, tiled = self.run(p, {}, "sweep", f"{p:g}")
            assert tiled is not None
            if self.fastest is None or (point.cycles, point.bytes) < (self.fastest[0].cycles, self.fastest[0].bytes):
                self.fastest = point, tiled
            for name, cycles in cycles_by_operator(tiled).items():
                self.own.setdefault(name, {})[p] = cycles
            for ipu in tiled.ipus if len(tiled.ipus) > 1 else ():
                self.of_ipu.setdefault(ipu.number, {})[p] = (ipu.busy, ipu.worst)
            for step in tiled.steps if not self.places else ():
                for name in step.node.origin.sources[:1]:
                    self.places.setdefault(name, step.ipu)

    def each_ipu(self) -> None:
        """Each IPU with the proportion of the sweep that was fastest for it, of those with which it fitted; of none the leanest. From the fastest
        setting on, IPUs that do not fit after all are lowered further."""
        if not self.of_ipu or not self.left:
            return
        bound, chosen = self.chip.usable_bytes, dict[str, float]()
        for number, by_share in self.of_ipu.items():
            if f"IPU{number}" not in self.base.per_ipu:
                chosen[f"IPU{number}"] = min(by_share, key=lambda p: ((0, *by_share[p]) if by_share[p][1] <= bound else (1, *by_share[p][::-1]), p))
        proportion = max(chosen.values(), default=self.grid[-1])
        while chosen:
            point, tiled = self.run(proportion, {}, "search", "each IPU its own", chosen)
            lower = {} if tiled is None else {f"IPU{i.number}": max((q for q in self.grid if q < chosen[f"IPU{i.number}"]), default=None)
                                              for i in tiled.ipus if i.worst > bound and f"IPU{i.number}" in chosen}
            found = {name: p for name, p in lower.items() if p is not None}
            if point.fits or not found or not self.left:
                return
            chosen |= found

    def repair(self) -> TunePoint | None:
        """Lower the operators that break the bound, and those that behave like them, step by step from the fastest point of the sweep
        on, until the program fits; None where lowering does not make it fit."""
        assert self.fastest is not None
        point, tiled = self.fastest
        chosen = dict[str, float]()
        while not point.fits and self.left:
            blamed = {tuple(self.own[n].items()) for n in over_bound(tiled) if n in self.own}
            culprits = [n for n, cycles in self.own.items() if tuple(cycles.items()) in blamed and chosen.get(n, self.share(point, n)) > self.grid[0]]
            if not culprits:
                return None
            for name in culprits:
                chosen[name] = max(q for q in self.grid if q < chosen.get(name, self.share(point, name)))
            point, lowered = self.run(point.proportion, chosen, "search", f"{point.proportion:g}, {len(chosen)} operators lower", point.per_ipu)
            if lowered is None:
                return None
            tiled = lowered
        return point if point.fits else None

    def climb(self, point: TunePoint, together: bool) -> TunePoint:
        """Raise operators of a program that fits, until no change is left that promises fewer cycles; the best program on the way.

        together: operators that behave alike (repeated layers) are raised together, since equal plans share their code.
        """
        refused: set[Move] = set()
        while self.left:
            bundles = self.bundles(point, refused, together)
            if not bundles:
                break
            point = self.raised(point, bundles, refused)
        return point

    def raised(self, point: TunePoint, bundles: list[list[Move]], refused: set[Move]) -> TunePoint:
        """All bundles at once; where the program gets no better, one half after the other. One bundle that does not help is refused."""
        if not self.left:
            return point
        moves = [move for bundle in bundles for move in bundle]
        label = f"{moves[0][0]} {moves[0][1]:g}" if len(moves) == 1 else f"{len(moves)} operators higher"
        found, _ = self.run(point.proportion, {**self.found(point), **dict(moves)}, "search", label, point.per_ipu)
        if found.rank < point.rank:
            return found
        if len(bundles) == 1:
            refused.update(moves)
            return point
        half = len(bundles) // 2
        return self.raised(self.raised(point, bundles[:half], refused), bundles[half:], refused)

    def bundles(self, point: TunePoint, refused: set[Move], together: bool) -> list[list[Move]]:
        """Per operator the change that promises most, by the sweep's figures, for the least memory; in bundles, the largest promise first."""
        found: dict[Any, list[Move]] = {}
        gains: dict[Any, int] = {}
        settings = self.found(point)
        for name, by_share in self.own.items():
            share = settings.get(name, self.share(point, name))
            distinct = {cycles: p for p, cycles in sorted(by_share.items(), reverse=True)}
            promised = [(by_share[share] - cycles, -p) for cycles, p in distinct.items() if cycles < by_share[share] and (name, p) not in refused]
            if promised:
                gain, p = max(promised)
                key = (share, -p, *sorted(by_share.items())) if together else name
                found.setdefault(key, []).append((name, -p))
                gains[key] = gains.get(key, 0) + gain
        return [found[key] for key in sorted(found, key=lambda key: -gains[key])]

    def found(self, point: TunePoint) -> dict[str, float]:
        """The search's own part of a point's proportions, by operator name."""
        return {name: point.per_op[pattern(name)] for name in self.own if pattern(name) in point.per_op and pattern(name) not in self.base.per_op}

    def share(self, point: TunePoint, name: str) -> float:
        """The proportion that an operator has in a point's program where nothing names it."""
        per_ipu = {**point.per_ipu, **self.base.per_ipu}
        return per_ipu.get(f"IPU{self.places.get(name, 0)}", point.proportion)

    def options(self, proportion: float, by_name: Mapping[str, float], per_ipu: Mapping[str, float]) -> TileOptions:
        per_op = {**self.base.per_op, **{pattern(n): p for n, p in by_name.items() if pattern(n) not in self.base.per_op}}
        return replace(self.base, available_memory_proportion=proportion, per_op=per_op, per_ipu={**per_ipu, **self.base.per_ipu})

    def run(self, proportion: float, by_name: Mapping[str, float], kind: str, label: str,
            per_ipu: Mapping[str, float] = MappingProxyType({})) -> tuple[TunePoint, TileProgram | None]:
        """Analyse a setting (once) and remember it; the program is None where the setting was known."""
        by_name = {n: p for n, p in by_name.items() if per_ipu or p != proportion}
        key = (proportion, *sorted(by_name.items()), *sorted(per_ipu.items()))
        if key in self.points:
            return self.points[key], None
        options = self.options(proportion, by_name, per_ipu)
        tiled = self.analyze(self.program, self.chip, options)
        point = TunePoint(label, kind, proportion, options.per_op, int(tiled.cycles_per_update),
                          int(np.max(tiled.peak, initial=0)), bool(tiled.fits), options.per_ipu)
        self.points[key] = point
        if self.best is point:
            self.tiled = tiled
        self.tell(self.best.label)
        return point, tiled


def bounded(step: TileStep) -> bool:
    """The proportion has a say in this step's plan, and the model does not fix it."""
    origin = step.node.origin
    fixed = origin.hints.available_memory_proportion is not None
    return isinstance(step.work, (Contraction, Gather, Scatter)) and bool(origin.sources) and not fixed


def cycles_by_operator(tiled: TileProgram) -> dict[str, int]:
    """Cycles per update of every source operator that a proportion can change, all its passes together."""
    cycles: dict[str, int] = {}
    for step in tiled.steps:
        if bounded(step):
            name = step.node.origin.sources[0]
            cycles[name] = cycles.get(name, 0) + step.phases.total * step.repeats
    return cycles


def over_bound(tiled: TileProgram) -> list[str]:
    """The source operators to blame for steps during which the worst tile holds more than it has: the step's own where a proportion
    has a say in it, else those whose plans its inputs' places follow."""
    ours = {s.node for s in tiled.steps if bounded(s)}
    of_ipu = {i.number: i.memory.liveness for i in tiled.ipus if len(tiled.ipus) > 1}
    found: dict[str, None] = {}
    for step in tiled.steps:
        if of_ipu.get(step.ipu, tiled.liveness)[step.index] > tiled.chip.usable_bytes:
            found.update(dict.fromkeys(_deciding(step.node, ours)))
    return list(found)


def _deciding(node: Node, ours: set[Node]) -> list[str]:
    """The node's own source operator, or those of the nearest nodes before it that are in `ours`."""
    waiting, seen, names = [node], set[Node](), []
    while waiting:
        node = waiting.pop()
        if node in ours:
            names.append(node.origin.sources[0])
        elif node not in seen:
            seen.add(node)
            waiting += [v.producer for v in node.operands if v.producer is not None]
    return names


def pattern(name: str) -> str:
    """The pattern that matches this name alone."""
    return glob.escape(name)
