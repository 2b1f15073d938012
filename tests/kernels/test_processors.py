"""Code of one CPU path, compiled for several processors that have it: every leaf computes the same bits.

Each processor is a process: `emulator.environment` says how it is chosen.
"""
from __future__ import annotations

from pathlib import Path

import bits
import emulator
import leaf_bits
import pytest
from paths import FASTEST, exhaustive
from selection import waits
from test_paths import passed, pytest_in_a_process

from tileflow.kernels.isa import cpu, features

x86 = pytest.mark.skipif(not features.x86(), reason="the processors are x86's")
LONG = "oracle/long_checks.py"
SUMS = "Reduce or Pool or Norm or Loss or Softmax or ConvWeightGrad or CumSum or Attention"
"""Operators that sum floats."""


def computed(path: str, processor: str, folder: Path, turn: int | None) -> leaf_bits.Calls:
    """What leaves that sum compute, of those whose turn it is, in a process that compiles for that processor (empty:
    the path's own)."""
    found = folder / (processor or "own")
    variables = {"TILEFLOW_PATHS": path, "TILEFLOW_LEAF_BITS": str(found), "OPENBLAS_CORETYPE": "Nehalem"}
    passed(pytest_in_a_process("leaf_bits", [LONG], f"{path} and ({SUMS})", turn, **variables,
                               **emulator.environment(path, processor)))
    return leaf_bits.read(found)


@x86
@exhaustive
@pytest.mark.parametrize("path", cpu.available())
def test_the_processor_changes_no_bit(path: str, tmp_path: Path, turn: int | None) -> None:
    """On the fastest path two for which LLVM compiles otherwise and the one that this machine has, on others one."""
    own = computed(path, "", tmp_path, turn)
    assert len(own) > (500 if turn is None else 100)
    others = emulator.OTHERS[path]
    for processor in (*others, emulator.HOST) if path == FASTEST else others[-1:]:
        other = computed(path, processor, tmp_path, turn)
        assert leaf_bits.differing(own, other) == set(), processor
        assert own.keys() == other.keys(), processor


@x86
@exhaustive
def test_the_processor_changes_no_network(turn: int | None) -> None:
    names = [name for name in bits.networks() if not waits(name, turn)]
    assert bits.computed(FASTEST, emulator.OTHERS[FASTEST][-1], names) == bits.computed(FASTEST, names=names)


def test_a_leaf_that_computes_otherwise_is_named() -> None:
    """And none that read what it computed, nor one that only one process ran."""
    own = {("sum", "x"): "1", ("scale", "1"): "2", ("copy", "x"): "x"}
    other = {("sum", "x"): "3", ("scale", "3"): "4", ("copy", "x"): "x", ("more", "x"): "5"}
    assert leaf_bits.differing(own, other) == {"sum"}
    assert leaf_bits.differing(own, own) == set()
