"""What schedules of staged programs share: the names of a step's parts, and the updates around it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..program.batching import Batching
from ..program.schedule import Atomic, Begin, Commit, Fold, Refresh, Repeat, Run, Step, Steps, Wave, whole_call


@dataclass(frozen=True)
class Parts:
    """The parts of a micro-step in their order: names of the stages, of what folds each one's contributions (None: nothing), IPUs.

    phases: the number of each one's phase; off_chip: tensors leave the chip between phases whose numbers are far enough apart. reads: the places
    whose results each reads. interval: cycles of a pipeline from one micro-batch to the next. replicas: those that have states of
    their own; a turn has a micro-batch of each. own_weights: weights are among these states.
    """

    stages: tuple[str, ...]
    folds: tuple[str | None, ...]
    ipus: tuple[int, ...]
    phases: tuple[int, ...] = ()
    off_chip: bool = False
    reads: tuple[frozenset[int], ...] = ()
    interval: int = 1
    replicas: int = 1
    own_weights: bool = False

    def prologue(self) -> Run | Wave:
        """What depends on weights only: once for each replica that has weights of its own."""
        return Wave(tuple(Run("prologue", ahead) for ahead in range(self.replicas))) if self.own_weights else Run("prologue")

    def run(self, place: int, ahead: int = 0) -> Run:
        """A stage runs."""
        return Run(self.stages[place], ahead, self.ipus[place])

    def fold(self, place: int, ahead: int = 0) -> tuple[Fold, ...]:
        """What a stage gave is folded."""
        name = self.folds[place]
        return () if name is None else (Fold(name, ahead, self.ipus[place]),)

    def in_order(self, micro_batches: int, body: Callable[[int], Sequence[Step]]) -> Steps:
        """Micro-batch after micro-batch: each is `body`, of what is ahead of the counter."""
        steps = tuple(step for ahead in range(self.replicas) for step in body(ahead))
        return Repeat(micro_batches // self.replicas, steps, "micro-batch", self.replicas),


def updates(parts: Parts, micro_batches: Steps, batching: Batching, training: bool) -> Steps:
    """A call whose micro-batches (of an update, or of the call where nothing is trained) are these steps."""
    if not training:
        ipus = sorted({ipu for ipu, fold in zip(parts.ipus, parts.folds, strict=True) if fold is not None})
        return whole_call((Refresh((parts.prologue(),)), *micro_batches), ipus)
    ipus = sorted({*parts.ipus})
    ends = Atomic((Run("update"), *(Commit(i) for i in ipus)))
    steps: tuple[Step, ...] = (*(Begin(i) for i in ipus), parts.prologue(), *micro_batches, ends)
    return Repeat(batching.device_iterations, steps, "update"),


def per_update(batching: Batching, training: bool) -> int:
    """Micro-batches of an update; of the call where nothing is trained."""
    return batching.per_update if training else batching.micro_batches
