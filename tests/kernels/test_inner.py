"""How leaves are made of their bodies."""
from __future__ import annotations

import pytest
from numba.core import compiler, ir_utils, typed_passes
from numba.core.compiler_lock import global_compiler_lock

from tileflow.kernels.machine import build, codegen, inner
from tileflow.kernels.machine.leaf import ENTRY, Leaf
from tileflow.kernels.scan import running_sum


class Copying(compiler.Compiler):
    """With Numba's own way to inline."""

    def define_pipelines(self) -> list[object]:
        return inner._with({typed_passes.NativeLowering: inner._Lowering}, super().define_pipelines())


@pytest.mark.parametrize("leaf", [running_sum["f4"]], ids=lambda leaf: leaf.name)
def test_a_body_that_is_moved_into_its_leaf_is_the_code_that_numba_copies_there(leaf: Leaf, monkeypatch: pytest.MonkeyPatch) -> None:
    @global_compiler_lock
    def code() -> list[str]:
        module = build.linked([build.Entry("entry", leaf._entry(), ENTRY)])
        return codegen.text_of(module, frozenset({"entry"})).splitlines()

    moved = code()
    ir_utils._the_max_label.update(10 ** 7)              # as after many other compilations: labels are longer
    monkeypatch.setattr(inner, "Outermost", Copying)
    assert len(moved) > 200
    assert moved == code()
