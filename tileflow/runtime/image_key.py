"""By what a kept Image is found: all that it is made from. The Program; this computer's path, features and workers; and
all code between a Program and an Image. What else that code asks of the machine, how much memory can be had, decides on
lanes only, and an Image says how much these take."""
from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..kernels.isa import cpu
from ..kernels.isa.target import Target
from ..system.errors import UnsupportedError
from .code_key import image_code

if TYPE_CHECKING:
    from ..program.program import Program


def program_digest(program: Program) -> str | None:
    """The digest of a Program, and of the code of users' operators in it; None where it is none that can be written
    down, or nobody can tell the code."""
    from ..program.file import digest
    try:
        found = digest(program)
    except UnsupportedError:
        return None
    kinds = {type(node.op) for graph in program.graphs for node in graph.walk()}
    codes = {kind.name: kind.code() for kind in kinds if kind.code is not None}
    if not codes:
        return found
    if None in codes.values():
        return None
    return hashlib.sha256(json.dumps([found, sorted(codes.items())]).encode()).hexdigest()


def image_key(program: str, workers: int, arithmetic: str, final: frozenset[str]) -> str:
    """The key of a program's Image on this computer.

    Args:
        program: its digest.
        arithmetic: how float32 products are computed where the CPU has tiles, or cpu.PORTABLE.
        final: outputs of which a call keeps the last micro-batch only.
    """
    with cpu.precision(arithmetic):
        path = asdict(cpu.current())
        target = asdict(Target.of(cpu.current()))
    made = json.dumps([program, image_code(), path, target, cpu.features(), workers, final], default=sorted)
    return hashlib.sha256(made.encode()).hexdigest()
