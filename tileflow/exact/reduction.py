"""Outputs put together from what tiles computed: written once where one tile has an element, reduced over tiles where several do."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .arena import Arena
from .boxes import Range, Region, cut, extent, slices

Array = np.ndarray


def later(a: Array, b: Array, out: Array | None = None) -> Array:
    """Of elements with a "number" those with the larger one; of equals the first."""
    found = np.where(b["number"] > a["number"], b, a)
    if out is not None:
        out[...] = found
    return found


COMBINE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "or": np.bitwise_or,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "later": later,
}
Piece = tuple[list[int], Array]
"""A partial result and the tiles that hold equal shares of it, in order."""
GRAIN = 4                 # elements: tiles that share a reduction take no less each


@dataclass(frozen=True)
class Contribution:
    """What a tile has of an output."""

    tile: int
    where: Region
    array: Array


def in_type(array: Array, dtype: np.dtype) -> Array:
    """The same numbers as `dtype`; the same bits where one of the two is unsigned."""
    if array.dtype != dtype and "u" in (array.dtype.kind, dtype.kind):
        return array.view(dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


class Sheet:
    """An output tensor in which every element is written exactly once."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.array = np.empty(shape, dtype)
        self._written = np.zeros(shape, bool)

    def write(self, where: Region, values: Array) -> None:
        """Write a region."""
        at = slices(where)
        assert not self._written[at].any(), f"{where} is written twice"
        self._written[at] = True
        with np.errstate(over="ignore"):               # float32 partials may be beyond a float16 result
            self.array[at] = values

    def finish(self, default: float | None) -> Array:
        """The whole tensor; elements that nobody had are `default`, which only a sum may have."""
        if not self._written.all():
            assert default is not None, "elements were never computed"
            self.array[~self._written] = default
        return self.array


@dataclass
class Reducer:
    """Reduces partials over tiles in rounds: in each, a tile of a group receives its share of the group's partials.

    how: of `COMBINE`. stages: rounds. dtype: the partials' element type, in which they are added in the tiles' order.
    received: called with tile and bytes.
    """

    arena: Arena
    how: str
    stages: int
    dtype: np.dtype
    received: Callable[[int, int], None]

    def assemble(self, sheet: Sheet, contributions: Sequence[Contribution]) -> None:
        """Write all contributions to the sheet, reduced where they meet."""
        for where, members in _cells(contributions):
            pieces = [(c.tile, c.array[tuple(slice(lo - start, hi - start) for (lo, hi), (start, _) in zip(where, c.where, strict=True))])
                      for c in members]
            if len(pieces) == 1:
                sheet.write(where, pieces[0][1])
                continue
            flat = [([tile], in_type(np.ascontiguousarray(p), self.dtype).reshape(-1)) for tile, p in pieces]
            sheet.write(where, in_type(self._reduce(flat), sheet.array.dtype).reshape(extent(where)))

    def _reduce(self, pieces: list[Piece]) -> Array:
        """One result of one piece per tile, in about equal rounds."""
        fan = 2
        while fan ** max(1, self.stages) < len(pieces):
            fan += 1
        while len(pieces) > 1:
            groups = [pieces[i:i + fan] for i in range(0, len(pieces), fan)]
            pieces = [self._round(group) for group in groups]
        return pieces[0][1]

    def _round(self, group: list[Piece]) -> Piece:
        """Every tile that holds some of the group's pieces reduces its share of the elements."""
        if len(group) == 1:
            return group[0]
        tiles = [tile for owners, _ in group for tile in owners]
        size = group[0][1].size
        result = np.empty(size, self.dtype)
        shares = [s for s in cut(0, size, max(1, min(len(tiles), size // GRAIN)), 1) if s[0] < s[1]]
        for tile, (lo, hi) in zip(tiles, shares, strict=False):
            self.arena.reset()
            brought = [self.arena.take((hi - lo,), self.dtype, "Reducing partials") for _ in group]
            for block, (owners, piece) in zip(brought, group, strict=True):
                block[...] = piece[lo:hi]
                if owners != [tile]:
                    self.received(tile, block.nbytes)
            total = brought[0]
            with np.errstate(invalid="ignore", over="ignore"):
                for block in brought[1:]:
                    COMBINE[self.how](total, block, out=total)
            result[lo:hi] = total
        return tiles[:len(shares)], result


def _cells(contributions: Sequence[Contribution]) -> list[tuple[Region, list[Contribution]]]:
    """Regions that do not overlap, each with everybody who has it, in the order of the contributions."""
    same: dict[Region, list[Contribution]] = {}
    for c in contributions:
        same.setdefault(c.where, []).append(c)
    if not _overlap(list(same)):
        return list(same.items())
    edges = [sorted({edge for where in same for edge in where[i]}) for i in range(len(contributions[0].where))]
    cells: dict[Region, list[Contribution]] = {}
    for c in contributions:
        for where in itertools.product(*(_spans(e, *span) for e, span in zip(edges, c.where, strict=True))):
            cells.setdefault(where, []).append(c)
    return list(cells.items())


def _spans(edges: Sequence[int], start: int, stop: int) -> list[Range]:
    """start..stop cut at all edges."""
    return [(lo, hi) for lo, hi in itertools.pairwise(edges) if start <= lo and hi <= stop]


def _overlap(regions: Sequence[Region]) -> bool:
    """Whether any two different regions share an element: counted, so quick for parts that tile a tensor."""
    if len(regions) < 2 or not regions[0]:
        return False
    shape = [max(where[i][1] for where in regions) for i in range(len(regions[0]))]
    seen = np.zeros(shape, bool)
    for where in regions:
        at = slices(where)
        if seen[at].any():
            return True
        seen[at] = True
    return False
