"""Processes that MPI connects. Needs mpi4py and an MPI library with its mpiexec: pip install 'tileflow-engine[mpi]'."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tileflow.errors import OptionError

from tileflow import collective

SCRIPT = Path(__file__).parent / "mpi_script.py"


def mpiexec() -> str:
    pytest.importorskip("mpi4py", reason="MPI is an extra: pip install 'tileflow-engine[mpi]'")
    own = Path(sys.executable).parent / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    return found or pytest.skip("there is no mpiexec")


def digests(*before: str) -> list[str]:
    done = subprocess.run([*before, sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("digest")]


def test_bits_are_those_of_one_process():
    start = mpiexec()
    alone = digests()
    assert digests(start, "-n", "2") == alone * 2


def test_without_mpi4py_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(OptionError, match=r"tileflow-engine\[mpi\]"):
        collective.init()


def test_a_process_that_nobody_started_is_alone(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    assert collective.init() is None
