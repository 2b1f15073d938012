"""Two hosts (`bench/two_hosts.py`) for tests, which are skipped where there can be none."""
from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.two_hosts import NoHosts, TwoHosts


def mpiexec() -> str:
    pytest.importorskip("mpi4py", reason="MPI is an extra: pip install 'tileflow-engine[mpi]'")
    own = Path(sys.executable).parent / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    return found or pytest.skip("there is no mpiexec")


def hosts_or_skip(folder: Path) -> TwoHosts:
    """Two hosts, to be closed."""
    mpiexec()
    try:
        return TwoHosts(folder)
    except NoHosts as why:
        pytest.skip(str(why))


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    made = hosts_or_skip(tmp_path)
    try:
        yield made
    finally:
        made.close()
