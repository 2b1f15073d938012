"""I/O tiles: what passes while the others compute, what that frees in time and costs in tiles and memory, and what is refused."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_strategies import FOUR, Cnn
from tile_checker import violations
from tile_models import build, mlp

import tileflow
from tileflow.exploration.planning import analyzed
from tileflow.optim import Adam
from tileflow.options.options import Options
from tileflow.program.batching import Batching
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.hardware.io import Transfer, host_io
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions

GC200 = chip("gc200")
ALL = {"*": "accumulation_loop"}


def test_without_io_tiles_tiles_wait_for_every_stream() -> None:
    found = host_io([Transfer("x", True, 4096, 100, 8), Transfer("y", False, 512, 10, 8)], 5000, Batching(1, 8), True, ({}, {}), 0, GC200)
    assert (found.waits, found.hidden, found.tile_bytes) == (880, 0, 0)


def test_all_but_two_of_a_loop_pass_meanwhile() -> None:
    """PopART's OverlapInnerLoop hides N - 2 of N, OverlapLoops M N - 2 of M N; each tensor is handed on at 4 bytes a cycle and tile."""
    x = Transfer("x", True, 4096, 100, 8)
    handed = 8 * math.ceil(4096 / (32 * 4))
    for mode, share in (("accumulation_loop", 6 / 8), ("device_iteration_loop", 22 / 24), ("no_overlap", 0.0)):
        found = host_io([x], 5000, Batching(1, 8, 3), True, ({"x*": mode}, {}), 32, GC200)
        assert found.shares == [pytest.approx(share)]
        assert found.waits == pytest.approx(800 * (1 - share) + (handed if share else 0), abs=1)
        assert found.tile_bytes == (2 * 4096 // 32 if share else 0)
    for turns in (1, 2):
        assert host_io([x], 5000, Batching(1, turns), True, (ALL, {}), 32, GC200).shares == [0.0]
    assert host_io([x], 5000, Batching(1, 1, 10), False, ({"*": "device_iteration_loop"}, {}), 32, GC200).shares == [0.8]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(3, 1000))
def test_the_larger_of_steps_and_streams_instead_of_their_sum(stream: int, cycles: int, turns: int) -> None:
    x = Transfer("x", True, 4, stream, turns)
    found = host_io([x], cycles * turns, Batching(1, turns), True, (ALL, {}), 32, GC200)
    inside = turns - 2
    assert cycles * turns + found.waits == pytest.approx(2 * (cycles + stream) + inside * max(cycles, stream) + turns, abs=2)


def compiled(**options: Any) -> Any:
    return tileflow.compile(mlp(256, 512, 10), training=True, inputs=[(64, 256)], **{"machine": "gc200", "gradient_accumulation": 16, **options})


def test_a_program_with_io_tiles() -> None:
    plain, idle = compiled().tiled, compiled(num_io_tiles=64).tiled
    over = compiled(num_io_tiles=64, overlap_inputs=ALL)
    assert (plain.peak.size, idle.peak.size) == (1472, 1408)
    assert all(s.plan.tiles <= 1408 for s in over.tiled.steps)
    assert not violations(over.tiled)
    streams = sum(t.cycles * t.repeats for t in plain.transfers)
    assert plain.io.waits == idle.io.waits == streams
    assert {t.repeats for t in plain.transfers if not t.to_chip} == {1}, "training returns its last micro-batch's outputs"
    assert round(plain.seconds_per_update * GC200.clock_hz) == plain.cycles_per_update + streams
    assert over.tiled.cycles_per_update == idle.cycles_per_update
    assert over.tiled.seconds_per_update < idle.seconds_per_update
    inputs = [t for t in over.tiled.transfers if t.to_chip]
    assert over.tiled.io.tile_bytes == math.ceil(2 * sum(t.nbytes for t in inputs) / 64)
    assert f"64 tiles are set aside for I/O and hold {over.tiled.io.tile_bytes:,} bytes each" in over.to_text()
    assert over.report["host"]["io_tiles"] == {"number": 64, "bytes": over.tiled.io.tile_bytes}
    assert [s["overlaps"] for s in over.report["host"]["streams"] if s["to_chip"]] == [14 / 16] * len(inputs)
    again = Options(machine="gc200", gradient_accumulation=16, num_io_tiles=64, overlap_inputs=ALL, joint_plans=False)
    assert analyzed(over, again).peak.size == 1408


def test_buffers_must_fit_the_io_tiles() -> None:
    small = chip("gc200").variant(name="few", tiles=64)
    found = analyze(build(mlp(8192, 4), (4096, 8192), accumulation=4), small, TileOptions(num_io_tiles=32, overlap_inputs=ALL))
    assert not found.fits
    assert any("Each of the 32 I/O tiles needs" in sentence for sentence in found.infeasible)


def test_streaming_memory_through_io_tiles() -> None:
    program = build(mlp(256, 512, 10), (64, 256), optimizer=Adam(), accumulation=4)
    direct = analyze(program, GC200, TileOptions(num_io_tiles=192, weights_off_chip=True))
    through = analyze(program, GC200, TileOptions(num_io_tiles=192, weights_off_chip=True, io_tiles_for={"weights": "load"}))
    both = analyze(program, GC200, TileOptions(num_io_tiles=192, weights_off_chip=True, io_tiles_for={"weights": "both"}))
    assert both.cycles_per_update < through.cycles_per_update < direct.cycles_per_update
    assert abs(both.streaming_cycles - direct.streaming_cycles) < 20, "the same bytes pass, rounded by step"
    assert through.io.tile_bytes == math.ceil(2 * 4 * (256 * 512 + 512) / 192), "the largest that passes at once, twice"
    for part in ("micro", "update"):
        own = sum(s.phases.total for s in both.steps if s.part == part)
        moved = sum(s.nbytes for s in both.memory_schedule.storages if s.off_chip for i in (*s.loads, *s.stores) if both.steps[i].part == part)
        assert own >= moved / GC200.streaming_bytes_per_second * GC200.clock_hz, "a part takes at least as long as its transfers"


@pytest.mark.parametrize(("options", "says"), [
    ({"num_io_tiles": 33}, "must be 0, or an even number between 32 and 192, not 33"), ({"num_io_tiles": 16}, "between 32 and 192"),
    ({"num_io_tiles": 194}, "between 32 and 192"),
    ({"overlap_inputs": ALL}, "No IO tiles allocated. You must allocate at least 32 IO tiles using num_io_tiles."),
    ({"io_tiles_for": {"weights": "load"}}, "No IO tiles allocated."),
    ({"num_io_tiles": 32, "io_tiles_for": {"weights": "load"}}, "weights are kept on the tiles"),
    ({"num_io_tiles": 32, "io_tiles_for": {"moments": "load"}}, "activations, weights, optimizer, accumulators"),
    ({"num_io_tiles": 32, "overlap_inputs": {"z*": "accumulation_loop"}}, "'z*' is not a tensor input to the model; these are x, labels."),
    ({"num_io_tiles": 32, "overlap_outputs": {"z*": "accumulation_loop"}}, "'z*' is not an output of the model"),
    ({"num_io_tiles": 32, "machine": {"base": "gc200", "tiles": 16, "name": "small"}}, "the chip has 16"),
])
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as error:
        compiled(**options)
    assert says in str(error.value)


def test_pipelines_cannot_overlap() -> None:
    with pytest.raises(OptionError, match="Overlapped IO is not supported with the strategy pipelined"):
        tileflow.compile(Cnn(), training=True, machine="gc200", inputs=[(2, 1, 12, 12)], gradient_accumulation=9, num_io_tiles=32, overlap_inputs=ALL,
                         **FOUR.to_options())


def test_poptorchs_settings_are_these_options(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("TensorLocations.numIOTiles(64)\nTensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False)"
                    ".useIOTilesToLoad(True))\nTensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useIOTilesToLoad()"
                    ".useIOTilesToStore(True))\n", encoding="utf-8")
    assert tileflow.Options.load(path) == tileflow.Options(
        num_io_tiles=64, weights_off_chip=True, io_tiles_for={"weights": "load", "optimizer": "both"})
