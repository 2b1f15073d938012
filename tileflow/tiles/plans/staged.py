"""Plans for operators with an axis whose parts are computed first, and put together then: running sums, the best of an
axis, votes of trees.

The parts of an axis that is cut are worked on as the whole is. Then, by what `graph.work.Staged` says,
- of a *scan* every tile is sent what each part comes to, adds up those before its own, and takes the sum in: a second
  pass over its elements;
- the best of the parts are *selected* from in stages, a group of tiles at a time, each on one tile;
- partial results are *added* in stages, as those of a reduction.
"""

from __future__ import annotations

import math

from ...graph.work import Staged
from ..hardware import vertex
from ..hardware.chip import Chip
from .cost import reduction_rounds
from .mapping import axis_step
from .plan import OpPlan, Phases
from .spread import (
    Splits,
    choose,
    cut_evenly,
    exchange_cycles,
    extents,
    item_bytes,
    ladder,
    operand_elements,
    plan_of,
    plan_spread,
    received,
    vector_grains,
    worker_cycles,
)

SECOND_PASS = 2
"""Cycles of a worker for a vector that is loaded, combined with a number, and stored."""


def plan_staged(work: Staged, chip: Chip, bound_bytes: int | None = None) -> OpPlan:
    """The plan on all tiles of a chip, the axis cut or whole: fewest cycles within the bound, else the fewest temporary
    bytes."""
    if not work.points:
        return OpPlan({}, "none", Phases(), 0, bound_bytes=bound_bytes)
    parallel, axis = [a for a in work.axes if a.kind == "parallel"], work.staged
    grains = vector_grains(work.axes, max(item_bytes(o) for o in work.outputs))
    plans: dict[tuple[tuple[str, int], ...], OpPlan] = {(): plan_spread(work, chip)}
    for asked in ladder(min(chip.tiles, -(-axis.size // grains.get(axis.name, 1)))):
        parts = -(-axis.size // axis_step(axis.size, asked, grains.get(axis.name, 1)))
        splits = cut_evenly(parallel, grains, chip.tiles // parts) | {axis.name: parts}
        if parts > 1 and tuple(splits.items()) not in plans:
            plans[tuple(splits.items())] = staged_at(
                work, chip, splits, {a: g for a, g in grains.items() if a in splits}
            )
    return choose(list(plans.values()), bound_bytes)


def staged_at(work: Staged, chip: Chip, splits: Splits, grains: Splits) -> OpPlan:
    """The plan with given splits, the staged axis among them."""
    axis, extent = work.staged.name, extents(work, splits, grains)
    parts, item = splits[axis], max(item_bytes(o) for o in work.outputs)
    compute = worker_cycles(work, math.prod(extent.values()), item, chip)
    sent = received(work, splits, extent)
    if work.joined == "scan":
        lanes = math.prod(n for a, n in extent.items() if a != axis)
        rounds, gathered = 1, (parts - 1) * lanes * item
        added = _carried(chip, work.outputs[0].dtype, lanes, parts)
        vectors = -(-math.prod(extent.values()) * item // chip.vector_bytes)
        compute += chip.workers * (29 + -(-vectors // chip.workers) * SECOND_PASS) + chip.launch_cycles
        temp = gathered
    else:
        counts, fan = reduction_rounds(chip.tiles)
        rounds, gathered, added, temp = int(counts[parts]), 0, 0, 0
        kept = sum(operand_elements(o, extent) * item_bytes(o) for o in work.outputs)
        elements = share = max(operand_elements(o, extent) for o in work.outputs)
        for i in range(rounds):
            width = int(fan[i][parts])
            share = -(-share // width)
            came = kept * (width - 1) if work.joined == "select" else share * (width - 1) * 4
            gathered, temp = gathered + came, max(temp, came)
            added += (
                worker_cycles(work, elements * width, item, chip)
                if work.joined == "select"
                else int(vertex.reduction(chip, "float32", share, width))
            )
        temp += kept
    exchanges = (sent > 0) + rounds
    phases = Phases(compute, exchange_cycles(sent + gathered, chip), chip.sync_cycles * exchanges, 0, added)
    return plan_of(
        work,
        splits,
        "map",
        phases,
        sent + temp,
        sent + gathered,
        grains=grains,
        reduce_stages=rounds,
        gathered=phases.exchange - exchange_cycles(sent, chip),
    )


def _carried(chip: Chip, dtype: str, lanes: int, parts: int) -> int:
    """Cycles of adding up what the parts come to: lane by lane, or by each worker for some of the parts and by one for
    all workers."""
    shared = vertex.reduction(
        chip,
        dtype,
        chip.workers * 2 * chip.vector(dtype) * -(-lanes // (2 * chip.vector(dtype))),
        -(-parts // chip.workers),
    )
    return int(
        min(vertex.reduction(chip, dtype, lanes, parts), shared + vertex.reduction(chip, dtype, lanes, chip.workers))
    )
