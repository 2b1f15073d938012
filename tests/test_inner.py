"""How leaves are made of their bodies."""
from __future__ import annotations

import re

import pytest
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.sigutils import normalize_signature

from tileflow.kernels.machine.inner import Outermost
from tileflow.kernels.machine.leaf import ENTRY, Leaf
from tileflow.kernels.scan import running_sum


@pytest.mark.parametrize("leaf", [running_sum["f4"]], ids=lambda leaf: leaf.name)
def test_a_body_that_is_moved_into_its_leaf_is_the_code_that_numba_copies_there(leaf: Leaf) -> None:
    def code(compiler: type[Compiler]) -> str:
        """LLVM's text, without what Numba numbers anew each time."""
        made = CFunc(leaf._entry(), normalize_signature(ENTRY), locals={}, options=dict(leaf.options), pipeline_class=compiler)._compile_uncached()
        return re.sub(r"B\d+|_3c_[^\s\"]*|v\d+|0x[0-9a-f]+|\d{6,}", "", made.library.get_llvm_str())

    assert len(code(Outermost)) > 10_000
    assert code(Outermost) == code(Compiler)
