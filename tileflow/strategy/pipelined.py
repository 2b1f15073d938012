"""Pipelined execution: in every cycle each stage has another micro-batch (PopART, docs/notes/transforms/pipelining.md).

With P places and G micro-batches, place s has micro-batch c - s in cycle c, if there is one: P - 1 cycles to fill, G - P + 1 in which all
places are busy, P - 1 to drain, which are G + P - 1. A pipeline is filled and drained once for every update.
"""
from __future__ import annotations

from ..program import Batching
from ..schedule import Repeat, Step, Steps, Wave
from .order import Parts, per_update, updates


def build(parts: Parts, batching: Batching, training: bool) -> Steps:
    """The schedule of a call."""
    places, count = len(parts.stages), per_update(batching, training)
    full = max(0, count - places + 1)
    fill = min(places - 1, count)                     # cycles before the first in which the last place is busy, or nothing is left to begin
    steps: list[Step] = []
    if fill:
        steps.append(Repeat(1, _cycles(parts, range(fill), count, 0), "micro-batch", 0))
    if full:
        steps.append(Repeat(full, _cycles(parts, range(places - 1, places), count, 0), "micro-batch"))
    done = full
    last = range(fill + full, count + places - 1)
    steps.append(Repeat(1, _cycles(parts, last, count, done), "micro-batch", count - done))
    return updates(parts, tuple(s for s in steps if s.steps), batching, training)              # type: ignore[union-attr]


def _cycles(parts: Parts, cycles: range, count: int, done: int) -> Steps:
    """These cycles, where the counter stands at `done`."""
    found: list[Step] = []
    for cycle in cycles:
        busy = [s for s in range(len(parts.stages)) if 0 <= cycle - s < count]
        runs = tuple(parts.run(s, cycle - s - done) for s in busy)
        found += [Wave(runs) if len(runs) > 1 else runs[0], *(f for s in busy for f in parts.fold(s, cycle - s - done))]
    return tuple(found)
