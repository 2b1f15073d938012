"""Phased execution: one phase after the other, on one IPU (serial) or on two in turn (parallel)."""
from __future__ import annotations

from ..staging import Liveness

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
