"""Plans for lookups and their gradients: rows of a table picked, or added to, by index.

A table is far larger than what is looked up, so where it lives is decided with the plan, not after it. A plan is priced with what the table's
place costs beyond the lookup itself (`Kept`): the element-wise steps of the weight update, which run where the table and its moments
lie, and the bytes that the fullest tile holds of them beyond an even share, which count as the temporaries do against their bound. Where
the temporaries of all lookups at once are too many, they are done some after the other: that costs barriers and no memory.

Cycle formulas are PopLibs' (popops DynamicSlice: multiSlice, multiUpdateAdd).
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...graph.work import Axis, Gather, Operand, Scatter, Work
from ..hardware import vertex
from ..hardware.chip import Chip
from .mapping import axis_step
from .plan import OpPlan, Phases, Vertex
from .spread import Splits, cut_evenly, exchange_cycles, item_bytes, plan_of, stages, vector_grains

ROWS = "rows"
"""The indexed dimension of a table: an axis of the plan, its size in `Work.notes`."""

FEW_ELEMENTS = 1 << 16
"""Looked up, or added: up to so many, fewer tiles may be quicker than all."""

EVEN_ENOUGH = 1 / 16
"""Of an even share: what a tile may hold beyond it and not be uneven. Parts are whole vectors, so few partitions are quite even."""


@dataclass(frozen=True)
class Kept:
    """What lies where a lookup's table does.

    nbytes: of all tensors that have the table's place, per element of the table. cycles: per element on the fullest tile, of the steps that
    run in that place; for as often as the lookup runs once.
    """

    nbytes: int = 0
    cycles: float = 0.0


NOTHING = Kept()


@dataclass(frozen=True)
class _TablePartition:
    """A partition. rows: of the table on a tile; lookups and width (elements of a row): on a tile in one step; across: parts of the lookups."""

    splits: Splits
    grains: Splits
    serial: Splits
    rows: int
    lookups: int
    width: int
    across: int

    @property
    def steps(self) -> int:
        return math.prod(self.serial.values())

    @property
    def tiles(self) -> int:
        return math.prod(self.splits.values())

    @property
    def held(self) -> int:
        """Elements of the table on the fullest tile."""
        return -(-self.rows * self.width // self.across)


class _Price(NamedTuple):
    """Of a partition. received, gathered: bytes of operands and of partial results, all steps together; temp: bytes on a tile; others: cycles."""

    cycles: int
    compute: int
    sync: int
    adding: int
    received: int
    gathered: int
    temp: int
    stages: int


def plan_lookup(work: Gather | Scatter, chip: Chip, bound_bytes: int | None = None, kept: Kept = NOTHING) -> OpPlan:
    """The plan of a Gather or Scatter on all tiles of a chip.

    Fewest cycles, those of `kept` with them, of the plans whose temporaries and uneven bytes together are within the bound, so that a lower
    bound never buys fewer temporaries with more of the other; else the most even of those whose temporaries are; else the fewest temporaries,
    marked as not fitting.

    Args:
        bound_bytes: what temporaries may take on a tile; None: anything.
    """
    if not work.points:
        return OpPlan({}, "none", Phases(), 0, bound_bytes=bound_bytes)
    price = _scatter if isinstance(work, Scatter) else _gather
    even = -(-work.notes.get(ROWS, 1) * math.prod(a.size for a in table_axes(work)[1]) // chip.tiles)
    most = math.inf if bound_bytes is None else bound_bytes
    found: list[tuple[_Price, float, float, _TablePartition]] = []
    for cut in _cuts(work, chip):
        uneven = kept.nbytes * max(0.0, cut.held - (1 + EVEN_ENOUGH) * even)
        for c in _slower(work, cut):
            made = price(work, chip, c)
            if made.temp + uneven <= most or (uneven > most >= made.temp):
                break
        found.append((made, made.cycles + kept.cycles * cut.held, uneven, c))
    within = [f for f in found if f[0].temp + f[2] <= most]
    if within:
        best, _, _, cut = min(within, key=lambda f: (f[1], f[2], f[0].temp, f[3].tiles))
    else:
        best, _, _, cut = min(found, key=lambda f: (f[0].temp > most and f[0].temp, f[2], f[1], f[3].tiles))
    kind: Vertex = "scatter" if isinstance(work, Scatter) else "gather"
    exchange = exchange_cycles(best.received + best.gathered, chip)
    phases = Phases(best.compute, exchange, best.sync, 0, best.adding)
    grains = {a: g for a, g in cut.grains.items() if a in cut.splits}
    return plan_of(work, cut.splits, kind, phases, best.temp, best.received + best.gathered, grains=grains, serial=cut.serial,
                   reduce_stages=best.stages, notes={ROWS: cut.rows}, gathered=exchange - exchange_cycles(best.received, chip),
                   bound_bytes=bound_bytes, fits=best.temp <= most)


def table_axes(work: Work) -> tuple[list[Axis], list[Axis]]:
    """Axes of the looked-up positions, and of what is beside or within a row: those that the table has."""
    table = work.outputs[0] if isinstance(work, Scatter) else work.inputs[0]
    index = work.inputs[1]
    assert table is not None
    assert index is not None
    positions = {d for d in index.dims if isinstance(d, str)} - set(table.dims)
    return [a for a in work.axes if a.name in positions], [a for a in work.axes if a.name not in positions]


def named_table(work: Work, operand: Operand, index: int, output: bool = False) -> Operand:
    """Input or output `index` of a work; of a lookup's or scatter's table the indexed dimension is named."""
    table = (output or work.onto) if isinstance(work, Scatter) else isinstance(work, Gather) and not output
    if index or not table:
        return operand
    return dataclasses.replace(operand, dims=tuple(ROWS if d is None else d for d in operand.dims))


def _cuts(work: Work, chip: Chip) -> Iterator[_TablePartition]:
    """Partitions over rows, positions and the row's own axes, all lookups at once. Of few elements also those that a
    chip of half the tiles looks at; more of them are quicker on all."""
    positions, row = table_axes(work)
    table = work.outputs[0] if isinstance(work, Scatter) else work.inputs[0]
    assert table is not None
    height, grains = work.notes.get(ROWS, 1), vector_grains(work.axes, item_bytes(table))
    seen = set()
    halved = [max(1, chip.tiles // 2)] if work.points <= FEW_ELEMENTS else []
    for tiles in (chip.tiles, *halved):
        for by_row, by_position in ((r, p) for r in _powers(min(height, tiles)) for p in _powers(tiles // r)):
            across = cut_evenly(positions, grains, by_position)
            others = across | cut_evenly(row, grains, tiles // by_row // by_position)
            for rows in sorted({by_row, min(height, tiles // math.prod(others.values())) if by_row > 1 else 1}):
                splits = ({ROWS: rows} if rows > 1 else {}) | others
                key = tuple(splits.items())
                if key not in seen:
                    seen.add(key)
                    width = math.prod(_extent(a, splits, grains, {}) for a in row)
                    lookups = math.prod(_extent(a, splits, grains, {}) for a in positions)
                    yield _TablePartition(splits, grains, {}, -(-height // rows), lookups, width,
                                          math.prod(across.values()))


def _slower(work: Work, cut: _TablePartition) -> Iterator[_TablePartition]:
    """The partition with its lookups at once, then in twice as many steps each time."""
    positions, _ = table_axes(work)
    yield cut
    room = tuple(Axis(a.name, _extent(a, cut.splits, cut.grains, {})) for a in positions)
    steps = 1
    while steps < cut.lookups:
        steps = min(2 * steps, cut.lookups)
        serial = cut_evenly(room, {}, steps)
        yield dataclasses.replace(cut, serial=serial, lookups=math.prod(_extent(a, cut.splits, cut.grains, serial) for a in positions))


def _extent(axis: Axis, splits: Splits, grains: Splits, serial: Splits) -> int:
    """Of an axis on the worst tile in one step (exact/boxes.py cuts so)."""
    steps, grain = serial.get(axis.name, 1), grains.get(axis.name, 1) if axis.name in splits else 1
    size = axis.size // steps if axis.size % steps == 0 else axis_step(axis.size, steps, grain)
    return min(size, axis_step(size, splits.get(axis.name, 1), grain))


def _powers(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    return sorted({1 << i for i in range(max(1, most).bit_length())} | {max(1, most)})


def _gather(work: Work, chip: Chip, cut: _TablePartition) -> _Price:
    """Each tile looks up all its positions in its rows; a second stage selects among tiles that split the rows."""
    item, depth = item_bytes(work.outputs[0]), cut.splits.get(ROWS, 1)
    each = -(-cut.lookups // chip.workers)
    hits = -(-each // depth)
    compute = vertex.lookup(chip, item, hits, each - hits, cut.width)
    slices = cut.lookups * cut.width * item
    table = cut.rows * cut.width * item if cut.across > 1 else 0
    adding, gathered = 0, 0
    if depth > 1:
        adding, gathered = int(vertex.reduction(chip, "float32", -(-cut.lookups * cut.width // depth), depth)), slices
    received, gathered = table + cut.steps * cut.lookups * 4, cut.steps * gathered
    compute, adding, sync = cut.steps * compute, cut.steps * adding, cut.steps * chip.sync_cycles * (1 + (depth > 1))
    temp = table + cut.lookups * 4 + (2 * slices if depth > 1 else 0)
    cycles = compute + adding + sync + exchange_cycles(received + gathered, chip)
    return _Price(cycles, compute, sync, adding, received, gathered, temp, min(1, stages(depth)))


def _scatter(work: Work, chip: Chip, cut: _TablePartition) -> _Price:
    """Each tile adds the updates of its positions to its rows; tables of tiles that split the positions are added in stages."""
    item, by_row, depth = item_bytes(work.outputs[0]), cut.splits.get(ROWS, 1), cut.across
    hits = -(-cut.lookups // (by_row * chip.workers))
    table = cut.rows * cut.width
    zero = 22 + -(-table * item // chip.vector_bytes)
    compute = zero + cut.steps * vertex.add_rows(chip, item, hits, max(0, cut.lookups - hits), cut.width)
    sent = cut.lookups * (4 + cut.width * item)
    adding, gathered, rounds = 0, 0, stages(depth)
    each = math.ceil(depth ** (1 / rounds)) if rounds else 1
    for _ in range(rounds):
        gathered += table * 4
        adding += int(vertex.reduction(chip, "float32", -(-table // each), each))
    received, sync = cut.steps * sent, chip.sync_cycles * (cut.steps + rounds)
    cycles = compute + adding + sync + exchange_cycles(received + gathered, chip)
    return _Price(cycles, compute, sync, adding, received, gathered, sent + (2 * table * 4 if depth > 1 else 0), rounds)


__all__: Sequence[str] = ["NOTHING", "ROWS", "Kept", "named_table", "plan_lookup", "table_axes"]
