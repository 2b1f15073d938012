"""Tasks: what of a wave is side by side on the host, and in which order a single worker does all of it, in one memory.

The runs of a wave may be in any order. Several workers take them as tasks. A single one does them one after the other anyway: a task for each would
cost the more, and an arena for each would push out of the caches what another stage is about to read.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ..program.schedule import Fold, Run, Steps, Wave, parts, waves

Task = tuple[Run | Fold, ...]
"""Runs and folds that follow one another."""


def beside(steps: Steps) -> list[str]:
    """The parts that are in waves with other parts, in order."""
    found: set[str] = set()
    for wave in waves(steps):
        names = _parts(wave)
        if len(set(names)) > 1:
            assert len(set(names)) == len(names), "a wave has a run of each of several parts, or several of one part"
            found.update(names)
    return [name for name in parts(steps) if name in found]


def turns(names: Sequence[str], common: Callable[[str, str], int]) -> list[str]:
    """In which order one worker does a wave's runs of these parts, which are given in the order in which they follow each other in a micro-batch.

    The last one is first: what a part has made waits for fewer others until the next part, a cycle later, reads it. But of the neighbours that have
    most in common one ends a cycle and the other begins the next, with the same micro-batch, so that what they share is still in the caches.
    `common`: bytes that two parts both touch.
    """
    _, last, first = max(((common(a, b), a, b) for a, b in pairwise(names)), default=(0, "", ""))
    return sorted(names, key=lambda name: (name != first, name == last, -names.index(name)))


def tasks(wave: Wave, folds: Sequence[Fold], order: Sequence[str], cost: Mapping[str, float]) -> tuple[list[Task], Sequence[Fold]]:
    """A wave's tasks, the longest first; and of the folds that follow it those that are still to come.

    A fold joins its micro-batch's run where it is the only one of its part (those of one part keep their order). In the one task of a single worker
    it comes before the last run, which is last because of what it leaves in the caches.

    Args:
        order: of the parts, for a single worker; empty: every run is a task.
        cost: of a run of each part.
    """
    runs = sorted((run for run in wave.runs if isinstance(run, Run)), key=lambda run: -cost[run.part])
    own: dict[Run, list[Fold]] = {run: [] for run in runs}
    rest = []
    for fold in folds:
        found = [run for run in runs if run.ahead == fold.ahead]
        if len(found) == 1 and [other.part for other in folds].count(fold.part) == 1:
            own[found[0]].append(fold)
        else:
            rest.append(fold)
    if not all(run.part in order for run in runs):
        return [(run, *own[run]) for run in runs], rest
    *others, last = sorted(runs, key=lambda run: order.index(run.part))
    return [(*others, *(fold for run in others for fold in own[run]), last, *own[last])], rest


def _parts(wave: Wave) -> list[str]:
    return [run.part for run in wave.runs if isinstance(run, Run)]
