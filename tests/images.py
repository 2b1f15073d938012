"""What tests ask of an engine's image: rows of its tables, and its memory."""
from __future__ import annotations

from typing import Any

import numpy as np

from tileflow.executable.engine import Engine
from tileflow.kernels.machine.table import LEAF
from tileflow.lower.plan import Plan
from tileflow.runtime.segments import Segments
from tileflow.state import Session


def rows_of(engine: Engine, part: str) -> int:
    """How many rows a run of a part has."""
    return len({row[2] for task in engine.table.tasks for row, owner in zip(task.rows, task.owners, strict=True)
                if row[0] == LEAF and owner is not None and (owner.part, owner.ahead) == (part, 0)})


def _of_kind(engine: Engine, kind: str) -> list[Any]:
    found = zip(engine.image.segments, engine.memory.segments[1:], strict=True)
    return [memory for segment, memory in found if segment.kind == kind]


def arenas(engine: Engine, plan: Plan) -> dict[str, list[np.ndarray]]:
    """The memory of each arena, by the plan's parts and checks."""
    taken = dict(zip(plan.memory, _of_kind(engine, "arena"), strict=True))
    return {name: [taken[memory][:plan.lowered[name].arena_bytes] for memory in own]
            for name, own in plan.memories.items()}


def stashes(engine: Engine) -> list[np.ndarray]:
    """The memory of each stash."""
    return _of_kind(engine, "stash")


def constants(engine: Engine) -> list[np.ndarray]:
    """The memory of each constant, those of calls too."""
    return _of_kind(engine, "constant")


def segments_of(plan: Plan, session: Session) -> Segments:
    """The virtual memory of a plan."""
    program = plan.program
    arrays = (*program.inputs, *program.outputs)
    return Segments(plan, session, {v.name: program.batching.micro_batches for v in arrays})
