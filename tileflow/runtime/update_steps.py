"""Rows of a training call beside those of its parts: accumulators are initialised, running statistics are committed
with the update only, and gradients or losses that are not finite end the call."""
from __future__ import annotations

from collections.abc import Sequence

from ..graph import State, TensorType
from ..kernels.machine.guard import clear, copy, finite
from ..lower.plan import Plan
from ..lower.row import ArrayOperand, Place, Row
from ..memory.alignment import padded, padded_nbytes


def gradients(plan: Plan, parts: list[str]) -> list[tuple[str, TensorType, Place]]:
    """The gradients that these parts read once an update's micro-batches are done, accumulated or not: (name of the
    weight, type, place) each."""
    summed = [(s.owner, s.input.type, Place(("state", s.name))) for s in plan.program.accumulators()]
    return summed + [(v.name.removesuffix(".grad"), v.type, plan.parts[part].places[v]) for part in parts
                     for v in plan.program.parts[part].inputs]


def begin(plan: Plan, ipu: int) -> list[Row]:
    """Rows before an update's micro-batches: accumulators are cleared (of those that all processes have, the slice that
    this one sums up), or copied from the state that they start from, partial sums of the replicas that are computed
    here are cleared, and committed statistics are copied to the pending ones, which micro-batches change."""
    program, share = plan.program, plan.share
    sums = [s for s in program.accumulators(ipu) if s.input.type.size]
    cleared = [_cleared(s, 0 if share is None else share.rank, plan.common_sums.get(s.name))
               for s in sums if not s.start]
    begun = [_copy(s, Place(("state", s.start)), Place(("state", s.name))) for s in sums if s.start]
    own = range(program.batching.replicas) if share is None else share.of(program.batching.replicas)
    sizes = {Place(("partial", s.name)): padded_nbytes(s.input.type) for s in program.partial_sums()}
    slots = [(place.at(own.start * size), len(own) * size // 8) for place, size in sizes.items()]
    cleared += [Row(clear["u8"], [ArrayOperand(place, (words,), 8)], words, 4096, 0.2 * words, True)
                for place, words in slots]
    return cleared + begun + [_copied(s, "state", "pending") for s in program.statistics(ipu)]


def _cleared(state: State, rank: int, cuts: Sequence[slice] | None) -> Row:
    """The accumulator is zero, or of it the bytes that are this process's."""
    t = state.input.type
    own = slice(0, t.nbytes) if cuts is None else cuts[rank]
    n = (own.stop - own.start) // t.itemsize
    return Row(clear[f"u{t.itemsize}"], [ArrayOperand(Place(("state", state.name)).at(own.start), (n,), t.itemsize)], n,
               4096, 0.025 * n * t.itemsize, True)


def commit(plan: Plan, ipu: int) -> list[Row]:
    """Rows with an update: pending statistics become the committed ones."""
    return [_copied(s, "pending", "state") for s in plan.program.statistics(ipu)]


def gradient_checks(plan: Plan, parts: list[str]) -> list[Row]:
    """Rows that end the call where a gradient read by these parts is not finite, before any of them writes; none in
    programs that skip such updates."""
    if plan.program.skips:
        return []
    return [Row(finite(t.code), [ArrayOperand(place, (t.size,), t.itemsize)], t.size, 4096, 0.1 * t.size, True)
            for _, t, place in gradients(plan, parts) if t.size]


def loss_checks(plan: Plan, fold: str) -> list[Row]:
    """The row that ends the call where a micro-batch's loss is not finite, before the part `fold` adds the
    micro-batch's contributions to the accumulators; none in programs that skip such updates. Of a pipeline's stages,
    each with a fold of its own, the first to fold after the loss is there checks it (`Caller.checked`).
    """
    loss, caller = plan.program.loss, plan.program.caller
    checked = caller.checked if caller is not None else "fold" if plan.program.partial_sums() else fold
    if loss is None or plan.program.skips or fold != checked:
        return []
    place = next(part.places[loss] for part in plan.parts.values() if loss in part.places)
    return [Row(finite(loss.type.code), [ArrayOperand(place, (1,), loss.type.itemsize)], 1, 1, 1.0, node=loss.producer)]


def _copied(state: State, source: str, target: str) -> Row:
    return _copy(state, Place((source, state.name)), Place((target, state.name)))


def _copy(state: State, source: Place, target: Place) -> Row:
    words = padded(state.input.type.nbytes) // 8
    return Row(copy["u8"], [ArrayOperand(place, (words,), 8) for place in (source, target)], words, 4096, 0.3 * words)
