"""The rows of a training call besides those of its program: sums start at zero, statistics wait for the update, what is not finite is refused."""
from __future__ import annotations

from ..graph import State, TensorType
from ..kernels.machine.guard import clear, copy, finite
from ..lower.memory import padded
from ..lower.plan import Plan
from ..lower.rows import Operand, Place, Row
from ..program import Program


def statistics(program: Program) -> list[State]:
    """Buffers that micro-batches change: they have pending memory of their own until the update."""
    return [s for s in program.fold.states if s.kind == "buffer" and s.output is not None]


def gradients(plan: Plan) -> list[tuple[str, TensorType, Place]]:
    """Where the gradients of an update lie when its micro-batches are done: name, type, place."""
    summed = [(s.name, s.input.type, Place(("state", s.name))) for s in _accumulators(plan)]
    return summed + [(v.name, v.type, plan.update.places[v]) for v in plan.program.update.inputs]


def begin(plan: Plan) -> list[Row]:
    """Before an update's micro-batches: accumulators are zero, pending statistics those that were committed."""
    sums = [(Place(("state", s.name)), s.input.type) for s in _accumulators(plan) if s.input.type.size]
    zero = [Row(clear[f"u{t.itemsize}"], [Operand(place, (t.size,), t.itemsize)], t.size, 4096, 0.025 * t.nbytes, True) for place, t in sums]
    return zero + [_copied(s, "state", "pending") for s in statistics(plan.program)]


def commit(plan: Plan) -> list[Row]:
    """With the update: statistics take effect."""
    return [_copied(s, "pending", "state") for s in statistics(plan.program)]


def gradient_checks(plan: Plan) -> list[Row]:
    """What refuses gradients that are not finite before any weight is written."""
    return [Row(finite(t.code), [Operand(place, (t.size,), t.itemsize)], t.size, 4096, 0.1 * t.size, True)
            for _, t, place in gradients(plan) if t.size]


def loss_check(plan: Plan) -> Row:
    """What refuses a micro-batch's loss that is not finite."""
    loss = plan.program.loss
    assert loss is not None
    return Row(finite(loss.type.code), [Operand(plan.micro.places[loss], (1,), loss.type.itemsize)], 1, 1, 1.0, node=loss.producer)


def _accumulators(plan: Plan) -> list[State]:
    return [s for s in plan.program.fold.states if s.kind == "accumulator"]


def _copied(state: State, source: str, target: str) -> Row:
    words = padded(state.input.type.nbytes) // 8
    return Row(copy["u8"], [Operand(Place((r, state.name)), (words,), 8) for r in (source, target)], words, 4096, 0.3 * words)
