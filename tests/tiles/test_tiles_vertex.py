"""Cycles of vertices: those of the public estimators where these are exact, and never above a chip's peak, whoever made the chip."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_models import alone

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import OPS, TensorType
from tileflow.tiles.hardware import vertex
from tileflow.tiles.hardware.chip import ITEMSIZE, Chip, MatrixUnit, chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions

GC2, GC200 = chip("gc2"), chip("gc200")


def ceil(a: float, b: float) -> int:
    return -(-int(a) // int(b))


# ---- PopLibs' functions, transcribed: lib/poplin/PerformanceEstimation.hpp

def point_wise(rows: int, n: int, k: int, groups: int, half: bool, float_partials: bool, units: int, load_bytes: int = 8) -> int:
    """getConvPartial1x1SupervisorCycleEstimate with one worklist a worker and output channels in groups of as many as there are units."""
    core, workers = (4 if half else 8), 6
    retained = (7, 3) if half and (float_partials or units == 16) else (0, 0)
    common = (half and units == 16) or float_partials

    def inner(zeroing: bool) -> int:
        zero = 8 if not half and units == 16 else 4 if float_partials else 2
        most = ceil(rows, workers)
        if not half:
            base = {1: 47, 2: 46}.get(most, 46 + (most - 3) * core)
            cycles = base + (2 + zero * most) * zeroing
        elif common:
            cycles = {1: 31 + (1 if zeroing else 2), 2: 40 + (1 if zeroing else 2)}.get(most, (37 if zeroing else 38) + (most - 3) * core)
        else:
            cycles = {1: 39, 2: 40}.get(most, 41 + (most - 3) * core) + (2 + zero * most) * zeroing
        return (cycles - retained[0]) * workers
    k_grain = 16 if half else 8
    in_groups, out_groups = ceil(k, k_grain), ceil(n, units)
    load = units * k_grain * (2 if half else 4) // load_bytes
    return (50 + workers * (retained[0] + retained[1] * (in_groups * groups - 1)) + groups * (
        12 + common + (in_groups - 1) * (15 - common + 1 + out_groups * (19 + 6 + load + inner(False)))
        + 11 + out_groups * (19 - common + 7 + load + inner(True))))


def horizontal(rows: int, n: int, k: int, taps: int, groups: int, half: bool) -> int:
    """getConvPartialHorizontalMacSupervisorCycleEstimate, float32 sums, all channels in one group."""
    dot = next(7 + (i < (2 if half else 1)) + k // (1 << i) * (1 if (1 << i) >= (4 if half else 2) else 2) - half
               for i in range(2 if half else 1, -1, -1) if k % (1 << i) == 0)
    worker = 16 + taps * (16 - 6 * half + 19 + ceil(rows, 6) * (7 + n * dot))
    return (65 if half else 58) + 6 * 9 + groups * (23 + 15 + 10 + 6 * worker)


def outer_product(width: int, channels: int, half: bool) -> int:
    """getOuterProductCycleEstimate with all channels in one group."""
    if half:
        fast = channels >= 12 and channels % 4 == 0
        return 25 + 10 + width * (6 + (channels - 12) // 4) if fast else 25 + 10 + width * (10 + channels * 5 // 2)
    fast = channels >= 6 and channels % 2 == 0
    return 25 + 11 + width * (6 + (channels - 6) // 2) if fast else 25 + 11 + width * (10 + channels * 2)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("machine", [GC2, GC200], ids=["gc2", "gc200"])
@pytest.mark.parametrize("rows", [5, 12, 18, 96, 1000])
def test_the_matrix_unit_is_the_estimators(machine: Chip, half: bool, rows: int) -> None:
    for n, k, groups in ((16, 16, 1), (64, 256, 1), (48, 32, 3), (16, 512, 2)):
        for partials in ("float32", "float16") if half else ("float32",):
            dtype = "float16" if half else "float32"
            unit = machine.unit(dtype, partials)
            assert unit is not None
            found = vertex.amp(machine, unit, ITEMSIZE[dtype], partials, np.float64(rows), 1, n, k, 1, 1, groups)
            wanted = point_wise(rows, n, k, groups, half, partials == "float32", unit.units)
            assert float(found) == wanted, (n, k, groups, partials)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dot_and_outer_products_are_the_estimators(dtype: str) -> None:
    half = dtype == "float16"
    for rows, n, k, taps, groups in ((6, 1, 16, 1, 1), (100, 5, 64, 9, 2), (18, 3, 12, 3, 1)):
        assert float(vertex.hmac(GC200, dtype, rows, n, k, taps, groups)) == horizontal(rows, n, k, taps, groups, half)
    for rows, n in ((6, 12), (60, 64), (13, 5), (30, 2)):
        wanted = 6 * outer_product(ceil(rows, 6), n, half)
        assert float(vertex.outer(GC200, dtype, np.float64(rows), np.float64(n), 1)) == pytest.approx(wanted, abs=40)


def test_lookups_are_the_estimators() -> None:
    """lib/popops/PerformanceEstimation.cpp: getMultiSliceCycleEstimate, getMultiUpdateOpCycleEstimate."""
    assert vertex.lookup(GC200, 4, 10, 3, 64) == 6 * (30 + 10 * (19 + 32 * 2) + 3 * 8)
    assert vertex.lookup(GC200, 2, 10, 3, 64) == 6 * (30 + 10 * (19 + 32 * 2) + 3 * 8)
    assert vertex.lookup(GC200, 1, 10, 3, 64) == 6 * (30 + 10 * (19 + 16 * 3) + 3 * 8)
    assert vertex.add_rows(GC200, 4, 10, 3, 64) == 6 * (33 + 10 * (11 + 63 * 3) + 3 * 5)
    assert vertex.add_rows(GC200, 2, 10, 3, 64) == 6 * (33 + 10 * (12 + 31 * 3) + 3 * 5)


def chips() -> list[Chip]:
    """A chip of every kind that a user may write: slow and fast units of any block, narrow and wide vectors, any number of workers."""
    random, found = np.random.default_rng(0), [GC2, GC200]
    for i in range(40):
        units = {}
        for types in ("float16.float32", "float16.float16", "float32.float32"):
            width, depth = (int(random.choice([1, 3, 4, 8, 16, 32, 64])) for _ in range(2))
            units[types] = MatrixUnit(max(1, int(width * depth / random.choice([1, 2, 4, 8, 64]))), width, depth)
        found.append(GC200.variant(name=f"user {i}", matrix=units, workers=int(random.integers(1, 13)),
                                   vector_bytes=int(random.choice([2, 4, 8, 32, 64])), coefficient_bytes_per_cycle=int(random.choice([1, 8, 64]))))
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_vertex_is_quicker_than_the_peak(dtype: str) -> None:
    random = np.random.default_rng(1)
    for machine in chips():
        rows, n, k, inner, outer, groups = (np.floor(2 ** random.uniform(0, top, 200)) for top in (12, 9, 9, 3, 3, 5))
        macs = rows * n * k * inner * outer * groups
        width = machine.vector(dtype)
        found: dict[str, tuple[Any, float]] = {
            "hmac": (vertex.hmac(machine, dtype, rows, n, k, inner * outer, groups), width),
            "outer": (vertex.outer(machine, dtype, rows, n, groups) * k * inner * outer, width)}
        for partials in ("float32", "float16") if dtype == "float16" else ("float32",):
            unit = machine.unit(dtype, partials)
            assert unit is not None
            cycles = vertex.amp(machine, unit, ITEMSIZE[dtype], partials, rows, outer, n, k, inner, outer, groups)
            found[f"amp {partials}"] = cycles, unit.macs_per_cycle
            if dtype == "float16":
                small = vertex.slic(machine, unit, rows, outer, np.minimum(n, 4), np.minimum(k, 4), inner, outer, groups)
                found[f"slic {partials}"] = small / (np.minimum(n, 4) * np.minimum(k, 4)) * n * k, unit.macs_per_cycle
        if dtype == "float16":
            found["vmac"] = vertex.vmac(machine, dtype, rows, n, inner * k, outer, groups), width
        for name, (cycles, peak) in found.items():
            assert (cycles * peak >= macs * (1 - 1e-9)).all(), (machine.name, name)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_adding_and_moving_are_no_quicker_than_two_vectors_a_cycle(dtype: str) -> None:
    for machine in chips():
        for outputs, partials in ((1000.0, 2.0), (77.0, 40.0), (4.0, 300.0)):
            cycles = float(vertex.reduction(machine, dtype, outputs, partials))
            assert cycles * 2 * machine.vector(dtype) >= outputs * partials
        assert float(vertex.cast(machine, "float32", "float16", 1000)) * machine.vector("float32") >= 1000


def test_depth_wise_convolutions_have_their_vertex_in_16_bits_only() -> None:
    """As in the public planner: in float32 they are dot products or the matrix unit's."""
    x, w = TensorType("float32", (1, 64, 32, 32)), TensorType("float32", (64, 1, 3, 3))
    program = alone(OPS["Conv"](group=64, pads=(1, 1, 1, 1)), (x, w))
    kinds = {p: analyze(program, GC200.variant(tiles=16), TileOptions(precision=p)).steps[0].plan.vertex for p in ("32.32", "16.32")}
    assert kinds["32.32"] not in ("vmac", "slic")
    assert kinds["16.32"] in ("vmac", "slic")
