"""The rows of a training call besides those of its parts: sums start at zero, statistics wait for the commit, what is not finite is refused."""
from __future__ import annotations

from ..graph import State, TensorType
from ..kernels.machine.guard import clear, copy, finite
from ..lower.plan import Plan
from ..lower.row import Operand, Place, Row
from ..memory.alignment import padded


def gradients(plan: Plan, parts: list[str]) -> list[tuple[str, TensorType, Place]]:
    """Where the gradients that these parts read lie when the micro-batches are done: the weight's name, type, place."""
    summed = [(s.owner, s.input.type, Place(("state", s.name))) for s in plan.program.accumulators()]
    return summed + [(v.name.removesuffix(".grad"), v.type, plan.parts[part].places[v]) for part in parts for v in plan.program.parts[part].inputs]


def begin(plan: Plan, ipu: int) -> list[Row]:
    """Before an update's micro-batches: accumulators are zero or what they start with, pending statistics those that were committed."""
    sums = [s for s in plan.program.accumulators(ipu) if s.input.type.size]
    zero = [(Place(("state", s.name)), s.input.type) for s in sums if not s.start]
    cleared = [Row(clear[f"u{t.itemsize}"], [Operand(place, (t.size,), t.itemsize)], t.size, 4096, 0.025 * t.nbytes, True) for place, t in zero]
    begun = [_copy(s, Place(("state", s.start)), Place(("state", s.name))) for s in sums if s.start]
    return cleared + begun + [_copied(s, "state", "pending") for s in plan.program.statistics(ipu)]


def commit(plan: Plan, ipu: int) -> list[Row]:
    """With the update: statistics take effect."""
    return [_copied(s, "pending", "state") for s in plan.program.statistics(ipu)]


def gradient_checks(plan: Plan, parts: list[str]) -> list[Row]:
    """What refuses gradients that are not finite before these parts write anything, unless they skip what is not."""
    if plan.program.skips:
        return []
    return [Row(finite(t.code), [Operand(place, (t.size,), t.itemsize)], t.size, 4096, 0.1 * t.size, True)
            for _, t, place in gradients(plan, parts) if t.size]


def loss_checks(plan: Plan, fold: str) -> list[Row]:
    """What refuses a micro-batch's loss that is not finite, before what it left is folded; a stage may be folded before there is a loss, and of those
    that are folded after it the first is enough."""
    loss, caller = plan.program.loss, plan.program.caller
    if loss is None or plan.program.skips or (caller is not None and fold != caller.checked):
        return []
    place = next(part.places[loss] for part in plan.parts.values() if loss in part.places)
    return [Row(finite(loss.type.code), [Operand(place, (1,), loss.type.itemsize)], 1, 1, 1.0, node=loss.producer)]


def _copied(state: State, source: str, target: str) -> Row:
    return _copy(state, Place((source, state.name)), Place((target, state.name)))


def _copy(state: State, source: Place, target: Place) -> Row:
    words = padded(state.input.type.nbytes) // 8
    return Row(copy["u8"], [Operand(place, (words,), 8) for place in (source, target)], words, 4096, 0.3 * words)
