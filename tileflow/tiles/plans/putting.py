"""Plans for tables that are written by index: rows or elements put onto what a table holds, or combined with it.

Cut are the table's own axes, along which nothing meets; its rows, so that each tile walks over all that comes and takes
what is for its own; and the lookups: then each tile has a table of its own, and these are reduced in stages. Where the
last of several counts, a tile writes beside each element which of all updates it was, and of two the later one is kept.
A plan that cuts only the table's own axes is priced as any reduction (`spread.reduce_at`); one that
cuts more, by the same cycles for what is put, with those for what is not (PopLibs' multiUpdate, as in
`hardware.vertex`), for what several tiles need alike and for the partial tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...graph.work import Operand, Scatter
from ..hardware import vertex
from ..hardware.chip import Chip
from .cost import reduction_rounds
from .lookup import ROWS, named_table, table_axes
from .mapping import Mapping, axis_step
from .plan import OpPlan, Phases
from .spread import (
    Splits,
    aligned,
    choose,
    cut_evenly,
    exchange_cycles,
    extents,
    item_bytes,
    ladder,
    least_bytes,
    operand_elements,
    plan_of,
    reduce_at,
    splits_along,
    vector_grains,
    worker_cycles,
)

MISS = 5
"""Cycles of looking at an index that is of another tile's rows (getMultiUpdateOpCycleEstimate,
popops/PerformanceEstimation.cpp)."""
LATER = 6
"""Cycles of keeping the later of two vectors: their elements and numbers loaded, one of each stored; our estimate."""


def plan_put(work: Scatter, chip: Chip, bound_bytes: int | None = None, apart: bool = True) -> OpPlan:
    """The plan of a Scatter onto a table, on all tiles of a chip: fewest cycles within the bound, else the fewest
    temporary bytes.

    Args:
        apart: rows and lookups are cut, too.
    """
    if not work.points:
        return OpPlan({}, "none", Phases(), 0, bound_bytes=bound_bytes)
    cuts = list(_cuts(work, chip, apart))
    room = [cut for cut in cuts if 2 * _table_bytes(work, *cut) <= chip.usable_bytes]
    return choose([put_at(work, chip, splits, grains) for splits, grains in room or cuts], bound_bytes)


def _table_bytes(work: Scatter, splits: Splits, grains: Splits) -> int:
    """Of a tile's part of the table, as it was and as it becomes the tile holds both."""
    extent = extents(work, splits, grains)
    return (
        axis_step(work.notes[ROWS], splits.get(ROWS, 1))
        * math.prod(extent[a.name] for a in table_axes(work)[1])
        * item_bytes(work.outputs[0])
    )


def put_at(work: Scatter, chip: Chip, splits: Splits, grains: Splits, start_tile: int = 0) -> OpPlan:
    """The plan with given splits."""
    lookups, lanes = table_axes(work)
    by_row, depth = splits.get(ROWS, 1), math.prod(splits.get(a.name, 1) for a in lookups)
    if by_row == depth == 1:
        return reduce_at(work, chip, splits, grains, start_tile)
    extent = extents(work, splits, grains)
    extent[ROWS] = axis_step(work.notes[ROWS], by_row)
    looked, width = (math.prod(extent[a.name] for a in axes) for axes in (lookups, lanes))
    item = max(item_bytes(o) for o in (*work.inputs, *work.outputs) if o is not None)
    hits = -(-looked // by_row)
    index = work.inputs[1]
    assert index is not None
    own = {a.name for a in lanes} & set(index.dims)  # elements go their own ways: workers share them
    passed = (looked - hits) if not own else -(-(looked - hits) * width // chip.workers)
    pair = 2 if depth > 1 and work.combine == "none" else 1  # an element alone, or with the number of its update
    compute = worker_cycles(work, hits * width * pair, item, chip, fixed=32) + chip.workers * MISS * passed
    sent = sum(
        operand_elements(o, extent) * item_bytes(o)
        for i, x in enumerate(work.inputs)
        if x is not None
        for o in [named_table(work, x, i)]
        if not aligned(o, splits)
    )
    share = table = extent[ROWS] * width
    gathered = adding = arrived = 0
    rounds, fan = reduction_rounds(chip.tiles)
    for i in range(int(rounds[depth])):
        width_of_round = int(fan[i][depth])
        share = -(-share // width_of_round)
        came = share * pair * (width_of_round - 1) * 4
        gathered, arrived = gathered + came, max(arrived, came)
        adding += (
            int(vertex.reduction(chip, "float32", share, width_of_round))
            if pair == 1
            else _later(chip, share, width_of_round)
        )
    if depth > 1:  # most tiles begin with a table of nothing
        compute += 22 + -(-table * pair * 4 // chip.vector_bytes)
    exchanges = (sent > 0) + int(rounds[depth])
    phases = Phases(compute, exchange_cycles(sent + gathered, chip), chip.sync_cycles * exchanges, 0, adding)
    temp = sent + (table * pair * 4 + arrived if depth > 1 else 0)
    return plan_of(
        work,
        splits,
        "scatter",
        phases,
        temp,
        sent + gathered,
        grains=grains,
        reduce_stages=int(rounds[depth]),
        start_tile=start_tile,
        gathered=phases.exchange - exchange_cycles(sent, chip),
    )


def _later(chip: Chip, elements: int, parts: int) -> int:
    """Cycles of keeping the latest of `parts` values of each of a tile's elements."""
    vectors = -(-elements * 4 // chip.vector_bytes)
    return chip.workers * (29 + -(-vectors // chip.workers) * LATER * (parts - 1)) + chip.launch_cycles


def put_along(work: Scatter, chip: Chip, operand: Operand, layout: Mapping) -> OpPlan | None:
    """The plan of tiles that put what they already hold; None where the layout is no split of the work's axes."""
    exact = splits_along(work, operand, layout)
    return None if exact is None else put_at(work, chip, *exact, layout.start)


def _cuts(work: Scatter, chip: Chip, apart: bool) -> Iterator[tuple[Splits, Splits]]:
    """Splits and grains: of the table's own axes for all tiles and for fewer; with them, of rows and of lookups."""
    lookups, lanes = table_axes(work)
    item = max(item_bytes(o) for o in (*work.inputs, *work.outputs) if o is not None)
    grains, height = vector_grains(work.axes, item), work.notes[ROWS]
    seen = set()

    def fresh(splits: Splits) -> Iterator[tuple[Splits, Splits]]:
        key = tuple(splits.items())
        if key not in seen:
            seen.add(key)
            yield splits, {a: g for a, g in grains.items() if a in splits}

    most = min(chip.tiles, max(1, -(-work.points * item // least_bytes(work, chip, item))))
    for shift in range(most.bit_length()):
        yield from fresh(cut_evenly(lanes, grains, most >> shift))
    for by_row in ladder(min(height, chip.tiles)) if apart else ():
        rows = -(-height // axis_step(height, by_row))
        for by_lookup in ladder(chip.tiles // rows):
            across = cut_evenly(lookups, grains, by_lookup)
            used = rows * math.prod(across.values())
            yield from fresh(
                ({ROWS: rows} if rows > 1 else {}) | across | cut_evenly(lanes, grains, chip.tiles // used)
            )
