"""A pytest plugin under which every Program that is compiled goes through a file: what is lowered, planned and run is
what was read, and it is written again to the same bytes. The file of each lies in the folder that `TILEFLOW_PROGRAMS`
names, its digest in the name.
"""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow import compiler
from tileflow.program import file
from tileflow.program.program import Program

FOLDER = Path(os.environ.get("TILEFLOW_PROGRAMS", "."))
run_steps = compiler.run_steps


def through_a_file(program: Program, folder: Path) -> Program:
    """The program as it is read from a file."""
    first, second = folder / f"{os.getpid()}.first", folder / f"{os.getpid()}.second"
    key = file.save(first, program)
    assert file.digest(program) == key
    read = file.load(first)
    assert file.save(second, read) == key
    assert first.read_bytes() == second.read_bytes()
    os.replace(first, folder / f"{key}.program")
    second.unlink()
    return read


def has_own_operators(program: Program) -> bool:
    """It has operators that a test declares, which no registry knows and no file holds."""
    return any(not type(node.op).__module__.startswith("tileflow.") for graph in program.graphs
               for node in graph.walk())


def compiled(program: Program, steps: Any, stop_after: str | None = None) -> compiler.Compilation:
    """What the steps make, as a file has it."""
    compilation = run_steps(program, steps, stop_after)
    if stop_after is None and not has_own_operators(compilation.program):
        compilation.program = through_a_file(compilation.program, FOLDER)
    return compilation


def pytest_configure() -> None:
    compiler.run_steps = compiled
