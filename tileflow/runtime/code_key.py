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
ROOMS = ("collective", "custom", "executable", "graph", "host", "kernels", "lower", "memory", "ops", "options",
         "program", "runtime", "state", "strategy", "system")
"""The parts of the house in which code lies that has to do with what an Image is."""


def content(package: Path, rooms: Iterable[str] | None = None) -> str:
    """A digest of all sources of some parts of the package; of all of it, and what lies beside them, where none are
    named."""
    return _told(_digests(package), rooms)


def _digests(package: Path) -> dict[str, str]:
    """A digest of the sources in each part of the package; of what lies beside them under the name ""."""
    found = {"": package.glob("*.py")} | {
        path.name: path.resolve().rglob("*.py")
        for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    return {room: hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest()
                                          for path in sorted(paths))).hexdigest()
            for room, paths in sorted(found.items())}


def _told(digests: dict[str, str], rooms: Iterable[str] | None) -> str:
    chosen = digests.values() if rooms is None else [digests[room] for room in rooms]
    return hashlib.sha256("".join(chosen).encode()).hexdigest()


@functools.cache
def _here() -> dict[str, str]:
    return _digests(PACKAGE)


@functools.cache
def image_code() -> str:
    """What code makes Images here."""
    return f"{_versions()} {_told(_here(), ROOMS)}"


@functools.cache
def all_code() -> str:
    """What code makes Programs and Images of files here."""
    return f"{_versions()} {_told(_here(), None)}"


def _versions() -> str:
    return f"{VERSION} {np.__version__} {sys.version} {cache.versions()} {metadata.version('onnx')}"
