"""Chips as data: built in, from files, from other chips; every constant with its source; the exchange."""
from __future__ import annotations

import re

import numpy as np
import pytest

from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import CHIPS, Chip, MatrixUnit, chip, device_dtype
from tileflow.tiles.hardware.exchange import exchange_cycles
from tileflow.tiles.hardware.vertex import amp

FILE = """
name = "mine"
tiles = 64
bytes_per_tile = 131072
clock_hz = 1e9
[matrix."float16.float32"]
macs_per_cycle = 32
units = 8
k_grain = 16
"""


@pytest.mark.parametrize(("name", "tiles", "kib", "half", "single"), [
    ("gc2", 1216, 256, 124.5e12, 31.1e12), ("gc200", 1472, 624, 250.6e12, 62.7e12), ("bow", 1472, 624, 348.6e12, 87.1e12),
    ("c600", 1472, 624, 282.6e12, 70.7e12)])
def test_published_peaks_and_memory(name, tiles, kib, half, single):
    machine = chip(name.upper())
    assert (machine.tiles, machine.bytes_per_tile) == (tiles, kib * 1024)
    assert machine.peak_flops("float16") == pytest.approx(half, rel=2e-3)
    assert machine.peak_flops("float32") == pytest.approx(single, rel=2e-3)


@pytest.mark.parametrize("machine", CHIPS.values(), ids=str)
def test_every_constant_says_where_it_comes_from(machine):
    for name, _, status, source in machine.constants():
        assert status in ("documented", "estimate"), name
        assert source


@pytest.mark.parametrize("machine", CHIPS.values(), ids=str)
def test_every_estimate_has_a_range_and_its_reason(machine):
    """But what no time depends on (energy is bounds as it stands); and some documented constants are the most there can
    be."""
    estimates = {name for name, _, kind, _ in machine.constants() if kind == "estimate"
                 and not name.startswith("energy.")}
    estimates -= {"reserved_bytes", "area_mm2"}
    found = machine.ranges()
    assert estimates <= set(found)
    for name, of in found.items():
        assert of.low <= 1 <= of.high, name
        assert of.low < of.high, name
        assert len(of.reason) > 15, name


def test_the_ends_of_all_ranges_are_a_slow_and_a_fast_chip():
    machine = chip("gc200")
    slow, fast = machine.at_worst(), machine.at_best()
    assert (slow.sync_cycles, machine.sync_cycles, fast.sync_cycles) == (750, 600, 168)
    assert slow.exchange_bytes_per_cycle == pytest.approx(4 / 1.24)
    assert fast.exchange_bytes_per_cycle == 4
    assert slow.streaming_bytes_per_second < 20e9 < fast.streaming_bytes_per_second
    assert (slow.tiles, slow.clock_hz, slow.matrix) == (machine.tiles, machine.clock_hz, machine.matrix)
    args = machine.matrix["float16.float16"], 2, "float16", 100, 1, 16, 64, 1, 1, 1
    assert amp(slow, *args) == pytest.approx(1.13 * amp(machine, *args))
    assert amp(fast, *args) == amp(machine, *args)


def test_what_a_user_says_has_no_range():
    mine = chip("gc200").variant(sync_cycles=100)
    assert "sync_cycles" not in mine.ranges()
    assert "piece_cycles" in mine.ranges()
    assert mine.at_worst().sync_cycles == 100 == mine.at_best().sync_cycles


def test_bound_is_a_share_of_a_tile():
    assert chip("gc200").bound(0.5) == 319488
    assert chip("gc200").bound(0) == 0
    for wrong in (-0.1, 1.5, "much", True, float("nan")):
        with pytest.raises(OptionError, match="from 0 to 1"):
            chip("gc200").bound(wrong)


def test_a_chip_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    made = chip(str(path))
    assert (made.name, made.tiles, made.workers) == ("mine", 64, 6)
    assert made.matrix == {"float16.float32": MatrixUnit(32, 8, 16)}
    assert made.unit("float32", "float32") is None
    assert made.constants()[0][2] == "user"
    path.write_text('base = "bow"\ntiles = 16\n[matrix.float32.float32]\nmacs_per_cycle = 4\nunits = 4\nk_grain = 4\n')
    small = Chip.load(path)
    assert (small.tiles, small.clock_hz, small.peak_macs_per_cycle("float32")) == (16, 1.85e9, 4)


@pytest.mark.parametrize(("text", "says"), [
    ("tiles = 4", "bytes_per_tile, clock_hz, matrix must be given"),
    ('base = "gc3"', "no machine 'gc3'"),
    ('base = "bow"\ntile = 4', "no constant 'tile'; did you mean tiles"),
    ('base = "bow"\ntiles = 0', "tiles must be a whole number of at least 1, not 0"),
    ('base = "bow"\ntiles = 2.5', "tiles must be a whole number"),
    ('base = "bow"\nclock_hz = -1', "clock_hz must be a number above 0, not -1"),
    ('base = "bow"\nclock_hz = nan', "clock_hz must be a number"),
    ('base = "bow"\nreserved_bytes = 638976', "must be below bytes_per_tile"),
    ('base = "bow"\nmatrix = 4', "matrix must be a table"),
    ('base = "bow"\n[matrix."half.float32"]\nmacs_per_cycle = 1\nunits = 1\nk_grain = 1', "named <input type>.<partials type>"),
    ('base = "bow"\n[matrix."float16.float32"]\nmacs_per_cycle = 1\nunits = 1', "macs_per_cycle, units and k_grain"),
    ('base = "bow"\n[matrix."float16.float32"]\nmacs_per_cycle = 1\nunits = 0\nk_grain = 1', "units must be a whole number of at least 1"),
    ("tiles = = 4", "not valid TOML"),
])
def test_wrong_files(tmp_path, text, says):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=re.escape(says)):
        Chip.load(path)


def test_missing_file_and_unknown_machine(tmp_path):
    with pytest.raises(OptionError, match="cannot be read"):
        chip(str(tmp_path / "none.toml"))
    with pytest.raises(OptionError, match="choose one of gc2, gc200, bow, c600"):
        chip("tpu")


def test_variants_and_round_trip():
    small = chip("gc200").variant(tiles=16)
    assert (small.tiles, small.bytes_per_tile, small.name) == (16, 638976, "gc200*")
    assert small != chip("gc200")
    assert small.key != chip("gc200").key
    assert ("tiles", 16, "user", "changed by hand") in small.constants()
    assert Chip.from_dict(chip("bow").to_dict()) == chip("bow")
    assert hash(chip("bow").variant(name="bow")) == hash(chip("bow"))
    with pytest.raises(OptionError, match="no constant 'tils'"):
        chip("gc200").variant(tils=16)


def test_device_types():
    assert [device_dtype(t) for t in ("float64", "int64", "float32", "bool")] == ["float32", "int32", "float32", "bool"]
    assert [device_dtype(t, "16.16") for t in ("float64", "int64", "float16")] == ["float16", "int32", "float16"]


def test_neighbours_share_a_bus():
    gc200 = chip("gc200")
    cycles = exchange_cycles(gc200, np.full(5, 801.0), np.array([1, 2, 3, 3, 4]), np.array([8, 8, 9, 3, 8]))
    assert cycles.tolist() == [201, 101, 201, 101, 101]
    assert exchange_cycles(gc200.variant(tiles_per_bus=1), 800.0, 2, 8) == 200
