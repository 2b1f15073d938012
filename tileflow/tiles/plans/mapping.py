"""Which tile holds which interval of a tensor: every element on exactly one tile.

A tensor is cut by a grid of blocks over its dimensions, each block on a tile or shared, in equal runs of its flattened order, by
several. The grid comes from the plan of the operator that makes the tensor, or is linear: equal intervals of the flattened tensor
(PopLibs' default: grain of a natural vector, at least 128 bytes a tile).
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.work import Operand, Window, Work
from .plan import OpPlan

MIN_BYTES_PER_TILE = 128
"""A linear mapping leaves tiles empty rather than give a tile fewer bytes (PopLibs, poputil/TileMapping.hpp)."""

Digits = tuple[tuple[int, int], ...]
"""A block number written in mixed radix, most significant first: (radix, tiles to move on per unit)."""


@dataclass(frozen=True)
class DimensionCut:
    """One dimension cut into blocks of `step` elements (the last ones shorter or empty); `digits` say where a block goes."""

    size: int
    step: int
    digits: Digits = ()

    @property
    def parts(self) -> int:
        return math.prod(r for r, _ in self.digits)

    def extents(self) -> np.ndarray:
        """Elements of each block, int64[parts]."""
        starts = np.arange(self.parts, dtype=np.int64) * self.step
        return np.clip(self.size - starts, 0, self.step)

    def offsets(self) -> np.ndarray:
        """Tile offset of each block, int64[parts]."""
        return offsets(self.digits)


def offsets(digits: Digits) -> np.ndarray:
    """Tiles to move on for each number that the digits write, int64[numbers]."""
    total = np.zeros(1, np.int64)
    for radix, stride in digits:
        total = (total[:, None] + np.arange(radix, dtype=np.int64) * stride).reshape(-1)
    return total


@dataclass(frozen=True)
class Mapping:
    """Where a tensor's elements live.

    cuts: one per dimension of the mapped shape (a view's shape may differ: the flattened order counts).
    shares: tiles among which each block is divided, in equal runs of the block's own flattened order.
    """

    cuts: tuple[DimensionCut, ...]
    tiles: int
    start: int = 0
    shares: Digits = ()

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(c.size for c in self.cuts)

    @functools.cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def share_count(self) -> int:
        return math.prod(r for r, _ in self.shares)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.cuts, self.tiles, self.start, self.shares))

    def elements_per_tile(self) -> np.ndarray:
        """Elements on each tile, int64[tiles]; not to be written to."""
        return self._elements

    def bytes_per_tile(self, itemsize: int) -> np.ndarray:
        """Bytes on each tile, int64[tiles]."""
        return self.elements_per_tile() * itemsize

    @functools.cached_property
    def worst(self) -> int:
        """Elements on the fullest tile."""
        return int(self.elements_per_tile().max(initial=0))

    @functools.cached_property
    def tiles_used(self) -> int:
        return int(np.count_nonzero(self.elements_per_tile()))

    @property
    def run(self) -> int:
        """Elements that lie side by side, in the tensor's order, in a full block."""
        run = 1
        for cut in reversed(self.cuts):
            run *= min(cut.step, cut.size)
            if cut.step < cut.size:
                break
        share = -(-self._block() // self.share_count)
        return max(1, min(run, share))

    def _block(self) -> int:
        return math.prod(min(c.step, c.size) for c in self.cuts)

    @functools.cached_property
    def _elements(self) -> np.ndarray:
        volume, tile = np.ones(1, np.int64), np.zeros(1, np.int64)
        for cut in self.cuts:
            if cut.parts == 1:
                volume = volume * min(cut.step, cut.size)
                continue
            volume = (volume[:, None] * cut.extents()).reshape(-1)
            tile = (tile[:, None] + cut.offsets()).reshape(-1)
        if self.shares:
            count = self.share_count
            share = -(-volume // count)
            volume = np.clip(volume[:, None] - np.arange(count) * share[:, None], 0, share[:, None]).reshape(-1)
            tile = (tile[:, None] + offsets(self.shares)).reshape(-1)
        found = np.bincount((self.start + tile) % self.tiles, weights=volume, minlength=self.tiles).astype(np.int64)
        found.flags.writeable = False
        return found

    def intervals(self) -> np.ndarray:
        """All runs as int64[runs, 3]: tile, start, stop in flattened order, sorted by start."""
        found = [block for block in self._blocks() if len(block)]
        if not found:
            return np.zeros((0, 3), np.int64)
        runs = np.concatenate(found)
        return runs[np.argsort(runs[:, 1], kind="stable")]

    def _blocks(self) -> list[np.ndarray]:
        """The runs of each block."""
        if not self.size:
            return []
        strides = [math.prod(self.shape[i + 1:]) for i in range(len(self.cuts))]
        cut_dims = [i for i, c in enumerate(self.cuts) if c.parts > 1]
        last = cut_dims[-1] if cut_dims else 0                                 # dimensions behind it are whole
        starts = [np.arange(c.parts) * c.step for c in self.cuts]
        extents, places = [c.extents() for c in self.cuts], [c.offsets() for c in self.cuts]
        share_offsets = offsets(self.shares)
        blocks = []
        for block in np.ndindex(*(c.parts for c in self.cuts)):
            extent = [int(e[b]) for e, b in zip(extents, block, strict=True)]
            if 0 in extent:
                continue
            tile = self.start + sum(int(o[b]) for o, b in zip(places, block, strict=True))
            at = np.zeros(1, np.int64)
            length = 1
            for i, b in enumerate(block):
                first = int(starts[i][b])
                if i < last:
                    at = (at[:, None] + (first + np.arange(extent[i])) * strides[i]).reshape(-1)
                elif i == last:
                    at, length = at + first * strides[i], extent[i] * strides[i]
            blocks.append(self._shared(at, length, tile, share_offsets))
        return blocks

    def _shared(self, at: np.ndarray, length: int, tile: int, share_offsets: np.ndarray) -> np.ndarray:
        """Runs of `length` from `at`, divided among the block's tiles."""
        volume = len(at) * length
        share = max(1, -(-volume // len(share_offsets)))
        edges = np.union1d(np.arange(len(at) + 1) * length, np.minimum(np.arange(len(share_offsets) + 1) * share, volume))
        begin, size = edges[:-1], np.diff(edges)
        start = at[begin // length] + begin % length if length else begin
        tiles = (tile + share_offsets[begin // share]) % self.tiles
        return np.stack([tiles, start, start + size], axis=1).astype(np.int64)

    def reshaped(self, shape: Sequence[int]) -> Mapping | None:
        """The same places for a view of another shape, as a grid over that shape; None where no such grid exists."""
        return _reshaped(self, tuple(shape))


def linear(size: int, itemsize: int, tiles: int, start: int = 0, grain: int | None = None) -> Mapping:
    """Equal intervals of a flattened tensor: whole natural vectors (8 bytes), at least 128 bytes a tile."""
    grain = grain or max(1, 8 // itemsize)
    least = max(1, MIN_BYTES_PER_TILE // itemsize)
    step = max(least, -(-size // max(tiles, 1)))
    step = -(-step // grain) * grain
    parts = max(1, -(-size // step))
    return Mapping((DimensionCut(size, step, ((parts, 1),)),), tiles, start % tiles)


def tile_strides(plan: OpPlan) -> dict[str, tuple[int, int]]:
    """Per split axis (parts, tiles to move on from one part to the next), after the numbering rule of plan.py."""
    stride, found = 1, {}
    for axis, parts in reversed(list(plan.splits.items())):
        found[axis] = (parts, stride)
        stride *= parts
    return dict(reversed(found.items()))


def axis_step(size: int, parts: int, grain: int = 1) -> int:
    """Extent of all but the last parts of an axis (the rule of plan.py)."""
    grains = -(-size // grain)
    return grain * -(-grains // parts)


def owned(work: Work, operand: Operand, shape: Sequence[int], plan: OpPlan, tiles: int) -> Mapping:
    """Where a tensor lives whose operator runs by `plan`: blocks over the operand's dimensions, each divided among the tiles that
    hold partials or copies of it.

    A dimension read through a window is cut evenly by the window's outer axis (by both axes, where the window is a pair of
    nested indices such as group and channel; where only the inner axis is cut, in equal parts, each tile has its part for every outer index).
    """
    sizes = {a.name: a.size for a in work.axes}
    strides = tile_strides(plan)
    used: set[str] = set()
    cuts = []
    for size, dim in zip(shape, operand.dims, strict=True):
        digits: Digits = ()
        step = size
        if isinstance(dim, str) and dim in strides and dim not in used:
            digits, used = (strides[dim],), used | {dim}
            step = axis_step(size, strides[dim][0], plan.grains.get(dim, 1))
        elif isinstance(dim, Window):
            nested = dim.nested(sizes)
            names = [n for n in ((dim.out, dim.tap) if nested else (dim.out,)) if n in strides and n not in used]
            digits, used = tuple(strides[n] for n in names), used | set(names)
            if nested and names == [dim.tap] and sizes[dim.out] * sizes[dim.tap] == size and sizes[dim.tap] % strides[dim.tap][0] == 0:
                digits = ((sizes[dim.out], 0), *digits)
            step = -(-size // math.prod(r for r, _ in digits))
        cuts.append(DimensionCut(size, max(1, step), digits))
    shares = tuple(strides[a] for a, parts in plan.splits.items() if a not in used and parts > 1)
    return Mapping(tuple(cuts), tiles, plan.start_tile % tiles, shares)


def slab(work: Work, operand: Operand, shape: Sequence[int], plan: OpPlan) -> tuple[int, ...]:
    """Extents of what the worst tile needs of an operand, per dimension; halos of windows included."""
    def extent(axis: str, size: int = 1) -> int:
        size = sizes.get(axis, size)
        return min(size, axis_step(size, plan.splits.get(axis, 1), plan.grains.get(axis, 1))) if size else 0

    sizes = {a.name: a.size for a in work.axes}
    extents = []
    for size, dim in zip(shape, operand.dims, strict=True):
        if isinstance(dim, Window):
            reach = extent(dim.out) * extent(dim.tap) if dim.nested(sizes) else \
                (extent(dim.out) - 1) * dim.stride + (extent(dim.tap) - 1) * dim.dilation + 1
            extents.append(max(0, min(size, reach)))
        else:
            extents.append(size if dim is None else extent(dim, size))  # the rows of a table are no axis of the work
    return tuple(extents)


@functools.lru_cache(maxsize=8192)
def _reshaped(mapping: Mapping, shape: tuple[int, ...]) -> Mapping | None:
    if shape == mapping.shape:
        return mapping
    if mapping.shares or math.prod(shape) != mapping.size or not mapping.size:
        return None
    cuts: list[DimensionCut] = []
    for olds, news in _groups(mapping.shape, shape):
        made = _regroup([mapping.cuts[i] for i in olds], [shape[i] for i in news])
        if made is None:
            return None
        cuts += made
    return Mapping(tuple(cuts), mapping.tiles, mapping.start)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Smallest runs of old and new dimensions of equal product, in order."""
    found, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        a, b, p, q = i, j, 1, 1
        if a < len(old):
            p, a = p * old[a], a + 1
        if b < len(new):
            q, b = q * new[b], b + 1
        while p != q:
            if p < q:
                p, a = p * old[a], a + 1
            else:
                q, b = q * new[b], b + 1
        found.append((range(i, a), range(j, b)))
        i, j = a, b
    return found


def _regroup(cuts: list[DimensionCut], sizes: list[int]) -> list[DimensionCut] | None:
    """Cuts of one group of dimensions, for the same elements in dimensions of other sizes; None where impossible."""
    cut = [c for c in cuts if c.parts > 1]
    if not cut:
        return [DimensionCut(n, max(1, n)) for n in sizes]
    if len(cut) > 1:
        return None
    at = cuts.index(cut[0])
    if any(c.size > 1 for c in cuts[:at]):
        return None
    step = cut[0].step * math.prod(c.size for c in cuts[at + 1:])              # of the group's flattened order
    made: list[DimensionCut] = []
    for k, n in enumerate(sizes):
        inner = math.prod(sizes[k + 1:])
        if n == 1 or (made and made[-1].parts > 1):
            made.append(DimensionCut(n, max(1, n)))
        elif step % inner == 0 and n * inner > step:
            made.append(DimensionCut(n, step // inner, cut[0].digits))
        else:
            return None
    return made if sum(c.parts > 1 for c in made) == 1 else None
