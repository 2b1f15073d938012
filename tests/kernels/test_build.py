"""Objects of machine code: they stand alone, are the same wherever they are made, and are made for a path, not for this
processor."""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import elf
import numpy as np
import pytest
from llvmlite import binding
from numba import njit
from paths import FASTEST, exhaustive
from places import PATH, ROOT
from test_paths import CHECKS, passed, pytest_in_a_process, selection

from tileflow.kernels.attention.float32 import attention_leaf
from tileflow.kernels.isa import cpu, target
from tileflow.kernels.isa.target import Target
from tileflow.kernels.machine import build, driver, stored
from tileflow.kernels.machine.leaf import Leaf
from tileflow.kernels.rows import row_leaf
from tileflow.kernels.scan import running_sum

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="objects have another form here: Linux makes it run")


def built(leaf: Leaf, made_for: Target | None = None) -> tuple[bytes, str]:
    return build.built([build.Entry("entry", leaf._entry())], made_for or Target.of(cpu.current()))


@on_linux
@pytest.mark.parametrize("leaf", [running_sum["f4"], row_leaf("softmax", "f4"), attention_leaf("f4")],
                         ids=lambda leaf: leaf.name)
def test_an_object_asks_for_nothing_but_the_systems_own_functions(leaf: Leaf) -> None:
    asked, shown = elf.symbols(built(leaf)[0])
    assert shown == {"entry"}
    assert asked <= build.OUTSIDE | {"_GLOBAL_OFFSET_TABLE_"}


@on_linux
def test_the_driver_stands_alone_and_is_of_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored, "_linked", {})
    for path in cpu.available():
        with cpu.forced(path):
            driver.driver.cache_clear()
            driver.driver()
    [file] = tmp_path.rglob("*.nbc")
    content = file.read_bytes()
    asked, shown = elf.symbols(content[content.index(b"\x7fELF"):])
    assert {name.split("_")[1] for name in shown} == {"serve", "drive", "quit"}
    assert {"syscall", "clock_gettime", "sched_yield"} <= asked <= build.OUTSIDE


def test_what_would_ask_for_python_is_refused() -> None:
    def body(x, y):                                     # type: ignore[no-untyped-def]
        for i in range(y.shape[0]):
            y[i] = x.copy()[i]                          # takes memory

    def views(x, y):                                    # type: ignore[no-untyped-def]
        for i in range(y.shape[0]):
            y[i] = x[i:][0]

    def numbers(x, y):                                  # type: ignore[no-untyped-def]
        for i in range(y.shape[0]):
            y[i] = np.random.random()                   # from a state that somebody keeps

    for refused in (body, numbers):
        with pytest.raises(TypeError, match="is nothing over words"):
            built(Leaf(refused, "f4[:], f4[r]"))
    assert built(Leaf(views, "f4[:], f4[r]"))[0]


SCRIPT = """
import hashlib, sys
from test_build import built
from tileflow.kernels.scan import running_sum
from tileflow.kernels.rows import row_leaf
if sys.argv[1] == "late":
    built(row_leaf("softmax", "f4"))                    # after other compilations Numba's numbers are others
made, given = built(running_sum["f4"])
print(hashlib.sha256(made).hexdigest(), given)
"""


def test_an_object_is_the_same_in_every_process() -> None:
    found = {subprocess.run([sys.executable, "-c", SCRIPT, how], cwd=ROOT, capture_output=True, text=True, timeout=200,
                            check=True, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": PATH}).stdout
             for how, seed in (("early", "1"), ("late", "2"))}
    assert len(found) == 1
    made, given = built(running_sum["f4"])
    assert found == {f"{hashlib.sha256(made).hexdigest()} {given}\n"}


def test_code_is_made_for_the_path_and_a_users_own_beside_it_for_the_processor() -> None:
    def double(x, y):                                   # type: ignore[no-untyped-def]
        for i in range(y.shape[0]):
            y[i] = x[i] + x[i]

    made = set()
    for path in cpu.available():
        with cpu.forced(path):
            made.add(built(Leaf(double, "f4[r], f4[r]"))[0])
    # paths of the same vectors may come to the same code of so little
    found = [cpu.PATHS[path] for path in cpu.available()]
    assert len({path.name for path in found}) <= len(made) <= len({Target.of(path) for path in found})
    text = next(iter(njit("void(f4[::1], f4[::1])")(double).inspect_asm().values()))
    assert ("ymm" in text or "zmm" in text) == bool(binding.get_host_cpu_features().get("avx"))


def test_another_processor_can_be_told() -> None:
    leaf = running_sum["f4"]
    name = leaf.stored_name
    with target.forced(Target("generic", "")):
        assert leaf.stored_name != name
    assert leaf.stored_name == name


@exhaustive
def test_equal_names_are_equal_code_and_equal_code_has_one_name_but_for_a_few(tmp_path: Path, turn: int | None) -> None:
    """Every leaf that the checks of a path run, lowered anew in another process than the one that compiled it,
    mostly."""
    # a path with tiles or halves runs few checks besides those of its vectors
    found, path = tmp_path / "code", cpu.PATHS[FASTEST].name
    passed(pytest_in_a_process("leaf_code", CHECKS, selection(path), turn, TILEFLOW_PATHS=path,
                               TILEFLOW_LEAF_CODE=str(found)))
    lines = [line.split("\t") for line in found.read_text().splitlines()]
    assert len(lines) > (300 if turn is None else 100)
    assert [name for name, kept, now in lines if kept != now] == []
    names: dict[str, list[str]] = {}
    for name, _, now in lines:
        names.setdefault(now, []).append(name)
    several = [same for same in names.values() if len(same) > 1]
    # bodies that two modules have, or that ask nothing of a type's sign: every turn's
    few = len(lines) // (50 if turn is None else 25)
    assert len(several) <= few, several
