"""Compiled kernels on disk: each keeps its own inner functions, whichever processes compiled them; only what was written is run."""
from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import rare
from places import PATH, ROOT

from tileflow.cli import examination as doctor
from tileflow.kernels.machine import cache, stored, trust
from tileflow.kernels.machine.leaf import Leaf

NONE = 2 ** 32 - 1
"""The number in entries of an access control list that are for nobody in particular."""
SCRIPT = r'''
import linecache, sys
linecache.cache["<string>"] = 0, None, sys.orig_argv[2].splitlines(True), "<string>"       # bodies are read from here
import math, types
import numpy as np
from tileflow.kernels.machine.leaf import Leaf

# An inner function too large for LLVM to take it into its callers.
steps = "".join(f"        v = math.log1p(v * {k}.0) + math.sqrt(v)\n" for k in range(40))
text = f"""def inner(x, at):
    total = 0.0
    for i in range(at, x.shape[0]):
        v = x[i]
{steps}        total += v
    return total + SHIFT
"""
made = {}
linecache.cache["<inner>"] = 0, None, text.splitlines(True), "<inner>"
exec(compile(text, "<inner>", "exec"), made)
inner = made["inner"]

def body(x, y):
    for i in range(y.shape[0]):
        y[i] = inner(x, i) - inner(x, 2 * i) + inner(x, 3 * i)

def leaf(shift):
    """The same source with another constant: both inner functions have one name."""
    callee = types.FunctionType(inner.__code__, dict(math=math, SHIFT=float(shift), __name__="__main__"), "inner")
    names = dict(inner=callee, __name__="__main__")
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
    """A third one loads what two compiled."""
    def run(shifts: str, how: str) -> None:
        done = subprocess.run([sys.executable, "-c", SCRIPT, shifts, how], cwd=ROOT, capture_output=True, text=True, timeout=200,
                              env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path)}, check=False)
        assert done.returncode == 0, done.stderr
    run("1", "new")
    run("2", "new")
    run("1,2", "cached")


MATHEMATICS = r"""
import sys
import numpy as np
import tileflow.ops
from numba import njit
from tileflow.graph import OPS
from tileflow.testing.calls import run_kernel

if sys.argv[1] == "beside":
    assert njit("f8(f8)")(lambda x: x + 1)(1.0) == 2
y, = run_kernel(OPS["Log"](), np.array([-1.0, -np.inf, np.nan]))
print(y.tobytes().hex())
"""


def test_no_number_has_one_sign_beside_a_users_code(tmp_path: Path) -> None:
    """The C library has two versions of a logarithm, and Numba names the other one when it compiles."""
    environment = {**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path)}
    found = [subprocess.run([sys.executable, "-W", "ignore", "-c", MATHEMATICS, how], cwd=ROOT, capture_output=True,
                            text=True, timeout=200, env=environment, check=True).stdout for how in ("alone", "beside")]
    assert found[0] == found[1] != ""


def test_a_cold_start_needs_no_numba(tmp_path: Path) -> None:
    """Which takes a third of a second to import."""
    script = ("import sys, numpy as np, tileflow\n"
              "made = tileflow.inference_model('tileflow/data/digits_cnn.onnx')(np.ones((1, 1, 8, 8), np.float32))\n"
              "assert made.shape == (1, 10) and 'numba' not in sys.modules")
    environment = {**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200,
                          env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*.nbc"))


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
        stored._linked.clear()
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


KILLED = """
import os, signal
os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_while_it_writes_a_kernel_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                              env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path), "PYTHONPATH": PATH})
    assert run(KILLED + KERNEL).returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".tmp"]
    assert run(KERNEL).stdout == "['add'] True\n"


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
                                   "PYTHONPATH": PATH})
        assert done.stdout.strip() == f"{compiled} True", done.stderr
        assert f"{open_folder} may be written by other users (mode 777)" in done.stderr
        assert ("This start compiles them anew" if taken else f"They are kept in {own}") in done.stderr
        assert "set TILEFLOW_CACHE_DIR to a folder of your own" in done.stderr
        assert done.stderr.count("RuntimeWarning") == 1
        assert sorted(tmp_path.iterdir()) == sorted([open_folder, own])
        assert list(open_folder.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_files_and_folders_are_for_others_to_read_only_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    script = "import os, sys; os.umask(int(sys.argv[1])); from tileflow.kernels.machine import cache; cache.write('some', b'kernel')"
    done = subprocess.run([sys.executable, "-c", script, str(umask)], cwd=ROOT, check=False, timeout=60,
                          env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path / "a" / "b")})
    assert done.returncode == 0
    assert [(p.name, p.stat().st_mode & 0o777) for p in sorted((tmp_path / "a").rglob("*"))] == [
        ("b", 0o755), (cache.folder().name, 0o755), ("some.nbc", 0o644)]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755 & ~umask


def test_the_doctor_makes_the_folder_for_others_to_read_only(tmp_path: Path) -> None:
    script = "import os; os.umask(0); from tileflow.cli import examination; examination.examine()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False,
                          env={**os.environ, "TILEFLOW_CACHE_DIR": str(tmp_path / "cache")}, timeout=60)
    assert done.returncode == 0
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "cache").rglob("kernels-*")} == {0o755}


posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners and modes here: a POSIX system makes it run")


@posix
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member of a group could have put any code there, digest and all."""
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    cache.write("some", b"kernel")
    file = cache.folder() / "some.nbc"
    others = [(mode, False, None) for mode in (0o664, 0o646, 0o666)]
    ours = [(mode, False, None) for mode in (0o644, 0o600, 0o444, 0o755)] + [(0o664, True, None)]
    if os.getuid() == 0:
        others += [(0o644, False, 12345), (0o400, True, 12345)]
    for (mode, alone, owner), wanted in [*((c, None) for c in others), *((c, b"kernel") for c in ours)]:
        cache.write("some", b"kernel")
        monkeypatch.setattr(trust, "_nobody_else_in", lambda group, alone=alone: alone)
        file.chmod(mode)
        if owner is not None:
            os.chown(file, owner, -1)
        assert cache.damaged() == ([] if wanted else [file]), oct(mode)
        assert cache.read("some") == wanted, (oct(mode), owner)
        assert file.exists() == (wanted is not None)


@posix
def test_only_files_that_lie_there_themselves_are_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    cache.write("some", b"kernel")
    file, elsewhere = cache.folder() / "some.nbc", tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert cache.read("some") is None
    assert cache.damaged() == []
    cache.write("some", b"other")                       # replaces the link, and leaves alone what it led to
    assert cache.read("some") == b"other"
    assert not file.is_symlink()
    file.unlink()
    os.mkfifo(file)
    assert cache.read("some") is None                   # and waits for nobody
    monkeypatch.setattr(cache.secrets, "token_hex", lambda n: "guessed")
    before = elsewhere.read_bytes()
    (cache.folder() / "some.nbc.guessed.tmp").symlink_to(elsewhere)
    cache.write("some", b"lost")
    assert elsewhere.read_bytes() == before
    assert cache.read("some") is None


@posix
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


@posix
def test_whom_an_access_control_list_lets_write(tmp_path: Path) -> None:
    """The mode shows the most that a list allows as the group's bits."""
    def listed(*entries: tuple[int, int, int]) -> bytes:
        """A list with the owner's, the group's and the others' entry, and a mask of all bits."""
        every = [(0x01, 7, NONE), (0x04, 5, NONE), *entries, (0x10, 7, NONE), (0x20, 5, NONE)]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(every))

    cases = [([(0x02, 6, 54321)], True), ([(0x02, 5, 54321)], False), ([(0x02, 7, os.getuid())], False), ([(0x02, 7, 0)], False),
             ([(0x08, 7, 2 ** 31 - 7)], True), ([(0x08, 5, 2 ** 31 - 7)], False), ([(0x02, 7, 0), (0x02, 7, 54321)], True)]
    if os.getgid() == 0:
        cases.append(([(0x08, 7, 0)], False))
    for entries, doubted in cases:
        folder = tmp_path / "cache"
        folder.mkdir()
        try:
            os.setxattr(folder, trust.ACL, listed(*entries))
        except (AttributeError, OSError):
            pytest.skip("this system keeps no access control lists: a Linux file system with them makes it run")
        assert folder.stat().st_mode & 0o777 == 0o775   # as if the group might write
        assert ("mode 775" in trust.doubt(folder)) == (doubted or not trust._nobody_else_in(folder.stat().st_gid)), entries
        folder.rmdir()


@posix
def test_whom_a_list_in_the_form_of_nfs_lets_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another attribute's name, which any file system keeps."""
    import pwd

    def listed(*entries: tuple[int, int, str]) -> bytes:
        owner, group, everyone = (0, 0x1601BF, "OWNER@"), (0, 0x1200A9, "GROUP@"), (0, 0x1200A9, "EVERYONE@")
        every = [owner, *entries, group, everyone]
        names = [who.encode() for _, _, who in every]
        return struct.pack(">I", len(every)) + b"".join(
            struct.pack(">IIII", kind, 0, mask, len(name)) + name.ljust((len(name) + 3) // 4 * 4, b"\0")
            for (kind, mask, _), name in zip(every, names, strict=True))
    monkeypatch.setattr(trust, "NFS4", "user.nfs4_acl")
    me = pwd.getpwuid(os.getuid()).pw_name
    folder = tmp_path / "cache"
    folder.mkdir()
    try:
        os.setxattr(folder, trust.NFS4, listed())
    except (AttributeError, OSError):
        pytest.skip("this system keeps no extended attributes: a Linux file system with them makes it run")
    assert trust.doubt(folder) == ""
    for kind, mask, who, doubted in [
            (0, 0x2, "eve@example.org", True), (0, 0x40, "eve@example.org", True), (0, 0x1200A9, "eve@example.org", False),
            (1, 0x2, "eve@example.org", False), (0, 0x1601BF, f"{me}@example.org", False), (0, 0x2, "54321", True), (0, 0x2, str(os.getuid()), False),
            (0, 0x40000, "EVERYONE@", True), (0, 0x80000, "GROUP@", True), (0, 0x1601BF, "root@example.org", False)]:
        os.setxattr(folder, trust.NFS4, listed((kind, mask, who)))
        assert trust.doubt(folder) == (f"{folder} may be written by other users (access control list)" if doubted else ""), (kind, mask, who)
    os.setxattr(folder, trust.NFS4, listed()[:-14])
    assert "access control list" in trust.doubt(folder)


@posix
def test_whoever_has_a_group_as_the_primary_one_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd
    me, my_group = pwd.struct_passwd(("me", "x", 500, 500, "", "/", "/bin/sh")), grp.struct_group(("me", "x", 500, []))
    root, roots = pwd.struct_passwd(("root", "x", 0, 0, "", "/", "/bin/sh")), grp.struct_group(("root", "x", 0, []))
    other = pwd.struct_passwd(("other", "x", 501, 500, "", "/", "/bin/sh"))

    def alone(group: grp.struct_group, *accounts: pwd.struct_passwd) -> bool:
        monkeypatch.setattr(pwd, "getpwall", lambda: list(accounts))
        monkeypatch.setattr(pwd, "getpwuid", lambda user: me if user else root)
        monkeypatch.setattr(grp, "getgrgid", lambda number: group)
        return trust._nobody_else_in(group.gr_gid)

    monkeypatch.setattr(os, "getuid", lambda: 500)
    assert alone(my_group, root, me)
    assert not alone(my_group, root, me, other)
    assert not alone(grp.struct_group(("me", "x", 500, ["other"])), root, me)
    assert not alone(grp.struct_group(("staff", "x", 500, [])), root, me)
    assert alone(roots, root)
    assert not alone(roots, root, pwd.struct_passwd(("operator", "x", 11, 0, "", "/", "/bin/sh")))


def test_groups_of_one() -> None:
    assert trust._nobody_else_in(0)
    assert not trust._nobody_else_in(2**31 - 7)         # no group of that number
