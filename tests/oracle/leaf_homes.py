"""Where the kernels' sources make leaves, read from the sources: so that whoever runs them all can be told which one was forgotten."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from house import tree

import tileflow.kernels

ROOT = Path(tileflow.kernels.__file__).resolve().parent
MAKERS = ("Leaf", "EmittedLeaf")


def _called(node: ast.AST) -> str:
    """The name of what an expression calls; empty where it calls nothing by name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _made(module: ast.Module) -> Iterator[str]:
    """The names of the leaves of a module that are decorated functions, and an empty one if it makes others."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and any(_called(d) == "generic" for d in node.decorator_list):
            yield node.name
        elif _called(node) in MAKERS or (isinstance(node, ast.Call) and _called(node.func) == "generic"):
            yield ""


@cache
def homes() -> frozenset[str]:
    """`module.name` of each leaf that is a decorated function, and `module.` of each module that makes others."""
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("tileflow.kernels", *path.relative_to(ROOT).with_suffix("").parts)
        if parts[1:] != ("machine", "leaf"):                   # which defines what all others call
            found |= {f"{'.'.join(p for p in parts if p != '__init__')}.{name}" for name in _made(tree(path))}
    return frozenset(found)
