"""What tiles must send so that an operator has its inputs: of what a tile owns, all that another tile reads, each element once.

A tile drives its wire with one element at a time, and however many tiles listen, it is sent once. So a tile sends each element that it
owns and somebody else reads, and keeps those that nobody else reads. Counted are elements, per tile, from two facts: the tensor's
Mapping (who owns it) and the operator's plan (who reads what). Where both are grids over the same dimensions the count is exact, element by
element; where a block is shared by several tiles or lies in another shape, all that a tile owns and anybody reads counts as sent, which is at
most too much.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.work import Move, Operand, Window, Work
from ..plans.mapping import Mapping, axis_step, offsets, tile_strides
from ..plans.plan import OpPlan

Array = np.ndarray
LARGEST = 1 << 22
"""Elements: of larger tensors that lie in another shape, each tile sends its share of what is read."""
Ranges = list[tuple[Array, Array]]
"""Per dimension where a box begins and ends, int64[boxes] each."""


@dataclass(frozen=True)
class Grid:
    """Boxes of a tensor: `tile[i]` has box i, which is [lo, hi) along each dimension."""

    tile: Array
    ranges: Ranges


def sent_elements(layout: Mapping, work: Work, operand: Operand, shape: Sequence[int], plan: OpPlan, produced: int) -> Array:
    """Elements that each tile sends of a tensor that lies by `layout` to those who read it by `plan`, int64[tiles]; not to be written to.

    Args:
        operand: how `work` indexes the tensor, whose shape is `shape`.
        produced: elements of all results. A rearrangement may read less than the whole along dimensions of which its Work does not say which
            elements; then each tile sends its share of as many.
    """
    if plan.layout is not None and plan.layout.size == math.prod(shape):
        return layout.elements_per_tile() if layout.size != plan.layout.size else _left(layout, _grid_of(plan.layout), [])
    if len(operand.dims) != len(shape) or (isinstance(work, Move) and None in operand.dims):
        return np.ceil(layout.elements_per_tile() * min(1.0, produced / math.prod(shape))).astype(np.int64)
    sizes = {a.name: a.size for a in work.axes}
    hits = [_hits(dim, size, sizes) for dim, size in zip(operand.dims, shape, strict=True)]
    several = {a for a, parts in plan.splits.items() if parts > 1} - _named(operand)
    readers = None if several else _readers(work, operand, shape, plan, layout.tiles)
    if readers is None:
        return _read(layout, tuple(shape), hits)
    return _left(layout, readers, hits, tuple(shape))


def resident_elements(layout: Mapping, work: Work, operand: Operand, shape: Sequence[int], plan: OpPlan) -> int:
    """The fewest elements, over the tiles that read a tensor, that a tile both reads and owns. Of what it owns only
    blocks that lie whole in what it reads count, so the result is a lower bound."""
    own, readers = _grid_of(dataclasses.replace(layout, shares=())), _readers(work, operand, shape, plan, layout.tiles)
    if own is None or readers is None or layout.shape != tuple(shape):
        return 0
    count = layout.share_count
    volume = np.ones(len(own.tile), np.int64)
    for lo, hi in own.ranges:
        volume = volume * (hi - lo)
    share = -(-volume // count)
    held = np.clip(volume[:, None] - np.arange(count) * share[:, None], 0, share[:, None]).reshape(-1)
    tile = ((own.tile[:, None] + offsets(layout.shares)) % layout.tiles).reshape(-1)
    block = np.repeat(np.arange(len(own.tile)), count)
    box = np.full(layout.tiles, -1)
    box[readers.tile] = np.arange(len(readers.tile))
    at = box[tile]
    inside = at >= 0
    for (lo, hi), (first, last) in zip(own.ranges, readers.ranges, strict=True):
        inside &= (lo[block] >= first[at]) & (hi[block] <= last[at])
    kept = np.bincount(tile, weights=np.where(inside, held, 0), minlength=layout.tiles)
    return int(kept[readers.tile].min())


def _named(operand: Operand) -> set[str]:
    return {n for d in operand.dims if d is not None for n in ((d.out, d.tap) if isinstance(d, Window) else (d,))}


def _hits(dim: str | Window | None, size: int, sizes: Dict[str, int]) -> Array | None:
    """Of a dimension that windows index: at i how many of the elements before i any window reads, int64[size + 1]; None
    where all are read."""
    if not isinstance(dim, Window) or dim.dilation > 1:
        return None
    last = (sizes[dim.out] - 1) * dim.stride + sizes[dim.tap] - dim.pad
    if sizes[dim.tap] >= dim.stride > 0 and dim.pad >= 0 and last >= size:
        return None
    at = (np.arange(sizes[dim.out])[:, None] * dim.stride + np.arange(sizes[dim.tap]) * dim.dilation - dim.pad).reshape(-1)
    read = np.zeros(size, np.int64)
    read[at[(at >= 0) & (at < size)]] = 1
    return np.concatenate([[0], np.cumsum(read)])


def _between(hits: Array | None, lo: Array, hi: Array) -> Array:
    """How many elements of [lo, hi) are read, by the counts of `_hits`; 0 for an empty interval."""
    hi = np.maximum(lo, hi)
    return hi - lo if hits is None else hits[hi] - hits[lo]


def _read(layout: Mapping, shape: tuple[int, ...], hits: Sequence[Array | None]) -> Array:
    """Elements that each tile owns and any tile reads, int64[tiles]."""
    if all(h is None for h in hits):
        return layout.elements_per_tile()
    own = _grid_of(layout) if layout.shape == shape else None
    if own is not None:
        return _summed(own.tile, [_between(h, lo, hi) for h, (lo, hi) in zip(hits, own.ranges, strict=True)], layout.tiles)
    if layout.size > LARGEST:
        share = math.prod(1.0 if h is None else h[-1] / n for h, n in zip(hits, shape, strict=True))
        return np.ceil(layout.elements_per_tile() * share).astype(np.int64)
    read = np.ones((), np.int64)
    for h, n in zip(hits, shape, strict=True):
        read = np.multiply.outer(read, np.ones(n, np.int64) if h is None else np.diff(h))
    before, runs = np.concatenate([[0], np.cumsum(read)]), layout.intervals()
    return np.bincount(runs[:, 0], weights=before[runs[:, 2]] - before[runs[:, 1]], minlength=layout.tiles).astype(np.int64)


def _left(layout: Mapping, readers: Grid | None, hits: Sequence[Array | None], shape: tuple[int, ...] | None = None) -> Array:
    """Elements that each tile owns and another tile reads, int64[tiles], where what is read by one tile alone is one
    box for each tile; else an upper bound (`_read`)."""
    own = None if layout.shares else _grid_of(layout)
    found = layout.elements_per_tile()
    if own is None or readers is None or len(own.ranges) != len(readers.ranges) or (shape is not None and layout.shape != shape):
        return found if shape is None else _read(layout, shape, hits)
    box = np.full(layout.tiles, -1)
    box[readers.tile] = np.arange(len(readers.tile))
    if np.count_nonzero(box >= 0) != len(readers.tile):                  # a tile reads several boxes
        return found if shape is None else _read(layout, shape, hits)
    at = box[own.tile]
    counts = [h for h in hits] or [None] * len(own.ranges)
    kept = [_between(h, np.maximum(lo, a[at]), np.minimum(hi, b[at]))
            for h, (lo, hi), (a, b) in zip(counts, own.ranges, readers.ranges, strict=True)]
    kept[0] = np.where(at >= 0, kept[0], 0)
    whole = found if shape is None else _read(layout, shape, hits)
    return np.maximum(0, whole - _summed(own.tile, kept, layout.tiles))


def _summed(tile: Array, factors: Sequence[Array], tiles: int) -> Array:
    """Products of `factors` per box, added up by tile."""
    volume = np.ones(len(tile))
    for factor in factors:
        volume = volume * factor
    return np.bincount(tile, weights=volume, minlength=tiles).astype(np.int64)


def _grid_of(mapping: Mapping) -> Grid | None:
    """The blocks of a mapping as boxes; None where tiles share blocks."""
    if mapping.shares or not mapping.cuts:
        return None
    numbers = np.arange(math.prod(c.parts for c in mapping.cuts))
    tile, ranges, left = np.full(len(numbers), mapping.start), [], len(numbers)
    for cut in mapping.cuts:
        left //= cut.parts
        at = numbers // left % cut.parts
        tile = tile + cut.offsets()[at]
        lo = np.minimum(cut.size, at * cut.step)
        ranges.append((lo, np.minimum(cut.size, lo + cut.step)))
    return Grid(tile % mapping.tiles, ranges)


def _readers(work: Work, operand: Operand, shape: Sequence[int], plan: OpPlan, tiles: int) -> Grid | None:
    """By tile the box of elements that no other tile reads; the plan splits only axes that index the tensor. None where
    those elements are no box."""
    if not operand.dims or any(plan.serial.get(n, 1) > 1 and plan.splits.get(n, 1) > 1 for n in _named(operand)):
        return None
    sizes = {a.name: a.size for a in work.axes}
    count = math.prod(plan.splits.values())
    numbers = np.arange(count)
    strides = tile_strides(plan)
    ranges: Ranges = []
    for dim, size in zip(operand.dims, shape, strict=True):
        if isinstance(dim, Window):
            found = _windows(dim, size, sizes, plan)
            if found is None:
                return None
            lo, hi = found
            name = dim.out
        elif dim is None:
            lo, hi, name = np.zeros(1, np.int64), np.full(1, size), ""
        else:
            lo, hi = _parts(size, plan.splits.get(dim, 1), plan.grains.get(dim, 1))
            name = dim
        parts, stride = strides.get(name, (1, 1))
        at = numbers // stride % parts
        ranges.append((lo[at], hi[at]))
    return Grid((plan.start_tile + numbers) % tiles, ranges)


def _parts(size: int, parts: int, grain: int) -> tuple[Array, Array]:
    step = axis_step(size, parts, grain)
    lo = np.minimum(size, np.arange(parts) * step)
    return lo, np.minimum(size, lo + step)


def _windows(dim: Window, size: int, sizes: Dict[str, int], plan: OpPlan) -> tuple[Array, Array] | None:
    """By part of a window's outer axis the interval that no neighbouring part reads, which is what it reads without the
    halos, int64[parts] each. None where the plan splits the taps."""
    if plan.splits.get(dim.tap, 1) > 1:
        return None
    first, last = _parts(sizes[dim.out], plan.splits.get(dim.out, 1), plan.grains.get(dim.out, 1))
    lo = np.clip(first * dim.stride - dim.pad, 0, size)
    hi = np.clip((last - 1) * dim.stride + (sizes[dim.tap] - 1) * dim.dilation - dim.pad + 1, 0, size)
    hi = np.where(last > first, hi, lo)
    before = np.concatenate([[0], np.maximum.accumulate(hi)[:-1]])
    starts = np.where(last > first, lo, size)
    after = np.concatenate([np.minimum.accumulate(starts[::-1])[::-1][1:], [size]])
    return np.maximum(lo, before), np.maximum(np.maximum(lo, before), np.minimum(hi, after))
