"""Compiling in copies of the process: the cache ends up with every kernel, whatever becomes of a copy."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import os, sys
import numpy as np
from tileflow.kernels import cache, warm
from tileflow.kernels.leaf import Leaf

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


@pytest.mark.parametrize("how", ["copies", "one", "dies"])
def test_every_kernel_is_compiled_once_and_kept(tmp_path: Path, how: str) -> None:
    assert _run(tmp_path, how) == "compiled 6"
    assert _run(tmp_path, "copies") == "compiled 0"
