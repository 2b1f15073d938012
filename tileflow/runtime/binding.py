"""Binding: rows get virtual addresses. Argument blocks become int64 words; words that change per micro-batch become
patches."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..executable.image import STREAMS, WORDS, virtual
from ..kernels.machine.call import Address, Micro, Position, Seed
from ..kernels.machine.leaf import Leaf, Numbers, scalar_word
from ..lower.row import ArrayOperand, Count, Cycle, Either, HostRow, Item, Place, Row
from ..memory.alignment import blocks
from ..program.schedule import Counter


@dataclass(frozen=True)
class Moving:
    """An address that depends on a counter: base + ((counter + ahead) % ring) * stride. The base is `offset`, from the
    start of the caller's array `name` where one is named, or an address that moves itself: `base`, with a counter that
    counts more slowly."""

    counter: Counter | Count
    stride: int
    ring: int
    offset: int = 0
    name: str = ""
    ahead: int = 0
    base: Moving | None = None


Resolve = Callable[[Place], "int | Moving"]


@dataclass
class BoundRow:
    """A row with addresses: what `merge` compares and `Blocks` encodes. `members`: rows that run together as this one
    (`grouped_rows`)."""

    row: Row
    args: list[Any]                       # (address | Moving, shape, itemsize), or as the row's
    n: int
    settled: bool = True                  # flat, and all its arrays lie where padding is zero
    members: tuple[BoundRow, ...] = ()


def bind_items(items: Sequence[Item], resolve: Resolve, settled: Callable[[Place], bool],
               gather: Callable[[list[BoundRow]], list[BoundRow]]) -> list[BoundItem]:
    """Addresses for rows and for what stands around them. Neighbours are merged, and gathered, up to a branch's or a
    loop's border."""
    result: list[BoundItem] = []
    for is_row, run in itertools.groupby(items, key=lambda item: isinstance(item, Row)):
        if is_row:
            result += gather(bind([item for item in run if isinstance(item, Row)], resolve, settled))
            continue
        for item in run:
            if isinstance(item, HostRow):
                result.append(BoundHost(item, [resolve(a.place) for a in item.args]))
            elif isinstance(item, Either):
                result.append(BoundChoice(item, [bind_items(branch, resolve, settled, gather) for branch in item.branches]))
            elif isinstance(item, Cycle):
                before, body, after = (bind_items(part, resolve, settled, gather) for part in (item.before, item.body, item.after))
                result.append(BoundCycle(item, before, body, after))
    return result


@dataclass
class BoundHost:
    """What Python does, and where its arrays lie."""

    item: HostRow
    places: list[int | Moving]


@dataclass
class BoundChoice:
    """A choice with bound rows."""

    item: Either
    branches: list[list[BoundItem]]


@dataclass
class BoundCycle:
    """A loop with bound rows."""

    item: Cycle
    before: list[BoundItem]
    body: list[BoundItem]
    after: list[BoundItem]


BoundItem = BoundRow | BoundHost | BoundChoice | BoundCycle


def every_bound(items: Sequence[BoundItem]) -> Iterator[BoundRow | BoundHost]:
    """All bound rows, in order."""
    for item in items:
        if isinstance(item, BoundRow | BoundHost):
            yield item
        else:
            parts = item.branches if isinstance(item, BoundChoice) else (item.before, item.body, item.after)
            for part in parts:
                yield from every_bound(part)


def bind(rows: Sequence[Row], resolve: Resolve, settled: Callable[[Place], bool]) -> list[BoundRow]:
    """Resolve the places of all operands, then merge neighbours that are one flat pass over memory.

    `settled` says of a place that no other tensor ever lies there or in the padding after it, so that the padding stays
    zero.
    """
    bound = []
    for row in rows:
        args = [(resolve(a.place), a.shape, a.itemsize) if isinstance(a, ArrayOperand) else a for a in row.args]
        parameters = row.leaf.takes(row.args)
        along = [a for p, a in zip(parameters, row.args, strict=True) if isinstance(a, ArrayOperand) and p.cut == "r"]
        bound.append(BoundRow(row, args, row.n, row.flat and all(settled(a.place) for a in along)))
    return merge(bound)


def merge(rows: list[BoundRow]) -> list[BoundRow]:
    """Buckets: neighbouring flat rows of one leaf whose arrays abut and whose numbers agree become one row, so equal
    updates of many weights are one.

    Every tensor takes whole blocks of elements, so a merged row also runs over the padding between them, which is as
    long in arrays of every type. It belongs to nobody and is zero; an update of zeros without a gradient is zero, so it
    stays so. Rows that draw random numbers are neighbours where their positions are, too.
    """
    result: list[BoundRow] = []
    for row in rows:
        if result and (joined := _joined(result[-1], row)) is not None:
            result[-1] = joined
        else:
            result.append(row)
    return result


def _joined(a: BoundRow, b: BoundRow) -> BoundRow | None:
    if a.row.leaf is not b.row.leaf or not (a.settled and b.settled) or len(a.args) != len(b.args):
        return None
    gap: int | None = None
    apart: set[int] = set()
    args: list[Any] = []
    for x, y in zip(a.args, b.args, strict=True):
        if not isinstance(x, tuple):
            if isinstance(x, Position):
                apart.add(y.start - x.start)
            elif repr(x) != repr(y):                       # -0.0 is another word than 0.0
                return None
            args.append(x)
            continue
        (at, shape, size), (other, other_shape, _) = x, y
        if not isinstance(at, int) or not isinstance(other, int):
            return None
        if shape == (a.n,) and other_shape == (b.n,) and (a.n > 1 or at != other):
            if other - at != blocks(a.n) * size:
                return None
            gap = blocks(a.n)
            args.append((at, (gap + b.n,), size))
        elif at == other and shape == other_shape:
            args.append(x)
        else:
            return None
    return None if gap is None or apart - {gap} or _entangled(args, gap + b.n) else BoundRow(a.row, args, gap + b.n)


def _entangled(args: list[Any], n: int) -> bool:
    """Two of the merged arrays overlap without being the same: one row's result would be the other's operand."""
    ordered = sorted({(at, at + math.prod(shape) * size) for at, shape, size in (a for a in args if isinstance(a, tuple))})
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(ordered))


class Blocks:
    """Argument blocks of many rows among an image's words, and what moves some of these."""

    def __init__(self, words: Words, kernel: Callable[[Leaf], int]) -> None:
        """`kernel`: the virtual address of a leaf's code."""
        self._words, self._kernel = words, kernel
        self.moving: list[tuple[int, Moving]] = []
        """The index of a word, and what moves it."""

    def add(self, bound: BoundRow | BoundHost) -> int:
        """Append a row's block; returns the index of its first word."""
        words = self._words
        if isinstance(bound, BoundHost):
            start = len(words)
            for place in bound.places:
                self._address(place)
            return start
        if bound.members:
            return self._together(bound)
        start = len(words)
        parameters = bound.row.leaf.takes(bound.args)
        for p, arg in zip(parameters, bound.args, strict=True):
            if isinstance(arg, tuple):
                address, shape, _ = arg
                assert p.is_array, f"{bound.row.leaf.name}({bound.row.leaf.signature}) got shape {shape} for {p}"
                assert len(shape) == p.ndim, f"{bound.row.leaf.name}({bound.row.leaf.signature}) got shape {shape} for {p}"
                self._address(address)
                words.add(*shape)
            elif isinstance(arg, Micro):
                self.moving.append((words.add(0), Moving("micro-batch", 1, 1 << 62, 0, STREAMS)))
            elif isinstance(arg, Numbers):
                words.add(*arg.words())
            elif isinstance(arg, Position):
                words.add(arg.start)
            elif isinstance(arg, Address):
                if arg.leaf is None:
                    words.add(0)
                else:
                    words.address(self._kernel(arg.leaf))
            elif isinstance(arg, Seed):
                words.seeds.append(words.add(0))
            else:
                assert not p.is_array, f"{bound.row.leaf.name}({bound.row.leaf.signature}) got the number {arg} for {p}"
                words.add(scalar_word(p.dtype, arg))
        return start

    def _address(self, address: int | Moving) -> None:
        if isinstance(address, Moving):
            self.moving.append((self._words.add(0), address))
        else:
            self._words.address(address)

    def _together(self, bound: BoundRow) -> int:
        """The blocks of a row's members, what says where their ranges begin, and the block over them."""
        members, grain, words = bound.members, bound.row.grain, self._words
        blocks = [self.add(m) for m in members]
        ends = list(itertools.accumulate(-(-m.n // grain) * grain for m in members))
        tables = [words.add(0, *ends[:-1]), words.add(*(m.n for m in members)), len(words)]
        for block in blocks:
            words.address(words.at(block))
        start = words.address(self._kernel(members[0].row.leaf))
        for table in tables:
            words.address(words.at(table))
            words.add(len(members))
        return start


class Words:
    """An image's words while it is made."""

    LINE = 8
    """Words of a cache line: what different threads write does not share one."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[int] = []
        """Indices of words that are addresses."""
        self.seeds: list[int] = []

    def __len__(self) -> int:
        return len(self.words)

    def add(self, *values: int) -> int:
        """Append words; returns the index of the first."""
        self.words += values
        return len(self.words) - len(values)

    def address(self, virtual_address: int) -> int:
        """Append an address; returns its index."""
        self.relocations.append(len(self.words))
        return self.add(virtual_address)

    def line(self) -> None:
        """Go on with a new cache line."""
        self.words += [0] * (-len(self.words) % self.LINE)

    @staticmethod
    def at(index: int) -> int:
        """The virtual address of a word."""
        return virtual(WORDS, 8 * index)
