"""Kernels that come with the package: read as they were written, or not at all."""
from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import FASTEST, exhaustive
from places import ROOT

from tileflow.cli import examination
from tileflow.kernels.machine import cache, pack, stored
from tileflow.kernels.machine.leaf import Leaf


def double(x, y):                                       # type: ignore[no-untyped-def]          # kernels' bodies
    for i in range(y.shape[0]):
        y[i] = x[i] + x[i]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a pack that is not there yet, and nothing linked."""
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "_linked", {})
    monkeypatch.setattr(pack, "FILE", tmp_path / "kernels.pack")
    pack._table.cache_clear()
    return tmp_path


def started() -> None:
    """As in a new process."""
    stored._linked.clear()
    pack._table.cache_clear()


def ran() -> list[str]:
    """What a start compiles that runs the leaf."""
    made: list[str] = []
    cache.on_compile.append(made.append)
    started()
    x, y = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    try:
        assert Leaf(double, "f4[r], f4[r]")(x, y) == 0
    finally:
        cache.on_compile.remove(made.append)
    assert (y == 2 * x).all()
    return made


def test_a_kernel_of_the_pack_is_not_compiled_and_not_copied(alone: Path) -> None:
    assert ran() == ["double"]
    name = Leaf(double, "f4[r], f4[r]").stored_name
    payload = cache.read(name)
    assert payload is not None
    pack.write(pack.FILE, {name: payload, "another": b"of no use"})
    (cache.folder() / f"{name}{cache.SUFFIX}").unlink()
    assert ran() == []
    assert list(cache.folder().iterdir()) == []
    assert pack.names() == ["another", name]
    assert dict(examination.examine().facts)["kernels in the package"] == "2, which are not compiled"


def test_damage_is_found_and_costs_a_compilation(alone: Path) -> None:
    assert ran() == ["double"]
    name = Leaf(double, "f4[r], f4[r]").stored_name
    payload = cache.read(name)
    assert payload is not None
    pack.write(pack.FILE, {name: payload})
    whole = pack.FILE.read_bytes()
    rng = random.Random(0)
    at = [0, len(pack.MAGIC), 40, 50, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(8))]
    cases = [b"", whole[:10], whole[:len(whole) // 2], whole[:-1], b"tileflow pack 0\n" + whole[16:],
             *(whole[:i] + bytes([whole[i] ^ 1 << rng.randrange(8)]) + whole[i + 1:] for i in at)]
    for damaged in cases:
        pack.FILE.write_bytes(damaged)
        started()
        assert pack.read(name) in (None, payload)
        (cache.folder() / f"{name}{cache.SUFFIX}").unlink(missing_ok=True)
        assert ran() in (["double"], [])
    pack.FILE.write_bytes(whole[:60])
    started()
    assert pack.names() is None
    assert "damaged" in dict(examination.examine().facts)["kernels in the package"]
    pack.FILE.unlink()
    started()
    assert pack.names() == []
    assert dict(examination.examine().facts)["kernels in the package"].startswith("none")


def test_a_table_that_claims_much_takes_no_memory(alone: Path) -> None:
    pack.FILE.write_bytes(pack.MAGIC + bytes(32) + (1 << 62).to_bytes(8, "little"))
    assert pack.names() is None
    assert pack.read("any") is None


def test_equal_kernels_make_equal_packs(tmp_path: Path) -> None:
    kernels = {f"kernel {i}": bytes([i]) * 1000 for i in range(9)}
    pack.write(tmp_path / "one", kernels)
    pack.write(tmp_path / "two", dict(reversed(kernels.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from bench import packing
from tileflow.kernels.machine import pack

def dying(path, payloads):
    path.write_bytes(pack.MAGIC)
    os.kill(os.getpid(), signal.SIGKILL)
packing.PATHS, pack.write = (), dying
packing.main([sys.argv[1]])
"""


def test_a_process_killed_while_it_writes_a_pack_leaves_the_one_before(alone: Path) -> None:
    pack.write(pack.FILE, {"kernel": b"as it was"})
    done = subprocess.run([sys.executable, "-c", KILLED, str(pack.FILE)], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert pack.read("kernel") == b"as it was"
    again = KILLED.replace("pack.write = (), dying", "_ = (), dying")
    done = subprocess.run([sys.executable, "-c", again, str(pack.FILE)], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    started()
    assert pack.names() == []
    assert [path.name for path in alone.iterdir() if path.is_file()] == [pack.FILE.name], "what was left is overwritten"


@exhaustive
def test_two_packs_of_networks_are_equal_byte_for_byte(tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.pack"
        done = subprocess.run([sys.executable, "-m", "bench.packing", str(target), FASTEST], cwd=ROOT,
                              capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        made.append(target.read_bytes())
    assert made[0] == made[1]
