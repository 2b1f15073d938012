"""A pytest plugin that lowers every leaf that is called anew, at the end, and writes down what LLVM would be given of
it.

The file named by `TILEFLOW_LEAF_CODE` gets a line for each leaf: its name in the cache, the hash of its code that the
cache has with it, and the hash of its code now.
"""
from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock

from tileflow.kernels.isa import cpu
from tileflow.kernels.machine import build, codegen, stored
from tileflow.kernels.machine.leaf import Leaf

LEAVES: dict[str, tuple[Leaf, cpu.Cpu]] = {}
"""Those called, by their names in the cache, with the path that they were called on."""


def pytest_configure() -> None:
    run: Any = Leaf.__call__

    def noted(leaf: Leaf, *args: Any, **options: Any) -> int:
        LEAVES.setdefault(leaf.stored_name, (leaf, cpu.current()))
        return int(run(leaf, *args, **options))

    Leaf.__call__ = noted                          # type: ignore[assignment, method-assign]


def code(leaf: Leaf) -> str:
    """The hash of a leaf's code, lowered anew."""
    module = build.linked([build.Entry("entry", leaf._entry())])
    return hashlib.sha256(codegen.text_of(module, frozenset({"entry"})).encode()).hexdigest()[:16]


def pytest_unconfigure() -> None:
    lines = []
    with global_compiler_lock:
        for name, (leaf, path) in LEAVES.items():
            with cpu.forced(path):
                lines.append(f"{name}\t{stored.given(name)}\t{code(leaf)}")
    Path(os.environ["TILEFLOW_LEAF_CODE"]).write_text("\n".join(lines))
