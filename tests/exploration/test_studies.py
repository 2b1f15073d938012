"""tileflow.machine: chips as values, one program on many of them, figures that depend on nothing else in the study,
processes, Pareto fronts."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pages
import pytest

import tileflow
from tileflow import machine, nn
from tileflow.exploration import crew
from tileflow.exploration.point import FIGURES, WHERE_SAID, Point, pareto
from tileflow.system.errors import OptionError, TileflowError
from tileflow.system.packaged import model_path
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions

MODEL = "digits_cnn.onnx"
SMALL = {"tiles": 40, "bytes_per_tile": 60_000}


@pytest.fixture(scope="module")
def program() -> machine.Program:
    return machine.compile(MODEL, training=True, micro_batch_size=4, gradient_accumulation=2)


def chips(n: int) -> list[machine.Chip]:
    """Chips that differ in memory alone, and some in other constants."""
    draw = random.Random(n)
    base = machine.chip("gc200").variant(**SMALL)
    return [
        base.variant(
            name=f"chip{i}",
            bytes_per_tile=int(2 ** draw.uniform(9, 17)),
            tiles=draw.choice([40, 40, 17]),
            exchange_bytes_per_cycle=draw.choice([4, 4, 9]),
            clock_hz=draw.choice([1e9, 2e9]),
        )
        for i in range(n)
    ]


# ---- chips


def test_a_grid_is_every_combination_of_constants():
    found = machine.grid("gc200", tiles=[10, 20], bytes_per_tile=[1000, 2000, 3000])
    assert [(c.tiles, c.bytes_per_tile) for c in found] == [(t, b) for t in (10, 20) for b in (1000, 2000, 3000)]
    assert {c.clock_hz for c in found} == {machine.chip("gc200").clock_hz}
    assert {c.name for c in found} == {"gc200*"}
    assert machine.grid(found[0], tiles=7) == [found[0].variant(tiles=7, name="gc200**")]
    assert machine.grid("bow") == [machine.chip("bow").variant()]


@pytest.mark.parametrize(
    ("constants", "says"),
    [
        ({"tile": [1]}, "a chip has no constant 'tile'; did you mean tiles"),
        ({"tiles": []}, "tiles has no value"),
        ({"tiles": [5, 0]}, "tiles must be a whole number of at least 1, not 0"),
    ],
)
def test_a_wrong_grid_is_told(constants, says):
    with pytest.raises(OptionError, match=says):
        machine.grid("gc200", **constants)


def test_a_chip_goes_to_another_process_as_it_is():
    for one in (*machine.CHIPS.values(), *chips(2)):
        same = pickle.loads(pickle.dumps(one))
        assert same == one
        assert same.constants() == one.constants()
        assert hash(same) == hash(one)


# ---- one chip


def test_on_a_chip_is_what_compile_says_of_it(program):
    chip = chips(3)[2]
    tiled = program.on(chip, available_memory_proportion=0.3)
    other = tileflow.compile(
        MODEL,
        training=True,
        micro_batch_size=4,
        gradient_accumulation=2,
        machine=chip,
        available_memory_proportion=0.3,
        allow_out_of_memory=True,
    ).tiled
    assert (tiled.cycles_per_update, tiled.samples_per_second, tiled.fits) == (
        other.cycles_per_update,
        other.samples_per_second,
        other.fits,
    )
    assert np.array_equal(tiled.peak, other.peak)
    assert program.on().chip.name == "gc200"


def test_on_refuses_what_changes_the_program(program):
    with pytest.raises(
        OptionError, match="micro_batch_size would change the program itself; compile it so, or give it to study"
    ):
        program.on("gc200", micro_batch_size=8)
    assert program.on("gc200", micro_batch_size=4, recompute=True).samples_per_update == 8


# ---- studies


def test_every_point_is_what_the_chip_alone_gives(program):
    """Plans are shared between the chips of a study: by those that differ in what a plan does not read, and no
    others."""
    tried = chips(7)
    found = program.study(tried, available_memory_proportion=[0.1, 0.6])
    assert list(found.axes) == ["machine", "available_memory_proportion"]
    assert len(found.points) == 14
    for point, (chip, share) in zip(found.points, [(c, p) for c in tried for p in (0.1, 0.6)], strict=True):
        alone = analyze(program.compilation.program, chip, TileOptions(available_memory_proportion=share), cache={})
        assert (point.cycles, point.bytes, point.fits) == (alone.cycles_per_update, int(alone.peak.max()), alone.fits)
        assert point.samples_per_second == alone.samples_per_second
        assert point.values == {"machine": chip.name, "available_memory_proportion": share}


def test_columns_are_the_constants_that_differ(program):
    found = program.study(
        machine.grid(machine.chip("gc200").variant(**SMALL), tiles=[20, 40], bytes_per_tile=[1000, 60_000])
    )
    table = found.columns()
    assert list(table) == [
        "machine",
        "tiles",
        "bytes_per_tile",
        "state",
        *(n for n in FIGURES if n not in ("bytes_per_tile", *WHERE_SAID)),
        "reason",
    ]
    assert table["tiles"] == [20, 20, 40, 40]
    assert table["bytes_per_tile"] == [1000, 60_000] * 2
    assert table["state"] == ["out of memory", "fits"] * 2
    assert "bytes per tile" in found.to_text()
    assert found.to_svg().startswith("<svg")
    assert found.to_csv().count("bytes_per_tile") == 1
    assert list(program.study(["gc200", "bow"]).axes) == ["machine"]


def test_chips_that_a_table_cannot_tell_apart_are_refused(program):
    one = machine.chip("gc200")
    units = {"float32.float32": machine.MatrixUnit(8, 16, 8)}
    with pytest.raises(OptionError, match="differ in no single number"):
        program.study([one, one.variant(name="gc200", matrix=units)])
    assert [p.values["machine"] for p in program.study([one, one.variant(name="slow", matrix=units)]).points] == [
        "gc200",
        "slow",
    ]


def test_axes_that_change_the_program_compile_it_again(program):
    found = program.study(machine.chip("gc200").variant(**SMALL), micro_batch_size=[2, 4])
    assert [p.values["micro_batch_size"] for p in found.points] == [2, 4]
    assert (
        found.points[1].cycles
        == program.on(machine.chip("gc200").variant(**SMALL)).cycles_per_update
        != found.points[0].cycles
    )


def test_a_network_of_layers_is_a_program_too():
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    one = machine.compile(net, inputs=[(6, 16)])
    found = one.study(machine.grid("gc200", tiles=[1, 5]), processes=1)
    assert [p.values["tiles"] for p in found.points] == [1, 5]
    assert found.points[0].cycles > found.points[1].cycles
    assert "inference" in repr(one)


@pytest.mark.parametrize(
    "processes", [2, pytest.param(3, marks=pytest.mark.exhaustive), pytest.param(5, marks=pytest.mark.exhaustive)]
)
def test_processes_change_nothing(program, processes, tmp_path):
    tried, seen = chips(4), []
    settings = {"available_memory_proportion": [0.1, 0.6], "micro_batch_size": [4, 2]}
    alone = program.study(tried, **settings)
    together = program.study(
        tried, **settings, processes=processes, out=tmp_path, progress=lambda done, most, _: seen.append((done, most))
    )
    assert together.to_csv() == alone.to_csv() == (tmp_path / "explore.csv").read_text()
    assert [p.options for p in together.points] == [p.options for p in alone.points]
    assert seen == [(i, 16) for i in range(1, 17)]


@pytest.mark.parametrize("processes", [0, True, 2.0, 257])
def test_a_wrong_number_of_processes_is_told(program, processes):
    with pytest.raises(OptionError, match="processes must be a whole number from 1 to 256"):
        program.study("gc200", processes=processes)


def test_operators_of_ones_own_are_analysed_by_this_process():
    """Other processes do not know them."""

    @tileflow.operator("studies", "Soft")
    class Soft:
        @tileflow.custom.expression
        def forward(self, x):
            return x / (1 + tileflow.custom.functions.abs_(x))

    class Net(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(8, 16)

        def forward(self, x):
            return Soft()(self.layer(x))

    try:
        one = machine.compile(Net(), inputs=[(4, 8)])
        chips = machine.grid("gc200", tiles=[2, 4, 8])
        assert one.study(chips, processes=2).to_csv() == one.study(chips).to_csv()
    finally:
        tileflow.custom.forget("studies", "Soft")


def test_a_process_that_ends_is_told(program, monkeypatch):
    monkeypatch.setattr(crew, "_BEGIN", "pass")
    with pytest.raises(TileflowError, match="A process of the exploration has ended"):
        program.study(chips(4), processes=2)


@pytest.mark.exhaustive
def test_after_ctrl_c_there_is_what_was_done_and_no_process(program, monkeypatch):
    crews = []
    close = crew.Crew.close
    monkeypatch.setattr(crew.Crew, "close", lambda self: (crews.append(self), close(self))[1])

    def stop(done: int, most: int, best: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(machine.ExplorationInterrupted) as stopped:
        program.study(chips(6), processes=2, progress=stop)
    assert len(stopped.value.exploration.points) == 1
    assert not stopped.value.exploration.complete
    assert len(crews) == 1
    assert all(child.returncode is not None for child, _ in crews[0]._members)


def test_settings_that_share_most_are_given_together(program):
    options = [(i, program.options.clone(machine=c)) for i, c in enumerate(chips(30))]
    given = crew.batches(options, 2)
    assert sorted(i for batch in given for i, _ in batch) == list(range(30))
    assert {len(b) for b in given} <= {1, 2, 3}
    keys = [{o.machine.key_of_cycles for _, o in batch} for batch in given]
    assert {len(alike) for alike in keys} == {1}
    assert sum(a != b for a, b in itertools.pairwise(keys)) == len(set.union(*keys)) - 1
    assert [i for group in crew.together(options) for i, _ in group] == [i for batch in given for i, _ in batch]


def test_a_process_goes_on_with_the_chip_that_it_has(program):
    options = [(i, program.options.clone(machine=c)) for i, c in enumerate(chips(30))]
    waiting = crew.batches(options, 2)
    first = crew.next_batch(waiting, "", set())
    key = crew.costs(first[0])
    assert crew.costs(crew.next_batch(waiting, key, {key})[0]) == key
    assert crew.costs(crew.next_batch(waiting, "another", {key})[0]) != key
    rest = [crew.next_batch(waiting, key, {key}) for _ in range(len(waiting))]
    assert not waiting
    own = [crew.costs(batch[0]) == key for batch in rest]
    assert own == sorted(own, reverse=True)


@pytest.mark.exhaustive
def test_the_command_takes_processes(tmp_path, monkeypatch, capsys):
    from tileflow import cli

    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(["explore", MODEL, "--available-memory-proportion", "0.1,0.2", "--processes", "2", "--no-progress"])
        == 0
    )
    assert "Fastest that fits" in capsys.readouterr().out
    assert (tmp_path / "explored" / "explore.csv").exists()


# ---- fronts


@pytest.mark.parametrize("seed", range(5))
def test_a_pareto_front_is_what_nothing_beats(seed):
    rng = np.random.default_rng(seed)
    points = [
        Point(
            {"tiles": int(t)}, False, "fits" if rng.random() < 0.9 else "out of memory", cycles=int(c), tflops=float(f)
        )
        for t, c, f in zip(*(rng.integers(0, 6, 40) for _ in range(3)), strict=True)
    ]
    kept = pareto(points, maximize="tflops", minimize=("tiles", "cycles"))
    rows = {id(p): np.array([p.values["tiles"], p.cycles, -p.tflops]) for p in points if p.fits}
    for p in points:
        beaten = p.fits and any(
            (rows[id(q)] <= rows[id(p)]).all() and (rows[id(q)] < rows[id(p)]).any() for q in points if q.fits
        )
        assert (p in kept) == (p.fits and not beaten) or any(np.array_equal(rows[id(q)], rows[id(p)]) for q in kept)
    assert len({tuple(rows[id(p)]) for p in kept}) == len(kept) > 0


def test_a_front_of_no_figure_is_refused():
    points = [Point({"machine": "gc200", "tiles": 4}, False, "fits", cycles=3)]
    for wrong in ({}, {"maximize": "speed"}, {"minimize": "machine"}, {"minimize": "tflops"}):
        with pytest.raises(OptionError):
            pareto(points, **wrong)
    assert pareto(points, minimize=("cycles", "tiles")) == points


# ---- the page


@pytest.mark.exhaustive
def test_the_page_of_studies_runs(tmp_path, monkeypatch):
    """As it stands, but for a BERT of two narrow layers and two sizes of memory and micro-batch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18.onnx").write_bytes(Path(model_path(MODEL)).read_bytes())
    first, study = pages.blocks("docs/studies.md", "python")
    exec(first.text, {})
    assert (tmp_path / "study" / "explore.svg").exists()
    full = "(4, 512, 8), (208, 312, 416, 624, 936, 1248), (1, 2, 4, 8, 16)"
    assert full in study.text
    names: dict[str, object] = {}
    exec(
        study.text.replace(full, "(2, 64, 2), (56, 624), (1, 2)").replace("30522", "500"),
        names,
    )
    found = names["found"]
    assert isinstance(found, machine.Exploration)
    assert len(found.points) == 16
    assert found.front
