"""Every kernel family on every CPU path: on paths this machine lacks in an x86 emulator, on those it has against pages nobody may touch.

The checks are in `path_checks.py` (kernels) and `emulator_checks.py` (the emulator itself); each run of them is a process of its own.
"""
from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import emulator
import pytest
from computed import with_leaves
from leaf_homes import homes
from paths import FASTEST, exhaustive
from places import PATH, ROOT, TESTS
from samples import cases

from tileflow.kernels.isa import cpu

CHECKS = ("oracle/path_checks.py", "kernels/test_epilogue.py", "kernels/test_sums.py", "lower/test_pack.py")
"""Modules whose tests of a path have its name in theirs, and that call nothing compiled but leaves."""
ONLY = {"amx": "compiled_for or products or micro or integer", "fp16": "compiled_for or half or integer",
        "bf16": "compiled_for or half or integer or samples",
        "generic": "compiled_for or products or micro or integer or primes or pools or functions or rows or samples or "
                   "one_order"}
"""What a path has of its own; the rest of it is the code of the path above or below, compiled again."""
TILES = tuple(f"tileflow.kernels.{name}" for name in ("gemm.tiles.", "conv.tiles.", "conv.tiles_weights.", "conv.tiles_weights.conv_tiles_unturn"))
"""Leaves over the tile unit, which run in its emulator (`test_emulated_tiles`) and not here."""
TILED = "denormal or tiles_of_bytes or ends_of_the_range or (conv_tiles and cannot_be_split)"
SMOKE = "compiled_for or (micro and f4) or primes or broadcasting or moves or (samples and Softmax-0 and not LogSoftmax)"
"""A product, convolutions, moves, rows and elementwise work, for each change."""
emulated = pytest.mark.skipif(not emulator.available(), reason="needs Linux on x86-64, a C compiler and an emulator: pip install bochscpu-python")


def pytest_in_a_process(plugin: str, checks: Sequence[str], only: str, turn: int | None = None,
                        **variables: str) -> subprocess.CompletedProcess[str]:
    """Run checks, those that match `only`, under a plugin; its output and result. turn: of many cases those whose it
    is; None: all."""
    environment = {**os.environ, **variables, "PYTHONPATH": PATH}
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", "--exhaustive", "-k", only,
               *([] if turn is None else ["--turn", str(turn)]), *[str(TESTS / name) for name in checks]]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def selection(path: str) -> str:
    """The tests that a path runs, as pytest selects them."""
    return f"{path} and ({ONLY[path]})" if path in ONLY else path


def passed(result: subprocess.CompletedProcess[str], what: str = "") -> None:
    assert result.returncode == 0, f"{what}\n{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
    assert " passed" in result.stdout


@emulated
@exhaustive
def test_the_emulator() -> None:
    passed(pytest_in_a_process("emulator.plugin", ["oracle/emulator_checks.py"], "", **emulator.environment("amx")))


@emulated
@exhaustive
@pytest.mark.parametrize("path", [name for name in emulator.TARGETS if name != "amx"])
def test_an_emulated_processor(path: str) -> None:
    passed(pytest_in_a_process("emulator.plugin", ["oracle/emulator_checks.py"], "no_more",
                               **emulator.environment(path)))


@emulated
@exhaustive
@pytest.mark.parametrize("path", [name for name in emulator.TARGETS if name != FASTEST])
def test_emulated_path(path: str) -> None:
    only = f"{selection(path)} and not 200 and not samples"
    passed(pytest_in_a_process("emulator.plugin", CHECKS, only, TILEFLOW_PATHS=path, **emulator.environment(path)))


@emulated
@exhaustive
@pytest.mark.parametrize("path", [name for name in emulator.TARGETS if name != FASTEST and name not in ONLY])
def test_emulated_samples(path: str, turn: int | None) -> None:
    """Apart from the other checks, for they take ten minutes."""
    passed(pytest_in_a_process("emulator.plugin", CHECKS[:1], f"{path} and samples", turn, TILEFLOW_PATHS=path,
                               **emulator.environment(path)))


@emulated
@exhaustive
@pytest.mark.skipif("amx" in cpu.available(), reason="runs on a CPU without AMX; this one runs those tests as they are")
def test_emulated_tiles() -> None:
    """A product and a convolution of each kind by the tile instructions, and the blocks that go to the vectors instead."""
    checks = [f"kernels/test_{name}.py" for name in ("amx", "half_gemm", "conv_tiles", "conv_half")]
    passed(pytest_in_a_process("emulator.plugin", checks, TILED, **emulator.environment("amx")))


linux = pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux: takes memory away by mprotect, and reads how a process ended")


@linux
@exhaustive
@pytest.mark.parametrize("path", cpu.available())
def test_guarded_path(path: str, tmp_path: Path, turn: int | None) -> None:
    """Each path in a process that compiles for its own features and no others. All checks together, on the fastest path, leave no leaf out."""
    ran = guarded(path, path, tmp_path) if path == FASTEST else guarded(path, selection(path), tmp_path, turn)
    if path == FASTEST and cpu.PATHS[path].fma:                # without it some ways of convolution never pay
        assert forgotten(ran) <= set(TILES)


def forgotten(ran: set[str]) -> set[str]:
    """The leaves, of those that the kernels' sources make, that are not among those that ran."""
    modules = {name.rpartition(".")[0] for name in ran}
    return {home for home in homes() if home not in ran and not (home.endswith(".") and home[:-1] in modules)}


def test_a_leaf_that_did_not_run_is_named() -> None:
    every = homes()
    assert {"tileflow.kernels.scan.running_product_gradient", "tileflow.kernels.trees.", "tileflow.kernels.elementwise.loops."} <= every
    ran = {home + "some" if home.endswith(".") else home for home in every}
    assert forgotten(ran) == set()
    assert forgotten(ran - {"tileflow.kernels.trees.some"}) == {"tileflow.kernels.trees."}
    assert forgotten(ran - {"tileflow.kernels.scan.running_product_gradient"}) == {"tileflow.kernels.scan.running_product_gradient"}


def test_samples_of_all_operators_are_checked_on_all_paths() -> None:
    """None is listed by hand, so none can be forgotten: what is left out is a view, or has regions."""
    listed = {c.name for c in with_leaves()}
    assert {c.op.name for c in cases() if c.name not in listed} <= {c.op.name for c in cases() if c.op.alias is not None or c.op.regions}
    for name in ("ScatterElements", "TopK", "CumSum", "Det", "RandomBits", "GridSample", "RoiAlign", "Recurrence", "RecurrenceGrad", "Trees",
                 "WeightedGather", "Relu"):
        assert f"{name}-0" in listed


@linux
def test_some_leaves_of_the_fastest_path_guarded(tmp_path: Path) -> None:
    guarded(FASTEST, f"{FASTEST} and ({SMOKE})", tmp_path)


def guarded(path: str, only: str, folder: Path, turn: int | None = None) -> set[str]:
    """Run checks against pages that nobody may touch; the modules and names of the leaves that ran."""
    journal = folder / "journal"
    journal.touch()
    masked = {} if path == FASTEST else emulator.environment(path)
    leaves = folder / "leaves"
    result = pytest_in_a_process("guard_pages", CHECKS, only, turn, TILEFLOW_PATHS=path, TILEFLOW_GUARDED=str(journal),
                                 TILEFLOW_LEAVES=str(leaves), **masked)
    passed(result, f"The process ended in {journal.read_text().strip()}" if result.returncode < 0 else "")
    return set(leaves.read_text().splitlines())


@linux
def test_an_access_outside_of_the_arrays_is_reported(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    result = pytest_in_a_process("guard_pages", CHECKS[:1], "outside", TILEFLOW_TRAP="1", TILEFLOW_GUARDED=str(journal))
    assert result.returncode == -11
    assert "too_far(f4[r], f4[r]) over rows 0..5, no memory after its arrays" in journal.read_text()
