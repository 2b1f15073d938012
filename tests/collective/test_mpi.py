"""Processes that MPI connects. Needs mpi4py and an MPI library with its mpiexec: pip install 'tileflow-engine[mpi]'."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import mpiexec
from served import communicated
from tileflow.errors import OptionError

from tileflow import collective

SCRIPT = Path(__file__).parent / "mpi_script.py"


def digests(*before: str) -> list[str]:
    done = subprocess.run([*before, sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return re.findall("digest ([0-9a-f]{64})", done.stdout)


def test_bits_are_those_of_one_process():
    start = mpiexec()
    alone = digests()
    assert digests(start, "-n", "2") == alone * 2


BEATING = """
import os, sys, time, tileflow.collective
group = tileflow.collective.init()
kind, rank = sys.argv[1], int(sys.argv[2])
os.write(1, " ".join(map(str, ("processors", group.rank, *sorted(os.sched_getaffinity(0)), "\\n"))).encode())
for turn in range(20 if kind == "none" else 10_000):
    group.barrier("a turn")
    time.sleep(0.02)
    if turn == 10 and group.rank == rank:
        if kind == "raise":
            raise OSError("the disk is full")
        if kind == "leave":
            sys.exit(0)
        os.kill(os.getpid(), {"kill": 9, "stop": 19}.get(kind, 0))
"""


def beating(kind: str, rank: int, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Two processes of mpiexec alone, one of which fails; it must be over within 10 seconds of that."""
    script = folder / "beating.py"
    script.write_text(BEATING)
    words = [mpiexec(), "-n", "2", sys.executable, str(script), kind, str(rank)]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **more})
    out, said = communicated(launcher, 15)
    return subprocess.CompletedProcess(words, launcher.returncode, out, said)


SAYS = {("raise", 1): "Process 1 of 2 (on {host}) failed: OSError: the disk is full.",
        ("stop", 1): "Process 1 of 2 (on {host}) failed: it does not answer: it hangs, or {host} cannot be reached.",
        ("stop", 0): "Process 0 of 2 (on {host}) does not answer, or cannot be reached: process 1 ends, too.",
        ("leave", 1): "Process 1 has ended, and this one is at a turn"}


@pytest.mark.parametrize(("kind", "rank"),
                         [("raise", 1), *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (
    ("stop", 1), ("stop", 0), ("leave", 1), ("kill", 0), ("kill", 1)))])
def test_where_nobody_else_watches_the_first_process_does(kind, rank, tmp_path):
    done = beating(kind, rank, tmp_path)
    assert done.returncode != 0
    if kind != "kill":                          # of which mpiexec hears at once, and tells itself
        assert SAYS[kind, rank].format(host=os.uname().nodename) in done.stderr


def test_processes_that_end_as_they_should_share_the_processors(tmp_path):
    own = os.sched_getaffinity(0)
    for pin in "10":
        done = beating("none", 0, tmp_path, TILEFLOW_PIN=pin)
        assert done.returncode == 0, done.stderr
        found = {int(line.split()[1]): set(map(int, line.split()[2:]))
                 for line in done.stdout.splitlines() if line.startswith("processors")}
        shared = pin == "0" or len(own) == 1
        assert found[0] | found[1] == own
        assert (found[0] & found[1] == set()) is not shared


def test_without_mpi4py_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(OptionError, match=r"tileflow-engine\[mpi\]"):
        collective.init()


def test_a_process_that_nobody_started_is_alone(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    assert collective.init() is None
