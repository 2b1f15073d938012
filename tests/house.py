"""The house as its imports draw it: which file imports which, circles between files, and the drawing in docs/design.md.

    python tests/house.py            # writes the drawing anew
    python tests/house.py --check    # says whether it is current

An import counts wherever it stands: at the top, in a function, or for type checkers only, for whoever reads a signature goes where its types are.
A name taken from a package's face (an `__init__.py` that hands names on) is taken from the file that defines it.
"""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- the drawing: python tests/house.py -->", "<!-- end of the drawing -->"
LINKS = ("kernels", "importers")
"""Folders at the top of the repository that are packages of tileflow; `tileflow/` holds links to them."""
FOLDS = ("data",)
"""Folders below these parts are drawn with their folder."""


def files() -> list[Path]:
    """Every Python file of the product once."""
    return sorted(p for top in ("tileflow", *LINKS) for p in (ROOT / top).rglob("*.py")
                  if p.relative_to(ROOT).parts[:2] not in [("tileflow", link) for link in LINKS])


def module_of(path: Path) -> str:
    """The name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(parts if parts[0] not in LINKS else ("tileflow", *parts))
    return dotted.removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of what a file imports; name is "" for a module as such."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            start = f"{base}.{node.module}" if node.level and node.module else base if node.level else node.module or ""
            yield from ((start, alias.name) for alias in node.names)


class House:
    """Files by module name, and what each imports."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = {module_of(p): p for p in paths}
        self.imports = {m: {t for t in self._targets(m) if t != m} for m in self.paths}

    def _targets(self, module: str) -> Iterator[str]:
        for start, name in imported_names(self.paths[module]):
            found = self.definer(start, name)
            if found is not None:
                yield found

    def definer(self, module: str, name: str) -> str | None:
        """The module that `from module import name` is about; None where it is not of the house."""
        if name and f"{module}.{name}" in self.paths:
            return f"{module}.{name}"
        if module not in self.paths:
            return None
        path = self.paths[module]
        if path.name == "__init__.py" and name:
            for start, handed in imported_names(path):
                if handed == name and (start, name) != (module, name):
                    return self.definer(start, name)
        return module

    def circles(self) -> list[list[str]]:
        """Groups of files that import each other in a loop, each sorted (Tarjan's strongly connected components)."""
        return sorted(sorted(c) for c in strongly_connected(self.imports) if len(c) > 1)


def strongly_connected(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Tarjan's algorithm without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in arrows:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = []

        def enter(node: str, work: list[tuple[str, Iterator[str]]] = work) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            on_stack.add(node)
            work.append((node, iter(sorted(arrows.get(node, ())))))
        enter(root)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    enter(target)
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    found.append(group)
    return found
