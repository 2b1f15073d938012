"""By what a kept Image is found: all that it is made from. The Program; this computer's path, features and workers; and
all code between a Program and an Image. What else that code asks of the machine, how much memory can be had, decides on
lanes only, and an Image says how much these take."""
from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.isa import cpu
from ..kernels.isa.target import Target
from ..kernels.machine import cache
from ..program.file import digest
from ..system.errors import UnsupportedError
from ..system.version import VERSION

if TYPE_CHECKING:
    from ..program.program import Program

ROOMS = ("executable", "graph", "host", "kernels", "lower", "memory", "ops", "options", "program", "runtime", "state",
         "strategy", "system")
"""The parts of the house in which code lies that has to do with what an Image is."""


def content(package: Path, rooms: Iterable[str] = ROOMS) -> str:
    """A digest of all sources of some parts of the package."""
    found = hashlib.sha256()
    for room in rooms:
        for path in sorted((package / room).resolve().rglob("*.py")):
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@functools.cache
def _code() -> str:
    """What code makes Images here."""
    return f"{VERSION} {np.__version__} {sys.version} {cache.versions()} {content(Path(__file__).resolve().parents[1])}"


def image_key(program: Program, workers: int, precision: str, final: frozenset[str]) -> str | None:
    """The key of a program's Image on this computer; None where the program is none that can be written down.

    Args:
        precision: how float32 products are computed where the CPU has tiles.
        final: outputs of which a call keeps the last micro-batch only.
    """
    try:
        what = digest(program)
    except UnsupportedError:
        return None
    with cpu.precision(precision):
        path = asdict(cpu.current())
        target = asdict(Target.of(cpu.current()))
    made = json.dumps([what, _code(), path, target, cpu.features(), workers, final], default=sorted)
    return hashlib.sha256(made.encode()).hexdigest()
