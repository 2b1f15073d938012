"""What each tile has to do of an operator, and from which tensors come the bytes that it is sent; both from the
plan."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph import Value
from ...graph.work import Contraction, Operand, Work
from ..plans.mapping import axis_step
from ..plans.plan import OpPlan, TileStep
from ..plans.spread import aligned, extents, item_bytes, operand_elements

if TYPE_CHECKING:
    from ..hardware.chip import Chip

OWN = -1
"""In place of a variable: partial results, which the tiles of the operator send each other."""


def points(work: Work, plan: OpPlan, tiles: int) -> np.ndarray:
    """Points of an operator's index space that each tile computes, int64[tiles].

    Axes are cut by the rule of `tiles.plans.plan`: in serial pieces first, each of these in parallel parts; axes that
    are not cut count once. Where an operator stays on the tiles of an input, these are the elements there. An axis
    that is none of the work's, and of which its notes say no size, is cut in equal parts.
    """
    if plan.layout is not None:
        return np.asarray(plan.layout.elements_per_tile())
    sizes = {**work.notes, **{a.name: a.size for a in work.axes}}
    volume = np.ones(1, np.int64)
    for axis, parts in plan.splits.items():
        extents_of = _parts(sizes.get(axis, parts), parts, plan.serial.get(axis, 1), plan.grains.get(axis, 1))
        volume = (volume[:, None] * extents_of).reshape(-1)
    tile = (plan.start_tile + np.arange(len(volume))) % tiles
    found = np.zeros(tiles, np.int64)
    np.add.at(found, tile, volume)
    return found


def key(work: Work, plan: OpPlan) -> Any:
    """What makes the points of two operators the same: the place of an input, or how axes are cut."""
    if plan.layout is not None:
        return plan.layout
    sizes = {**work.notes, **{a.name: a.size for a in work.axes}}
    cuts = tuple(
        (parts, sizes.get(axis), plan.serial.get(axis, 1), plan.grains.get(axis, 1))
        for axis, parts in plan.splits.items()
    )
    return "points", cuts, plan.start_tile


def _parts(size: int, parts: int, serial: int, grain: int) -> np.ndarray:
    """What each part of an axis has of all its serial pieces, int64[parts]."""
    piece = axis_step(size, serial, grain)
    starts = np.minimum(size, np.arange(serial, dtype=np.int64) * piece)
    lengths, step = np.minimum(size, starts + piece) - starts, axis_step(piece, parts, grain)
    return np.clip(lengths[None, :] - np.arange(parts, dtype=np.int64)[:, None] * step, 0, step).sum(1)


def received(step: TileStep, moved: int, chip: Chip) -> list[tuple[Value | None, int]]:
    """Bytes that the worst tile is sent in one execution, all turns of loops included: of each input, and of partial
    results (None). They add up to the plan's `exchange_bytes` and what rearrangements bring (`moved`), for each turn.

    What a plan counts as one number is shared out: partial results have the bytes of their exchange, as far as inputs
    leave room for them; inputs that the plan brings have the rest, and those that are rearranged have `moved`, each in
    proportion to the bytes of it that the tile reads.
    """
    plan, work = step.plan, step.work
    reads = _reads(step)
    brought = {v: n for v, (n, o) in reads.items() if isinstance(work, Contraction) or not aligned(o, plan.splits)}
    if not brought and not plan.gathered and plan.vertex != "reduce":
        brought = {v: n for v, (n, _) in reads.items()}
    room = max(0, plan.exchange_bytes - sum(brought.values()))
    partial = min(room, math.ceil(plan.gathered * chip.exchange_bytes_per_cycle)) if brought else plan.exchange_bytes
    beside = {v: n for v, (n, _) in reads.items() if v not in brought} or {v: n for v, (n, _) in reads.items()}
    found: dict[Value | None, int] = {None: partial} if partial else {}
    for total, weights in ((plan.exchange_bytes - partial, brought), (moved, beside)):
        for value, nbytes in _shared_out(total, weights).items():
            found[value] = found.get(value, 0) + nbytes
    return [(value, nbytes * step.times) for value, nbytes in found.items() if nbytes]


def _reads(step: TileStep) -> dict[Value, tuple[int, Operand]]:
    """Of each input the bytes that the worst tile reads, and how it is indexed."""
    extent = extents(step.work, step.plan.splits, step.plan.grains)
    found: dict[Value, tuple[int, Operand]] = {}
    for value, operand in zip(step.node.inputs, step.work.inputs, strict=False):
        if value is not None and operand is not None:
            before = found[value][0] if value in found else 0
            found[value] = before + operand_elements(operand, extent) * item_bytes(operand), operand
    return found


def _shared_out(total: int, weights: Mapping[Value, int]) -> dict[Value | None, int]:
    """A number in whole shares that add up to it; to nobody where nobody has a weight."""
    whole = sum(weights.values())
    if not whole:
        return {None: total} if total else {}
    shares: dict[Value | None, int] = {}
    seen = given = 0
    for value, weight in weights.items():
        seen += weight
        shares[value] = total * seen // whole - given
        given += shares[value]
    return shares
