"""Cycles of one tile's vertices for contractions, reductions, casts and copies. Arguments are NumPy arrays (or numbers) and broadcast.

A tile runs `chip.workers` contexts in turn, so what the busiest worker takes in its own cycles costs `workers` times that.
The numbers are those of PopLibs' cycle estimators (public source, github.com/graphcore/poplibs, lib/: each formula names function and file),
re-derived per quantity. What they say of a vector of 8 bytes and of the matrix unit of a real chip is said of a chip's own vector and unit; no
formula is quicker than those, whatever their sizes.

    rows    output elements that share one set of coefficients (the streaming operand's outputs on the tile)
    runs    stretches of consecutive rows the streaming operand has in memory (1: one stretch)
    n       output channels on the tile, on the coefficients' side
    k       products summed per output and tap; `taps` kernel positions, summed one after the other
    groups  independent contractions on the tile
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .chip import ITEMSIZE, Chip, MatrixUnit

CODE_BYTES = {"amp": 2400, "slic": 2200, "hmac": 1100, "vmac": 1300, "outer": 500, "reduce": 700, "cast": 300, "copy": 500}
"""Code of a vertex kind on a tile: estimates."""

NATURAL_BYTES = 8
"""Of the vectors that the formulas are about."""


def ceil(a: Any, b: Any) -> Any:
    """Whole parts of size `b` that hold `a`, in float64 (exact below 2**50)."""
    return np.ceil(a / b)


def amp(chip: Chip, unit: MatrixUnit, itemsize: int, partials: str, rows: Any, runs: Any, n: Any, k: Any, inner_taps: Any, outer_taps: Any,
        groups: Any) -> Any:
    """Matrix unit: per group, k block and channel block the coefficients load, then the workers stream their rows, a worker's so many cycles
    after it starts. k and n are padded to the unit's block.

    One tap in one stretch of memory: getConvPartial1x1SupervisorOuterLoopCycleEstimateHalfFloat and …InnerLoop… (poplin/PerformanceEstimation.hpp).
    float16 keeps state from call to call (7 cycles a worker, 3 of them anew for each block of k); float32, and float16 sums on 8 units, write zeros
    to the sums before the first block of k. Else: getConvPartialnx1Supervisor…, where zeros are written by workers of their own.
    """
    half, workers = itemsize < 4, chip.workers
    load = ceil(unit.units * unit.k_grain * itemsize, chip.coefficient_bytes_per_cycle)
    each = ceil(rows, workers)
    streamed = unit.cycles_per_row * each
    k_blocks, n_blocks = ceil(k, unit.k_grain), ceil(n, unit.units)
    wide = (half and unit.units >= 16) or partials == "float32"
    kept = half and wide
    # a worker's cycles beyond its rows': 38, 41 or 46 for three rows, less 3 * 4 (float16) or 3 * 8 that those stream, less 7 of kept state
    start, one, two = (19, 3, 8) if kept else (29, 6, 3) if half else (22, 17, 8)
    short = np.where(each == 1, one, np.where(each == 2, two, 0))
    zeros = -1 if kept else 2 + ceil(unit.units * ITEMSIZE[partials], chip.vector_bytes) * each
    run = load + workers * (start + short + streamed)
    single = 50 + workers * kept * (7 + 3 * (k_blocks * groups - 1)) + groups * (
        23 + wide + (k_blocks - 1) * (16 - wide + n_blocks * (25 + run)) + n_blocks * (26 - wide + run + workers * zeros))
    # 17 once and 3 + 34 (float32: 45) - 9 a stretch, less the three rows that those hold
    worker = 17 + (16 if half else 15) * ceil(runs, workers) + streamed
    cleared = workers * (5 + ceil(each * unit.units, chip.vector(partials)))
    taken = 109 + 18 * workers + groups * (16 + n_blocks * (23 + cleared) + k_blocks * (14 + n_blocks * (
        14 + outer_taps * (14 + inner_taps * (30 + load + workers * worker)))))
    return np.where((inner_taps * outer_taps == 1) & (runs == 1), single, taken) * chip.bank_conflict_factor


def hmac(chip: Chip, dtype: str, rows: Any, n: Any, k: Any, taps: Any, groups: Any) -> Any:
    """Dot products along k: getConvPartialHorizontalMacSupervisorCycleEstimate, getDenseDotProductCycles (poplin/PerformanceEstimation.hpp).
    An odd k takes two cycles an element, an even one of float16 two a pair; or k is padded with zeros where that is quicker."""
    width, half = chip.vector(dtype), ITEMSIZE[dtype] < 4
    each = np.where(np.remainder(k, width) == 0, k / width, 1 + (np.where(np.remainder(k, 2) == 0, k, 2 * k) if half else 2 * k))
    dot = 7 - half + np.minimum(each, ceil(k, width))
    tap = (29 if half else 35) + ceil(rows, chip.workers) * (7 + n * dot)          # 16, less 6 of kept state, and 19
    return (65 if half else 58) + 9 * chip.workers + groups * (48 + chip.workers * (16 + taps * tap))


def vector_sizes(chip: Chip) -> list[int]:
    """Bytes of a chip's vectors, and of narrower ones down to natural ones, which it can compute with as well."""
    found = [chip.vector_bytes]
    while found[-1] >= 2 * NATURAL_BYTES:
        found.append(found[-1] // 2)
    return found


def _quickest(chip: Chip, dtype: str, cycles: Callable[[int], Any]) -> Any:
    """The fewest cycles by elements of a vector."""
    return functools.reduce(np.minimum, (cycles(max(1, n // ITEMSIZE[dtype])) for n in vector_sizes(chip)))


def outer(chip: Chip, dtype: str, rows: Any, n: Any, groups: Any) -> Any:
    """k = 1: each row is a scalar times a vector of channels (getOuterProductCycleEstimate, poplin/PerformanceEstimation.hpp): whole vectors, three
    at least, are stored as they are made; other numbers of channels one by one."""
    half = ITEMSIZE[dtype] < 4

    def row(width: int) -> Any:
        whole = (np.remainder(n, width) == 0) & (n >= 3 * width)
        return np.where(whole, 6 + n / width - 3, 10 + n * (2.5 if half else 2))
    return chip.workers * (25 + groups * ((10 if half else 11) + ceil(rows,
                                                                      chip.workers) * _quickest(chip, dtype, row)))


def vmac(chip: Chip, dtype: str, rows: Any, n: Any, inner_taps: Any, outer_taps: Any, groups: Any) -> Any:
    """Vectors over groups, for depth-wise contractions in float16: for each output and line of taps 7 to begin, 5 for the sums, 3 and two a further
    tap (getConvPartialVerticalMacCycleEstimate, poplin/PerformanceEstimation.hpp). Each worker has sums of its own, which are cleared before and
    added after (…ZeroInnerLoop…, …ReductionInnerLoop…)."""
    outputs = rows * n
    worker = 19 + ceil(rows, chip.workers) * n * outer_taps * (12 + 3 + 2 * (inner_taps - 1))
    added = 9 + (9 + 2 * (chip.workers - 1)) * ceil(outputs, chip.workers)

    def cycles(width: int) -> Any:
        cleared = 4 + ceil(outputs * width, 2)
        return ceil(groups, width) * (56 + chip.workers * worker + cleared + added)
    return 101 + _quickest(chip, dtype, cycles)


SLIC_CHANNELS, SLIC_MACS = 4, 32
"""Channels of a group that the small-group vertex takes at most, and its multiply-accumulates a cycle where the matrix unit has as many: 4 x 4
channels x 4 taps, in two passes over the input (poplin/ConvModel.cpp, getMaxMACsPerCyclePerTile)."""


def slic(chip: Chip, unit: MatrixUnit, rows: Any, runs: Any, n: Any, k: Any, inner_taps: Any, outer_taps: Any, groups: Any) -> Any:
    """Small groups in float16: four taps of four by four channels a pass, on the matrix unit
    (getConvPartialSlicSupervisorInnerLoopCycleEstimateHalfFloat and …OuterLoop…, poplin/PerformanceEstimation.hpp)."""
    passes = ceil(inner_taps, 4) * outer_taps
    narrow = np.maximum(n, k)
    together = np.maximum(1, np.floor(SLIC_CHANNELS / narrow))                    # groups narrower than four channels share a pass
    row = 4 * SLIC_CHANNELS ** 2 / min(SLIC_MACS, unit.macs_per_cycle)
    worker = 17 + 31 * ceil(runs, chip.workers) + row * ceil(rows, chip.workers)
    loads = np.where(narrow == SLIC_CHANNELS, 34, 37 + np.where(together == 2, 12, 10) * chip.workers)      # workers rearrange narrow coefficients
    return (28 + ceil(groups,
                      together) * (21 + passes * (26 + loads + chip.workers * worker))) * chip.bank_conflict_factor


def reduction(chip: Chip, dtype: str, outputs: Any, partials: Any) -> Any:
    """Adding `partials` values of `dtype` into each of `outputs` sums, two vectors at a time: 3 cycles for each and 8 around them
    (getReduceCycleEstimate, poplin/PerformanceEstimation.hpp); 0 where there is nothing to add."""
    loops = ceil(outputs, 2 * chip.vector(dtype))
    cycles = chip.workers * (32 + ceil(loops, chip.workers) * (3 * partials + 8))
    return np.where(partials > 1, cycles, 0)


def lookup(chip: Chip, itemsize: int, hits: int, misses: int, width: int) -> int:
    """Copying rows of `width` elements by index: of a worker's indices those whose row is on the tile, and those whose is not
    (getMultiSliceCycleEstimate, popops/PerformanceEstimation.cpp): two cycles a vector of 4 or 8 bytes, of 8-bit elements 3 for 4 bytes.
    Elements of 16 bits are copied in words of 32, as the smallest that a tile stores."""
    each, vector = (3, 4) if itemsize == 1 else (2, 2) if itemsize == 2 else (2, chip.vector_bytes // itemsize)
    return chip.workers * (30 + hits * (19 + -(-width // max(1, vector)) * each) + misses * 8)


def add_rows(chip: Chip, itemsize: int, hits: int, misses: int, width: int) -> int:
    """Adding rows of `width` elements to a table by index (getMultiUpdateOpCycleEstimate, popops/PerformanceEstimation.cpp): three cycles a word of
    4 bytes, the smallest that a tile stores."""
    words = -(-width * itemsize // 4)
    return chip.workers * (33 + hits * ((11 if itemsize == 4 else 12) + (words - 1) * 3) + misses * 5)


def cast(chip: Chip, source: str, target: str, elements: Any) -> Any:
    """Converting elements on a tile (getCast1DCycleEstimate, popops/PerformanceEstimation.cpp)."""
    width = min(chip.vector(source), chip.vector(target))
    return chip.workers * (26 + ceil(ceil(elements, chip.workers), width))


def copy(chip: Chip, count: Any) -> Any:
    """Rearranging `count` bytes within a tile; 0 where there are none."""
    return np.where(np.asarray(count) > 0, chip.copy_call_cycles + ceil(count, chip.copy_bytes_per_cycle), 0)


def reorder(chip: Chip, nbytes: Any, size: int, even: bool) -> Any:
    """Putting a tile's bytes of a tensor, whose elements have `size` bytes, into another order: one by one, 5/4 of a
    cycle each, 5/3 where the blocks they lie in are no multiples (`even`) of 8 bytes (poplin/ConvModel.cpp,
    addTransformCycleEstimate and getScaleFactorForTransform)."""
    cycles = ceil(nbytes * (5 / 4 if even else 5 / 3), min(chip.copy_bytes_per_cycle, size))
    return np.where(np.asarray(nbytes) > 0, chip.copy_call_cycles + cycles, 0)


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return ITEMSIZE[dtype]
