"""`tileflow launch --hosts`: two hosts train to the bits of one process, and whatever fails on either ends all, with
its host's name."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from namespaces import two_hosts
from served import communicated, over
from tileflow.errors import OptionError

from bench.two_hosts import ADDRESSES, TwoHosts
from tileflow.cli import main
from tileflow.collective import hosts
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.system.packaged import PACKAGED_MODELS

__all__ = ["two_hosts"]
SECONDS = 10
HOSTS = ("--hosts", ",".join(ADDRESSES))


def training(folder: Path, epochs: int, *more: str) -> list[str]:
    return ["train", PACKAGED_MODELS[0], "--data", "digits", "--replication-factor", "3", "--micro-batch-size", "16",
            "--epochs", str(epochs), "--save-every-updates", "10", "--out", str(folder), *more]


def tensors(folder: Path) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(a).tobytes()
            for name, a in load_checkpoint(folder / "checkpoint.safetensors").tensors.items()}


def begun(launcher: subprocess.Popen[str], folder: Path, spaces: TwoHosts) -> dict[int, int]:
    """Wait until there is a checkpoint; the processes by rank."""
    assert over(lambda: (folder / "checkpoint.safetensors").exists() or launcher.poll() is not None, 120)
    assert launcher.poll() is None, launcher.communicate()
    return spaces.ranks()


def ended(launcher: subprocess.Popen[str], spaces: TwoHosts) -> str:
    """What is said within the time that the end may take, after which nobody is left on either host."""
    said = communicated(launcher, SECONDS)[1]
    assert over(lambda: not spaces.there(), SECONDS), said
    return said


def test_bits_are_those_of_one_process_and_travel_between_the_hosts(two_hosts, tmp_path):
    alone = subprocess.run([sys.executable, "-m", "tileflow", *training(tmp_path / "alone", 1)], capture_output=True,
                           text=True, check=True)
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, *training(tmp_path / "run", 1))
    out, said = communicated(launcher, 120)
    assert launcher.returncode == 0, said
    assert tensors(tmp_path / "run") == tensors(tmp_path / "alone")
    figures = re.compile(r"epoch .*?accuracy [\d.]+ ?%")
    assert figures.findall(out) == figures.findall(alone.stdout), "and one process tells of it"
    found = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").tensors
    gradients = sum(a.nbytes for name, a in found.items() if f"{name}.exp_avg" in found)
    updates = len(found["optimizer.lr.history"])
    assert updates > 10
    least = updates * gradients
    assert least < two_hosts.sent() < 2 * least, "less than two replicas' contributions, of three"
    assert not two_hosts.there()


FAULTS = [("kill", 1), *(pytest.param(kind, rank, marks=pytest.mark.exhaustive)
                         for kind, rank in (("kill", 0), ("stop", 0), ("stop", 1), ("cut", 1)))]


@pytest.mark.parametrize(("kind", "rank"), FAULTS)
def test_what_fails_on_a_host_ends_all_with_its_name(kind, rank, two_hosts, tmp_path):
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, *training(tmp_path / "run", 100_000))
    ranks = begun(launcher, tmp_path / "run", two_hosts)
    assert sorted(ranks) == [0, 1]
    if kind == "cut":
        two_hosts.cut()
    else:
        os.kill(ranks[rank], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    said = ended(launcher, two_hosts)
    assert launcher.returncode == 1
    host = ("hosta", "hostb")[rank]
    why = "it has ended without a word, as one that is killed does"
    if kind != "kill":
        why = f"it does not answer: it hangs, or {host} cannot be reached"
    assert f"Process {rank} of 2 (on {host}) failed: {why}." in said


@pytest.mark.exhaustive
def test_a_restart_goes_on_to_the_same_bits(two_hosts, tmp_path):
    subprocess.run([sys.executable, "-m", "tileflow", *training(tmp_path / "whole", 3)], capture_output=True,
                   check=True)
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, "--max-restarts", "1", *training(tmp_path / "run", 3))
    os.kill(begun(launcher, tmp_path / "run", two_hosts)[1], signal.SIGKILL)
    said = communicated(launcher, 120)[1]
    assert launcher.returncode == 0, said
    assert "(on hostb) failed" in said
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")


@pytest.mark.exhaustive
def test_a_restart_leaves_out_a_host_that_is_gone(two_hosts, tmp_path):
    subprocess.run([sys.executable, "-m", "tileflow", *training(tmp_path / "whole", 3)], capture_output=True,
                   check=True)
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, "--max-restarts", "1", *training(tmp_path / "run", 3))
    begun(launcher, tmp_path / "run", two_hosts)
    two_hosts.cut()
    said = communicated(launcher, 120)[1]
    assert launcher.returncode == 0, said
    assert f"Without {ADDRESSES[1]}, which cannot be reached: 1 of 2 processes go on" in said
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")


def test_what_ran_on_hosts_that_are_gone_is_left_out(monkeypatch: pytest.MonkeyPatch):
    assert hosts.dealt(["a", "b:2"], 7) == ["a", "b:2", "b:2", "a", "b:2", "b:2", "a"]
    there = ["a", "b:2"]
    monkeypatch.setattr(hosts, "unreachable", lambda asked: {host: "" for host in asked if host not in there})
    assert hosts.remaining(["a", "b:2"], 5) == (["a", "b:2"], 5, "")
    found, count, sentence = hosts.remaining(["a", "c:2", "b:2"], 6)
    assert (found, count) == (["a", "b:2"], 4)
    assert sentence == "Without c, which cannot be reached: 4 of 6 processes go on, to the same weights."
    with pytest.raises(OptionError, match="The first host, c, whose process has written the folder"):
        hosts.remaining(["c", "a"], 2)


@pytest.mark.exhaustive
def test_ctrl_c_saves_after_a_whole_update(two_hosts, tmp_path):
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, *training(tmp_path / "run", 100_000))
    begun(launcher, tmp_path / "run", two_hosts)
    launcher.send_signal(signal.SIGINT)
    said = ended(launcher, two_hosts)
    assert launcher.returncode == 130, said
    assert re.search(r"Stopped after \d+ updates; saved", said)


@pytest.mark.exhaustive
def test_a_host_that_is_not_there_is_told(two_hosts, tmp_path):
    launcher = two_hosts.start("launch", "-n", "2", "--hosts", f"{ADDRESSES[1]},10.77.0.9",
                               *training(tmp_path / "run", 1))
    said = ended(launcher, two_hosts)
    assert launcher.returncode == 2
    assert re.search(r"^tileflow: error: 10\.77\.0\.9 cannot be reached( \(.+\))?: MPI's launcher can start no process "
                     r"there\. See docs/distributed\.md\.$", said, re.MULTILINE), said
    assert "[mpiexec@" not in said
    assert ADDRESSES[1] not in said


@pytest.mark.exhaustive
def test_hosts_need_not_know_the_name_of_the_one_that_starts_them(two_hosts, tmp_path):
    launcher = two_hosts.start("launch", "-n", "1", "--hosts", ADDRESSES[1], *training(tmp_path / "run", 1))
    said = communicated(launcher, 120)[1]
    assert launcher.returncode == 0, said
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.exhaustive
def test_an_error_of_the_command_is_none_of_the_hosts(two_hosts, tmp_path):
    launcher = two_hosts.start("launch", "-n", "2", *HOSTS, "train", str(tmp_path / "none.onnx"))
    said = ended(launcher, two_hosts)
    assert launcher.returncode == 2, said
    assert "none.onnx" in said
    assert "MPI's launcher can start no process" not in said


def test_names_of_hosts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a.example:2   # the big one\n\nb\n10.0.0.3, c-1\n")
    assert hosts.names(None, str(file)) == ["a.example:2", "b", "10.0.0.3", "c-1"]
    assert hosts.names("a,b:3", None) == ["a", "b:3"]
    for text in ("", ",", "a,-x", "a;rm", "a:b", "a b$"):
        with pytest.raises(OptionError, match=r"is no host|There are no hosts"):
            hosts.names(text, None)
    with pytest.raises(OptionError, match="cannot be read"):
        hosts.names(None, str(tmp_path / "none"))


def test_without_mpi_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "--hosts", "a,b", "train", "m.onnx"]) == 2
    assert "pip install 'tileflow-engine[mpi]'" in capsys.readouterr().err
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho another\n")
    other.chmod(0o755)
    assert main(["launch", "--hosts", "a,b", "train", "m.onnx"]) == 2
    assert "is not MPICH's launcher" in capsys.readouterr().err
