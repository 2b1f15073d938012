"""The schedule of one of several processes: which micro-batches it computes, and where it gets what the others have
left.

A turn is a micro-batch of each replica. A process runs those of its own replicas, then has what all of them left, and
folds that in global order (accumulation index x replicas + replica) as a single process would: so sums, and with them
weights, states and errors, are the same bits in every process, whatever their number. Each folds slices of its own of
what is large, and has the others' before the update: where processes have memory in common, the sums lie there. Where
each replica sums up its own gradients first, that is done once an update, and a turn has only what else is folded.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .schedule import ACCUMULATE, REDUCE, Atomic, Exchange, Fold, Join, Refresh, Repeat, Run, Step, Steps, Wave


@dataclass(frozen=True)
class ReplicaShare:
    """Which of a program's replicas are one process's.

    rank, size: its number among the processes, and how many these are. apart: they have no memory in common, so that
    sums of slices are sent.
    """

    rank: int
    size: int
    apart: bool = False

    def of(self, replicas: int, rank: int | None = None) -> range:
        """The replicas of a process (None: of this one): neighbours, the first processes one more where they cannot be
        dealt evenly."""
        each, more = divmod(replicas, self.size)
        at = self.rank if rank is None else rank
        first = at * each + min(at, more)
        return range(first, first + each + (at < more))

    def deals(self, replicas: int) -> bool:
        """Whether there is a replica for each process; else every process computes all of them."""
        return 1 < self.size <= replicas

    def micro_batches(self, replicas: int, count: int, rank: int | None = None) -> list[int]:
        """The numbers of a process's micro-batches among `count` of a call, in order."""
        own = self.of(replicas, rank)
        return [i for i in range(count) if i % replicas in own]


def dealt(steps: Steps, share: ReplicaShare, replicas: int, lanes: int) -> Steps:
    """A schedule of one step and its folds as a process runs it, up to `lanes` of its replicas side by side."""
    return tuple(now for step in steps for now in _dealt(step, share, replicas, lanes))


def _dealt(step: Step, share: ReplicaShare, replicas: int, lanes: int) -> Steps:
    if isinstance(step, Atomic | Refresh) or (isinstance(step, Repeat) and step.counts != "micro-batch"):
        return (replace(step, steps=dealt(step.steps, share, replicas, lanes)),)
    if not isinstance(step, Repeat):
        return (step,)
    first = step.steps[0].runs[0] if isinstance(step.steps[0], Wave) else step.steps[0]
    if first == Fold(REDUCE):
        return _joined(replace(step, steps=_exchanged(ACCUMULATE, step.steps, replicas)), REDUCE, share)
    folds = {fold.part: fold for fold in step.steps if isinstance(fold, Fold)}
    own = folds.pop(ACCUMULATE, None)
    assert isinstance(first, Run), "a program in stages is not dealt"
    (fold,) = folds.values()
    runs = [replace(first, ahead=r) for r in share.of(replicas)]
    waves = [runs[i:i + lanes] for i in range(0, len(runs), lanes)]
    turn: list[Step] = [Wave(tuple(wave)) if len(wave) > 1 else wave[0] for wave in waves]
    turn += [replace(own, ahead=r) for r in share.of(replicas)] if own is not None else []
    turn += _exchanged(first.part, [replace(fold, ahead=r) for r in range(replicas)], replicas)
    turns = Repeat(step.times * step.by // replicas, tuple(turn), step.counts, replicas)
    return _joined(turns, fold.part, share) if own is None else (turns,)


def _exchanged(part: str, folds: Sequence[Step], replicas: int) -> Steps:
    """The folds of all replicas, between having what the part has left in all processes and not needing it any more."""
    return Exchange(part, replicas - 1), *folds, Exchange(part, replicas - 1, done=True)


def _joined(step: Step, fold: str, share: ReplicaShare) -> Steps:
    return (step, Join(fold)) if share.apart else (step,)
