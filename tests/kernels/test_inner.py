"""How leaves are made of their bodies: the code that Numba would make of them, in fewer steps."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from numba.core import compiler, ir_utils, typed_passes
from numba.core.compiler_lock import global_compiler_lock
from paths import exhaustive
from places import PATH, ROOT

from tileflow.kernels.machine import build, codegen, inner
from tileflow.kernels.machine.leaf import ENTRY, Leaf
from tileflow.kernels.scan import running_sum


def numbas(state: Any, lowering: type) -> list[Any]:
    """Numba's own passes, but for the last."""
    pipeline = compiler.DefaultPassBuilder.define_nopython_pipeline(state)
    pipeline.passes = [(lowering if step is typed_passes.NativeLowering else step, text)
                       for step, text in pipeline.passes]
    pipeline._finalized = False
    pipeline.finalize()
    return [pipeline]


class Copying(compiler.Compiler):
    """With Numba's own way to inline."""

    def define_pipelines(self) -> list[Any]:
        return numbas(self.state, inner._Lowering)


@pytest.mark.parametrize("leaf", [running_sum["f4"]], ids=lambda leaf: leaf.name)
def test_a_body_that_is_moved_into_its_leaf_is_the_code_that_numba_copies_there(
        leaf: Leaf, monkeypatch: pytest.MonkeyPatch) -> None:
    @global_compiler_lock
    def code() -> list[str]:
        module = build.linked([build.Entry("entry", leaf._entry(), ENTRY)])
        return codegen.text_of(module, frozenset({"entry"})).splitlines()

    moved = code()
    ir_utils._the_max_label.update(10 ** 7)              # as after many other compilations: labels are longer
    monkeypatch.setattr(inner, "Outermost", Copying)
    assert len(moved) > 200
    assert moved == code()


def test_a_function_within_a_body_is_compiled() -> None:
    def body(x, y):                                      # type: ignore[no-untyped-def]
        def twice(value):                                # type: ignore[no-untyped-def]
            return value + value

        for i in range(y.shape[0]):
            y[i] = twice(x[i])

    with global_compiler_lock:
        module = build.linked([build.Entry("entry", Leaf(body, "f4[r], f4[r]")._entry(), ENTRY)])
    assert "fadd" in str(module)


SCRIPT = """
import contextlib, sys
from numba.core.compiler_lock import global_compiler_lock
import test_inner
from tileflow.kernels.attention.float32 import attention_leaf
from tileflow.kernels.machine import build, codegen, inner, leaf
from tileflow.kernels.rows import row_leaf
from tileflow.kernels.scan import running_sum
if sys.argv[1] == "numba":
    inner._pipeline = lambda state, _inlining, lowering: test_inner.numbas(state, lowering)
    inner.resolved_once = contextlib.nullcontext
for made in (running_sum["f8"], row_leaf("softmax", "f4"), attention_leaf("f4")):
    with global_compiler_lock:
        module = build.linked([build.Entry("entry", made._entry(), leaf.ENTRY)])
    print(codegen.text_of(module, frozenset({"entry"})))
"""


@exhaustive
def test_all_that_a_leaf_calls_is_what_numbas_own_passes_make_of_it() -> None:
    def code(way: str) -> list[str]:
        made = subprocess.run([sys.executable, "-c", SCRIPT, way], cwd=ROOT, capture_output=True, text=True,
                              timeout=300, env={**os.environ, "PYTHONPATH": PATH}, check=True)
        return made.stdout.splitlines()

    ours = code("ours")
    assert len(ours) > 3000
    assert ours == code("numba")
