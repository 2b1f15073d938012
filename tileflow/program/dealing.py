"""The schedule of one of several processes: which micro-batches it computes, and where it gets what the others have left.

A turn is a micro-batch of each replica. A process runs those of its own replicas, then has what all of them left, and folds that in global
order (accumulation index x replicas + replica) as a single process would: so sums, and with them weights, states and errors, are the same bits
in every process, whatever their number.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from .schedule import Atomic, Exchange, Fold, Refresh, Repeat, Run, Step, Steps, Wave


@dataclass(frozen=True)
class Share:
    """Which of a program's replicas are one process's.

    rank, size: its number among the processes, and how many these are.
    """

    rank: int
    size: int

    def of(self, replicas: int, rank: int | None = None) -> range:
        """The replicas of a process (None: of this one): neighbours, the first processes one more where they cannot be dealt evenly."""
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


def dealt(steps: Steps, own: range, replicas: int, lanes: int) -> Steps:
    """A schedule of one step and one fold as the process runs it that has the replicas `own`, up to `lanes` of them side by side."""
    return tuple(_dealt(step, own, replicas, lanes) for step in steps)


def _dealt(step: Step, own: range, replicas: int, lanes: int) -> Step:
    if isinstance(step, Atomic | Refresh) or (isinstance(step, Repeat) and step.counts != "micro-batch"):
        return replace(step, steps=dealt(step.steps, own, replicas, lanes))
    if not isinstance(step, Repeat):
        return step
    first = step.steps[0].runs[0] if isinstance(step.steps[0], Wave) else step.steps[0]
    fold = step.steps[-1]
    assert isinstance(first, Run), "a program in stages is not dealt"
    assert isinstance(fold, Fold), "a program in stages is not dealt"
    runs = [replace(first, ahead=r) for r in own]
    waves = [runs[i:i + lanes] for i in range(0, len(runs), lanes)]
    turn: list[Step] = [Wave(tuple(wave)) if len(wave) > 1 else wave[0] for wave in waves]
    turn += [Exchange(first.part, replicas - 1), *(replace(fold, ahead=r) for r in range(replicas)), Exchange(first.part, replicas - 1, done=True)]
    return Repeat(step.times * step.by // replicas, tuple(turn), step.counts, replicas)
