"""Writes tileflow/graph/calls.pyi: how a Builder is called for each operator, so that mypy knows their names, operands and attributes.

    python tests/builder_stub.py        # after operators or their attributes changed; tests/graph/test_builder.py asks
"""
from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from onnx import defs  # noqa: E402

import tileflow.ops  # noqa: E402, F401  (fills the registry)
from tileflow.graph import OPS, Op  # noqa: E402

STUB = ROOT / "tileflow" / "graph" / "calls.pyi"
HEAD = '''# ruff: noqa: E501
"""Made by tests/builder_stub.py from the registry: how a Builder is called for each operator. An absent optional operand is None."""
from typing import Any

from ..kernels.elementwise.expr import Expr
from .graph import Value

Shape = tuple[int, ...]

class Calls:
'''


def stub() -> str:
    """The text of the file."""
    return HEAD + "\n".join(f"    {_call(name, kind)}" for name, kind in sorted(OPS.items())) + "\n"


def _call(name: str, kind: type[Op]) -> str:
    attributes = [f"{f.name}: {_type(str(f.type))}{'' if f.default is dataclasses.MISSING else ' = ...'}" for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    parameters = ["self", *_operands(name, kind), *attributes]
    return f"def {name}({', '.join(parameters)}) -> {_results(kind)}: ..."


def _operands(name: str, kind: type[Op]) -> list[str]:
    """Operands by position. ONNX says what they are called and which may repeat; the samples, how many there are."""
    if _counted_by(kind) == "exprs":
        return ["*operands: Value | None"]
    samples, most = kind.samples(), max(len(s.operands) for s in kind.samples())
    needed = sum(1 for i in range(most) if all(i < len(s.operands) and any(o is not None for o in s.operands[i:]) for s in samples))
    base = next((k for k in kind.__mro__ if issubclass(k, Op) and getattr(k, "onnx", False) and defs.has(getattr(k, "name", ""))), None)
    if base is None:
        return [*(f"x{i}: Value | None" for i in range(needed)), "/", "*more: Value | None"]
    schema = defs.get_schema(base.name).inputs
    if schema and schema[-1].option == defs.OpSchema.FormalParameterOption.Variadic:
        return ["*operands: Value | None"]
    attributes = {f.name for f in dataclasses.fields(kind)}                                                                   # type: ignore[arg-type]
    given = [i for i in schema if i.name not in attributes][:most]
    single = defs.OpSchema.FormalParameterOption.Single
    found = [f"{i.name}: Value | None{'' if n < needed and i.option == single else ' = ...'}" for n, i in enumerate(given)]
    return [*found, "/", "*"] if attributes else [*found, "/"]


def _counted_by(kind: type[Op]) -> str | None:
    """The attribute that has an entry for each output, if there is one."""
    return next((f.name for f in dataclasses.fields(kind) if f.name in ("exprs", "sizes") and kind.name != "Resize"), None)     # type: ignore[arg-type]


def _type(annotation: str) -> str:
    """An attribute's type; Any where the stub has no name for it."""
    known = {"int", "float", "bool", "str", "tuple", "Shape", "Expr", "None", "Any"}
    return annotation if set(re.findall(r"[A-Za-z_]\w*", annotation)) <= known else "Any"


def _results(kind: type[Op]) -> str:
    """One value, so many, or what the attributes say."""
    counts = {len(kind(**s.attributes).infer(*s.types)) for s in kind.samples()}
    if len(counts) > 1 or _counted_by(kind):
        return "Any"
    count, = counts
    return "Value" if count == 1 else f"tuple[{', '.join(['Value'] * count)}]"


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
