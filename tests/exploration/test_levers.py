"""Levers of a model that does not fit: each is what compile says of the options that it names, cheapest first, and the commands printed work."""
from __future__ import annotations

import functools
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import paths
import pytest

import tileflow
from tileflow import cli, nn
from tileflow.api import simulation
from tileflow.exploration import levers as seeking
from tileflow.options.options import Options, declarations
from tileflow.system.errors import OptionError, OutOfTileMemoryError
from tileflow.tiles.hardware.chip import chip

FOLDER = tempfile.TemporaryDirectory()
MODEL = str(Path(FOLDER.name) / "net.onnx")


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    """A small network, quickly compiled."""
    net = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    tileflow.save_onnx(net, MODEL, np.zeros((2, 48), np.float32))


def narrow(share: float, tiles: int = 8, **given: Any) -> dict[str, Any]:
    """A chip whose tiles have a share of what a model needs."""
    roomy: Any = tileflow.compile(MODEL, machine={"name": "roomy", "base": "gc200", "tiles": tiles}, **given)
    return {"name": "narrow", "base": "gc200", "tiles": tiles, "bytes_per_tile": int(share * roomy.tiled.peak.max())}


def compiled(model: Any = MODEL, **given: Any) -> Any:
    return tileflow.compile(model, allow_out_of_memory=True, **given)


GIVEN = {
    "training": {"training": True, "micro_batch_size": 16, "gradient_accumulation": 4},
    "inference": {"micro_batch_size": 24},
    "16 bits": {"training": True, "micro_batch_size": 6, "gradient_accumulation": 2, "precision": "16-mixed"},
    "in stages": {"training": True, "micro_batch_size": 8, "gradient_accumulation": 16, "strategy": "pipelined", "auto_pipeline": 2},
}


@functools.cache
def too_large(name: str) -> tuple[dict[str, Any], Any]:
    """What was given and what came of it."""
    given = {**GIVEN[name], "machine": narrow(0.8, **GIVEN[name])}
    return given, compiled(**given)


@pytest.mark.parametrize("name", [paths.rare(name) if name in ("in stages", "16 bits") else name for name in GIVEN])
def test_each_lever_is_what_compile_says_of_its_options(name):
    given, found = too_large(name)
    tiled, levers = found.tiled, found.tiled.levers()
    assert not tiled.fits
    assert levers
    for lever in levers:
        alone = compiled(**{**given, **lever.changes}).tiled
        assert (int(alone.peak.max()), alone.cycles_per_update, alone.fits) == (lever.bytes, lever.cycles, lever.fits), lever.name
        assert lever.cycles_per_sample == alone.cycles_per_update / alone.samples_per_update
        assert lever.slower == pytest.approx(lever.cycles_per_sample / (tiled.cycles_per_update / tiled.samples_per_update))
        assert lever.bytes < tiled.peak.max()
        if given.get("training"):
            assert alone.samples_per_update == tiled.samples_per_update, "an update stays what it was"
    fitting = [lever for lever in levers if lever.fits]
    assert levers[:len(fitting)] == fitting
    prices = [-lever.samples_per_second / lever.ipus for lever in fitting]
    assert prices == sorted(prices)
    sizes = [lever.bytes for lever in levers[len(fitting):]]
    assert sizes == sorted(sizes)
    assert found.error.remedies == [lever.changes for lever in fitting[:3]]
    for lever in fitting[:3]:
        assert lever.sentence in str(found.error)
        assert f"it fits, with {lever.bytes:,} bytes on the worst tile" in lever.sentence


ROOMY = {
    "training": {"training": True, "micro_batch_size": 4, "gradient_accumulation": 8},
    "recomputed": {"training": True, "micro_batch_size": 4, "recompute": True, "optimizer": "adam", "optimizer_off_chip": True},
    "inference": {"micro_batch_size": 6, "device_iterations": 8},
}


@functools.cache
def fitting(name: str) -> Any:
    """A program that fits, and what makes it better."""
    return compiled(**ROOMY[name], machine={"name": "roomy", "base": "gc200", "tiles": 64}, levers=True)


@pytest.mark.parametrize("name", ["training", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("recomputed", "inference"))])
def test_levers_of_a_program_that_fits_are_what_compile_says(name):
    """Each leaves it fitting and makes it faster or smaller by a hundredth at least; the fastest for its IPUs stands first; an update stays what it
    was."""
    found = fitting(name)
    tiled = found.tiled
    levers = tiled.levers()
    assert tiled.fits
    assert len(levers) > 3
    for lever in levers:
        alone = compiled(**{**ROOMY[name], "machine": {"name": "roomy", "base": "gc200", "tiles": 64}, **lever.changes}).tiled
        assert lever.samples_per_second == alone.samples_per_second
        assert (lever.bytes, lever.fits) == (int(alone.peak.max()), True)
        assert alone.samples_per_second > 1.01 * tiled.samples_per_second or lever.bytes < 0.99 * tiled.peak.max(), lever.name
        if tiled.program.training:
            assert alone.samples_per_update == tiled.samples_per_update
    rates = [lever.samples_per_second / lever.ipus for lever in levers]
    assert rates == sorted(rates, reverse=True)
    assert found.report["levers_sought"]
    assert [x["name"] for x in found.report["levers"]] == [lever.name for lever in levers]


def test_what_a_person_would_try_of_a_program_that_fits():
    assert names(fitting("training").tiled.levers()) >= {"machine_precision", "micro_batch_size", "replication_factor", "auto_pipeline"}


@pytest.mark.exhaustive
def test_what_makes_it_smaller_is_undone_where_that_is_faster():
    assert "optimizer on the chip" in {lever.name for lever in fitting("recomputed").tiled.levers()}
    assert max(lever.changes["micro_batch_size"] for lever in fitting("inference").tiled.levers() if "micro_batch_size" in lever.changes) > 6


def test_a_program_that_fits_tries_nothing_unless_asked():
    found = compiled(**ROOMY["inference"], machine={"name": "roomy", "base": "gc200", "tiles": 64})
    assert found.report["levers"] == []
    assert not found.report["levers_sought"]
    for given in ({}, {"machine": "gc200", "stop_after": "fold"}):
        with pytest.raises(OptionError, match="levers are changes of a program on the tile machine"):
            tileflow.compile(MODEL, levers=True, **given)


def test_commands_of_levers_are_printed_and_work(capsys):
    words = ["compile", MODEL, "--machine", "gc200", "--micro-batch-size", "6"]
    assert cli.main([*words, "--levers"]) == 0
    printed = capsys.readouterr().out
    assert "Levers: changes that make it faster or smaller" in printed
    first = next(line for line in printed.splitlines() if line.startswith("  tileflow compile"))
    assert cli.main(shlex.split(first)[1:]) == 0
    assert cli.main(["compile", MODEL, "--levers"]) == 2
    assert "--levers is about the tile machine" in capsys.readouterr().err


def names(levers: list[Any]) -> set[str]:
    return {name for lever in levers for name in lever.changes}


def test_what_a_person_would_try_is_tried():
    assert names(too_large("training")[1].tiled.levers()) >= {"machine_precision", "micro_batch_size", "strategy", "optimizer_off_chip"}
    assert names(too_large("inference")[1].tiled.levers()) >= {"machine_precision", "micro_batch_size", "strategy"}
    assert "machine_precision" not in names(too_large("16 bits")[1].tiled.levers()), "the program's own types count"
    staged = too_large("in stages")[1].tiled.levers()
    assert {lever.changes["auto_pipeline"] for lever in staged if "auto_pipeline" in lever.changes} <= {4, 8, 16}
    assert "recompute" not in names(staged), "a pipeline computes again by itself"


def test_a_pipeline_needs_micro_batches_to_fill_it():
    found = set()
    for accumulation, share in ((1, 0.8), (3, 0.9)):
        given = {"training": True, "micro_batch_size": 4, "gradient_accumulation": accumulation}
        for lever in compiled(**given, machine=narrow(share, **given)).tiled.levers():
            if "strategy" in lever.changes:
                found.add(lever.changes["strategy"])
                filled = lever.changes.get("gradient_accumulation", accumulation) >= 2 * lever.changes["auto_pipeline"] - 1
                assert lever.changes["strategy"] == ("pipelined" if filled else "sharded")
                assert lever.ipus == lever.changes["auto_pipeline"]
    assert found == {"pipelined", "sharded"}


def test_where_nothing_is_enough_all_is_tried_together():
    given = dict(GIVEN["training"])
    found = compiled(**given, machine=narrow(0.35, **given))
    first = found.tiled.levers()[0]
    assert len(first.changes) > 2
    assert " and " in first.name
    alone = compiled(**{**given, "machine": found.tiled.chip, **first.changes}).tiled
    assert (int(alone.peak.max()), alone.fits) == (first.bytes, first.fits)


def test_levers_together_come_before_more_ipus():
    """Where only several at once fit on one IPU, they stand in the list, none of them superfluous, and the more samples
    a second an IPU has, the earlier."""
    given = dict(GIVEN["training"])
    found = compiled(**given, machine=narrow(0.5, **given)).tiled
    several = next(lever for lever in found.levers() if lever.ipus == 1 and len(lever.changes) > 2)
    assert several.fits
    for name in several.changes:
        fewer = {n: v for n, v in several.changes.items() if n != name}
        alone = compiled(**{**given, "machine": found.chip, **fewer}).tiled
        assert not alone.fits or alone.samples_per_second <= several.samples_per_second
    rows = [lever.changes.get("micro_batch_size", 16)
            for lever in compiled(**given, machine=narrow(0.45, **given)).tiled.levers() if lever.fits]
    assert max(rows) > 1, "as many rows as may be"


def test_what_may_be_too_large_asks_for_no_advice_until_somebody_does():
    given = dict(GIVEN["training"])
    machine = narrow(0.8, **given)
    found = compiled(**given, machine=machine)
    assert found.tiled.tried is None
    assert not found.report["levers_sought"]
    assert "Nothing was tried to make it fit." in found.report["out_of_memory"]["message"]
    assert [lever.sentence for lever in found.tiled.levers()[:1]] == found.error.levers[:1], "asked for"
    with pytest.raises(OutOfTileMemoryError, match="Tried ") as caught:
        tileflow.compile(MODEL, machine=machine, **given)
    assert caught.value.compilation.report["levers_sought"]
    assert caught.value.levers == found.error.levers
    assert compiled(**given, machine=machine, levers=True).report["levers_sought"]


def test_levers_keep_a_budget_of_planning(monkeypatch):
    """In operators planned, so that the same ones are tried anywhere; those that are there say the same."""
    given, whole = too_large("training")
    operators, all_of_them = len(whole.tiled.steps), whole.tiled.levers()
    monkeypatch.setattr(seeking, "BUDGET", operators)
    few = compiled(**given).tiled.levers()
    assert few
    assert {*map(repr, few)} < {*map(repr, all_of_them)}


def test_a_network_of_layers_has_fewer_rows():
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    roomy: Any = tileflow.compile(net, inputs=[(64, 64)], machine="gc200", training=True)
    assert roomy.tiled.samples_per_update == 64, "a micro-batch is what was given"
    small = chip("gc200").variant(name="small", tiles=1472, bytes_per_tile=int(0.9 * roomy.tiled.peak.max()))
    for inputs in ([(64, 64)], [np.zeros((64, 64), np.float32)]):
        found: Any = tileflow.compile(net, inputs=inputs, machine=small, training=True, allow_out_of_memory=True)
        fewer = [lever for lever in found.tiled.levers() if "micro_batch_size" in lever.changes]
        for lever in fewer:
            rows = lever.changes["micro_batch_size"]
            alone: Any = tileflow.compile(net, inputs=[(rows, 64)], machine=small, training=True, allow_out_of_memory=True, **lever.changes)
            assert (int(alone.tiled.peak.max()), alone.tiled.cycles_per_update) == (lever.bytes, lever.cycles)
        assert fewer


@pytest.mark.parametrize(("command", "more"), [("compile", []), ("tune", ["--evaluations", "2"])])
def test_the_commands_that_are_suggested_work(command, more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = dict(GIVEN["training"])
    machine = narrow(0.45, **given)
    Path("my chip.toml").write_text("".join(f"{k} = {v!r}\n" for k, v in machine.items()))
    words = [command, MODEL, "--training", "--micro-batch-size", "16", "--gradient-accumulation", "4", "--machine", "my chip.toml",
             "--learning-rate", "0.01", *more]
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert "Out of tile memory" in err
    lines = err.split("Try next:\n")[1].splitlines()
    assert 1 <= len(lines) <= 3
    assert "more" in err or "fewer" in err
    for line in lines:
        assert cli.main(shlex.split(line)[1:]) == 0, line
        assert "OUT OF TILE MEMORY" not in capsys.readouterr().out


def test_the_error_of_a_function_names_options():
    given = dict(GIVEN["training"])
    machine = narrow(0.5, **given)
    with pytest.raises(OutOfTileMemoryError) as caught:
        tileflow.compile(MODEL, machine=machine, **given)
    training = given.pop("training")
    options = Options(**given, machine=machine)
    for changes in caught.value.remedies:
        fixed: Any = tileflow.compile(MODEL, options.clone(**changes), training=training)
        assert fixed.fits


OTHERWISE = {"machine": "bow", "machine_precision": "16.16", "available_memory_proportion": 0.1, "joint_plans": False, "recompute": True,
             "min_elements_off_chip": 7, "activations_off_chip": True, "weights_off_chip": True, "optimizer_off_chip": True,
             "accumulators_off_chip": True}


def test_what_shares_a_program_has_the_same_program():
    """Options that only the tile machine reads: were one to change the program, levers and explorations would be wrong without a word."""
    given = {"machine": "gc200", "micro_batch_size": 4, "gradient_accumulation": 2}

    def program(**more: Any) -> str:
        return str(simulation.compiled(MODEL, Options(**{**given, **more}), True, None, None).program.to_text())
    alone = {d.name for d in declarations().values() if d.machine_alone}
    assert {*OTHERWISE} == alone - {"tile_plans"}, "a file of plans is read by the tile machine"
    before = program()
    assert before != program(micro_batch_size=5)
    for name, value in OTHERWISE.items():
        assert program(**{name: value}) == before, name


def test_replicas_share_out_what_does_not_fit() -> None:
    """Of four replicas each keeps a quarter of the moments, then of the weights; as compile says of these options."""
    net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    given: dict[str, Any] = {"training": True, "inputs": [(4, 128)], "gradient_accumulation": 4, "replication_factor": 4, "optimizer": "adamw"}
    roomy: Any = tileflow.compile(net, machine={"name": "roomy", "base": "gc200", "tiles": 8}, **given)
    machine = {"name": "narrow", "base": "gc200", "tiles": 8, "bytes_per_tile": int(0.9 * roomy.tiled.peak.max())}
    levers = {name: lever for lever in compiled(net, machine=machine, **given).tiled.levers() if "sharded" in (name := lever.name)}
    assert levers
    for lever in levers.values():
        found = compiled(net, machine=machine, **{**given, **lever.changes})
        assert (lever.fits, lever.bytes, lever.cycles) == (found.fits, int(found.tiled.peak.max()), found.tiled.cycles_per_update)
    shared = compiled(net, machine=machine, **given, replica_grouping={"0.*": "no_grouping"})
    assert not [lever for lever in shared.tiled.levers() if "sharded" in lever.name], "weights of groups are not everybody's"
