"""Compiling in copies of the process: the cache ends up with every kernel, whatever becomes of a copy."""
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import paths
import pytest
from places import ROOT

from tileflow.kernels.machine import limits, warm

SCRIPT = """
import linecache, sys
linecache.cache["<string>"] = 0, None, sys.orig_argv[2].splitlines(True), "<string>"       # bodies are read from here
import os, sys
import numpy as np
from tileflow.kernels.machine import cache, warm
from tileflow.kernels.machine.leaf import Leaf

parent = os.getpid()

def body(x, y):
    for i in range(y.shape[0]):
        y[i] = x[i] + SHIFT

leaves = []
for shift in range(6):
    names = dict(SHIFT=np.float32(shift), __name__="__main__")
    import types
    leaves.append(Leaf(types.FunctionType(body.__code__, names, "body"), "f4[r], f4[r]", key=str(shift)))
if sys.argv[1] == "dies":
    whole = warm._Copies._serve
    def serve(self, report):
        os.read(self._queue, 2)             # draws a kernel and is lost with it
        os._exit(9)
    warm._Copies._serve = serve
made, told = [], []
cache.on_compile.append(made.append)
if sys.argv[1] == "one":
    warm._may_fork = lambda: False
warm.compile_all(leaves, lambda name, done, total: told.append((name, done, total)))
x = np.arange(5, dtype=np.float32)
for shift, leaf in enumerate(leaves):
    y = np.empty_like(x)
    assert leaf(x, y) == 0 and (y == x + shift).all(), (shift, y)
assert told[-1] == ("done", 7, 7), told
assert [done for _, done, _ in told] == [1, 2, 3, 4, 5, 6, 7, 7], told
print("compiled", made.count("body"))
"""


def _run(cache: Path, how: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "TILEFLOW_CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_as_many_copies_as_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for nbytes, copies in ((0, 0), (warm.COPY_MEMORY - 1, 0), (3 * warm.COPY_MEMORY, 3)):
        monkeypatch.setattr(limits, "memory", lambda nbytes=nbytes: limits.Room(nbytes, "a test"))
        assert warm._memory_for() == copies
    monkeypatch.setattr(limits, "memory", lambda: None)
    assert warm._memory_for() == warm.MOST_COPIES


@pytest.mark.parametrize("how", ["copies", paths.rare("one"), paths.rare("dies")])
def test_every_kernel_is_compiled_once_and_kept(tmp_path: Path, how: str) -> None:
    assert _run(tmp_path, how) == "compiled 6"
    assert _run(tmp_path, "copies") == "compiled 0"


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="copies compile on Linux only: running there makes it run")
def test_copies_end_with_their_parent(tmp_path: Path) -> None:
    """Killed itself, the parent cannot tell its copies: they compiled on for half a minute."""
    script = SCRIPT.replace("warm.compile_all(leaves", """
def endless(self):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)
Leaf.compile = endless
import time
from tileflow.kernels.machine import limits
limits.processors = lambda: 3
warm.compile_all(leaves""")
    with subprocess.Popen([sys.executable, "-c", script, "copies"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path)}) as parent:
        assert parent.stdout is not None
        at_work = {int(parent.stdout.readline()) for _ in range(3)}
        parent.kill()
    copies = at_work - {parent.pid}
    assert len(copies) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in copies):
        assert time.monotonic() < deadline, "a copy outlives its parent"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process is there and is not just waiting to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_cycles_are_searched_for_seldom_while_kernels_are_compiled() -> None:
    """And as often as the process wants afterwards, whichever of two threads ends first; never where it wants none."""
    import gc

    from tileflow.graph.collector import YOUNG, seldom
    before = gc.get_threshold()
    try:
        gc.set_threshold(300, 7, 5)
        with contextlib.suppress(ValueError), seldom():
            assert gc.get_threshold() == (YOUNG, 7, 5)
            raise ValueError("a kernel that cannot be compiled")
        assert gc.get_threshold() == (300, 7, 5)
        first, second = seldom(), seldom()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert gc.get_threshold() == (YOUNG, 7, 5)
        second.__exit__(None, None, None)
        assert gc.get_threshold() == (300, 7, 5)
        for usual in ((0, 7, 5), (2 * YOUNG, 7, 5)):
            gc.set_threshold(*usual)
            with seldom():
                assert gc.get_threshold() == usual
            assert gc.get_threshold() == usual
    finally:
        gc.set_threshold(*before)
