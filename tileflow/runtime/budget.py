"""What a program needs in memory, counted before any of it is taken and before its kernels are compiled."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..memory import budget
from ..memory.alignment import padded_nbytes
from ..program.schedule import atomic, per
from ..state import Session, StateDeclaration

if TYPE_CHECKING:
    from ..lower.plan import Plan


def fixed(plan: Plan, final: frozenset[str] = frozenset()) -> dict[str, int]:
    """Bytes by what they are for, without the inputs, which are there, and without states.

    Args:
        final: outputs of which only the last micro-batch is kept.
    """
    program = plan.program
    steps = program.schedule
    working = {*per("micro-batch", steps), *atomic(steps)}
    packed = sum(part.arena_bytes for name, part in plan.parts.items() if name not in working)
    sums = sum(padded_nbytes(s.input.type) for s in program.partial_sums())
    common = sum(padded_nbytes(s.input.type) for s in program.accumulators() if s.name in plan.common_sums)
    common += sum(cuts[-1].stop for cuts in plan.shards.handed.values())
    return {
        "activations and gradients": sum(plan.memory.values()) - packed + common
                                    + sum(n * padded_nbytes(v.type) for v, n in plan.stashes.items())
                                    + program.batching.replicas * sums,
        "running statistics": sum(padded_nbytes(s.input.type) for s in program.statistics()),
        "weights laid out for the kernels": packed,
        "constants": sum(a.nbytes for graph in program.graphs for a in graph.constants.values()),
        "outputs of a call": sum(v.type.nbytes * (plan.lanes if v.name in final else program.batching.micro_batches) for v in program.outputs),
    }


def needs(fixed: Mapping[str, int], states: Iterable[StateDeclaration], session: Session) -> dict[str, int]:
    """The same with the states that the session does not have yet."""
    return {**fixed, "weights and optimizer states": sum(s.padded_nbytes for s in states if s.name not in session)}


def require(needs: Mapping[str, int], training: bool, iterations: int) -> None:
    """OutOfMemoryError where a program that needs so much, and has so many iterations in a call, would not fit."""
    levers = "micro_batch_size (gradient_accumulation makes up for it)" if training else "micro_batch_size"
    if iterations > 1:
        levers += " or device_iterations"
    budget.require_parts(needs, "The training program" if training else "The program",
                         f"lower {levers}, or give the model smaller inputs")
