"""Of several processes, each folds a slice of every large accumulator, which it owns, and all have the sums before the
update.

Rows that add a micro-batch's contribution to an accumulator, element by element, are cut at the borders of their
grains. So an element is added by one process, in the order and by the code that one process alone would use. On one
host the sums lie in memory that all processes have; else contributions travel to the owners of their slices only, and
the sums to all.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph import State, Value
from ..kernels.machine.leaf import Numbers
from ..program.dealing import ReplicaShare
from .row import ArrayOperand, Item, Lowered, Row, every_call

CONTRIBUTED = ("stash", "partial")
"""Regions with a slot for each replica, whose contribution lies there."""


@dataclass(frozen=True)
class Slices:
    """What is cut: by rank, the bytes of a process. contributions: of a micro-batch's value in its slot, or of a
    replica's partial sum, by the name of its state. sums: of accumulators, by the names of their states."""

    contributions: Mapping[Value | str, tuple[slice, ...]] = field(default_factory=dict)
    sums: Mapping[str, tuple[slice, ...]] = field(default_factory=dict)


def owned(parts: Mapping[str, Lowered], maker: str, fold: str, accumulators: Sequence[State],
          share: ReplicaShare) -> tuple[Lowered, Slices]:
    """The rows of the part `fold` as a process runs them, and what is cut.

    Args:
        parts: all that has rows. maker: the part that leaves the contributions.
    """
    sizes = {s.name: s.input.type.size for s in accumulators}
    rows = [item for item in parts[fold].rows if isinstance(item, Row) and _is_sum(item, sizes, share.size)]
    elsewhere = {a.place.region for name, part in parts.items() if name not in (maker, fold)
                 for a in _touched(part.rows)}
    whole = {region for region in elsewhere if region[0] in CONTRIBUTED}
    while True:
        whole |= {a.place.region for a in _touched([item for item in parts[fold].rows if not _among(item, rows)])}
        kept = [row for row in rows if not any(a.place.region in whole for a in _along(row))]
        if len(kept) == len(rows):
            break
        rows = kept
    contributions: dict[Value | str, tuple[slice, ...]] = {}
    sums: dict[str, tuple[slice, ...]] = {}
    for row in rows:
        for a in _along(row):
            kind, what = a.place.region
            cuts = tuple(slice(lo * a.itemsize, hi * a.itemsize)
                         for lo, hi in (_range(row, share.size, rank) for rank in range(share.size)))
            (contributions if kind in CONTRIBUTED else sums)[what] = cuts
    cut = [_cut(item, *_range(item, share.size, share.rank)) if isinstance(item, Row) and _among(item, rows) else item
           for item in parts[fold].rows]
    return replace(parts[fold], rows=cut), Slices(contributions, sums)


def _is_sum(row: Row, sizes: Mapping[str, int], processes: int) -> bool:
    """A row makes a whole accumulator of itself and of whole contributions, element by element, with a grain for each
    process at least."""
    taken = ArrayOperand | Numbers | int | float | np.number
    if not row.flat or row.n < processes * row.grain or not all(isinstance(a, taken) for a in row.args):
        return False
    along, arrays = _along(row), [a for a in row.args if isinstance(a, ArrayOperand)]
    written = {a.place.region for a in arrays if a.written}

    def stands(a: ArrayOperand) -> bool:
        kind, what = a.place.region
        if a not in along:
            return a.shape in ((), (1,)) and not a.written and kind not in CONTRIBUTED
        whole = kind in CONTRIBUTED or (a.place.region in written and kind == "state" and sizes.get(what) == row.n)
        return whole and not a.place.offset and not a.place.moves
    return len(written) == 1 and all(map(stands, arrays))


def _along(row: Row) -> list[ArrayOperand]:
    return [a for a in row.args if isinstance(a, ArrayOperand) and a.shape == (row.n,)]


def _touched(items: Iterable[Item]) -> Iterator[ArrayOperand]:
    """The arrays of all items, those of branches and bodies too."""
    return (a for item in every_call(items) for a in item.args if isinstance(a, ArrayOperand))


def _among(item: Item, rows: Sequence[Row]) -> bool:
    return any(item is row for row in rows)


def _range(row: Row, processes: int, rank: int) -> tuple[int, int]:
    """The elements of a process: whole grains, neighbours."""
    grains = -(-row.n // row.grain)
    return row.grain * (grains * rank // processes), min(row.n, row.grain * (grains * (rank + 1) // processes))


def _cut(row: Row, lo: int, hi: int) -> Row:
    """The row over the elements lo to hi."""
    args = [replace(a, place=a.place.at(lo * a.itemsize), shape=(hi - lo,)) if isinstance(a, ArrayOperand)
            and a.shape == (row.n,) else a
            for a in row.args]
    return replace(row, args=args, n=hi - lo, cost=row.cost * (hi - lo) / row.n)
