"""What a program takes in energy, by operator and category, as bounds (`hardware.energy`).

Counted is what is known of a program: useful operations; bytes that vertices read and write in tile memory; bytes of
exchange, as if each tile of an operator received what the one does that receives most; bytes over links, to streaming
memory and to the host; and the time. Operators are counted as often as an update runs them, those of branches and
loops as their cycles are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...graph.work import Contraction, Gather
from ...program import schedule as order
from ...program.program import Program
from ..hardware.chip import ITEMSIZE, Chip
from ..hardware.energy import Bounds
from ..hardware.io import Transfer
from ..plans.plan import TileOptions, TileStep
from ..plans.spread import operand_elements
from ..program.schedule import MemorySchedule
from .ipus import Ipu, Links
from .links import Collective, collective
from .sharding import Shares

ON_TILES = ("arithmetic", "tile memory", "exchange")
BESIDE = ("links", "streaming memory", "host", "idle")
CATEGORIES = (*ON_TILES, *BESIDE)
_BESIDE = {"links": "link_byte", "streaming memory": "streaming_byte", "host": "host_byte", "idle": "idle_watts"}
"""The entry of a chip's energy by which each is priced."""


@dataclass(frozen=True)
class Consumption:
    """Joules of one weight update (inference: one micro-batch) of all replicas, as (least, most).

    by_step: of each operator in turn what it takes of each of `ON_TILES`, float64[ON_TILES, steps, 2]. categories: of
    all, by `CATEGORIES`; those of `ON_TILES` are the operators' sums. uncounted: what the program does and nothing is
    known of. total: least, and most, of what is counted. board: at the published power of the IPUs
    with their boards, everything included; None where none is. samples, seconds: of that update.
    """

    by_step: np.ndarray
    categories: Mapping[str, Bounds]
    uncounted: tuple[str, ...]
    board: Bounds | None
    samples: int
    seconds: float

    @functools.cached_property
    def steps(self) -> list[Mapping[str, Bounds]]:
        """Of each operator in turn, by `ON_TILES`."""
        return [dict(zip(ON_TILES, map(tuple, each), strict=True)) for each in self.by_step.swapaxes(0, 1).tolist()]

    @property
    def total(self) -> Bounds:
        return _sum(self.categories.values())

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Between which it lies: at least what is counted takes at least; at most what the board takes, or all parts,
        where none is left out. None: nothing bounds it from above."""
        tops = [*([] if self.board is None else [self.board[1]]), *([] if self.uncounted else [self.total[1]])]
        return (min(self.total[0], *tops), min(tops)) if tops else None

    @property
    def per_sample(self) -> tuple[float, float] | None:
        """`bounds` of one sample."""
        return (
            None
            if self.bounds is None
            else (self.bounds[0] / max(1, self.samples), self.bounds[1] / max(1, self.samples))
        )

    @property
    def delay(self) -> tuple[float, float] | None:
        """Energy-delay product of one sample, joules times seconds: `per_sample` times the seconds between samples."""
        each = self.seconds / max(1, self.samples)
        return None if self.per_sample is None else (self.per_sample[0] * each, self.per_sample[1] * each)


class Planned(Protocol):
    """What is asked of a `TileProgram`."""

    program: Program
    chip: Chip
    options: TileOptions
    steps: list[TileStep]
    rearranged: list[int]
    transfers: list[Transfer]
    seconds_per_update: float
    streaming_cycles: int
    memory_schedule: MemorySchedule
    ipus: list[Ipu]
    links: Links | None
    collectives: list[Collective]
    shares: Shares
    facts: dict[str, Any]

    @property
    def samples_per_update(self) -> int: ...


def consumption(tiled: Planned, ipus: int) -> Consumption:
    """Price a program that is planned. ipus: of all replicas."""
    known, replicas = tiled.chip.energy, tiled.options.replicas
    uncounted: set[str] = set()

    def priced(name: str, bounds: Bounds | None, amount: float) -> Bounds:
        if bounds is None and amount:
            uncounted.add(name)
        return _times(bounds, amount)

    dtypes, amounts = _amounts_of(tiled)
    by_step = np.zeros((len(ON_TILES), len(tiled.steps), 2))
    for dtype in np.unique(dtypes):
        of = np.flatnonzero(dtypes == dtype)
        each = known.operation.get(str(dtype)), known.tile_byte, known.exchange_byte
        for i, (name, bounds) in enumerate(zip(ON_TILES, each, strict=True)):
            priced(name, bounds, amounts[i, of].any())
            by_step[i, of] = np.multiply.outer(amounts[i, of] * replicas, bounds or (0.0, 0.0))
    beside = {
        "links": _linked(tiled) * replicas,
        "streaming memory": _streamed(tiled) * replicas,
        "host": float(sum(t.nbytes * t.repeats for t in tiled.transfers)) * replicas,
        "idle": tiled.seconds_per_update * ipus,
    }
    categories = {name: _sum((a, b) for a, b in own) for name, own in zip(ON_TILES, by_step.tolist(), strict=True)}
    categories |= {name: priced(name, getattr(known, _BESIDE[name]), amount) for name, amount in beside.items()}
    return Consumption(
        by_step,
        categories,
        tuple(n for n in CATEGORIES if n in uncounted),
        None if known.board_watts is None else _times(known.board_watts, tiled.seconds_per_update * ipus),
        tiled.samples_per_update,
        tiled.seconds_per_update,
    )


def _times(bounds: Bounds | None, amount: float) -> Bounds:
    return (0.0, 0.0) if bounds is None else (bounds[0] * amount, bounds[1] * amount)


def _sum(bounds: Iterable[Bounds]) -> Bounds:
    pairs = list(bounds)
    return math.fsum(p[0] for p in pairs), math.fsum(p[1] for p in pairs)


def _amounts_of(tiled: Planned) -> tuple[np.ndarray, np.ndarray]:
    """What each step computes in, and its `_amounts`, float64[ON_TILES, steps]."""
    if "amounts" not in tiled.facts:
        found = [_amounts(step, moved, tiled.chip) for step, moved in zip(tiled.steps, tiled.rearranged, strict=True)]
        amounts = np.array([[float(each[name]) for each in found] for name in ON_TILES])
        tiled.facts["amounts"] = np.array([_dtype(step) for step in tiled.steps]), amounts
    made: tuple[np.ndarray, np.ndarray] = tiled.facts["amounts"]
    return made


def _dtype(step: TileStep) -> str:
    """What an operator computes in."""
    work = step.work
    first = work.inputs[0] if isinstance(work, Contraction) and work.inputs else None
    return (first or work.outputs[0]).dtype if work.outputs else "float32"


def _amounts(step: TileStep, moved: int, chip: Chip) -> dict[str, float]:
    """Operations, bytes of tile memory and bytes of exchange of an operator, as often as an update runs it."""
    often = step.times * step.repeats
    exchanged = (step.plan.exchange_bytes + moved) * step.plan.tiles if step.plan.vertex != "none" else 0
    return {
        "arithmetic": step.flops,
        "tile memory": (_read_and_written(step, chip) + 2.0 * exchanged) * often,
        "exchange": float(exchanged * often),
    }


def _read_and_written(step: TileStep, chip: Chip) -> float:
    """Bytes that an operator's vertices load and store; what is exchanged is loaded and stored besides.

    Element by element each operand once. A matrix unit loads an input for every `units` products that it is used in,
    and loads and stores a partial sum for every `k_grain` that are added to it; a vector instruction loads both
    operands of a product.
    """
    work = step.work
    if not work.points or step.plan.vertex == "none":       # another view of the same bytes
        return 0.0
    sizes = {a.name: a.size for a in work.axes}
    results = sum(float(operand_elements(o, sizes)) * ITEMSIZE[o.dtype] for o in work.outputs)
    if isinstance(work, Gather):
        return 2 * results
    if not isinstance(work, Contraction):
        return results + sum(
            float(operand_elements(o, sizes)) * ITEMSIZE[o.dtype] for o in work.inputs if o is not None
        )
    size = ITEMSIZE[_dtype(step)]
    unit = chip.unit(_dtype(step), step.plan.partials) if step.plan.vertex in ("amp", "slic") else None
    if unit is None:
        return 2.0 * work.points * size + results
    return work.points * (size / unit.units + 2 * ITEMSIZE[step.plan.partials] / unit.k_grain) + results


def _linked(tiled: Planned) -> float:
    """Bytes that the IPUs of a replica give to others in an update."""
    times = order.times(order.period(tiled.program.schedule))
    crossing = {} if tiled.links is None else tiled.links.bytes
    gathered, replicas = 0, tiled.shares.replicas
    for storage in tiled.memory_schedule.storages:
        for i in storage.loads if storage.share else ():
            whole = storage.share * replicas * storage.itemsize
            step = tiled.steps[i]
            found = collective("all-gather", whole, replicas, tiled.chip, ipus=max(1, len(tiled.ipus)))
            gathered += found.sent * step.repeats * step.times
    return float(
        sum(c.sent * times[c.part] for c in tiled.collectives)
        + sum(n * times.get(part, 1) for part, n in crossing.items())
        + gathered
    )


def _streamed(tiled: Planned) -> float:
    """Bytes that pass between the IPUs of a replica and streaming memory in an update."""
    return tiled.streaming_cycles / tiled.chip.clock_hz * tiled.chip.streaming_bytes_per_second
