"""Compiled kernels on disk: each keeps its own inner functions, whichever processes compiled them; only what was written is run."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import rare

from tileflow import doctor
from tileflow.kernels.machine import cache, trust
from tileflow.kernels.machine.leaf import Leaf

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = r'''
import math, sys, types
import numpy as np
from tileflow.kernels.machine.inner import register_jitable
from tileflow.kernels.machine.leaf import Leaf

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


KERNEL = r"""
import numpy as np
from test_cache import add
from tileflow.kernels.machine import cache
from tileflow.kernels.machine.leaf import Leaf

made = []
cache.on_compile.append(made.append)
x, y = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
assert Leaf(add, "f4[r], f4[r]")(x, y) == 0
assert (y == x + 1).all()
print(made, cache.writable())
"""


def add(x, y):                                          # type: ignore[no-untyped-def]          # kernels' bodies
    for i in range(y.shape[0]):
        y[i] = x[i] + 1


def multiply(x, y):                                     # type: ignore[no-untyped-def]
    for i in range(y.shape[0]):
        y[i] = x[i] * 3


def test_a_damaged_or_swapped_file_is_deleted_and_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    made: list[str] = []
    monkeypatch.setattr(cache, "on_compile", [made.append])
    x, y = np.arange(5, dtype=np.float32), np.empty(5, np.float32)

    def compiled() -> list[str]:
        """What a start compiles."""
        made.clear()
        for body, wanted in ((add, x + 1), (multiply, x * 3)):
            assert Leaf(body, "f4[r], f4[r]")(x, y) == 0
            assert (y == wanted).all()
        return list(made)

    assert compiled() == ["add", "multiply"]
    assert compiled() == []
    files = {path.name.split("-")[0].rpartition(".")[2]: path for path in tmp_path.rglob("*.nbc")}
    whole = files["add"].read_bytes()
    for damage in (b"", whole[:len(whole) // 2], bytes([whole[0] ^ 1]) + whole[1:], whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
                   whole[:-1] + bytes([whole[-1] ^ 128]), whole + b"\0", b"\x80\x04K\x01.", files["multiply"].read_bytes()):
        files["add"].write_bytes(damage)
        assert cache.damaged() == [files["add"]]
        assert compiled() == ["add"]
        assert cache.damaged() == []
    assert compiled() == []
    files["add"].unlink()
    files["add"].mkdir()                                # neither read nor written: every start compiles it
    assert compiled() == compiled() == ["add"]
    assert [p for p in tmp_path.rglob("*") if p.suffix == ".tmp"] == []


def test_the_doctor_counts_damaged_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    found = doctor.examine()
    assert "damaged kernels" not in dict(found.facts)
    (cache.folder() / "some-kernel.nbc").write_bytes(b"no kernel")
    shown = dict(doctor.examine().facts)["damaged kernels"]
    assert shown == f"1 of {cache.folder().name}, deleted and compiled anew when they are needed next"


@pytest.mark.parametrize("starts", [[["add"], []], rare([["add"], [], ["add"], ["add"]])], ids=["kept", "taken"])
def test_a_folder_that_others_may_write_is_not_used(starts: list[list[str]], tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    own, taken = tmp_path / f"tileflow-{os.getuid()}", False
    for compiled in starts:
        if not compiled:
            assert [path.parent.parent for path in tmp_path.rglob("*.nbc")] == [own]
            assert own.stat().st_mode & 0o777 == 0o700
        elif own.exists():                              # somebody else might have made it: nothing is kept, and nothing is left behind
            shutil.rmtree(own / cache.folder().name, ignore_errors=True)
            own.chmod(0o777)
            taken = True
        done = subprocess.run([sys.executable, "-c", KERNEL], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
                              env={**os.environ, "TILEFLOW_CACHE_DIR": str(open_folder), "TMPDIR": str(tmp_path),
                                   "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"})
        assert done.stdout.strip() == f"{compiled} True", done.stderr
        assert f"{open_folder} may be written by other users (mode 777)" in done.stderr
        assert ("This start compiles them anew" if taken else f"They are kept in {own}") in done.stderr
        assert "set TILEFLOW_CACHE_DIR to a folder of your own" in done.stderr
        assert done.stderr.count("RuntimeWarning") == 1
        assert sorted(tmp_path.iterdir()) == sorted([open_folder, own])
        assert list(open_folder.iterdir()) == []


def test_folders_are_made_for_their_owner_only(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; os.umask(0); from tileflow.kernels.machine import cache; assert cache.writable()"],
                          cwd=ROOT, env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path / "a" / "b")}, check=False, timeout=60)
    assert done.returncode == 0
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "a").rglob("*")} == {0o755}


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here: a POSIX system makes it run")
def test_whom_a_folder_is_trusted_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "above" / "cache"
    assert trust.doubt(inner) == ""                     # not there yet
    inner.mkdir(parents=True)
    assert trust.doubt(inner) == ""
    for place, mode, doubted in ((inner, 0o755, False), (inner, 0o757, True), (inner, 0o1777, True), (inner.parent, 0o777, True),
                                 (inner.parent, 0o1777, False)):
        place.chmod(mode)
        assert bool(trust.doubt(inner)) == doubted, (place, oct(mode))
        place.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(inner)
    assert trust.doubt(link) == ""
    inner.chmod(0o777)
    assert str(inner) in trust.doubt(link)
    inner.chmod(0o755)
    monkeypatch.setattr(trust, "_nobody_else_in", lambda group: False)
    inner.chmod(0o775)
    assert "mode 775" in trust.doubt(inner)
    monkeypatch.setattr(trust, "_nobody_else_in", lambda group: True)
    assert trust.doubt(inner) == ""
    me = os.getuid()
    if me == 0:
        os.chown(inner, 12345, 12345)
        assert trust.doubt(inner) == f"{inner} belongs to another user"
        os.chown(inner, 0, 0)
        os.lchown(link, 12345, 12345)
        assert trust.doubt(link) == f"{link} belongs to another user"


def test_groups_of_one() -> None:
    assert trust._nobody_else_in(0)
    assert not trust._nobody_else_in(2**31 - 7)         # no group of that number
