"""Which code makes what is kept from start to start: digests of the sources of parts of the house, and the versions of
what they stand on."""
from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import numpy as np

from ..kernels.machine import cache
from ..system.version import VERSION

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("executable", "graph", "host", "kernels", "lower", "memory", "ops", "options", "program", "runtime", "state",
         "strategy", "system")
"""The parts of the house in which code lies that has to do with what an Image is."""


def content(package: Path, rooms: Iterable[str] = ROOMS) -> str:
    """A digest of all sources of some parts of the package."""
    found = hashlib.sha256()
    for room in rooms:
        found.update(_of_room(package / room).encode())
    return found.hexdigest()


def everything(package: Path) -> str:
    """A digest of all sources of the package."""
    own = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.glob("*.py")))).hexdigest()
    return f"{own} {content(package, sorted(path.name for path in package.iterdir() if path.is_dir()))}"


def _of_room(room: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(room.resolve().rglob("*.py")):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@functools.cache
def image_code() -> str:
    """What code makes Images here."""
    return f"{_versions()} {content(PACKAGE)}"


@functools.cache
def all_code() -> str:
    """What code makes Programs and Images of files here."""
    return f"{_versions()} {everything(PACKAGE)}"


def _versions() -> str:
    return f"{VERSION} {np.__version__} {sys.version} {cache.versions()} {metadata.version('onnx')}"
