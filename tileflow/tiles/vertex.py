"""Cycles of one tile's vertices for contractions, reductions, casts and copies. Arguments are NumPy arrays (or numbers) and broadcast.

A tile runs `chip.workers` contexts in turn, so what the busiest worker takes in its own cycles costs `workers` times that.
The numbers are those of PopLibs' cycle estimators (see the reference in each formula), re-derived per quantity:

    rows    output elements that share one set of coefficients (the streaming operand's outputs on the tile)
    runs    stretches of consecutive rows the streaming operand has in memory (1: one stretch)
    n       output channels on the tile, on the coefficients' side
    k       products summed per output and tap; `taps` kernel positions, summed one after the other
    groups  independent contractions on the tile
"""
from __future__ import annotations

from typing import Any

import numpy as np

from .chip import ITEMSIZE, Chip, MatrixUnit

CODE_BYTES = {"amp": 2400, "slic": 2200, "hmac": 1100, "vmac": 1300, "outer": 500, "reduce": 700, "cast": 300, "copy": 500}
"""Code of a vertex kind on a tile: estimates."""


def ceil(a: Any, b: Any) -> Any:
    """Whole parts of size `b` that hold `a`, in float64 (exact below 2**50)."""
    return np.ceil(a / b)


def amp(chip: Chip, unit: MatrixUnit, itemsize: int, rows: Any, runs: Any, n: Any, k: Any, taps: Any, groups: Any) -> Any:
    """Matrix unit: per group, k block and channel block the coefficients load, then the workers stream their rows
    (supervisors ConvPartial1x1 and ConvPartialnx1). k and n are padded to the unit's block.
    """
    load = ceil(unit.units * unit.k_grain * itemsize, chip.coefficient_bytes_per_cycle)
    start = 26 if itemsize == 2 else 22                     # pipeline fill and drain less the three rows in flight
    streamed = unit.cycles_per_row * ceil(rows, chip.workers)
    k_blocks, n_blocks = ceil(k, unit.k_grain), ceil(n, unit.units)
    single = 50 + groups * (12 + k_blocks * (15 + n_blocks * (26 + load + chip.workers * (start + streamed))))
    worker = 17 + 26 * ceil(runs, chip.workers) + streamed
    taken = 109 + groups * (16 + k_blocks * (14 + n_blocks * (29 + taps * (35 + load + chip.workers * worker))))
    return np.where((taps == 1) & (runs == 1), single, taken)


def hmac(chip: Chip, dtype: str, rows: Any, n: Any, k: Any, taps: Any, groups: Any) -> Any:
    """Dot products along k (ConvPartialHorizontalMac); an odd k takes two cycles an element."""
    width = chip.vector(dtype)
    dot = 7 + np.where(np.remainder(k, width) == 0, k / width, 2 * k)
    padded = 7 + ceil(k, width)                             # k padded with zeros where that is quicker
    worker = 32 + taps * (19 + ceil(rows, chip.workers) * (7 + n * np.minimum(dot, padded)))
    return 63 + groups * (48 + chip.workers * worker)


def outer(chip: Chip, dtype: str, rows: Any, n: Any, groups: Any) -> Any:
    """k = 1: each row is a scalar times a vector of channels (OuterProduct)."""
    width = chip.vector(dtype)
    worker = 25 + groups * (10 + ceil(rows, chip.workers) * (6 + np.maximum(0, ceil(n, width) - 3)))
    return chip.workers * worker


def vmac(chip: Chip, dtype: str, rows: Any, n: Any, k: Any, taps: Any, groups: Any) -> Any:
    """Vectors over groups, for depth-wise contractions (ConvPartialVerticalMac)."""
    width = chip.vector(dtype)
    worker = 18 + ceil(rows, chip.workers) * n * (12 + 3 + 2 * (taps * k - 1))
    return 101 + ceil(groups, width) * (56 + chip.workers * worker)


SLIC_CHANNELS, SLIC_MACS = 4, 32
"""Channels of a group that the small-group vertex takes at most, and its multiply-accumulates a cycle where the matrix unit has as many."""


def slic(chip: Chip, unit: MatrixUnit, rows: Any, runs: Any, n: Any, k: Any, inner_taps: Any, outer_taps: Any, groups: Any) -> Any:
    """Small groups in float16: four taps of four by four channels a pass, on the matrix unit (ConvPartial1xNSLIC)."""
    passes = ceil(inner_taps, 4) * outer_taps
    together = np.maximum(1, np.floor(SLIC_CHANNELS / np.maximum(n, k)))          # groups narrower than four channels share a pass
    row = 4 * SLIC_CHANNELS ** 2 / min(SLIC_MACS, unit.macs_per_cycle)
    worker = 30 * ceil(runs, chip.workers) + row * ceil(rows, chip.workers)
    return 80 + ceil(groups, together) * passes * (56 + chip.workers * worker)


def reduction(chip: Chip, dtype: str, outputs: Any, partials: Any) -> Any:
    """Adding `partials` values of `dtype` into each of `outputs` sums (ReduceAdd); 0 where there is nothing to add."""
    loops = ceil(outputs, 2 * chip.vector(dtype))
    cycles = chip.workers * (32 + ceil(loops, chip.workers) * (3 * partials + 8))
    return np.where(partials > 1, cycles, 0)


def cast(chip: Chip, source: str, target: str, elements: Any) -> Any:
    """Converting elements on a tile."""
    width = min(chip.vector(source), chip.vector(target))
    return chip.workers * (26 + ceil(ceil(elements, chip.workers), width))


def copy(chip: Chip, count: Any) -> Any:
    """Rearranging `count` bytes within a tile; 0 where there are none."""
    return np.where(np.asarray(count) > 0, chip.copy_call_cycles + ceil(count, chip.copy_bytes_per_cycle), 0)


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return ITEMSIZE[dtype]
