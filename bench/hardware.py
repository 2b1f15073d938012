"""What the tile machine predicts for figures of real hardware: every configuration pinned, no constant fitted to a
line.

A line's interval is from its prediction with all uncertain constants of the chip at the slow ends of their ranges
(`Chip.at_worst`) to that with all at the fast ends. A hit is a figure within it, but for its own precision, unless the
interval reaches further than 25 % of the prediction on either side.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tileflow.program import schedule as order
from tileflow.program.program import Program
from tileflow.tiles.hardware import vertex
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.plans.planner import PlanCache
from tileflow.tiles.system.links import waits

from .networks import matmul_program, triad_program
from .report import Figures

WIDEST = 0.25
"""How far an interval may reach from its prediction, as a share of it, to count."""
MATMUL_SIZES = range(256, 5121, 256)


def held_out(machine: str, setting: str) -> bool:
    """Whether the lines of a setting were looked at for the first time when the work on the machine had ended: of the
    settings that were new when the rule was made about half, by a hash. Others are none of them (`Line.known`)."""
    return hashlib.sha256(f"{machine} {setting}".encode()).digest()[0] % 2 == 0


@dataclass
class Prediction(Figures):
    """One line: what the tile machine says and what was measured.

    ratio: predicted / published as speeds; above 1 is faster than published. interval: the ratio at the slow and at the
    fast ends of the constants' ranges. precision: of the published figure, as a share.
    """

    case: str
    family: str
    unit: str
    predicted: float
    published: float
    ratio: float
    interval: tuple[float, float]
    source: str
    soft: bool
    held_out: bool
    precision: float
    configuration: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
    limited: str = ""
    """What the published figure is limited by that the machine does not have."""

    @property
    def narrow(self) -> bool:
        """Whether the interval is narrow enough to say something."""
        slow, fast = self.interval
        return slow >= (1 - WIDEST) * self.ratio and fast <= (1 + WIDEST) * self.ratio

    @property
    def inside(self) -> bool:
        """Whether the published figure may lie in the interval."""
        slow, fast = self.interval
        return slow <= 1 + self.precision and fast >= 1 - self.precision

    @property
    def hit(self) -> bool:
        """And in one that is narrow enough."""
        return self.narrow and self.inside

    @property
    def verdict(self) -> str:
        return "inside" if self.hit else "wide" if self.inside else "too fast" if self.ratio > 1 else "too slow"

    def to_text(self) -> str:
        slow, fast = self.interval
        notes = (" (soft)" if self.soft else "") + (" (held out)" if self.held_out else "")
        lines = [f"{self.case}: {self.predicted:,.1f} {self.unit} predicted, {self.published:,.1f} published, ratio "
                 f"{self.ratio:.2f} ({slow:.2f} to {fast:.2f}), {self.verdict}{notes}",
                 f"  source         {self.source}"]
        if self.limited:
            lines.append(f"  limited by     {self.limited}")
        for title, table in (("configuration", self.configuration), ("details", self.details)):
            lines += [f"  {title:<14} {name} = {value}" for name, value in table.items()]
        return "\n".join(lines)


Predict = Callable[[Chip, PlanCache], tuple[float, dict[str, Any]]]
"""The figure that a chip would have, and details."""
Memo = dict[Any, tuple[float, dict[str, Any]]]
"""What was predicted: lines of one configuration share a Predict."""


@dataclass(frozen=True)
class Line:
    """A published figure, and how to predict it.

    soft: the source is not the vendor's, or does not say all of the configuration. known: compared before lines were
    held out. setting: lines of one setting are seen or held out together; by default the line's name. precision: of the
    figure: how far repeated runs differ, or how well a chart can be read.
    quick: predicted in well under a second.
    """

    case: str
    family: str
    unit: str
    published: float
    source: str
    machine: str | Chip
    configuration: dict[str, Any]
    predict: Predict
    higher_is_faster: bool = True
    soft: bool = False
    known: bool = False
    setting: str = ""
    precision: float = 0.01
    quick: bool = False
    limited: str = ""

    @property
    def held_out(self) -> bool:
        return not self.known and held_out(chip(self.machine).name, self.setting or self.case)

    def run(self, cache: PlanCache | None = None, memo: Memo | None = None) -> Prediction:
        """The prediction, and those at the ends of the ranges."""
        machine, memo = chip(self.machine), {} if memo is None else memo
        cache = {} if cache is None else cache

        def ratio(of: Chip, end: str) -> tuple[float, float, dict[str, Any]]:
            key = self.predict, machine.name, end
            if key not in memo:
                memo[key] = self.predict(of, cache)
            figure, details = memo[key]
            return figure / self.published if self.higher_is_faster else self.published / figure, figure, details
        middle, predicted, details = ratio(machine, "")
        ends = ratio(machine.at_worst(), "worst")[0], ratio(machine.at_best(), "best")[0]
        return Prediction(self.case, self.family, self.unit, predicted, self.published, middle, ends, self.source,
                          self.soft,
                          self.held_out, self.precision, {"machine": machine.name, **self.configuration}, details,
                          self.limited)


# ---- networks --------------------------------------------------------------------------------------------------------

def network(program: Callable[[], Program], options: TileOptions) -> Predict:
    """Samples a second of all replicas."""
    made: list[Program] = []

    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        if not made:
            made.append(program())
        tiles = analyze(made[0], machine, options, cache)
        return tiles.samples_per_second, details(tiles)
    return predict


def details(tiles: TileProgram) -> dict[str, Any]:
    """Where the time of an update goes, and what the IPUs of a replica hold."""
    total, period = tiles.cycles_per_update, order.period(tiles.program.schedule)
    once: dict[str, int] = {}
    for step in tiles.steps:
        once[step.part] = once.get(step.part, 0) + step.phases.total
    crossing = {} if tiles.links is None else tiles.links.cycles
    full = next((s for s in period if isinstance(s, order.Repeat) and s.times > 1), None)
    found: dict[str, Any] = {"one update": f"{1e3 * tiles.seconds_per_update:.2f} ms, {total:,} cycles",
                             "phases": phases(tiles)}
    if full is not None:
        turn = order.elapsed(full.steps, once, crossing)
        ends = sum(s.times * order.elapsed(s.steps, once, crossing) for s in period if isinstance(s, order.Repeat) and s is not full)
        count = sum(s.times * s.by for s in period if isinstance(s, order.Repeat))
        found["micro-batches"] = f"{count} of {turn:,} cycles ({count * turn / total:.1%})"
        if ends:
            crossed = turn - order.elapsed(full.steps, once)
            found["crossing"] = f"{crossed:,} cycles of each turn go between IPUs ({crossed / turn:.1%})"
            beside = ends - (count - full.times) * turn
            found["fill and drain"] = f"{beside:,} cycles beside them ({beside / total:.1%})"
    together = sum(waits(tiles.collectives).values())
    if together:
        methods = " and ".join(dict.fromkeys(m for c in tiles.collectives for m in c.methods))
        most = max(c.bytes for c in tiles.collectives)
        found["between replicas"] = f"{together:,} cycles ({together / total:.2%}), {most:,} bytes an IPU, {methods}"
    if "update" in once:
        found["weight update"] = f"{once['update']:,} cycles ({once['update'] / total:.2%})"
    if tiles.ipus:
        found |= {f"IPU {i.number}": f"works {i.busy / total:.1%}, {_memory(tiles.chip, i.worst)}" for i in tiles.ipus}
    else:
        found["worst tile"] = _memory(tiles.chip, int(tiles.peak.max()))
    return found


def phases(tiles: TileProgram) -> str:
    """Shares of the steps' cycles, of all IPUs together, the largest first."""
    found = asdict(tiles.phases)
    total = max(1, sum(found.values()))
    return ", ".join(f"{name} {n / total:.0%}" for name, n in sorted(found.items(), key=lambda item: -item[1]))


def _memory(machine: Chip, nbytes: int) -> str:
    bound = machine.usable_bytes
    return f"{nbytes:,} of {bound:,} bytes" + (f": does not fit, by {nbytes / bound - 1:.1%}" if nbytes > bound else "")


# ---- products ---------------------------------------------------------------------------------------------------------------

def matmul(m: int, k: int, n: int, precision: str, machine: Chip, cache: PlanCache) -> TileProgram:
    """[m, k] times [k, n], operands on the chip."""
    options = TileOptions(available_memory_proportion=0.6, precision=precision)
    return analyze(matmul_program(m, n, k), machine, options, cache)


def product(m: int, k: int, n: int, precision: str, cycles: bool = False) -> Predict:
    """TFLOP/s of one product, or its cycles."""
    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        tiles = matmul(m, k, n, precision, machine, cache)
        step = next(s for s in tiles.steps if s.work.flops)
        rate = 2e-12 * m * k * n / tiles.phases.total * machine.clock_hz
        share = rate * 1e12 / machine.peak_flops("float16" if precision.startswith("16") else "float32")
        return (float(tiles.phases.total) if cycles else rate), {
            "share of the peak": f"{share:.0%}", "splits": dict(step.plan.splits), "serial": dict(step.plan.serial),
            "phases": phases(tiles)}
    return predict


def square(precision: str, sizes: range = MATMUL_SIZES) -> Predict:
    """TFLOP/s of the square product that is fastest of those that fit; of other constants, of the same."""
    best: dict[str, int] = {}

    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        rates = {}
        for n in [best["size"]] if best else sizes:
            tiles = matmul(n, n, n, precision, machine, cache)
            if best or tiles.fits:
                rates[n] = 2e-12 * n ** 3 / tiles.phases.total * machine.clock_hz
        n = best["size"] = max(rates, key=lambda n: rates[n])
        peak = machine.peak_flops("float16" if precision.startswith("16") else "float32") / 1e12
        return rates[n], {"best size": n, "peak": f"{peak:.1f} TFLOP/s", "share of the peak": f"{rates[n] / peak:.0%}"}
    return predict


def triad(elements: int) -> Predict:
    """TFLOP/s of a vector plus a number times another, all of them on the tiles."""
    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        tiles = analyze(triad_program(elements), machine, TileOptions(), cache)
        return 2e-12 * elements / tiles.phases.total * machine.clock_hz, {"phases": phases(tiles)}
    return predict


def on_tiles(rows: int) -> Predict:
    """TFLOP/s of all tiles, each of which multiplies [rows, 16] by [16, 16] of its own in float16: a vertex, and its
    start."""
    def predict(machine: Chip, cache: PlanCache) -> tuple[float, dict[str, Any]]:
        unit = machine.matrix["float16.float16"]
        cycles = float(vertex.amp(machine, unit, 2, "float16", rows, 1, 16, 16, 1, 1, 1)) + machine.launch_cycles
        rate = 2e-12 * rows * 256 * machine.tiles * machine.clock_hz / cycles
        return rate, {"cycles": cycles}
    return predict


def predictions(lines: Iterable[Line]) -> Iterator[Prediction]:
    """Of lines, one after the other, with their plans shared."""
    cache: PlanCache = {}
    memo: Memo = {}
    for line in lines:
        yield line.run(cache, memo)
