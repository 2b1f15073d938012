"""How leaves are made of their bodies."""
from __future__ import annotations

import re

import pytest
from llvmlite import binding
from numba.core import ir_utils
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.sigutils import normalize_signature

from tileflow.kernels.machine.inner import Outermost
from tileflow.kernels.machine.leaf import ENTRY, Leaf
from tileflow.kernels.scan import running_sum

NUMBERED = re.compile(r'%(?:"[^"]*"|[-$.\w]+)|@(?:cfunc\.)?_Z[-$.\w]+')
"""Names in LLVM's text of which Numba, or LLVM after it, numbers some anew each time."""


def instructions(library: JITCodeLibrary) -> list[str]:
    """All of a library's instructions and constants in order; each name as the number of its first place."""
    module = binding.parse_assembly(library.get_llvm_str(), binding.create_context())
    numbers: dict[tuple[str, str], int] = {}

    def numbered(line: object, function: str = "") -> str:
        def number(name: re.Match[str]) -> str:
            kind = name[0][0]
            return f"{kind}{numbers.setdefault((function if kind == '%' else '', name[0]), len(numbers))}"
        return NUMBERED.sub(number, str(line))

    found = [numbered(constant) for constant in module.global_variables]
    for function in module.functions:
        for block in function.blocks:
            found += [numbered(line, function.name) for line in (f"%{block.name}", *block.instructions)]
    return found


@pytest.mark.parametrize("leaf", [running_sum["f4"]], ids=lambda leaf: leaf.name)
def test_a_body_that_is_moved_into_its_leaf_is_the_code_that_numba_copies_there(leaf: Leaf) -> None:
    def code(compiler: type[Compiler]) -> list[str]:
        made = CFunc(leaf._entry(), normalize_signature(ENTRY), locals={}, options=dict(leaf.options), pipeline_class=compiler)._compile_uncached()
        return instructions(made.library)

    moved = code(Outermost)
    ir_utils._the_max_label.update(10 ** 7)              # as after many other compilations: labels are longer, and the text is laid out otherwise
    assert len(moved) > 200
    assert moved == code(Compiler)
