"""The house as its imports draw it: which file imports which, circles between files, and the drawing in docs/design.md.

    python tests/house.py            # writes the drawing anew
    python tests/house.py --check    # says whether it is current

An import counts wherever it stands: at the top, in a function, or for type checkers only, for whoever reads a signature goes where its types are.
A name taken from a package's face (an `__init__.py` that hands names on) is taken from the file that defines it.
"""
from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- the drawing: python tests/house.py -->", "<!-- end of the drawing -->"
LINKS = ("kernels", "importers")
"""Folders at the top of the repository that are packages of tileflow; `tileflow/` holds links to them."""


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


def statements(node: ast.AST, types: bool = True) -> Iterator[ast.AST]:
    """All statements below, for imports are nothing else; without `types` but for what stands for type checkers only."""
    below = [node]
    while below:
        node = below.pop()
        inner = [child for part in ("body", "orelse", "finalbody", "handlers", "cases") for child in getattr(node, part, ())
                 if types or not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING")]
        yield from inner
        below += inner


def imported_names(path: Path, types: bool = True) -> Iterable[tuple[str, str]]:
    """(module, name) of what a file imports; name is "" for a module as such. `types`: for type checkers as well."""
    return _imported_names(tree(path), path, types)


@cache
def _imported_names(top: ast.Module, path: Path, types: bool) -> tuple[tuple[str, str], ...]:
    return tuple(_found_names(top, path, types))


def _found_names(top: ast.Module, path: Path, types: bool) -> Iterator[tuple[str, str]]:
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in statements(top, types):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            start = f"{base}.{node.module}" if node.level and node.module else base if node.level else node.module or ""
            yield from ((start, alias.name) for alias in node.names)


class House:
    """Files by module name, and what each imports."""

    def __init__(self, paths: Iterable[Path], types: bool = True) -> None:
        """`types`: imports for type checkers count."""
        self.types = types
        self.paths = {module_of(p): p for p in paths}
        self.imports = {m: {t for t in self._targets(m) if t != m} for m in self.paths}

    def _targets(self, module: str) -> Iterator[str]:
        for start, name in imported_names(self.paths[module], self.types):
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


# ---- the drawing

def part_of(module: str) -> str:
    """The part of the house that a module lies in: a folder, or a file that stands by itself."""
    return module.split(".")[1] if "." in module else ""


def first_sentence(path: Path) -> str:
    """The first sentence of a file's docstring."""
    paragraph = " ".join((ast.get_docstring(tree(path)) or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def arrows(house: House) -> dict[str, set[str]]:
    """By part, the parts that it imports; the package's own face, which hands everything on, is left out."""
    found: dict[str, set[str]] = {part_of(m): set() for m in house.paths if m.count(".") == 1}
    for module, targets in house.imports.items():
        if part_of(module) in found:
            found[part_of(module)] |= {part_of(t) for t in targets} - {part_of(module), ""}
    return found


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """A part stands one floor above the highest that it imports; 1 is the ground."""
    floor: dict[str, int] = {}

    def of(part: str) -> int:
        if part not in floor:
            floor[part] = 0                                        # a circle would end here
            floor[part] = 1 + max((of(p) for p in graph[part]), default=0)
        return floor[part]
    for part in graph:
        of(part)
    return floor


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from others."""
    def reach(part: str) -> set[str]:
        return graph[part].union(*(reached[p] for p in graph[part]))
    reached: dict[str, set[str]] = {}
    for part in sorted(graph, key=floors(graph).__getitem__):
        reached[part] = reach(part)
    return {part: {p for p in direct if not any(p in reached[q] for q in direct - {p})} for part, direct in graph.items()}


def _lines(title: str, text: str, indent: str, width: int = 22) -> Iterator[str]:
    """A name and what it is for, wrapped."""
    words = textwrap.wrap(text, 148 - width) or [""]
    yield f"{indent + title:<{width}}{words[0]}".rstrip()
    yield from (f"{'':<{width}}{line}" for line in words[1:])


def drawing(house: House | None = None) -> str:
    """The house from its roof to the ground: each part with what it is for, the folders in it, and what it imports directly."""
    house = house or House(files())
    graph = arrows(house)
    floor, direct = floors(graph), reduced(graph)
    lines: list[str] = []
    for level in range(max(floor.values()), 0, -1):
        lines.append(f"---- floor {level}")
        for part in sorted(p for p in graph if floor[p] == level):
            path = house.paths[f"tileflow.{part}"]
            folder = path.name == "__init__.py"
            lines += _lines(f"{part}/" if folder else f"{part}.py", first_sentence(path), "")
            for module, inner in sorted(house.paths.items()):
                if folder and inner.name == "__init__.py" and module.startswith(f"tileflow.{part}."):
                    depth = module.count(".") - 1
                    lines += _lines(f"{module.rpartition('.')[2]}/", first_sentence(inner), "  " * depth)
            if direct[part]:
                lines += _lines("", "-> " + ", ".join(sorted(direct[part])), "")
    return "\n".join(lines)


def block(text: str) -> str:
    """The drawing between its marks, as it stands in a document."""
    return f"{BEGIN}\n```\n{text}\n```\n{END}"


def current(document: str) -> str:
    """What stands in a document between the marks, the marks included (ValueError where there are none)."""
    start = document.index(BEGIN)
    return document[start:document.index(END, start) + len(END)]


def main(arguments: list[str]) -> int:
    text, wanted = DESIGN.read_text(encoding="utf-8"), block(drawing())
    found = current(text)
    if "--check" in arguments:
        return 0 if found == wanted else 1
    DESIGN.write_text(text.replace(found, wanted), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
