"""The arena's plan: the quick search finds the lowest free offset that the plain rule finds, never overlaps, and ends."""
from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from effort import at_most

from tileflow.memory import arena
from tileflow.memory.alignment import padded
from tileflow.memory.arena import Arena, Interval


def plain(intervals: Sequence[Interval], base: int) -> dict[object, int]:
    """The rule itself: largest first, at the lowest offset where nothing live overlaps."""
    placed: list[tuple[int, int, Interval]] = []
    for item in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
        at = base
        for start, end, other in sorted(placed, key=lambda p: (p[0], p[1])):
            if other.last < item.first or item.last < other.first:
                continue
            if at + padded(item.nbytes) <= start:
                break
            at = max(at, end)
        placed.append((at, at + padded(item.nbytes), item))
    return {item.key: at for at, _, item in placed}


def some(seed: int) -> tuple[list[Interval], int]:
    rng = random.Random(seed)
    rows = rng.choice([1, 5, 30, 100])
    span = rng.choice([1, 3, rows])
    sizes = [0, 1, 64, 65, 1000, 4096, rng.randrange(10_000)]
    firsts = [rng.randrange(rows) for _ in range(rng.choice([0, 1, 3, 10, 60]))]
    return [Interval(k, rng.choice(sizes), f, min(rows - 1, f + rng.randrange(span))) for k, f in enumerate(firsts)], rng.choice([0, 64, 6400])


@pytest.mark.parametrize("seed", range(100))
def test_offsets_are_those_of_the_plain_rule(seed: int):
    intervals, base = some(seed)
    arena = Arena(base)
    offsets = arena.place(intervals)
    assert offsets == plain(intervals, base)
    assert arena.size == max([base, *(offsets[i.key] + padded(i.nbytes) for i in intervals)])


def overlaps(intervals: Sequence[Interval], offsets: dict[object, int]) -> bool:
    return any(a.first <= b.last and b.first <= a.last and offsets[a.key] < offsets[b.key] + b.nbytes and offsets[b.key] < offsets[a.key] + a.nbytes
               for k, a in enumerate(intervals) for b in intervals[:k])


def test_lifetimes_without_order_take_more_memory_not_more_time(monkeypatch: pytest.MonkeyPatch):
    """Where the search would take too long, buffers go on top; what lives together still lies apart."""
    wild = [Interval(i, 64 * (1 + i * 7919 % 5000), i, i + i * 104729 % 300) for i in range(300)]
    monkeypatch.setattr(arena, "STEPS", 0)
    offsets = Arena().place(wild)
    assert not overlaps(wild, offsets)
    monkeypatch.undo()
    with at_most(40_000_000):
        Arena().place([Interval(i, 64 * (1 + i * 7919 % 5000), i, i + i * 104729 % 8000) for i in range(8000)])
