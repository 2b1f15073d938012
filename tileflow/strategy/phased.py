"""Phased execution: one phase after the other, on one group of IPUs (serial) or on two in turn (parallel).

Where tensors leave the chip, what passes to and from streaming memory is beside the phase that has the number before or after, if there is
one: two phases' tensors are then on the chip together. Liveness modes are numbers of phases, as the reference has it.
"""
from __future__ import annotations

import functools
import itertools

from ..program.batching import Batching
from ..program.schedule import Run, Step, Steps, Stream, Wave
from ..program.staging import Liveness, Staging
from .order import Parts, per_update, updates

_NUMBERS: dict[Liveness, tuple[int, int]] = {"always_live": (1, 0), "off_chip_after_fwd": (1, 4), "off_chip_after_fwd_no_overlap": (2, 4),
                                             "off_chip_after_each_phase": (4, 4)}
"""Factor on the numbers of phases, and how much later backward phases come."""


def phase_ids(phases: int, liveness: Liveness = "always_live", separate_backward: bool = False) -> list[tuple[int, int]]:
    """The numbers of each phase's forward and backward pass (PopTorch, CompilerOptions.hpp).

    With P the number of the last forward phase, the backward pass of phase i is phase 2P - i: the last phase does both. A separate backward phase
    comes two later, so that a pair's numbers are both even or both odd; where tensors leave the chip after the forward pass, four later, which is
    the gap that makes them. Without overlap numbers are doubled, with tensors off the chip after each phase multiplied by four.
    """
    factor, gap = _NUMBERS[liveness]
    gap = max(gap, 2 * separate_backward)
    last = (phases - 1) * factor
    return [(i * factor, 2 * last - i * factor + gap) for i in range(phases)]


def numbers(staging: Staging, training: bool) -> tuple[int, ...]:
    """The number of the phase of each place; () without phases."""
    if not staging.phases:
        return ()
    ids = phase_ids(max(staging.phases) + 1, staging.liveness, staging.separate_backward)
    return tuple(ids[staging.phases[p if p < staging.forward else staging.backward(p)]][p >= staging.forward]
                 for p in range(staging.places(training)))


def build(parts: Parts, batching: Batching, training: bool) -> Steps:
    """The schedule of a call: all phases of a micro-batch, then its folds. Stages of one phase that do not need each other are side by side."""
    return updates(parts, parts.in_order(per_update(batching, training), functools.partial(_micro_batch, parts)), batching, training)


def _micro_batch(parts: Parts, ahead: int) -> Steps:
    groups = [list(found) for _, found in itertools.groupby(range(len(parts.stages)), key=lambda p: parts.phases[p])]
    steps: list[Step] = []
    for j, places in enumerate(groups):
        before, after = (_beside(parts, groups, a) for a in (j - 1, j))
        beside = (*(_streams(parts, groups[j - 1], False) if before else ()), *(_streams(parts, groups[j + 1], True) if after else ()))
        if j and not before:
            steps += _streams(parts, places, True)
        for i, together in enumerate(_together(parts, places)):
            runs: tuple[Run | Stream, ...] = (*(parts.run(p, ahead) for p in together), *(beside if i == 0 else ()))
            steps.append(Wave(runs) if len(runs) > 1 else parts.run(together[0], ahead))
        if j + 1 < len(groups) and not after:
            steps += _streams(parts, places, False)
    return (*steps, *(f for p in range(len(parts.stages)) for f in parts.fold(p, ahead)))


def _beside(parts: Parts, groups: list[list[int]], j: int) -> bool:
    """Whether nothing lies between the numbers of a phase and of the next."""
    return 0 <= j < len(groups) - 1 and parts.phases[groups[j + 1][0]] == parts.phases[groups[j][0]] + 1


def _streams(parts: Parts, places: list[int], load: bool) -> tuple[Stream, ...]:
    return tuple(Stream(parts.stages[p], load, parts.phases[p], parts.ipus[p]) for p in places) if parts.off_chip else ()


def _together(parts: Parts, places: list[int]) -> list[list[int]]:
    """The places of a phase in their order, those side by side that are on different IPUs and read nothing of each other."""
    found: list[list[int]] = []
    for p in places:
        last = found[-1] if found else [p]
        if found and not parts.reads[p] & {*last} and parts.ipus[p] not in {parts.ipus[q] for q in last}:
            last.append(p)
        else:
            found.append([p])
    return found
