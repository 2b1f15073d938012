"""Pipelined execution: stages overlap, each with another micro-batch. A pipeline is filled and drained once for every update.

With P places, G micro-batches and an interval of k cycles between micro-batches, place s has micro-batch m in cycle s + k m.

- grouped (PopART, docs/notes/transforms/pipelining.md): k = 1 and P = 2F - 1. In every cycle each IPU does the forward pass of one micro-batch and
  the backward pass of another: P - 1 cycles to fill, G - P + 1 in which all places are busy, P - 1 to drain, which are G + P - 1. Forward stage s
  keeps 2 (F - 1 - s) + 1 micro-batches for its backward pass.
- 1f1b (PipeDream-Flush, arXiv:2006.09503; Graphcore's TensorFlow calls it interleaved): k = 2 and P = 2F. A micro-batch enters every second cycle, so
  each IPU does one forward pass, then one backward pass, in 2 (G + F - 1) cycles, and its neighbours do the other one meanwhile. Stage s keeps F - s
  micro-batches, about half as many; cycles are as long as a backward pass.
"""
from __future__ import annotations

from ..program.batching import Batching
from ..program.schedule import Repeat, Step, Steps, Wave
from .order import Parts, per_update, updates

INTERVALS = {"grouped": 1, "1f1b": 2}
"""Cycles from one micro-batch's beginning to the next one's, in training."""


def build(parts: Parts, batching: Batching, training: bool) -> Steps:
    """The schedule of a call: fill, main, drain. A turn of the main part has a micro-batch of each replica with states of its own."""
    places, count, interval, by = len(parts.stages), per_update(batching, training), parts.interval if training else 1, parts.replicas
    end = places + interval * (count - 1)                            # cycles in all
    full = max(0, count - -(-(places - 1) // interval)) // by
    fill = min(places - 1, end)
    steps: list[Step] = []
    if fill:
        steps.append(Repeat(1, _cycles(parts, range(fill), interval, count, 0), "micro-batch", 0))
    if full:
        steps.append(Repeat(full, _cycles(parts, range(fill, fill + interval * by), interval, count, 0), "micro-batch", by))
    done = full * by
    steps.append(Repeat(1, _cycles(parts, range(fill + interval * done, end), interval, count, done), "micro-batch", count - done))
    return updates(parts, tuple(s for s in steps if s.steps), batching, training)              # type: ignore[union-attr]


def _cycles(parts: Parts, cycles: range, interval: int, count: int, done: int) -> Steps:
    """These cycles, where the counter stands at `done`."""
    found: list[Step] = []
    for cycle in cycles:
        busy = [(s, (cycle - s) // interval) for s in range(len(parts.stages)) if (cycle - s) % interval == 0 and 0 <= cycle - s < interval * count]
        if not busy:
            continue
        runs = tuple(parts.run(s, m - done) for s, m in busy)
        found += [Wave(runs) if len(runs) > 1 else runs[0], *(f for s, m in busy for f in parts.fold(s, m - done))]
    return tuple(found)
