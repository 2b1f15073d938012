"""What docstrings, comments and documents point to: files, folders, modules and names in them, where they look like
ones of this repository."""
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from house import LINKS, ROOT, files, module_of, statements, tree

FILE = re.compile(r"(?<![\w/.*{}<>-])((?:[\w-]+/)*[\w-]+\.(?:py|pyi|md))\b")
QUOTED = re.compile(r"`([^`\n]+)`")
FOLDER = re.compile(r"[\w-]+(?:/[\w-]+)*/?")
COMMENTED = re.compile(r"#.*(?:`|\.py|\.md)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
OBJECTS = ("options.", "memory.", "program.")
"""What an object is called more often than the folder: names behind these are not looked up."""
FRAMEWORKS = {"torch", "poptorch", "lightning"}
"""Rooms that are called as packages of other projects are: `torch.Tensor` is none of ours."""
ELSEWHERE = {"docs/notes/transforms/pipelining.md", "docs/trace-event-format.md", "fusion_nhwc_conv.py",
             "ipu_configuration.py", "model.npz", "checkpoint.failed", "tests/test_x.py", "path/to/test_tiny.py"}
"""Files of other projects and of users, and what stands for any file."""


def documents() -> list[Path]:
    return [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def sources() -> list[Path]:
    return [*files(), *(p for top in ("tests", "bench") for p in sorted((ROOT / top).rglob("*.py")))]


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a document, or of a source's docstrings (those of attributes, too) and comments, with their numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in statements(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)
    if not COMMENTED.search(text):
        return                                              # most files: taking them apart takes time
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def names(path: Path) -> frozenset[str]:
    """All that a file defines or imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        # a face that shows another one
        if isinstance(node, ast.ImportFrom) and node.level and node.names[0].name == "*":
            other = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            found |= names(other / "__init__.py" if other.is_dir() else other.with_suffix(".py"))
    return frozenset(found)


class Pointers:
    """What exists in the repository, and what of a text points nowhere."""

    def __init__(self) -> None:
        self.modules: Mapping[str, Path] = {module_of(p): p for p in sources()}
        tops = ("tileflow", "tests", "bench", "docs", "examples", ".github")
        inside = [p for top in (*tops, *LINKS) for p in (ROOT / top).rglob("*") if "__pycache__" not in p.parts]
        paths = [p.relative_to(ROOT).as_posix() for p in [*ROOT.iterdir(), *inside]]
        self.ends = {"/".join(path.split("/")[i:]) for path in paths for i in range(path.count("/") + 1)} | ELSEWHERE
        self.rooms = {m.split(".")[1] for m in self.modules if m.startswith("tileflow.")}

    def broken(self, path: Path, line: str) -> Iterator[str]:
        """What a line of a file points to that is not there."""
        if "`" not in line and ".py" not in line and ".md" not in line:
            return
        yield from (name for name in FILE.findall(line) if name not in self.ends)
        for quoted in QUOTED.findall(line):
            folder, is_folder = quoted.rstrip("/"), "/" in quoted and FOLDER.fullmatch(quoted) is not None
            if is_folder and quoted.split("/")[0] in {*self.rooms, *LINKS, "tests", "bench", "docs"}:
                if not {folder, f"{folder}.py"} & self.ends:
                    yield quoted
            elif (DOTTED.fullmatch(quoted) and quoted not in self.ends and FILE.fullmatch(quoted) is None
                  and not self._resolves(path, quoted)):
                yield quoted

    def _resolves(self, path: Path, dotted: str) -> bool:
        """Whether a dotted name is there, or is none of ours: it is ours where it begins with tileflow or, in sources,
        with a part of it or with a module beside the file."""
        head = dotted.split(".")[0]
        if head == "tileflow":
            return self._is_there(dotted)
        if path.suffix == ".md" or dotted.startswith(OBJECTS) or head in FRAMEWORKS:
            return True
        beside = f"{module_of(path).rpartition('.')[0]}.{dotted}"
        starts = [start for start in (f"tileflow.{dotted}", beside)
                  if ".".join(start.split(".")[:-dotted.count(".")]) in self.modules]
        return not starts or any(map(self._is_there, starts))

    def _is_there(self, dotted: str) -> bool:
        parts = dotted.split(".")
        known = max(i for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in self.modules)
        return known == len(parts) or parts[known] in names(self.modules[".".join(parts[:known])])


def broken(paths: Iterable[Path]) -> list[str]:
    """file:line: what it points to."""
    pointers = Pointers()
    return [f"{path.relative_to(ROOT)}:{number}: {what}" for path in paths for number, line in sentences(path)
            for what in pointers.broken(path, line)]
