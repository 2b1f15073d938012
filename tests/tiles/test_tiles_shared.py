"""Analyses of one program share what they have in common; each is, to the last digit, what it is by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from random_tile_programs import draw

from tileflow.tiles import machine
from tileflow.tiles.hardware.chip import Chip
from tileflow.tiles.machine import Analyses, TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions


def told(tiled: TileProgram) -> list[Any]:
    """All that an analysis says, but for tensors' own objects."""
    return [
        tiled.cycles_per_update,
        tiled.samples_per_second,
        tiled.fits,
        tiled.infeasible,
        tiled.idle_tiles,
        tiled.rearranged,
        [(s.plan, s.phases, s.live_bytes, s.times, s.repeats) for s in tiled.steps],
        [s.mapping for s in tiled.memory_schedule.storages],
        [a.tolist() for a in (tiled.peak, tiled.always_live, tiled.liveness, tiled.peak_step)],
        {name: a.tolist() for name, a in tiled.categories.items()},
        (tiled.energy.steps, tiled.energy.categories, tiled.energy.per_sample),
    ]


def changed(rng: np.random.Generator, chip: Chip, options: TileOptions) -> tuple[Chip, TileOptions]:
    """Another setting: other memory, rates or bounds; now and then another number of tiles or precision."""
    what = rng.choice(["memory", "clock", "share", "exchange", "tiles", "precision"],
                      p=[0.35, 0.2, 0.2, 0.1, 0.1, 0.05])
    if what == "memory":
        return chip.variant(bytes_per_tile=int(chip.bytes_per_tile * 2 ** rng.uniform(-4, 2)) + 1), options
    if what == "clock":
        energy = chip.energy if rng.random() < 0.5 else {}
        return chip.variant(clock_hz=float(rng.uniform(1e9, 3e9)), host_bytes_per_second=1e10, energy=energy), options
    if what == "exchange":
        return chip.variant(exchange_bytes_per_cycle=float(rng.choice([2, 4, 9]))), options
    if what == "tiles":
        return chip.variant(tiles=int(rng.choice([1, 5, 16]))), options
    plain: dict[str, Any] = {
        **vars(options),
        "available_memory_proportion": float(rng.choice([0.0, 0.01, 0.05, 0.3, 1.0])),
        "precision": str(rng.choice(["32.32", "16.32", "16.16"])) if what == "precision" else options.precision,
    }
    return chip, TileOptions(**plain)


def check(seed: int, settings: int = 6) -> None:
    program, chip, options, _ = draw(seed)
    rng, shared = np.random.default_rng([seed, 15]), Analyses(program, cache={})
    for _ in range(settings):
        assert told(shared.on(chip, options)) == told(analyze(program, chip, options, cache={})), f"seed {seed}: {chip}"
        chip, options = changed(rng, chip, options)


@pytest.mark.parametrize("seed", range(6))
def test_few(seed: int) -> None:
    check(seed)


@paths.exhaustive
@pytest.mark.parametrize("seed", range(6, 66, 10))
def test_many(seed: int) -> None:
    for number in range(seed, seed + 10):
        check(number, 10)


def test_placements_are_shared_where_nothing_but_rates_and_room_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    place = machine.placed
    monkeypatch.setattr(machine, "placed", lambda *of: made.append(of) or place(*of))
    program, chip, options, _ = draw(5)
    shared = Analyses(program, cache={})
    shared.on(chip, options)
    once = len(made)
    for other in (chip.variant(clock_hz=2e9), chip.variant(bytes_per_tile=2 * chip.bytes_per_tile)):
        shared.on(other, options)
    assert len(made) == once > 0
    shared.on(chip.variant(sync_cycles=chip.sync_cycles + 7), options)
    assert len(made) == 2 * once
