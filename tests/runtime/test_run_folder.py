"""The run folder is enough: run.toml, commands that are printed and run as they stand, resuming by the folder alone."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port
from places import ROOT
from said import Said

import tileflow
from tileflow import cli, nn
from tileflow.cli import suggest
from tileflow.options.options import Options, declarations
from tileflow.runtime.run_folder import run_folder
from tileflow.system.errors import CheckpointError, DataError, ModelError, OptionError


def iris(folder: Path) -> None:
    """A model of two inputs' width and tables with the label in front; names with spaces, commas and quotes."""
    rng = np.random.default_rng(0)
    weight = {"w": rng.standard_normal((2, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    onnx.save(model_of([node("Gemm", ["x", "w", "b"], ["y"], "fc")], [port("x", ["N", 2])], [port("y", ["N", 3])], weight),
              folder / "my model.onnx")
    for name, rows in (("train data.csv", 96), ("test's.txt", 50)):
        y = rng.integers(0, 3, rows)
        x = 50 + 10 * np.stack([np.cos(2 * y), np.sin(2 * y)], axis=1) + rng.standard_normal((rows, 2))
        np.savetxt(folder / name, np.column_stack([y, x]), "%.6g", ",", header='"the class","a,b",length', comments="")


CASES: dict[str, list[str]] = {
    "labels in front": ["--data", "train data.csv", "--label", "the class", "--validation-split", "0.25", "--seed", "5"],
    "scaled": ["--data", "train data.csv", "--label", "the class", "--mean=50", "--std", "10", "--scale", "1", "--micro-batch-size", "8"],
    "test data": ["--data", "train data.csv", "--test-data", "test's.txt", "--data-format", "csv", "--label", "the class", "--mean", "50",
                  "--std", "10", "--precision", "float64", "--epochs", "3"],
    "a name with a comma": ["--options", "inputs.toml", "--data", "train data.csv", "--label", "the class", "--validation-split", "0.25"],
}


def printed(text: str) -> list[str]:
    return re.findall(r"^  (tileflow .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_every_printed_command_runs(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """And gives what the run has: the suggested infer dropped --label, --mean and --std (4 % right), the suggested --resume the batch size."""
    monkeypatch.chdir(tmp_path)
    iris(tmp_path)
    (tmp_path / "inputs.toml").write_text('inputs = ["length", "a,b"]\n')
    assert cli.main(["train", "my model.onnx", "--learning-rate", "0.05", *words, "--out", "my runs/1"]) == 0
    out = capsys.readouterr().out
    measured = re.findall(r"test accuracy ([\d.]+%)", out) or re.findall(r"  accuracy ([\d.]+%)", out)
    lines = printed(out)
    assert [line.split()[1] for line in lines] == ["infer", "train", "inspect"]
    for line in lines:
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line
        found = capsys.readouterr()
        if line.split()[1] == "infer" and "test accuracy" in out:
            assert f"accuracy {measured[-1]} of" in found.out, line
        if line.split()[1] == "train":
            assert "epoch 2/" in found.out or "epoch 4/" in found.out, line
            again = printed(found.out)
    assert "'my model.onnx'" in again[2] or str(tmp_path) in again[2]
    assert cli.main(shlex.split(again[0], comments=True)[1:]) == 0


@pytest.mark.exhaustive
def test_a_shell_runs_them(tmp_path: Path):
    """Really as they are printed, the comment included."""
    iris(tmp_path)
    script = tmp_path / "tileflow"
    script.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m tileflow \"$@\"\n")
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def shell(line: str) -> str:
        return subprocess.run(line, shell=True, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100).stdout
    out = shell("tileflow train './my model.onnx' --data 'train data.csv' --label 'the class' --out 'a & b'")
    for line in printed(out)[:2]:
        shell(line)


def test_tune_prints_a_command_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    iris(tmp_path)
    assert cli.main(["tune", "my model.onnx", "--training", "--evaluations", "1", "--out", "my settings.toml"]) == 0
    (line,) = printed(capsys.readouterr().out)
    assert cli.main(shlex.split(line, comments=True)[1:]) == 0


# ---- run.toml

def test_run_toml_keeps_every_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    iris(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = tileflow.train("my model.onnx", data="train data.csv", label="the class", inputs=("a,b", "length"), micro_batch_size=8, mean=(1.5, 2),
                            learning_rate=0.05, dims={"N": 8}, out="run")
    kept = Options.load(tmp_path / "run" / "run.toml")
    assert kept == result.options.clone(data=str(tmp_path / "train data.csv"), out=None)
    missing = {d.name for d in declarations().values() if not kept.given(d.name) and d.default is not None}
    assert missing <= {"out", "resume", "allow_other_data", "fast_dev_run"}
    monkeypatch.chdir("/")
    again = tileflow.train(resume=True, out=str(tmp_path / "run"), epochs=2)
    assert (len(again.epochs), again.options.micro_batch_size) == (2, 8)
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--epochs", "3"]) == 0          # the folder for both
    assert Options.load(tmp_path / "run" / "run.toml").epochs == 3


def test_what_shapes_the_numbers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    iris(tmp_path)
    words = ["train", str(tmp_path / "my model.onnx"), "--data", str(tmp_path / "train data.csv"), "--label", "the class",
             "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    before = (tmp_path / "run" / "run.toml").read_bytes()
    table = (tmp_path / "train data.csv").read_text().splitlines(keepends=True)
    (tmp_path / "other.csv").write_text("".join(table[:-1]))
    for flag, says in ((["--micro-batch-size", "8"], "was made with micro_batch_size = 16, this run has 8"),
                       (["--mean", "3"], "this run has scale 1.0, mean [3.0]"),
                       (["--data", str(tmp_path / "other.csv")], "was made with other data (96 rows, this run has 95;")):
        assert cli.main(["train", "--resume", "--out", str(tmp_path / "run"), *flag]) == 2
        assert says in capsys.readouterr().err
    assert (tmp_path / "run" / "run.toml").read_bytes() == before


def test_a_command_that_begins_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One line for a process manager: it begins the run, goes on with it, and does nothing once it is done."""
    iris(tmp_path)
    words = ["train", str(tmp_path / "my model.onnx"), "--data", str(tmp_path / "train data.csv"), "--label", "the class", "--resume",
             "--out", str(tmp_path / "run"), "--epochs", "2"]
    assert cli.main(words) == 0
    assert f"There is no checkpoint in {tmp_path / 'run'} yet: the run begins anew." in capsys.readouterr().err
    first = (tmp_path / "run" / "model.onnx").read_bytes()
    assert cli.main(words) == 0
    assert "there is nothing left to train" in capsys.readouterr().err
    assert (tmp_path / "run" / "model.onnx").read_bytes() == first


def test_the_model_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    iris(tmp_path)
    options: dict[str, Any] = dict(data=str(tmp_path / "train data.csv"), label="the class", out=str(tmp_path / "run"))
    with pytest.raises(ModelError, match="There is no model to train"):
        tileflow.train(data=options["data"])
    with pytest.raises(CheckpointError, match="run does not say which model its run began with; name the model"):
        tileflow.train(resume=True, **options)
    tileflow.train(tmp_path / "my model.onnx", **options)
    proto = onnx.load(tmp_path / "my model.onnx")
    proto.producer_name = "somebody else"
    onnx.save(proto, tmp_path / "my model.onnx")
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "run"), "--epochs", "2"]) == 0
    assert f"The model {tmp_path / 'my model.onnx'} has changed since the run in {tmp_path / 'run'} began." in capsys.readouterr().err
    shutil.move(tmp_path / "my model.onnx", tmp_path / "moved.onnx")
    with pytest.raises(ModelError, match=r"my model\.onnx that the run in .*run began with is not there any more; name the model"):
        tileflow.train(resume=True, out=str(tmp_path / "run"))
    tileflow.train(tmp_path / "moved.onnx", resume=True, out=str(tmp_path / "run"))


def test_data_in_memory_are_not_kept(tmp_path: Path):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((32, 4)).astype(np.float32), rng.integers(0, 3, 32)
    net = nn.Sequential(nn.Linear(4, 3))
    tileflow.train(net, data=data, out=str(tmp_path), micro_batch_size=8)
    assert "[model]" not in (tmp_path / "run.toml").read_text()
    with pytest.raises(DataError, match="There is no data to train on"):
        tileflow.train(net, resume=True, out=str(tmp_path), epochs=2)
    assert tileflow.train(net, data=data, resume=True, out=str(tmp_path), epochs=2).options.micro_batch_size == 8


@pytest.mark.parametrize(("text", "says"), [("[model", "not valid TOML"), ("[model]\npath = 3\n", r"\[model\] must hold texts"),
                                            ("[run]\nsede = 1\n", "There is no option 'sede'")])
def test_a_damaged_run_toml(tmp_path: Path, text: str, says: str):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(OptionError, match=says):
        tileflow.train(resume=True, out=str(tmp_path))


# ---- flags

@pytest.mark.parametrize(("name", "value", "words"), [
    ("learning_rate", 1e-7, ["--learning-rate", "1e-07"]), ("scale", -0.5, ["--scale=-0.5"]), ("mean", (-1.0, 2.0), ["--mean=-1.0,2.0"]),
    ("inputs", ("a b", "c"), ["--inputs", "a b,c"]), ("inputs", ("a,b",), None), ("inputs", (" a",), None), ("dims", {"N": 4}, ["--dims", "N=4"]),
    ("label", "-y", ["--label=-y"]), ("shuffle", False, ["--no-shuffle"]), ("seed", 0, []), ("precision", "float64", ["--precision", "64"]),
])
def test_flags_say_what_options_are(name: str, value: Any, words: list[str] | None):
    options = Options(**{name: value})
    assert suggest.flags(options, [name]) == words
    if words is not None:
        assert cli.options_of(cli.parse(["train", "m.onnx", *words])) == options


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20261123-120000")
    with ExitStack() as runs:
        folders = [runs.enter_context(run_folder(None, False, Said().on_message)) for _ in range(3)]
    assert [f.name for f in folders] == ["20261123-120000", "20261123-120000-2", "20261123-120000-3"]
    assert all(f.is_dir() for f in folders)
