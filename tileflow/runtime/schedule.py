"""Which rows each update of an epoch has: whole calls of the engine, then what is left of the data in calls of one update each."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..options.options import Options


class UpdateCall(NamedTuple):
    """A call of one update."""

    micro_batch: int
    accumulation: int
    replicas: int = 1

    @property
    def rows(self) -> int:
        return self.micro_batch * self.accumulation * self.replicas


@dataclass(frozen=True)
class CallSchedule:
    """`calls` whole calls of `updates` updates with `rows` rows each, then the `rest`.

    The rest are whole updates, then one of the micro-batches that are left, then one of the rows that fill none: each update is the mean over
    the rows that it has.
    """

    calls: int
    updates: int
    rows: int
    rest: tuple[UpdateCall, ...]

    @classmethod
    def of(cls, rows: int, options: Options) -> CallSchedule:
        """For an epoch over so many rows of data."""
        calls, left = divmod(rows, options.combined_batch_size)
        if options.max_batches is not None and calls >= options.max_batches:
            calls, left = options.max_batches, 0
        rest: list[UpdateCall] = []
        if not options.drop_last:
            whole, left = divmod(left, options.global_batch_size)
            micro_batches, alone = divmod(left, options.micro_batch_size)
            rest = [UpdateCall(options.micro_batch_size, options.gradient_accumulation,
                               options.replication_factor)] * whole
            rest += [UpdateCall(options.micro_batch_size, micro_batches)] if micro_batches else []
            rest += [UpdateCall(alone, 1)] if alone else []
        return cls(calls, options.device_iterations, options.global_batch_size, tuple(rest))

    @property
    def length(self) -> int:
        """Updates of an epoch."""
        return self.calls * self.updates + len(self.rest)

    def short(self, updates: int) -> int:
        """How many of an epoch's first updates have fewer rows than the others."""
        return max(0, updates - self.calls * self.updates - sum(step.rows == self.rows for step in self.rest))

    def after(self, updates: int, short: int) -> tuple[int, int]:
        """Where an epoch goes on after so many updates, of which the last `short` had fewer rows than the others: the first row of the call or of the
        rest, and how many updates of it were done."""
        whole = (updates - short) // self.updates
        return whole * self.updates * self.rows, updates - whole * self.updates
