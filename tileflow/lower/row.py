"""Rows: leaf calls whose operands have places instead of addresses, and what stands around rows that run sometimes, or several times."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..graph import Node, TensorType, Value
from ..kernels.machine.call import Address
from ..kernels.machine.guard import copy
from ..kernels.machine.host import HostCall
from ..kernels.machine.leaf import Leaf


@dataclass(frozen=True)
class Count:
    """An int64 word that counts a loop's turns. `key` tells loops apart whose words share memory, one after the other."""

    key: int
    word: Place


@dataclass(frozen=True)
class Advance:
    """What is added to an address: ((count + ahead) % ring) * stride."""

    count: Count
    stride: int
    ring: int = 1 << 62
    ahead: int = 0


@dataclass(frozen=True)
class Place:
    """Where a value lies: a region of memory and a byte offset in it, and the loops with whose turns it moves, outermost first.

    Regions: `("constant", value)`, `("table", Const)`, `("state", name)`, `("pending", name)`, `("io", name)`, `("arena", arena name)`,
    `("stash", value)` (what waits for another part, a slot for each micro-batch on its way), `("partial", name)` (a sum
    that each replica has, a slot for each); within the rows of a branch or a body, until these are placed, `("operand",
    (which, number))` and `("result", (which, number))`.
    """

    region: tuple[str, Any]
    offset: int = 0
    moves: tuple[Advance, ...] = ()

    def at(self, offset: int) -> Place:
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True)
class ArrayOperand:
    """An array argument: a place, the shape the leaf sees, bytes per element, whether the leaf may write it."""

    place: Place
    shape: tuple[int, ...]
    itemsize: int
    written: bool = True


@dataclass
class Row:
    """One leaf call with placed operands. `node` says where it came from (None: the lowering's own copies)."""

    leaf: Leaf
    args: list[Any]                   # ArrayOperand | Micro | Seed | Position | Numbers | Address | number
    n: int
    grain: int
    cost: float
    flat: bool = False
    node: Node | None = None

    def leaves(self) -> list[Leaf]:
        """The leaf, and those that it calls by their addresses."""
        return [self.leaf, *(arg.leaf for arg in self.args if isinstance(arg, Address) and arg.leaf is not None)]

    @property
    def name(self) -> str:
        """What the row runs, for people."""
        return " + ".join(leaf.name for leaf in self.leaves())


@dataclass
class HostRow:
    """What Python does, over placed operands of these types. `node` says where it came from."""

    call: HostCall
    args: list[ArrayOperand]
    types: list[TensorType]
    node: Node | None = None


@dataclass
class Either:
    """The rows of one of two branches: of the first where the word is 1, of the second where it is 0."""

    word: Place
    branches: tuple[list[Item], list[Item]]
    node: Node


@dataclass
class Cycle:
    """A loop: `body` again and again while `counter`, which begins at 0, is below `limit`, which `before` and `body` may write; then `after`.

    start: words and what they are set to before all rows. counts: the words that the rows of the body follow, each with what is added to it
    after a turn.
    """

    counter: Place
    limit: Place
    start: list[tuple[Place, int]]
    counts: list[tuple[Count, int]]
    before: list[Item]
    body: list[Item]
    after: list[Item]
    node: Node


Item = Row | HostRow | Either | Cycle


def every_call(items: Iterable[Item]) -> Iterator[Row | HostRow]:
    """All that is called, leaves or Python, within branches and bodies too."""
    for item in items:
        if isinstance(item, Either):
            for branch in item.branches:
                yield from every_call(branch)
        elif isinstance(item, Cycle):
            yield from every_call([*item.before, *item.body, *item.after])
        else:
            yield item


def every_row(items: Iterable[Item]) -> Iterator[Row]:
    """All leaves' rows, those of branches and bodies too."""
    return (item for item in every_call(items) if isinstance(item, Row))


def moved(items: Iterable[Item], to: Callable[[Place], Place]) -> list[Item]:
    """The same rows at other places."""
    result: list[Item] = []
    for item in items:
        if isinstance(item, Row):
            result.append(replace(item, args=[replace(a, place=to(a.place)) if isinstance(a, ArrayOperand) else a
                                              for a in item.args]))
        elif isinstance(item, HostRow):
            result.append(replace(item, args=[replace(a, place=to(a.place)) for a in item.args]))
        elif isinstance(item, Either):
            first, second = (moved(branch, to) for branch in item.branches)
            result.append(Either(to(item.word), (first, second), item.node))
        else:
            counts = [(Count(count.key, to(count.word)), step) for count, step in item.counts]
            result.append(Cycle(to(item.counter), to(item.limit), [(to(word), n) for word, n in item.start], counts,
                                moved(item.before, to), moved(item.body, to), moved(item.after, to), item.node))
    return result


@dataclass
class Lowered:
    """A graph's rows, the arena they use and where every value lies."""

    rows: list[Item]
    arena: str
    arena_bytes: int
    places: dict[Value, Place]
    kept_bytes: int = 0
    """Of the arena's start, where the values to hold lie: nothing else ever does."""

    def every_row(self) -> Iterator[Row]:
        """All rows, those of branches and bodies too."""
        return every_row(self.rows)


def copy_row(source: Place, target: Place, value: Value) -> Row:
    """Copy a value, element by element (neighbours in the target may belong to another lane)."""
    n, size = value.type.size, value.type.itemsize
    return Row(copy[f"u{size}"], [ArrayOperand(source, (n,), size), ArrayOperand(target, (n,), size)], n, 4096,
               0.05 * size * n, True)
