"""Tensors in streaming memory: which leave the chip, what that frees on the tiles and what their transfers take."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_strategies import FOUR, Cnn
from test_tiles_memory import count
from tile_models import Mixer, build, mlp

import tileflow
from tileflow.optim import SGD, Adam
from tileflow.program.program import Program
from tileflow.strategy.stages import SerialPhasedExecution
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.program.schedule import Storage
from tileflow.tiles.system.locations import GROUPS, OffChip, group_of
from tileflow.tiles.system.streaming import streaming_cycles

SMALL = chip("gc200").variant(name="small", tiles=16)


def off(program: Program, *groups: str, **options: Any) -> TileProgram:
    return analyze(program, SMALL, TileOptions(**{f"{g}_off_chip": True for g in groups}, **options))


def training() -> Program:
    return build(mlp(256, 512, 10), (16, 256), optimizer=Adam(), accumulation=4)


WEIGHTS = 4 * (256 * 512 + 512 + 512 * 10 + 10)
STATES = {"weights": WEIGHTS, "optimizer": 2 * WEIGHTS, "accumulators": WEIGHTS}
MOVED = {"weights": 4 * (WEIGHTS + 4 * 512 * 10) + 2 * WEIGHTS, "optimizer": 4 * WEIGHTS, "accumulators": (4 * 2 + 1) * WEIGHTS}
"""Bytes that pass in an update of 4 micro-batches. Weights: to the forward pass, those of the second layer to the backward pass too, and to and from
the update. Optimizer state: to and from the update. Accumulators: to and from each fold, and to the update."""


@pytest.mark.parametrize("group", STATES)
def test_off_the_chip_takes_exactly_its_bytes_from_what_is_always_live_and_adds_its_transfers(group: str) -> None:
    program = training()
    on, away = analyze(program, SMALL), off(program, group)
    assert away.off_chip == {group: STATES[group]}
    assert on.always_live.sum() - away.always_live.sum() == STATES[group]
    assert (on.always_live >= away.always_live).all()
    assert away.cycles_per_update - on.cycles_per_update == away.streaming_cycles
    transfers = 4 * sum(len(s.loads) + len(s.stores) for s in away.memory_schedule.storages)
    assert 0 <= away.streaming_cycles - streaming_cycles(MOVED[group], SMALL) <= transfers, "each is rounded up"
    assert away.peak.max() < on.peak.max()
    for before, after in zip(on.steps, away.steps, strict=True):
        assert after.phases.total >= before.phases.total
        assert (after.phases.compute, after.phases.sync) == (before.phases.compute, before.phases.sync)


def test_optimizer_state_comes_before_a_weights_update_and_goes_after_it() -> None:
    away = off(training(), "optimizer")
    moments = [s for s in away.memory_schedule.storages if s.off_chip]
    assert len(moments) == 8
    for storage in moments:
        (first, last), = storage.stays
        assert (storage.loads, storage.stores) == ((first,), (last,))
        assert away.steps[first].part == away.steps[last].part == "update"
    weights = sorted({(s.layer, s.stays[0]) for s in moments}, key=lambda found: found[1])
    ends = {s.name: s.stays[0] for s in moments}
    assert ends["0.weight.exp_avg"][1] < ends["2.weight.exp_avg"][0], f"the update of one weight ends before the next begins: {weights}"


def test_an_update_with_one_norm_over_all_weights_goes_weight_by_weight_after_it() -> None:
    tiled = off(build(mlp(256, 512, 10), (16, 256), optimizer=Adam(max_grad_norm=1.0), accumulation=4), "optimizer")
    ends = {s.name: s.stays[0] for s in tiled.memory_schedule.storages if s.off_chip}
    assert ends["0.weight.exp_avg"][1] < ends["2.weight.exp_avg"][0]
    root = max(s.index for s in tiled.steps if s.node.op.name == "Min")
    assert root < ends["0.weight.exp_avg"][0]


def test_a_tensor_below_the_threshold_stays() -> None:
    """nelms < minElementsForOffChip stays on the chip, 2 by default; as many leave it."""
    shapes = {s.name: s.shape for s in off(training(), "optimizer").memory_schedule.storages if s.off_chip}
    assert min(map(len, shapes.values())) == 1
    for least, left in ((10, 8), (11, 6), (513, 4), (5121, 2), (10**6, 0)):
        away = off(training(), "optimizer", min_elements_off_chip={"optimizer": least})
        assert sum(s.off_chip for s in away.memory_schedule.storages) == left
    one = Storage("s", "s", "activations", (), "float32")
    assert not OffChip().takes(one)
    assert OffChip(1).takes(one)


def test_activations_wait_in_streaming_memory_between_the_passes() -> None:
    program = build(Mixer(6, 64, 64), (32, 64, 64), accumulation=2)
    on, away = analyze(program, SMALL), off(program, "activations")
    assert away.categories["activations"].max() < 0.7 * on.categories["activations"].max()
    assert away.cycles_per_update - on.cycles_per_update == away.streaming_cycles > 0
    assert away.off_chip["activations"] == sum(s.nbytes for s in away.memory_schedule.storages if s.off_chip)
    for storage in (s for s in away.memory_schedule.storages if s.off_chip):
        assert storage.stores == storage.stays[0][1:]
        assert storage.loads == tuple(first for first, _ in storage.stays[1:])
        assert all(a[1] + 1 < b[0] for a, b in zip(storage.stays, storage.stays[1:], strict=False)), "a stay that goes on is one"
    step = next(s for s in away.steps if s.node.origin.role == "backward" and s.part == "micro")
    assert count(away, step.index).sum() < count(on, step.index).sum()


def test_every_step_has_what_it_uses_on_the_tiles() -> None:
    program = build(Mixer(2, 16, 32), (4, 16, 32), optimizer=SGD(lr=0.1, momentum=0.9), accumulation=2)
    away = off(program, *GROUPS)
    assert set(away.off_chip) == set(GROUPS)
    made = away.memory_schedule
    assert {group_of(s) for s in made.storages if s.off_chip} == set(GROUPS)
    for step in away.steps:
        for value in (*step.node.operands, *step.node.outputs):
            storage = made.of[value]
            assert storage.always_live or any(first <= step.index <= last for first, last in storage.spans)


def test_stashes_of_a_pipeline_leave_the_chip() -> None:
    machine: dict[str, Any] = {"training": True, "machine": {"base": "gc200", "tiles": 16, "name": "small"}, "inputs": [(2, 1, 12, 12)],
                               "gradient_accumulation": 9, **FOUR.to_options()}
    kept, away = tileflow.compile(Cnn(), **machine), tileflow.compile(Cnn(), activations_off_chip=True, **machine)
    assert sum(i.stashed for i in kept.tiled.ipus) > sum(i.stashed for i in away.tiled.ipus) == 0
    assert kept.tiled.peak.max() >= away.tiled.peak.max()
    assert away.tiled.streaming_cycles > 0
    assert "Streaming memory holds" in away.to_text()


def test_phases_keep_states_off_the_chip_unless_somebody_says_otherwise() -> None:
    machine: dict[str, Any] = {"training": True, "machine": {"base": "gc200", "tiles": 16, "name": "small"}, "inputs": [(2, 1, 12, 12)],
                               "gradient_accumulation": 2, **SerialPhasedExecution("a", "b", "c", "d").to_options()}
    phased = tileflow.compile(Cnn(), **machine)
    assert set(phased.tiled.off_chip) == {"weights", "optimizer", "accumulators"}
    told = tileflow.compile(Cnn(), weights_off_chip=False, optimizer_off_chip=False, accumulators_off_chip=False, **machine)
    assert not told.tiled.off_chip
    assert phased.tiled.always_live.max() < told.tiled.always_live.max()


def test_the_report_says_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    compiled = tileflow.compile(mlp(64, 32, 10), training=True, machine="gc200", inputs=[(8, 64)], report=tmp_path,
                                optimizer_off_chip=True, accumulators_off_chip=True)
    text = compiled.to_text()
    assert f"Streaming memory holds {2 * 4 * (64 * 32 + 32 + 320 + 10) / 1024:.1f} KiB of optimizer state." in text
    assert "Nothing of gradient accumulators is kept in streaming memory" in text, "one micro-batch an update accumulates nothing"
    assert compiled.report["host"]["streaming_memory_bytes"]["accumulators"] == 0
    assert "Streaming memory holds" in (tmp_path / "page.html").read_text(encoding="utf-8")


def lines(text: str, folder: Path) -> tileflow.Options:
    path = folder / "a.conf"
    path.write_text(text, encoding="utf-8")
    return tileflow.Options.load(path)


def test_poptorchs_locations_are_these_options(tmp_path: Path) -> None:
    found = lines("""
        TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(4))
        TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(16))
        TensorLocations.setAccumulatorLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
        TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(None))
        """, tmp_path)
    assert found == tileflow.Options(optimizer_off_chip=True, weights_off_chip=True, accumulators_off_chip=False,
                                     min_elements_off_chip={"optimizer": 4, "weights": 16})
    compiled = tileflow.compile(mlp(64, 32, 10), found, training=True, machine="gc200", inputs=[(8, 64)])
    assert compiled.tiled.options.min_elements_off_chip["weights"] == 16
    assert set(compiled.tiled.off_chip) == {"weights", "optimizer"}


@pytest.mark.parametrize(("text", "says"), [
    ("TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(1))", "needs True, False or None, not 1"),
    ("TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().minElementsForOffChip(0))", "a whole number of at least 1"),
    ("min_elements_off_chip({'moments': 4})", "activations, weights, optimizer, accumulators"),
    ("TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().minElementsForOffChip(4))\n" * 2,
     "line 2: Option min_elements_off_chip is set twice, first on line 1."),
])
def test_what_is_no_location_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="line") as error:
        lines(text, tmp_path)
    assert says in str(error.value)
