"""`tileflow launch`: one that dies, stops or raises ends all within seconds, with the first cause; a restart goes on to the same bits."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tileflow.cli import main
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.system.packaged import PACKAGED_MODELS

SECONDS = 10


def command(folder: Path, *more: str, restarts: int = 0, epochs: int = 40) -> list[str]:
    return [sys.executable, "-m", "tileflow", "launch", "-n", "2", *(["--max-restarts", str(restarts)] if restarts else []), "train",
            PACKAGED_MODELS[0], "--data", "digits", "--replication-factor", "2", "--micro-batch-size", "4", "--epochs", str(epochs),
            "--save-every-updates", "20", "--out", str(folder), *more]


def processes(launcher: subprocess.Popen) -> list[int]:
    """The launcher's children by their ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if re.search(rf"\) \S {launcher.pid} ", (entry / "stat").read_text()):
                    told = re.search(r"TILEFLOW_PROCESS=(\d+)/", (entry / "environ").read_bytes().decode(errors="replace"))
                    if told:
                        found[int(told[1])] = int(entry.name)
            except OSError:
                continue
    return [found[r] for r in sorted(found)]


def begun(launcher: subprocess.Popen, folder: Path) -> list[int]:
    """Wait until there is a checkpoint; the processes."""
    until = time.monotonic() + 120
    while not (folder / "checkpoint.safetensors").exists():
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return processes(launcher)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize(("number", "rank"), [
    (signal.SIGKILL, 1), pytest.param(signal.SIGKILL, 0, marks=pytest.mark.exhaustive), pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.exhaustive),
    pytest.param(signal.SIGSTOP, 0, marks=pytest.mark.exhaustive)])
def test_one_that_dies_or_hangs_ends_all_with_its_cause(number, rank, tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    assert len(pids) == 2
    os.kill(pids[rank], number)
    _, said = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 1
    assert f"Process {rank} of 2 failed: {'it was ended by SIGKILL' if number == signal.SIGKILL else 'it does not answer'}." in said
    assert gone(pids)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_a_restart_goes_on_to_the_same_bits(seed, tmp_path):
    subprocess.run(command(tmp_path / "whole", epochs=3), check=True, stdout=subprocess.DEVNULL)
    launcher = subprocess.Popen(command(tmp_path / "run", restarts=2, epochs=3), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    draw = np.random.default_rng(seed)
    time.sleep(draw.random() * 0.3)
    if launcher.poll() is None and pids:
        os.kill(pids[seed % 2], signal.SIGKILL)
    _, said = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, said
    whole, found = (load_checkpoint(tmp_path / name / "checkpoint.safetensors").tensors for name in ("whole", "run"))
    assert whole.keys() == found.keys()
    assert all(np.array_equal(whole[name], found[name]) for name in whole)


@pytest.mark.exhaustive
def test_ctrl_c_saves_after_a_whole_update_and_the_run_goes_on(tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pids = begun(launcher, tmp_path / "run")
    launcher.send_signal(signal.SIGTERM)
    _, said = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 130
    assert re.search(r"Stopped after \d+ updates; saved", said)
    assert gone(pids)


@pytest.mark.exhaustive
def test_the_launcher_itself_leaves_nobody_behind(tmp_path):
    launcher = subprocess.Popen(command(tmp_path / "run", epochs=100_000), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = begun(launcher, tmp_path / "run")
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + SECONDS
    while not gone(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert gone(pids)


def test_what_cannot_be_launched_is_told(capsys):
    for words, sentence in ((["launch"], "runs a command"), (["launch", "-n", "0", "train"], "must be 1 to 1024, not 0"),
                            (["launch", "--max-restarts", "1", "train", "m.onnx"], "with a folder --out")):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
