"""Tuning: the sweep and the search on a machine whose best setting is known, the options file, and real runs of the command line."""
from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tile_programs import program

import tileflow
from tileflow import cli
from tileflow.exploration import planning, simulate, tune
from tileflow.exploration.planning import write_plans
from tileflow.graph.work import Contraction
from tileflow.options.options import Options
from tileflow.report import _write
from tileflow.runtime.progress import TuneBar
from tileflow.system.errors import DataError, OptionError, OutOfTileMemoryError, TileflowError
from tileflow.tiles.hardware.chip import CHIPS
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions, TileStep

MODEL = "digits_cnn.onnx"
GRID = (0.0, 0.25, 0.5, 1.0)
CHIP = CHIPS["gc200"].variant(tiles=4, bytes_per_tile=1000)


class Machine:
    """A machine on which operator i takes `speed[i][k]` cycles with proportion GRID[k] and 1000 * proportion bytes of temporaries,
    on top of `live[i]` bytes that live beside it."""

    def __init__(self, speed: list[list[int]], live: list[int]) -> None:
        self.speed, self.live, self.calls = speed, live, 0
        self.program = program(len(speed))

    def __call__(self, program: Any, chip: Any, options: TileOptions) -> Any:
        self.calls += 1
        shares = [share(options, f"layer{i}/fc") for i in range(len(self.speed))]
        return self.at(shares, chip)

    def at(self, shares: list[float], chip: Any = CHIP) -> Any:
        steps, liveness = [], []
        for i, node in enumerate(self.program.micro.nodes):
            layer = i // 2
            work = node.op.work([v.type for v in node.operands], [v.type for v in node.outputs])
            cycles = self.speed[layer][GRID.index(shares[layer])] if i % 2 == 0 else 10
            temp = int(1000 * shares[layer]) if i % 2 == 0 else 0
            plan = OpPlan({}, "amp", Phases(cycles), temp)
            steps.append(TileStep(i, "micro", node, work, plan, plan.phases, 2))
            liveness.append(self.live[layer] + temp)
        peak = np.full(chip.tiles, max(liveness))
        return SimpleNamespace(ipus=[], steps=steps, liveness=np.array(liveness), peak=peak, chip=chip, fits=max(liveness) <= chip.bytes_per_tile,
                               cycles_per_update=sum(s.phases.total * s.repeats for s in steps))

    def search(self, **more: Any) -> tune.Tuning:
        return tune.tune_available_memory(self.program, CHIP, analyze=self, proportions=GRID, **more)

    def optimum(self) -> int | None:
        """Fewest cycles of all settings that fit, by trying all of them."""
        found = [self.at(list(shares)) for shares in itertools.product(GRID, repeat=len(self.speed))]
        return min((t.cycles_per_update for t in found if t.fits), default=None)


def share(options: TileOptions, name: str) -> float:
    return next((p for pattern, p in options.per_op.items() if fnmatchcase(name, pattern)), options.available_memory_proportion)


def test_the_sweep_is_enough_where_all_fits():
    machine = Machine([[100, 50, 20, 10], [80, 40, 20, 20]], [0, 0])
    found = machine.search()
    assert (found.best.label, found.best.per_op, found.best.proportions) == ("1", {}, {"*": 1.0})
    assert machine.calls == len(GRID)


def test_one_operator_is_lowered_where_one_is_too_much():
    machine = Machine([[100, 50, 20, 10], [80, 40, 20, 10]], [600, 0])
    found = machine.search()
    assert found.best.fits
    assert found.tiled.cycles_per_update == found.best.cycles == machine.optimum()
    assert found.best.proportions == {"layer0/fc": 0.25, "*": 1.0}


def test_where_nothing_fits_the_least_memory_is_taken():
    found = Machine([[100, 50, 20, 10], [80, 40, 20, 10]], [1100, 1050]).search()
    assert not found.best.fits
    assert found.best.bytes == 1100


def test_the_search_finds_the_optimum_of_random_machines():
    random = np.random.default_rng(5)
    for _ in range(40):
        layers = int(random.integers(1, 5))
        speed = [sorted((int(x) for x in random.integers(1, 100, len(GRID))), reverse=True) for _ in range(layers)]
        machine = Machine(speed, [int(x) for x in random.integers(0, 1200, layers)])
        found, best = machine.search(), machine.optimum()
        assert found.best.fits == (best is not None)
        if best is not None:
            assert found.best.cycles == best
            assert found.best.rank == min(p.rank for p in found.points.values())
        again = Machine(speed, machine.live).search()
        assert (again.points, again.best) == (found.points, found.best)


def test_the_search_is_bounded_and_tells_how_far_it_is():
    machine = Machine([[100 - i, 50, 20, 10] for i in range(12)], [600 + 10 * i for i in range(12)])
    told: list[tuple[int, int, str]] = []
    found = machine.search(evaluations=3, progress=lambda *news: told.append(news))
    assert machine.calls == len(found.points) == len(GRID) + 3
    assert [done for done, _, _ in told] == list(range(1, len(GRID) + 4))
    assert {most for _, most, _ in told} == {len(GRID) + 3}


def test_proportions_given_by_name_stay():
    machine = Machine([[100, 50, 20, 10], [80, 40, 20, 10]], [600, 0])
    found = machine.search(options=TileOptions(per_op={"layer1*": 0.25}))
    assert all(p.per_op["layer1*"] == 0.25 for p in found.points.values())
    assert found.best.proportions == {"layer1*": 0.25, "*": 0.25}


def test_a_name_is_its_own_pattern():
    for name in ("a[0]/*?", "conv", "[!x]"):
        assert fnmatchcase(name, tune.pattern(name))
        assert not fnmatchcase(name + "x", tune.pattern(name))


def test_an_options_file_comes_back(tmp_path):
    path = tmp_path / "tuned.toml"
    options = Options(machine="bow", available_memory_proportion={'a "quoted" [é].1': 0.25, "*": 1}, serialized_matmul={"fc": "reducing_dim:4"},
                      epochs=3, betas=(0.5, 0.9), frozen=["a*"], dims={"n": 3}, nesterov=True, momentum=0.5, data="a\\b\t\x7f😀")
    options.save(path, "two\nlines")
    assert path.read_text().startswith("# two\n# lines\n")
    loaded = Options.load(path)
    assert loaded == options
    assert isinstance(loaded.available_memory_proportion, Mapping)
    assert list(loaded.available_memory_proportion) == ['a "quoted" [é].1', "*"]
    Options().save(path)
    assert Options.load(path) == Options()
    with pytest.raises(OptionError, match="cannot be written"):
        options.save(tmp_path / "none" / "tuned.toml")


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_compile_for_a_machine(capsys, tmp_path):
    words = ("--training", "--machine", "gc200", "--available-memory-proportion", 0.3, "--report", tmp_path / "out")
    code, out, err = run(capsys, "compile", MODEL, *words)
    assert (code, err) == (0, "")
    for words in (f"{MODEL}, training", "cycles per update", "samples/s", "FLOP/s", "of peak", "exchange buffers",
                  "limit", "page.html"):
        assert words in out, words
    assert run(capsys, "report", tmp_path / "out")[1] in out
    code, shown, _ = run(capsys, "report", tmp_path / "out" / "report.json", "--render", "--verbose")
    assert code == 0
    saved = json.loads((tmp_path / "out" / "report.json").read_text())
    assert all(step["name"][-20:] in shown for step in saved["steps"])
    assert saved["options"]["available_memory_proportion"] == 0.3


def test_networks_of_layers_compile_for_a_machine(capsys):
    net = tileflow.nn.Sequential(tileflow.nn.Linear(20, 30), tileflow.nn.Linear(30, 4))
    compiled = tileflow.compile(net, inputs=[(16, 20)], training=True, machine="bow", machine_precision="16.16")
    assert compiled.to_text().startswith("Sequential, training\nbow: 1,472 tiles")
    reported = len(compiled.report["memory"]["peak"])
    assert compiled.report["chip"]["tiles"] == 1472 == reported + compiled.tiled.idle_tiles
    assert f"takes the fewest cycles on {compiled.tiled.chip.tiles} of the tiles" in compiled.to_text()
    assert tileflow.compile(net, inputs=[np.zeros((16, 20))]).program.micro.outputs[0].shape == (16, 4)
    with pytest.raises(DataError, match=r"give inputs, for example inputs=\[\(16, 784\)\]"):
        tileflow.compile(net)


def test_a_chip_may_be_an_object_or_a_table(tmp_path):
    model, small = cli.model_path(MODEL), CHIPS["bow"].variant(name="small", tiles=64)
    compiled = tileflow.compile(model, machine=small)
    assert compiled.report["chip"]["tiles"] == 64
    assert {c["kind"] for c in compiled.report["chip"]["constants"]} == {"documented", "estimate", "user"}
    Options(machine=small).save(tmp_path / "o.toml")
    loaded = Options.load(tmp_path / "o.toml")
    assert json.loads(json.dumps(loaded.to_dict()))["machine"] == small.to_dict()
    assert tileflow.compile(model, loaded).tiled.cycles_per_update == compiled.tiled.cycles_per_update
    assert tileflow.compile(model, machine={"base": "gc200", "tiles": 32}).report["chip"]["tiles"] == 32
    with pytest.raises(OptionError, match="a chip has no constant 'tile'; did you mean tiles"):
        tileflow.compile(model, machine={"base": "gc200", "tile": 32})


def test_the_bar_of_a_search():
    shown = io.StringIO()
    bar = TuneBar(True, shown)
    bar(3, 20, "0.2")
    bar.close()
    assert "0 of at most" in shown.getvalue() or "3 of at most 20" in shown.getvalue()
    quiet = TuneBar(False, shown := io.StringIO())
    quiet(1, 2, "x")
    quiet.close()
    assert shown.getvalue() == ""


def test_tile_exact(capsys):
    code, out, _ = run(capsys, "compile", MODEL, "--machine", "gc200", "--micro-batch-size", 2, "--tile-exact")
    assert code == 0
    assert re.search(r"tile-exact: \d+ operators, \d+ equal to the bit, 0 wrong; ", out)


def test_plans_can_be_pinned(tmp_path):
    """Plans written at a low proportion are those of another run that would have chosen others."""
    model, plans = cli.model_path(MODEL), tmp_path / "low" / "plans.json"
    low = tileflow.compile(model, training=True, machine="gc200", available_memory_proportion=0.0, report=tmp_path / "low")
    free = tileflow.compile(model, training=True, machine="gc200")
    pinned = tileflow.compile(model, training=True, machine="gc200", tile_plans=plans)
    def chosen(compiled: Any) -> list[Any]:
        return [(dict(s.plan.splits), s.plan.vertex, s.plan.phases) for s in compiled.tiled.steps if isinstance(s.work, Contraction)]
    assert chosen(pinned) == chosen(low) != chosen(free)
    content = json.loads(plans.read_text())
    content["fc1/Gemm"]["vertex"] = "abacus"
    plans.write_text(json.dumps(content))
    with pytest.raises(OptionError, match=r"Plans file .*plans.json: The pinned plan of fc1/Gemm has vertex 'abacus'"):
        tileflow.compile(model, machine="gc200", tile_plans=plans)


def test_compile_without_a_machine_prints_the_program(capsys):
    code, out, _ = run(capsys, "compile", MODEL)
    assert code == 0
    assert out.startswith("steps\n")


def test_a_program_that_does_not_fit_is_reported_first(capsys, tmp_path):
    chip = tmp_path / "tiny.toml"
    chip.write_text('base = "gc200"\ntiles = 4\nbytes_per_tile = 8192\n')
    code, out, err = run(capsys, "compile", MODEL, "--machine", chip, "--report", tmp_path / "out")
    assert code == 2
    assert "OUT OF TILE MEMORY" in out
    assert err.startswith("tileflow: error: Out of tile memory: tile ")
    assert f"The report is in {tmp_path / 'out'}." in err
    error = json.loads((tmp_path / "out" / "report.json").read_text())["out_of_memory"]
    assert error["message"] in err
    assert (error["bound"], len(error["contributors"])) == (8192, 5)
    with pytest.raises(OutOfTileMemoryError):
        tileflow.compile(cli.model_path(MODEL), machine=str(chip))
    assert not tileflow.compile(cli.model_path(MODEL), machine=str(chip), allow_out_of_memory=True).fits


def test_tune_writes_options_that_compile_and_train_take(capsys, tmp_path):
    chip, out, folder = tmp_path / "small.toml", tmp_path / "tuned.toml", tmp_path / "out"
    chip.write_text('name = "small"\nbase = "gc200"\ntiles = 16\nbytes_per_tile = 65536\n')
    code, shown, err = run(capsys, "tune", MODEL, "--training", "--machine", chip, "--micro-batch-size", 4, "--out", out, "--report", folder)
    assert (code, err) == (0, "")
    assert "← taken" in shown
    assert f"tileflow compile {MODEL} --training --options {out}" in shown
    points = json.loads((folder / "report.json").read_text())["frontier"]
    best = next(p for p in points if p["best"])
    assert best["cycles"] == min(p["cycles"] for p in points if p["fits"])
    compiled = tileflow.compile(cli.model_path(MODEL), Options.load(out), training=True)
    assert compiled.tiled.cycles_per_update == best["cycles"]
    assert int(compiled.tiled.peak.max()) == best["bytes"]
    trained = tileflow.train(cli.model_path(MODEL), Options.load(out, data="digits", epochs=1, max_batches=1, out=str(tmp_path / "run")))
    assert math.isfinite(trained.history["loss"][0])


def test_tune_from_python_takes_gc200_unless_told(tmp_path):
    found = tileflow.tune_available_memory(cli.model_path(MODEL))
    assert (found.options.machine, found.compilation.fits) == ("gc200", True)
    found.save(tmp_path / "a.toml")
    assert Options.load(tmp_path / "a.toml") == found.options


@pytest.mark.parametrize(("words", "says"), [
    (["compile", MODEL, "--machine", "gc3"], "There is no machine 'gc3'; choose one of gc2, gc200, bow, c600"),
    (["compile", MODEL, "--machine", "none.toml"], "The chip file none.toml cannot be read"),
    (["compile", MODEL, "--machine", "BAD"], "is not valid TOML"),
    (["compile", MODEL, "--machine", "WRONG"], "tiles must be a whole number of at least 1, not -4"),
    (["compile", MODEL, "--machine", "TYPO"], "did you mean tiles"),
    (["compile", MODEL, "--machine", "gc200", "--available-memory-proportion", "1.2"], "must be a number from 0 to 1"),
    (["compile", MODEL, "--machine", "gc200", "--available-memory-proportion", "conv=x"], "must be a number from 0 to 1"),
    (["compile", MODEL, "--machine", "gc200", "--serialized-matmul", "fc=rows:2"], "with mode input_channels"),
    (["compile", MODEL, "--machine", "gc200", "--tile-plans", "none.json"], "Plans file none.json cannot be read"),
    (["compile", MODEL, "--machine", "gc200", "--tile-plans", "BAD"], "is not valid JSON"),
    (["compile", MODEL, "--machine", "gc200", "--report", "FILE/out"], "Cannot write the report to"),
    (["compile", MODEL, "--report", "out"], "A report is made by the tile machine; name a machine"),
    (["compile", MODEL, "--machine", "gc200", "--report", "out", "--stop-after", "fold"], "stop_after='fold' ends the compilation before"),
    (["compile", "none.onnx", "--machine", "gc200"], "There is no model file none.onnx"),
    (["tune", MODEL, "--out", "a.json"], "Option out must end in .toml, not 'a.json'"),
    (["tune", MODEL, "--evaluations", "-1"], "evaluations must be a whole number of at least 0, not -1"),
    (["tune", MODEL, "--evaluations", "x"], "invalid int value"),
    (["tune", MODEL, "--machine", "gc3"], "There is no machine 'gc3'"),
    (["report", "none"], "cannot be read: No such file or directory"),
    (["report"], "required: DIR"),
])
def test_errors_are_one_sentence(capsys, tmp_path, words, says):
    contents = {"BAD": "tiles = ", "WRONG": 'base = "gc200"\ntiles = -4\n', "TYPO": 'base = "gc200"\ntile = 4\n', "FILE": ""}
    for name, content in contents.items():
        (tmp_path / f"{name}.toml").write_text(content)
    given = [str(tmp_path / w.replace(w.split("/")[0], w.split("/")[0] + ".toml")) if w.split("/")[0] in contents else w for w in words]
    code, _, err = run(capsys, *given)
    assert code == 2
    assert err.startswith("tileflow: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_proportions_by_ipu():
    assert planning.tile_options(Options(available_memory_proportion={"IPU0": 0.2,
                                                                      "fc*": 0.1})).available_memory_proportion == 0.2
    with pytest.raises(OptionError, match="names IPU1, but the program runs on one IPU"):
        planning.tile_options(Options(available_memory_proportion={"IPU1": 0.2}))


# ---- several IPUs

STAGED: dict[str, Any] = {"training": True, "micro_batch_size": 8, "gradient_accumulation": 8, "strategy": "pipelined", "auto_pipeline": 2}


def tight(share: float, **given: Any) -> dict[str, Any]:
    """A chip of few tiles, which have a share of what a model of the highest proportion needs."""
    roomy: Any = tileflow.compile(MODEL, machine={"name": "roomy", "base": "gc200", "tiles": 32, "bytes_per_tile": 10**6}, allow_out_of_memory=True,
                                  available_memory_proportion=1.0, **given)
    return {"name": "tight", "base": "gc200", "tiles": 32, "bytes_per_tile": int(share * roomy.tiled.peak.max())}


def test_each_ipu_gets_the_proportion_that_is_best_for_it():
    """As good as the best of all combinations, tried one by one."""
    machine, grid = tight(0.9, **STAGED), (0.02, 0.1, 0.3)
    compiled: Any = tileflow.compile(MODEL, machine=machine, allow_out_of_memory=True, **STAGED)
    options = Options(machine=machine, **{k: v for k, v in STAGED.items() if k != "training"})
    found = simulate.tune(compiled, options, proportions=grid, evaluations=1, made=lambda _: compiled)
    combinations = []
    for shares in itertools.product(grid, repeat=2):
        per_ipu = dict(zip(("IPU0", "IPU1"), shares, strict=True))
        tried = planning.analyzed(compiled, options.clone(available_memory_proportion={**per_ipu, "*": 0.6}))
        combinations.append((not tried.fits, tried.cycles_per_update))
    assert min(combinations) == (False, found.best.cycles)
    by_ipu = [p for p in found.points if p.per_ipu]
    assert len(by_ipu) == 1
    assert by_ipu[0].cycles <= min(p.cycles for p in found.points if p.kind == "sweep" and p.fits)
    text = found.to_text()
    for ipu in found.compilation.tiled.ipus:
        assert f"IPU{ipu.number}" in text
        assert f"{ipu.worst:,}" in text
        assert f"{ipu.busy:,}" in text


def test_what_is_said_of_an_ipu_stays(tmp_path):
    machine = tight(0.9, **STAGED)
    found = tileflow.tune_available_memory(MODEL, machine=machine, evaluations=4, available_memory_proportion={"IPU1": 0.05}, **STAGED)
    assert found.options.available_memory_proportion["IPU1"] == 0.05
    assert {p.per_ipu["IPU1"] for p in found.points} == {0.05}


def test_tune_on_several_ipus_writes_options_that_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    machine = tight(0.9, **STAGED)
    (tmp_path / "chip.toml").write_text("".join(f"{k} = {v!r}\n" for k, v in machine.items()))
    words = ["--training", "--micro-batch-size", "8", "--gradient-accumulation", "8", "--strategy", "pipelined", "--auto-pipeline", "2",
             "--machine", "chip.toml", "--evaluations", "6", "--report", "out"]
    assert cli.main(["tune", MODEL, *words]) == 0
    out = capsys.readouterr().out
    assert "Found for each IPU" in out
    best = json.loads((tmp_path / "out" / "report.json").read_text())
    point, = [p for p in best["frontier"] if p["best"]]
    assert best["totals"]["cycles"] == point["cycles"]
    command = out.split("Try next:\n")[1].split()
    assert cli.main([*command[1:], "--report", "again"]) == 0
    again = json.loads((tmp_path / "again" / "report.json").read_text())
    assert (again["totals"]["cycles"], again["memory"]["worst"]) == (point["cycles"], point["bytes"])
    assert [i["worst"] for i in again["ipus"]] == [i["worst"] for i in best["ipus"]]


def test_steps_of_one_ipu_are_not_blamed_for_what_another_holds():
    compiled: Any = tileflow.compile(MODEL, machine=tight(0.75, **STAGED), allow_out_of_memory=True, **STAGED)
    tiled = compiled.tiled
    lean, full = sorted(tiled.ipus, key=lambda i: i.worst)
    assert lean.worst < full.worst
    blamed = tune.over_bound(dataclasses.replace(tiled, chip=tiled.chip.variant(bytes_per_tile=lean.worst)))
    assert blamed
    places = {name: s.ipu for s in tiled.steps if s.node.origin.role == "forward" for name in s.node.origin.sources}
    assert {places[name] for name in blamed} == {full.number}


@pytest.mark.parametrize("write", [
    lambda folder: Options(micro_batch_size=3).save(folder / "tuned.toml"),
    lambda folder: write_plans(SimpleNamespace(steps=[]), folder / "plans.json"),          # type: ignore[arg-type]
    lambda folder: _write(folder, {"report.json": "new"})], ids=["settings", "plans", "reports"])
def test_settings_plans_and_reports_are_there_whole_or_not_at_all(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that is full when they come to it leaves what stood there, and nothing half written; so does a process that is stopped."""
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"old")
    for raised, seen in ((OSError(errno.ENOSPC, "No space left on device"), TileflowError), (KeyboardInterrupt(), KeyboardInterrupt)):
        def stopped(_handle: int, raised: BaseException = raised) -> None:
            raise raised
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", stopped)
            with pytest.raises(seen):
                write(tmp_path)
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
    write(tmp_path)
    assert path.read_bytes() != b"old"
