"""The scripts of examples/, run as a user runs them: processes of their own, in another folder, with the options their README names."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(p.name for p in EXAMPLES.glob("*.py") if "__main__" in p.read_text())


def run(folder: Path, script: str, *words: str) -> str:
    """What the script prints; it must end well and warn of nothing, but that rows of pixels become images."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error,ignore:Input image"}
    done = subprocess.run([sys.executable, str(EXAMPLES / script), *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figure(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_the_tutorial(tmp_path: Path):
    said = run(tmp_path, "mnist_pipeline.py", "--profile", "--profile-dir", "pipeline_profile")
    assert figure(said, r"Accuracy on test set: ([\d.]+)%") > 95
    report = json.loads((tmp_path / "pipeline_profile/report.json").read_text())
    assert [ipu["number"] for ipu in report["ipus"]] == [0, 1, 2, 3]
    assert (tmp_path / "pipeline_profile/page.html").stat().st_size
    assert "Filling and draining the pipeline costs" in said


def accuracies(folder: Path, kinds: list[str], *words: str) -> dict[str, float]:
    return {kind: figure(run(folder, "mnist_pipeline.py", "--strategy", kind, *words), r"Accuracy on test set: ([\d.]+)%") for kind in kinds}


def test_the_tutorial_learns_the_same_in_shards(tmp_path: Path):
    found = accuracies(tmp_path, ["pipelined", "sharded"], "--epochs", "1")
    assert found["sharded"] == found["pipelined"] > 85


@pytest.mark.exhaustive
def test_the_tutorial_learns_the_same_in_every_strategy(tmp_path: Path):
    kinds = re.findall(r"--strategy \{([\w,]+)\}", run(tmp_path, "mnist_pipeline.py", "--help"))[0].split(",")
    assert {*kinds} == {"pipelined", "sharded", "serial_phased", "parallel_phased"}
    found = accuracies(tmp_path, kinds)
    assert len({*found.values()}) == 1, found
    assert found["pipelined"] > 95


def test_every_script_is_listed_and_every_command_is_a_script():
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+\.py)\)", page)) == set(SCRIPTS)
    for command in commands():
        assert command[0] in SCRIPTS


def commands() -> list[list[str]]:
    """The commands that README and the scripts' own docstrings name."""
    text = "\n".join([(EXAMPLES / "README.md").read_text(), *((EXAMPLES / script).read_text() for script in SCRIPTS)])
    return [line.split("#")[0].split() for line in re.findall(r"^\s*python examples/(.*)$", text, re.MULTILINE)]


@pytest.mark.exhaustive
def test_every_command_of_the_page_and_the_docstrings(tmp_path: Path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mnist.npz", **{name: array for part, rows in (("train", 8000), ("test", 320)) for name, array in (
        (f"x_{part}", rng.integers(0, 256, (rows, 28, 28), np.uint8)), (f"y_{part}", rng.integers(0, 10, rows)))})
    known = commands()
    assert len(known) >= 12
    for words in known:
        said = run(tmp_path, *words)
        assert said
        if words[0] == "sharded.py":
            assert "The weights are the same to the bit." in said


@pytest.mark.exhaustive
def test_offloading_takes_the_optimizers_bytes_from_the_chip(tmp_path: Path):
    small = ("--epochs", "1", "--device-iterations", "1", "--gradient-accumulation", "7")
    on, off = (run(tmp_path, "mnist_pipeline.py", "--profile", *small, *more) for more in ((), ("--offload-optimiser",)))
    assert figure(on, r"optimizer +always live +([\d,]+)") > figure(off, r"optimizer +always live +([\d,]+)")


@pytest.mark.exhaustive
def test_phases_learn_the_same_on_one_ipu_and_on_two(tmp_path: Path):
    one, two = run(tmp_path, "phased.py"), run(tmp_path, "phased.py", "--parallel", "--separate-backward")
    assert figure(one, r"Right: ([\d.]+)%") > 80
    assert re.findall(r"after.*", one) == re.findall(r"after.*", two)
    streamed = run(tmp_path, "phased.py", "--liveness", "off_chip_after_each_phase")
    assert re.findall(r"after.*", one) == re.findall(r"after.*", streamed)
    assert figure(one, r"IPU 0: ([\d,]+) bytes") > figure(streamed, r"IPU 0: ([\d,]+) bytes")
    assert figure(one, r"always; ([\d,]+) bytes") == 0 < figure(streamed, r"always; ([\d,]+) bytes")
    assert "IPU 1" in two
    assert "IPU 1" not in one


def crossed(said: str) -> list[str]:
    """The IPUs of which something crosses; the weights are those of one IPU."""
    assert "the weights of one IPU to the bit: yes" in said
    return re.findall(r"IPU (\d): [\d,]*[1-9][\d,]* bytes an update to other IPUs", said)


def test_stages_of_a_phase_read_each_other(tmp_path: Path):
    assert crossed(run(tmp_path, "crossing.py")) == ["0", "1", "2", "3"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "ipus"), [(("--serial",), "01"), (("--groups", "1"), "0123"), (("--groups", "2", "--updates", "30"), "0123")])
def test_stages_of_any_phases_read_each_other(words: tuple[str, ...], ipus: str, tmp_path: Path):
    assert crossed(run(tmp_path, "crossing.py", *words)) == [*ipus]


@pytest.mark.exhaustive
def test_replicas_are_accumulation(tmp_path: Path):
    said = run(tmp_path, "replicated.py")
    assert "not the same to the bit: none" in said
    assert figure(said, r"accuracy ([\d.]+)%") > 90
    assert figure(run(tmp_path, "replicated.py", "--ensemble"), r"together: accuracy ([\d.]+)%") > 90
    assert "not the same to the bit: 1.running_mean, 1.running_var" in run(tmp_path, "replicated.py", "--own-buffers", "--epochs", "1")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("words", "sentence"), [
    (("mnist_pipeline.py", "--gradient-accumulation", "6"), "gradient_accumulation"),
    (("mnist_pipeline.py", "--data", "missing.npz"), "missing.npz")])
def test_what_cannot_run_says_why(words: tuple[str, ...], sentence: str, tmp_path: Path):
    with pytest.raises(AssertionError, match=sentence):
        run(tmp_path, *words)
