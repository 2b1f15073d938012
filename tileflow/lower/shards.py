"""Of several processes, each keeps a slice of every large optimizer state (ZeRO's first stage, arXiv 1910.02054),
updates that slice of the weight, and has the others' before the next micro-batch.

Rows of the update that touch such a state are cut at multiples of UNIT elements, which every row's grain divides: so an
element is written by one process, by the code that one process alone would use. What such rows write is a slice as
well, and is followed: a row that goes on element by element is cut, too, and before one that reads the whole of it (the
sum of a norm's parts) the slices are put together. Norms are cut at the blocks whose sums they add up in order.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..graph import State
from ..host.squares import BlockSquares
from ..kernels.machine.call import Micro, Position, Seed
from ..kernels.machine.host import HostCall, Moment
from ..kernels.machine.leaf import Numbers
from ..kernels.squares import BLOCK, count
from ..memory.types import TensorType
from ..program.dealing import ReplicaShare
from ..system.errors import OptionError, see
from .row import ArrayOperand, HostRow, Item, Lowered, Place, Row, every_call

UNIT = 4096
"""Elements at whose multiples states are cut."""
assert UNIT % BLOCK == 0
PLAIN = (Numbers, Micro, Seed, Position, int, float, np.number)
"""Arguments of a row that are the same wherever it begins, or say where it does."""

Cuts = tuple[slice, ...]
"""By rank, what of an array is a process's."""


@dataclass(frozen=True)
class Shards:
    """states: by name, the elements of optimizer states that each process keeps. handed: the bytes that each process
    writes of states that all have whole, to be put together after the update. rank: this process's."""

    states: Mapping[str, Cuts] = field(default_factory=dict)
    handed: Mapping[str, Cuts] = field(default_factory=dict)
    rank: int = 0

    def together(self) -> HostRow:
        """The HOST row that puts these states together."""
        return _put_together([_Slices(Place(("state", name)), cuts) for name, cuts in self.handed.items()],
                             written=True)


@dataclass(frozen=True)
class PutTogether:
    """Stands in a HOST row for whatever gives every process all slices of arrays. cuts: of each its bytes. written: the
    update is being written."""

    cuts: tuple[Cuts, ...]
    written: bool

    def __call__(self, moment: Moment, *arrays: np.ndarray) -> None:
        raise AssertionError("whoever connects processes stands here")


def kept_by_owners(states: Iterable[State], owner: ReplicaShare) -> dict[str, Cuts]:
    """The optimizer states of which a process keeps its slice, with the elements of each process: what has a unit for
    everyone, but for averages of weights, which are used as weights are."""
    return {s.name: _cuts(s.input.type.size, owner.size) for s in states
            if s.kind == "optimizer" and s.role != "average" and -(-s.input.type.size // UNIT) >= owner.size}


def divided(part: Lowered, states: Mapping[str, Cuts], owner: ReplicaShare,
            writes: bool = True) -> tuple[Lowered, dict[str, Cuts]]:
    """The rows of an update as a process runs them, and what it hands to the others of states that all have whole.

    Args:
        writes: they write states; else they only look whether the update may.

    Raises:
        OptionError: a row needs the whole of a state of which a process keeps a slice.
    """
    if not states:
        return part, {}
    divider = _Divider(states, owner, writes)
    rows = [one for item in part.rows for one in divider.item(item)]
    return replace(part, rows=[*rows, *divider.kept(part)]), divider.handed()


def refuse_elsewhere(parts: Mapping[str, Lowered], states: Mapping[str, Cuts], accumulators: Iterable[State]) -> None:
    """OptionError where micro-batches use a state of which a process keeps a slice."""
    for s in accumulators:
        if s.start in states:
            raise _whole(s.start, "use_combined_accum adds gradients to it")
    for name, part in parts.items():
        for a in _arrays(part.rows):
            if a.place.region[0] == "state" and a.place.region[1] in states:
                raise _whole(a.place.region[1], f"part {name} of the program reads it")


def _whole(state: str, why: str) -> OptionError:
    return OptionError(f"With option optimizer_sharded each process keeps a slice of {state}, and {why}: leave one of "
                       f"the two out.{see('distributed')}")


@dataclass(frozen=True)
class _Slices:
    """An array of which this process has made its slice. cuts: bytes. summary: it is small, and about to be read as a
    whole."""

    place: Place
    cuts: Cuts
    summary: bool = False

    @property
    def nbytes(self) -> int:
        return int(self.cuts[-1].stop)

    def meets(self, a: ArrayOperand) -> bool:
        """They have memory in common, as far as anybody can tell."""
        mine, other = self.place, a.place
        return mine.region == other.region and (bool(mine.moves or other.moves) or (
            mine.offset < other.offset + math.prod(a.shape) * a.itemsize and other.offset < mine.offset + self.nbytes))


class _Divider:
    """Goes over rows in order, and knows of which arrays there are slices only."""

    def __init__(self, states: Mapping[str, Cuts], owner: ReplicaShare, writes: bool) -> None:
        self.states, self.owner, self.writes = states, owner, writes
        self.slices: list[_Slices] = []

    def item(self, item: Item) -> Iterator[Item]:
        """What stands in the place of an item."""
        touched = list(_arrays([item]))
        met = [s for s in self.slices if any(map(s.meets, touched))]
        if not met and not any(self._state(a) for a in touched):
            yield item
            return
        cut = self._squares(item) or self._flat(item) if isinstance(item, Row) else None
        if cut is not None:
            yield cut
            return
        if (a := next(filter(self._state, touched), None)) is not None:
            who = "the update" if item.node is None else f"{item.node.op.name} ({item.node.origin})"
            raise _whole(a.place.region[1], f"{who} uses the whole of it")
        read = [s for s in met if any(s.meets(a) for a in touched if not a.written or not _covers(a, s))]
        if read:
            yield self._together(read)
        self.slices = [s for s in self.slices if s not in met]
        yield item

    def kept(self, part: Lowered) -> Iterator[Item]:
        """What puts together that others read when the part has run, but for states."""
        left = [s for s in self.slices if s.place.region[0] != "state" and (s.place.region[0] != "arena"
                                                                           or s.place.offset < part.kept_bytes)]
        if left:
            yield self._together(left)

    def handed(self) -> dict[str, Cuts]:
        """States that all have whole, and of which there are slices now."""
        return {s.place.region[1]: s.cuts for s in self.slices if s.place.region[0] == "state"}

    def _together(self, read: Sequence[_Slices]) -> Item:
        """The HOST row that puts slices together that are to be read, and with them all that soon will be."""
        found = [s for s in self.slices if s.summary or s in read]
        self.slices = [s for s in self.slices if s not in found]
        return _put_together(found, self.writes)

    def _state(self, a: ArrayOperand) -> bool:
        return a.place.region[0] == "state" and a.place.region[1] in self.states

    def _flat(self, row: Row) -> Row | None:
        """This process's elements of an elementwise row; None where it is none."""
        if not row.flat or UNIT % row.grain or -(-row.n // UNIT) < self.owner.size:
            return None
        cuts = _cuts(row.n, self.owner.size)
        own = cuts[self.owner.rank]
        args: list[Any] = []
        for a in row.args:
            if isinstance(a, ArrayOperand) and a.shape == (row.n,):
                if not self._fits(a, cuts):
                    return None
                args.append(_part(a, own))
            elif isinstance(a, ArrayOperand):
                if a.written or a.shape not in ((), (1,)) or self._state(a) or any(s.meets(a) for s in self.slices):
                    return None
                args.append(a)
            elif isinstance(a, Position):
                args.append(Position(a.start + own.start))
            elif isinstance(a, PLAIN):
                args.append(a)
            else:
                return None
        for a in row.args:
            if isinstance(a, ArrayOperand) and a.written:
                self._made(a, _bytes(cuts, a.itemsize))
        n = own.stop - own.start
        return replace(row, args=args, n=n, cost=row.cost * n / row.n)

    def _squares(self, row: Row) -> Row | None:
        """This process's blocks of the sums of squares of an array's blocks; None where it is something else."""
        if row.node is None or not isinstance(row.node.op, BlockSquares):
            return None
        x, y = row.args
        size, = x.shape
        cuts = _cuts(size, self.owner.size)
        if -(-size // UNIT) < self.owner.size or not self._fits(x, cuts):
            return None
        blocks = tuple(slice(own.start // BLOCK, count(own.stop)) for own in cuts)
        own, of = cuts[self.owner.rank], blocks[self.owner.rank]
        self._made(y, _bytes(blocks, y.itemsize), summary=True)
        n = of.stop - of.start
        return replace(row, args=[_part(x, own), _part(y, of)], n=n, cost=row.cost * n / row.n)

    def _fits(self, a: ArrayOperand, cuts: Cuts) -> bool:
        """What there is of an array, if it is not all, is what these elements are."""
        met = [s for s in self.slices if s.meets(a)]
        if self._state(a):
            return not a.place.offset and self.states[a.place.region[1]] == cuts
        if not met or (a.written and all(_covers(a, s) for s in met)):
            return True
        return [(s.place, s.cuts) for s in met] == [(a.place, _bytes(cuts, a.itemsize))]

    def _made(self, a: ArrayOperand, cuts: Cuts, summary: bool = False) -> None:
        """There is a slice of an array now."""
        self.slices = [s for s in self.slices if not s.meets(a)]
        if not self._state(a):
            self.slices.append(_Slices(a.place, cuts, summary))


def _put_together(found: Sequence[_Slices], written: bool) -> HostRow:
    types = [TensorType("uint8", (s.nbytes,)) for s in found]
    call = HostCall(PutTogether(tuple(s.cuts for s in found), written), [])
    return HostRow(call, [ArrayOperand(s.place, t.shape, 1) for s, t in zip(found, types, strict=True)], types)


def _arrays(items: Iterable[Item]) -> Iterator[ArrayOperand]:
    return (a for item in every_call(items) for a in item.args if isinstance(a, ArrayOperand))


def _covers(a: ArrayOperand, made: _Slices) -> bool:
    """An operand is in the place of all that there are slices of."""
    start, end = a.place.offset, a.place.offset + math.prod(a.shape) * a.itemsize
    return start <= made.place.offset and made.place.offset + made.nbytes <= end


def _part(a: ArrayOperand, own: slice) -> ArrayOperand:
    return replace(a, place=a.place.at(own.start * a.itemsize), shape=(own.stop - own.start,))


def _cuts(size: int, processes: int) -> Cuts:
    """The elements of each process: whole units, neighbours."""
    units = -(-size // UNIT)
    return tuple(slice(UNIT * (units * rank // processes), min(size, UNIT * (units * (rank + 1) // processes)))
                 for rank in range(processes))


def _bytes(cuts: Cuts, itemsize: int) -> Cuts:
    return tuple(slice(own.start * itemsize, own.stop * itemsize) for own in cuts)
