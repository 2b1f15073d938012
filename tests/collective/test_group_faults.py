"""Faults at random moments: a sentence within ten seconds, nobody left behind, and another number of processes goes on
to the same bits."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faulty_script import run
from groups import forked
from namespaces import hosts_or_skip
from served import communicated, over

from bench.two_hosts import ADDRESSES, ROOT, TwoHosts
from tileflow.runtime.checkpoint import load_checkpoint

SCRIPT = Path(__file__).parent / "faulty_script.py"
SECONDS, MARK = 10, "TILEFLOW_TEST_FAULTS"
KINDS = ("kill", "stop", "raise", "disk", "cut")


def marked(mark: str) -> dict[int, int]:
    """The processes of a group that live, and what rank each has."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            told = dict(p.partition("=")[::2]
                        for p in (entry / "environ").read_bytes().decode(errors="replace").split("\0")) \
                if entry.name.isdigit() else {}
            if told.get(MARK) == mark and (entry / "stat").read_text().rpartition(") ")[2][0] != "Z":
                rank = told.get("PMI_RANK") or told.get("TILEFLOW_PROCESS", "-1/").partition("/")[0]
                command = (entry / "cmdline").read_bytes()
                script = str(SCRIPT).encode() in command and b"launch" not in command
                found[int(entry.name)] = int(rank) if script and rank.isdecimal() else -1
        except OSError:
            continue
    return found


def start(folder: Path, size: int, kind: str, rank: int, update: int, hosts: TwoHosts | None) -> subprocess.Popen[str]:
    words = [str(SCRIPT), str(folder / "run"), kind, str(rank), str(update)]
    if hosts is not None:
        return hosts.start("launch", "-n", str(size), "--hosts", ",".join(ADDRESSES), *words, **{MARK: str(folder)})
    more = {MARK: str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "tileflow", "launch", "-n", str(size), *words],
                            env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def left(folder: Path) -> dict[str, bytes]:
    found = load_checkpoint(folder / "run" / "checkpoint.safetensors").tensors
    return {name: np.ascontiguousarray(a).tobytes() for name, a in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    run(folder / "run")
    return left(folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(60) if n != 2)])
def test_whatever_fails_ends_all_and_the_run_goes_on(seed, whole, tmp_path):
    draw = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    size = int(draw.integers(2, 4))
    rank, update, delay = int(draw.integers(size)), int(draw.integers(1, 25)), float(draw.random()) * 0.4
    hosts = hosts_or_skip(tmp_path) if kind == "cut" or (seed // len(KINDS) % 2 and TwoHosts.can()) else None
    rank = 1 if kind == "cut" else 0 if kind == "disk" else rank
    try:
        launcher = start(tmp_path, size, kind, rank, update, hosts)
        if kind in ("kill", "stop", "cut"):
            assert over(lambda: (tmp_path / "run" / "checkpoint.safetensors").exists() or launcher.poll() is not None,
                        120)
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(delay)
            pids = [pid for pid, r in marked(str(tmp_path)).items() if r == rank]
            if kind == "cut" and hosts is not None:
                hosts.cut()
            elif pids:
                os.kill(pids[0], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            (tmp_path / "failed").touch()
        said = communicated(launcher, SECONDS, (tmp_path / "failed").exists)[1]
        if launcher.returncode:  # else it had come to its end before anything failed
            of_first = rank == 0 and ("torn" in said or "No space left" in said)
            assert of_first or f"Process {rank} of {size}" in said, said
        assert over(lambda: not marked(str(tmp_path)), SECONDS)
    finally:
        if hosts is not None:
            hosts.close()
    others = 1 + int(draw.integers(3))
    assert forked(tmp_path / "again", others, lambda rank: run(tmp_path / "run")) == [None] * others
    assert left(tmp_path) == whole
