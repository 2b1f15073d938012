"""Which files of this package a module's code comes from, and a hash of them: its own and those that it imports,
directly or not."""
from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = __name__.rpartition(".machine.")[0]
_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_KEEPING = frozenset({"machine.cache", "machine.pack", "machine.stored", "machine.trust", "machine.sources",
                      "machine.content", "machine.limits"})
"""What names and keeps code, and does not shape it."""


@functools.cache
def digest(module: str) -> str:
    """Of a module of this package, by its whole name: a hash of its source and of those of all that it imports from the
    package, 16 letters."""
    found = _closure(module.removeprefix(PACKAGE + "."))
    return hashlib.sha256(b"".join(hashlib.sha256(_text(name)).digest() for name in sorted(found))).hexdigest()[:16]


def _closure(module: str) -> set[str]:
    found, left = {module}, [module]
    while left:
        for name in _imports(left.pop()):
            if name not in found and name not in _KEEPING:
                found.add(name)
                left.append(name)
    return found


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules of the package that a module names in its imports."""
    return tuple(_named(module))


def _named(module: str) -> Iterator[str]:
    path = _path(module)
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for dots, name, names in _IMPORT.findall(_text(module).decode()):
        base = ".".join([*package[:len(package) - len(dots) + 1], *filter(None, name.split("."))])
        for word in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names.split("#")[0]):
            inner = f"{base}.{word}" if base else word
            found = inner if _path(inner).is_file() else base
            if _path(found).is_file():
                yield found


@functools.cache
def _path(module: str) -> Path:
    """A module's file, which need not be there."""
    at = ROOT.joinpath(*module.split(".")) if module else ROOT
    return at / "__init__.py" if at.is_dir() else at.with_suffix(".py")


@functools.cache
def _text(module: str) -> bytes:
    return _path(module).read_bytes()
