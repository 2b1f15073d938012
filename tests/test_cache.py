"""Compiled kernels on disk: each keeps its own inner functions, whichever processes compiled and loaded them."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = r'''
import math, sys, types
import numpy as np
from tileflow.kernels.inner import register_jitable
from tileflow.kernels.leaf import Leaf

# An inner function too large for LLVM to take it into its callers.
steps = "".join(f"        v = math.atan(v * {k}.0) + math.sinh(v)\n" for k in range(40))
text = f"""def inner(x, at):
    total = 0.0
    for i in range(at, x.shape[0]):
        v = x[i]
{steps}        total += v
    return total + SHIFT
"""
made = {}
exec(text, made)
inner = made["inner"]

def body(x, y):
    for i in range(y.shape[0]):
        y[i] = inner(x, i) - inner(x, 2 * i) + inner(x, 3 * i)

def leaf(shift):
    """The same source with another constant: what tells the two inner functions apart is Numba's numbering."""
    callee = types.FunctionType(inner.__code__, dict(math=math, SHIFT=float(shift), __name__="__main__"), "inner")
    names = dict(inner=register_jitable(callee), __name__="__main__")
    return Leaf(types.FunctionType(body.__code__, names, "body"), "f8[:], f8[r]", key=str(shift))

x = np.zeros(4)
for shift in sys.argv[1].split(","):
    y = np.empty(3)
    made = leaf(shift)
    assert made.load() == (sys.argv[2] == "cached")
    assert made(x, y) == 0
    assert (y == float(shift)).all(), (shift, y)
'''


def test_kernels_of_two_processes_keep_their_inner_functions(tmp_path: Path) -> None:
    """Two processes number their functions alike unless told otherwise; a third one loads what both compiled."""
    def run(shifts: str, how: str) -> None:
        done = subprocess.run([sys.executable, "-c", SCRIPT, shifts, how], cwd=ROOT, capture_output=True, text=True, timeout=200,
                              env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path)}, check=False)
        assert done.returncode == 0, done.stderr
    run("1", "new")
    run("2", "new")
    run("1,2", "cached")
