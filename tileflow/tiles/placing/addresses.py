"""Addresses on a tile: where in its memory everything lies that was counted there (`memory.measure`), and how much of it no layout could use.

What is always live lies at the bottom, block after block. Above it whatever comes and goes is laid out by `arena.Arena`, as the host's memory is: the
largest first, each as low as nothing is that lives at the same time. A block keeps its place for as long as it lives, so bytes may be free
between blocks where no later one fits: gaps. Banks, and what may lie in which of them, are not looked at.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...memory.alignment import padded
from ...memory.arena import Arena, Interval
from ..hardware.chip import Chip
from ..plans.plan import TileStep
from ..program.schedule import Storage
from .memory import ALWAYS_LIVE, Memory, brought, tiles_of


@dataclass(frozen=True)
class Extent:
    """Bytes in one place. storage: of a tensor; None for code and for what a running operator needs. first, last: steps; None: always."""

    category: str
    storage: Storage | None
    start: int
    nbytes: int
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Addresses:
    """The blocks of a tile, lowest first. extent: the end of the highest, so what the tile must have for them."""

    tile: int
    extent: int
    blocks: tuple[Extent, ...]


def lay_out(memory: Memory, tile: int, running: Iterable[tuple[TileStep, int]], chip: Chip) -> Addresses:
    """A tile's addresses.

    Args:
        memory: of the tile's IPU.
        running: the steps of that IPU, each with the bytes that rearrangements bring to the worst tile.
    """
    align = chip.vector_bytes
    blocks, at = _always(memory, tile, align)
    arena = Arena(at, align)
    moving = [*_tensors(memory, tile), *_running(tile, running, chip)]
    places = arena.place([Interval(i, together.nbytes, together.first, together.last) for i, together in enumerate(moving)])
    for i, together in enumerate(moving):
        blocks += [Extent(together.category, storage, places[i], together.nbytes, first, last)
                   for storage, first, last in together.parts]
    return Addresses(tile, arena.size, tuple(sorted(blocks, key=lambda b: (b.start, -1 if b.first is None else b.first))))


@dataclass
class _Together:
    """Tensors that have one block of memory in succession, each taking over that of the one before: (tensor, first
    step, last step)."""

    category: str
    nbytes: int
    parts: list[tuple[Storage | None, int, int]]

    @property
    def first(self) -> int:
        return self.parts[0][1]

    @property
    def last(self) -> int:
        return self.parts[-1][2]


def _bytes(storage: Storage, tile: int) -> int:
    assert storage.mapping is not None
    return int(storage.mapping.elements_per_tile()[tile]) * storage.itemsize * storage.copies


def _always(memory: Memory, tile: int, align: int) -> tuple[list[Extent], int]:
    """The blocks of what is always live, category by category from address 0, and the address where they end."""
    blocks: list[Extent] = []
    code = int(memory.categories["code"][tile])
    if code:
        blocks.append(Extent("code", None, 0, code, None, None))
    at = padded(code, align)
    held = [s for s in memory.storages if s.always_live and s.mapping is not None]
    for storage in sorted(held, key=lambda s: ALWAYS_LIVE.index(s.kind)):
        nbytes = _bytes(storage, tile)
        if nbytes:
            blocks.append(Extent(storage.kind, storage, at, nbytes, None, None))
            at += padded(nbytes, align)
    return blocks, at


def _tensors(memory: Memory, tile: int) -> list[_Together]:
    """Blocks of tensors that come and go: one for each span of steps in which a tensor is on the tile, in which results
    that take its memory over follow where they are as large."""
    heir = {s: h for s, h in memory.heirs.items() if _bytes(s, tile) == _bytes(h, tile)}
    found: list[_Together] = []
    handed: dict[tuple[Storage, int], _Together] = {}
    stays = [(first, last, s) for s in memory.storages if s.mapping is not None and not s.always_live for first, last in s.spans]
    for first, last, storage in sorted(stays, key=lambda stay: stay[:2]):
        nbytes = _bytes(storage, tile)
        if not nbytes:
            continue
        dies = storage in memory.heirs and last == storage.death          # it does not count in the step in which its memory goes on
        part = storage, first, last - 1 if dies else last
        together = handed.pop((storage, first), None)
        if together is None:
            together = _Together("activations", nbytes, [])
            found.append(together)
        together.parts.append(part)
        if dies and storage in heir:
            handed[heir[storage], last] = together
    return found


def _running(tile: int, running: Iterable[tuple[TileStep, int]], chip: Chip) -> list[_Together]:
    """Blocks that operators need on the tile while they run, each for one step."""
    found: list[_Together] = []
    for step, moved in running:
        needs = brought(step.plan, moved)
        if any(needs.values()) and tiles_of(step.plan, chip)[tile]:
            found += [_Together(category, nbytes, [(None, step.index, step.index)]) for category, nbytes in needs.items() if nbytes]
    return found
