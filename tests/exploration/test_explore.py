"""explore: every combination tried, figures equal to those of compile, the front, what fails or does not fit, interruptions, files, the command."""
from __future__ import annotations

import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

import tileflow
from tileflow import cli, nn
from tileflow.api import exploration as api
from tileflow.exploration import Exploration, ExplorationInterrupted, Point, front
from tileflow.exploration import found as found_files
from tileflow.exploration.grid import MOST, settings
from tileflow.exploration.picture import STYLE
from tileflow.exploration.point import FIGURES
from tileflow.options.options import Options
from tileflow.runtime.progress import ExploreBar
from tileflow.system.errors import OptionError, ReportError

MODEL = "digits_cnn.onnx"
SMALL = {"name": "small", "base": "gc200", "tiles": 16}
TINY = {"name": "tiny", "base": "gc200", "tiles": 4, "bytes_per_tile": 12_000}


def values(found: Exploration, name: str) -> list[Any]:
    return [p.values[name] for p in found.points]


# ---- the grid

def test_every_combination_in_the_order_of_the_axes():
    found = settings(Options(), {"precision": ["16.16", "32"], "micro_batch_size": [4, 1], "machine": ["gc2", "bow"], "training": [True]})
    assert [tuple(s.values.values()) for s in found] == [(True, m, b, p) for m in ("gc2", "bow") for b in (4, 1) for p in ("16.16", "32")]
    assert [(s.options.machine_precision, s.options.precision) for s in found[:2]] == [("16.16", "32"), ("32.32", "32")]
    assert [s.options.micro_batch_size for s in found[:4]] == [4, 4, 1, 1]


def test_what_counts_for_training_makes_one_setting_of_inference():
    found = settings(Options(), {"training": [False, True], "recompute": [False, True], "gradient_accumulation": np.array([1, 2, 2])})
    assert [(s.training, s.values["recompute"], s.values["gradient_accumulation"]) for s in found] == [
        (False, None, None), *((True, r, n) for n in (1, 2) for r in (False, True))]


def test_ipus_are_a_pipeline_or_what_the_strategy_says():
    one, two = settings(Options(), {"ipus": [1, 2]})
    assert (one.options.strategy, one.options.auto_pipeline) == ("none", None)
    assert (two.options.strategy, two.options.auto_pipeline, two.options.device_iterations) == ("pipelined", 2, 16)
    sharded, = settings(Options(strategy="sharded", device_iterations=3), {"ipus": [4], "training": [True]})
    assert (sharded.options.strategy, sharded.options.auto_pipeline, sharded.options.device_iterations) == ("sharded", 4, 3)


@pytest.mark.parametrize(("given", "says"), [
    ({"micro_batch_size": [4, 0]}, "Option micro_batch_size must be a whole number, at least 1, not 0."),
    ({"micro_batch_size": []}, "micro_batch_size has no value; give one, or several to compare."),
    ({"precision": ["16.16", "8.8"]}, "precision must be one of 32.32, 16.32, 16.16, 32, 64, 16-mixed, bf16-mixed, 16-true, bf16-true, not '8.8'."),
    ({"machines": ["gc200", "gc3"]}, "There is no machine 'gc3'; choose one of gc2, gc200, bow, c600, or give a TOML file ending in .toml."),
    ({"machines": ["nowhere.toml"]}, "The chip file nowhere.toml cannot be read"),
    ({"machines": ["gc2"], "machine": "gc2"}, "machines and machine are the same; give one of them."),
    ({"ipus": [1, 0]}, "ipus must be a whole number, at least 1, not 0."),
    ({"ipus": [1, 2], "pipeline_splits": ("b",)},
     "Option pipeline_splits says on how many IPUs the model runs, and so does ipus; leave one of them out."),
    ({"training": ["yes"]}, "training must be true, false or a list of both, not 'yes'."),
    ({"recompute": True}, "Option recompute counts for training only; add training=True, or leave it out."),
    ({"epochs": 3}, "Option epochs has no effect on explore; it is for train."),
    ({"precision": ["16-mixed"], "machine_precision": "16.16"}, "Option machine_precision 16.16 takes float16 for every float32 tensor of a program"),
    ({"micro_batch_size": range(1, MOST + 2)}, "at most 10,000 are explored at once; give fewer values."),
])
def test_wrong_values_are_told_before_anything_is_compiled(given, says, monkeypatch, tmp_path):
    monkeypatch.setattr(api, "compiled", lambda *_: pytest.fail("it compiled"))
    with pytest.raises(OptionError) as error:
        tileflow.explore(MODEL, out=tmp_path / "out", **given)
    assert says in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "compiled", lambda *_: pytest.fail("it compiled"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="Cannot make the folder"):
        tileflow.explore(MODEL, out=tmp_path / "file" / "out")


# ---- points

def test_the_figures_are_those_of_compile_and_programs_are_made_once(monkeypatch):
    made, real = [], api.compiled
    monkeypatch.setattr(api, "compiled", lambda *given: made.append(given) or real(*given))
    axes = {"machines": [SMALL, "gc2"], "micro_batch_size": [2, 5], "precision": ["16.16", "32.32"], "training": [False, True]}
    found = tileflow.explore(MODEL, **axes)
    assert len(found.points) == 16
    assert len(made) == 4, "a program for each micro-batch, for training and for inference"
    for p in found.points:
        alone: Any = tileflow.compile(MODEL, p.options, training=p.training)
        t = alone.tiled
        assert (p.samples_per_second, p.bytes, p.bytes_per_tile, p.cycles, p.tflops, p.peak_fraction) == (
            t.samples_per_second, t.peak.max(), t.chip.usable_bytes, t.cycles_per_update, t.tflops, t.peak_fraction)
        assert p.cycles_per_sample == t.cycles_per_update / p.values["micro_batch_size"]
        assert (p.fits, p.reason, p.ipus) == (True, "", 1)
    assert values(found, "machine") == ["small"] * 4 + ["gc2"] * 4 + ["small"] * 4 + ["gc2"] * 4
    turned = tileflow.explore(MODEL, machines=["gc2", SMALL], micro_batch_size=[5, 2], precision=["32.32", "16.16"], training=[True, False])
    by_values = {tuple(p.values.items()): p for p in turned.points}
    assert [by_values[tuple(p.values.items())] for p in found.points] == found.points


def test_replicas_and_stages_are_axes_of_one_exploration():
    found = tileflow.explore(MODEL, machines=SMALL, training=True, replication_factor=[1, 2], ipus=[1, 2], gradient_accumulation=4,
                             micro_batch_size=3)
    assert [(p.values["replication_factor"], p.values["ipus"], p.ipus) for p in found.points] == [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 4)]
    for p in found.points:
        alone: Any = tileflow.compile(MODEL, p.options, training=True)
        assert (p.samples_per_second, p.cycles) == (alone.tiled.samples_per_second, alone.tiled.cycles_per_update)
        assert p.cycles_per_sample * 3 * 4 * p.values["replication_factor"] == pytest.approx(p.cycles)
    assert "2 replicas, 1 IPU" in found.to_svg()


def test_a_setting_that_fails_says_why_and_the_others_go_on():
    found = tileflow.explore(MODEL, machines=SMALL, training=True, ipus=[2, 1], gradient_accumulation=[1, 4], micro_batch_size=2)
    assert [(p.values["ipus"], p.values["gradient_accumulation"], p.state, p.ipus) for p in found.points] == [
        (2, 1, "failed", None), (2, 4, "fits", 2), (1, 1, "fits", 1), (1, 4, "fits", 1)]
    assert "must be greater than or equal to the number of pipeline stages" in found.points[0].reason
    assert (found.points[0].bytes, found.points[0].samples_per_second) == (None, None)
    assert found.complete
    assert found.best in found.points[1:]
    text = found.to_text()
    assert f"2 IPUs, accumulation 1: {found.points[0].reason}" in text


def test_a_mistake_of_our_own_fails_its_point_alone(monkeypatch, tmp_path):
    real = api.compiled

    def broken(model: Any, options: Options, *rest: Any) -> Any:
        if options.micro_batch_size == 2:
            raise KeyError("never\nthis")
        return real(model, options, *rest)
    monkeypatch.setattr(api, "compiled", broken)
    found = tileflow.explore(MODEL, machines=SMALL, micro_batch_size=[1, 2, 3])
    assert [p.state for p in found.points] == ["fits", "failed", "fits"]
    assert found.points[1].reason.startswith("internal error KeyError(")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore", MODEL, "--machines", "gc2", "--micro-batch-size", "1,2"]) == 70


def test_what_does_not_fit_is_a_point_with_its_reason():
    found = tileflow.explore(MODEL, machines=[TINY, SMALL], training=True, micro_batch_size=4)
    full, roomy = found.points
    assert (full.state, roomy.state) == ("out of memory", "fits")
    assert full.bytes > full.bytes_per_tile == 12_000
    assert f"needs {full.bytes:,} bytes and has 12,000. Most of it: " in full.reason
    assert found.front == [roomy]
    text = found.to_text()
    assert f"tiny: {full.reason}" in text
    assert next(line.split()[0] for line in text.splitlines() if "tiny" in line) == "!"
    nothing = tileflow.explore(MODEL, machines=TINY, training=True, micro_batch_size=4)
    assert (nothing.best, nothing.front) == (None, [])
    assert "No setting fits." in nothing.to_text()


def test_a_network_of_layers_takes_the_micro_batch_of_the_axis():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    found = tileflow.explore(net, inputs=[(7, 6)], micro_batch_size=[2, 4], machines=SMALL)
    for p in found.points:
        alone: Any = tileflow.compile(net, inputs=[(p.values["micro_batch_size"], 6)], machine=SMALL, micro_batch_size=p.values["micro_batch_size"])
        assert (p.cycles, p.samples_per_second) == (alone.tiled.cycles_per_update, alone.tiled.samples_per_second)
    arrays = tileflow.explore(net, inputs=[np.zeros((7, 6), np.float32)], micro_batch_size=[2, 4], machines=SMALL)
    assert [p.cycles for p in arrays.points] == [p.cycles for p in found.points]


# ---- the front

def point(training: bool, speed: float, nbytes: int, state: str = "fits", **more: Any) -> Point:
    return Point({"machine": "gc200", **more}, training, state, "" if state == "fits" else "why", speed, nbytes, 1000, 10, 1.0, 0.1, 0.2, 1)


def test_the_front_is_what_no_other_beats():
    random = np.random.default_rng(3)
    for _ in range(200):
        points = [point(bool(random.integers(2)), float(random.integers(1, 9)), int(random.integers(1, 9)),
                        ("fits", "out of memory")[random.integers(2)]) for _ in range(int(random.integers(0, 12)))]
        found = front(points)
        able = [p for p in points if p.fits]
        kept = {id(p) for p in found}
        assert len(kept) == len(found)
        for p in able:
            rivals = [q for q in able if q.training is p.training]
            beaten = any(q.samples_per_second >= p.samples_per_second and q.bytes <= p.bytes
                         and (q.samples_per_second, q.bytes) != (p.samples_per_second, p.bytes) for q in rivals)
            twins = [q for q in rivals if (q.samples_per_second, q.bytes) == (p.samples_per_second, p.bytes)]
            assert sum(id(q) in kept for q in twins) == (0 if beaten else 1)
        assert all(p.fits for p in found)


# ---- Ctrl-C

def test_an_interruption_keeps_what_was_done(tmp_path):
    def stop(done: int, count: int, best: str) -> None:
        assert (count, best[-9:]) == (4, "samples/s")
        if done == 3:
            raise KeyboardInterrupt
    with pytest.raises(ExplorationInterrupted, match="Interrupted: 3 of 4 settings were tried; they are in ") as stopped:
        tileflow.explore(MODEL, machines=["gc2", "bow"], micro_batch_size=[1, 2], out=tmp_path / "out", progress=stop)
    found = stopped.value.exploration
    assert (len(found.points), found.complete) == (3, False)
    assert "Interrupted: 3 of 4 settings were tried." in found.to_text()
    saved = json.loads((tmp_path / "out" / "explore.json").read_text())
    assert (saved["complete"], saved["settings"], len(saved["points"])) == (False, 4, 3)
    assert "3 settings of 4, then interrupted" in (tmp_path / "out" / "explore.svg").read_text()


def test_the_command_prints_what_was_done_before_an_interruption(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    calls = []

    def stop(self: Any, done: int, count: int, best: str) -> None:
        calls.append(done)
        if done == 1:
            raise KeyboardInterrupt
    monkeypatch.setattr(ExploreBar, "__call__", stop)
    assert cli.main(["explore", MODEL, "--machines", "gc2,bow"]) == 130
    out, err = capsys.readouterr()
    assert "Interrupted: 1 of 2 settings were tried." in out
    assert "1 of 2 settings were tried; they are in explored." in err
    assert (tmp_path / "explored" / "explore.csv").read_text().count("\n") == 2


# ---- files

def test_the_files_hold_every_point(tmp_path):
    found = tileflow.explore(MODEL, machines=[TINY, SMALL], training=[False, True], ipus=[1, 2], micro_batch_size=[2, 4], out=tmp_path)
    assert {"fits", "out of memory", "failed"} == {p.state for p in found.points}
    data = json.loads((tmp_path / "explore.json").read_text())
    assert data == found.to_dict()
    assert [data["points"][i] for i in data["front"]] == [p.to_dict() for p in found.front]
    assert data["points"][data["best"]] == found.best.to_dict()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "explore.csv").read_text())))
    assert len(rows) == len(found.points)
    for row, p in zip(rows, found.points, strict=True):
        assert (row["machine"], row["state"], row["reason"]) == (p.values["machine"], p.state, p.reason)
        assert row["front"] == str(int(any(p is q for q in found.front)))
        if p.state != "failed":
            assert (float(row["samples_per_second"]), int(row["bytes"])) == (p.samples_per_second, p.bytes)
    svg = ElementTree.parse(tmp_path / "explore.svg").getroot()
    titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")]
    drawn = [p for p in found.points if p.state != "failed"]
    assert len(titles) == len(drawn)
    for p in drawn:
        assert any(f"{p.bytes:,} bytes" in t and f"{p.samples_per_second:,.0f} samples/s" in t and (p.fits or p.reason in t) for t in titles)
    assert f"{len(found.points) - len(drawn)} failed (see the table)" in (tmp_path / "explore.svg").read_text()


def test_the_picture_is_escaped_and_needs_nothing_else():
    hostile = "</svg><script>alert(1)</script>&\x07\"'"
    found = Exploration(hostile, {"machine": [hostile, "b"], "precision": ["32.32", hostile]},
                        [point(True, 3.0, 500, machine=hostile, precision="32.32"),
                         point(True, 5.0, 2000, "out of memory", machine="b", precision=hostile),
                         Point({"machine": "b", "precision": "32.32"}, True, "failed", hostile)], 3)
    svg = found.to_svg()
    root = ElementTree.fromstring(svg)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert svg.count("http") == 1, "the name of SVG itself"
    assert "href" not in svg
    assert "url(" not in svg
    assert "@import" not in svg
    for nothing in (Exploration("m", {"machine": ["gc2"]}, [], 3), Exploration("m", {"machine": ["gc2"]}, found.points[2:], 1)):
        assert ElementTree.fromstring(nothing.to_svg()).tag.endswith("svg")
        assert nothing.to_text()


def test_many_points_stay_a_table_and_a_picture():
    machines = [f"chip{i}" for i in range(30)]
    points = [point(True, 10.0 + i * j, 100 + 7 * i, machine=m, micro_batch_size=j) for i, m in enumerate(machines) for j in range(1, 11)]
    found = Exploration("m", {"training": [True], "machine": machines, "micro_batch_size": list(range(1, 11))}, points, 300)
    assert "and 100 points more in the files" in found.to_text()
    assert found.to_svg().count("<title>") == 300
    assert "marks come again" in found.to_svg()


# ---- the command

def test_the_command_and_the_one_that_it_suggests(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('name = "mine"\nbase = "gc200"\ntiles = 64\n')
    assert cli.main(["explore", MODEL, "--training", "--machines", "gc2,mine.toml", "--micro-batch-size", "2,8", "--precision", "16.16,32.32",
                     "--recompute=both", "--gradient-accumulation", "2", "--learning-rate", "0.1", "--out", "here"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("digits_cnn.onnx, training, accumulation 2\n")
    found = json.loads(Path("here/explore.json").read_text())
    assert found["axes"] == {"training": [True], "machine": ["gc2", "mine.toml"], "micro_batch_size": [2, 8], "gradient_accumulation": [2],
                             "precision": ["16.16", "32.32"], "recompute": [False, True]}
    assert len(found["points"]) == 16
    line = next(line for line in out.splitlines() if line.startswith("  tileflow compile "))
    best = found["points"][found["best"]]
    assert cli.main(shlex.split(line)[1:]) == 0
    report = json.loads(Path("report/report.json").read_text())
    assert report["totals"]["samples_per_second"] == best["samples_per_second"]
    assert report["memory"]["worst"] == best["bytes"]


@pytest.mark.parametrize(("words", "says"), [
    (["--micro-batch-size", "1,x"], "Option micro_batch_size (--micro-batch-size) must be a whole number, at least 1, not 'x'."),
    (["--machines", "gc2,,bow"], "--machines 'gc2,,bow' has an empty value between its commas."),
    (["--micro-batch-size", "1,,2"], "--micro-batch-size '1,,2' has an empty value between its commas."),
    (["--ipus", "1,two"], "--ipus must be whole numbers of at least 1, joined by commas, not '1,two'."),
    (["--training=yes"], "--training is given alone or as --training=both, not with 'yes'; a model goes before it."),
    (["--training", "--recompute=maybe"], "--recompute is given alone or as --recompute=both, not with 'maybe'; a model goes before it."),
    (["--machines", "gc200,gc9"], "There is no machine 'gc9'; choose one of gc2, gc200, bow, c600, or give a TOML file ending in .toml."),
    (["--recompute"], "Option recompute (--recompute) counts for training only; add --training, or leave it out."),
    (["--epochs", "2"], "Option epochs (--epochs) has no effect on explore; it is for train."),
])
def test_mistakes_at_the_command_line(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore", MODEL, *words]) == 2
    assert capsys.readouterr().err == f"tileflow: error: {says}\n"
    assert not list(tmp_path.iterdir())


def test_where_every_setting_fails_the_command_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore", MODEL, "--training", "--ipus", "2,3", "--machines", "gc2"]) == 2
    out = capsys.readouterr().out
    assert "What does not fit or failed:" in out
    assert "number of pipeline stages" in out
    assert "No setting fits." in out


def test_proportions_by_name_hold_for_all_settings_and_files_say_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("o.toml").write_text("machine = 'gc2'\nmicro_batch_size = 3\nepochs = 4\n")
    words = ["--options", "o.toml", "--available-memory-proportion", "conv*=0.1,*=0.3", "--precision", "32.32,16-mixed"]
    assert cli.main(["explore", MODEL, *words]) == 0
    found = json.loads(Path("explored/explore.json").read_text())
    assert found["axes"] == {"training": [False], "machine": ["gc2"], "micro_batch_size": [3], "precision": ["32.32", "16-mixed"],
                             "available_memory_proportion": ["conv*=0.1,*=0.3"]}
    assert cli.main(["explore", MODEL, "--available-memory-proportion", "nothing*=0.1,*=0.3"]) == 2
    assert "'nothing*' matches no operator" in capsys.readouterr().out


def test_the_bar_shows_the_fastest():
    err = io.StringIO()
    bar = ExploreBar(True, err)
    bar(1, 3, "")
    bar(3, 3, "12 samples/s")
    bar.close()
    assert "3 of 3" in err.getvalue()
    assert "best 12 samples/s" in err.getvalue()


def test_the_page_is_true():
    """Its flags are flags, its code parses, and the picture beside it is one that was made by this code."""
    docs = ROOT / "docs"
    page = (docs / "explore.md").read_text(encoding="utf-8")
    flags = cli.parse(["explore", MODEL]).flags + cli.parse(["compile", MODEL]).flags
    assert {*re.findall(r"(--[a-z][a-z-]+)", page)} <= {*flags}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        compile(code, "explore.md", "exec")
    for name in ("TABLE", "DATA", "PICTURE"):
        assert f"`{getattr(found_files, name)}`" in page
    for name in FIGURES:
        assert f"`{name}`" in page
    svg = (docs / "explore.svg").read_text(encoding="utf-8")
    assert f"<style>{STYLE}</style>" in svg
