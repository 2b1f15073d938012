"""From a plan's schedule to the driver's tables: a small interpreter that writes rows where others compute or count."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..graph import Node
from ..kernels.machine import driver
from ..kernels.machine.driver import ADVANCE, HOLD, LOOP, PATCH, WAVE
from ..lower.plan import Plan
from ..lower.rows import Row
from ..schedule import Atomic, Begin, Commit, Counter, Fold, Refresh, Repeat, Run, Step, Steps, Wave
from . import upkeep
from .arenas import Arenas
from .binding import STREAMS, Blocks, Bound, Moving, bind, call_row

COUNTERS: dict[Counter, int] = {"micro-batch": driver.MICRO, "update": driver.ITERATION}
Stage = Literal["step", "gradients", "check", "update"]


@dataclass(frozen=True)
class Owner:
    """Whose row it is. stage: what it does for a call, which says what its failing means. ahead: of the micro-batch counter."""

    stage: Stage
    node: Node | None
    ahead: int = 0


NOBODY = Owner("step", None)


class Rows:
    """One table under construction. Addresses are known when it is sealed."""

    def __init__(self, seed: int) -> None:
        self.blocks = Blocks(seed=seed)
        self.rows: list[list[int]] = []
        self.owners: list[Owner] = []
        self._words: list[tuple[int, int]] = []           # (row, word that its block begins at)
        self.table = np.zeros((0, driver.ROW_WORDS), np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def call(self, bound: Bound, parallel: bool, owner: Owner) -> None:
        """A leaf over its range, over the workers where that pays."""
        self._words.append((len(self.rows), self.blocks.add(bound)))
        self.rows.append(call_row(bound, 0, parallel))
        self.owners.append(owner)

    def control(self, kind: int, n: int = 0, grain: int = 0, block: int = 0, target: int = 0, word: int | None = None) -> int:
        """A row of control flow, whose block is an address or a word of this table's own; returns where it is."""
        if word is not None:
            self._words.append((len(self.rows), word))
        self.rows.append([kind, 0, block, n, grain, target, 0, 0])
        self.owners.append(NOBODY)
        return len(self.rows) - 1

    def seal(self) -> None:
        """Fix all addresses."""
        self.blocks.seal()
        for row, word in self._words:
            self.rows[row][2] = self.blocks.address(word)
        self.table = np.array(self.rows, np.int64).reshape(-1, driver.ROW_WORDS)


class Tables:
    """All tables of a call, made from the schedule of a plan.

    table: the main one. control: the driver's words, and after them one for each of `names`, the caller's arrays, into which a call puts their
    addresses.
    """

    def __init__(self, plan: Plan, arenas: Arenas, seed: int) -> None:
        self.plan, self.arenas, self.seed = plan, arenas, seed
        program = plan.program
        self.names = {name: driver.CONTROL_WORDS + i
                      for i, name in enumerate(dict.fromkeys([*(v.name for v in (*program.inputs, *program.outputs)), STREAMS]))}
        self.control = np.zeros(driver.CONTROL_WORDS + len(self.names), np.int64)
        self.main = Rows(seed)
        self.lanes: dict[tuple[str, int], Rows] = {}
        self.descriptors: dict[str, np.ndarray] = {}
        self._loops: list[tuple[int, int]] = []           # (word of the turns that are left, all turns)
        self._updates: tuple[int, int] | None = None      # that of the Repeat that counts updates
        self._fresh: list[int] = []                       # words that say whether a Refresh is due
        self._patched: list[tuple[int, Counter]] = []     # (row, counter)
        self._keep: list[np.ndarray] = []
        self._bases: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}      # (address of a patch's base, offset in the array)
        first = [self.main.control(PATCH, grain=word) for word in self.names.values()]
        self._steps(plan.schedule)
        self._seal(first)

    # ---- the interpreter

    def _steps(self, steps: Steps) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: Step) -> None:
        if isinstance(step, Run):
            self._rows(self.plan.parts[step.part].rows, step.part, step.ahead)
        elif isinstance(step, Fold):
            self._rows(upkeep.loss_checks(self.plan), step.part, step.ahead)
            self._rows(self.plan.parts[step.part].rows, step.part, step.ahead)
        elif isinstance(step, Wave):
            self._wave(step)
        elif isinstance(step, Begin):
            self._rows(upkeep.begin(self.plan, step.ipu))
        elif isinstance(step, Commit):
            self._rows(upkeep.commit(self.plan, step.ipu))
        elif isinstance(step, Repeat):
            self._repeat(step)
        elif isinstance(step, Atomic):
            self._atomic(step)
        else:
            self._refresh(step)

    def _rows(self, rows: Sequence[Row], part: str = "", ahead: int = 0, stage: Stage = "step") -> None:
        """Rows that run alone, each over all workers where that pays. Equal updates of neighbours are one."""
        for bound in bind(rows, self.arenas.resolve(ahead), self.arenas.settled(part)):
            self.main.call(bound, self.plan.workers > 1, Owner(stage, bound.row.node, ahead))

    def _wave(self, wave: Wave) -> None:
        """Each run a table of its own, which its lane runs alone."""
        part = wave.runs[0].part
        assert [(run.part, run.ahead) for run in wave.runs] == [(part, i) for i in range(len(wave.runs))], "lanes are runs of one part"
        for run in wave.runs:
            if (part, run.ahead) not in self.lanes:
                lane = self.lanes[part, run.ahead] = Rows(self.seed)
                for bound in bind(self.plan.parts[part].rows, self.arenas.resolve(run.ahead), self.arenas.settled(part)):
                    lane.call(bound, False, Owner("step", bound.row.node, run.ahead))
        if part not in self.descriptors:
            self.descriptors[part] = np.zeros((self.plan.in_flight[part], driver.LANE_WORDS), np.int64)
        self.main.control(WAVE, n=len(wave.runs), block=int(self.descriptors[part].ctypes.data))

    def _repeat(self, repeat: Repeat) -> None:
        start = len(self.main)
        counter = COUNTERS[repeat.counts]
        self._patched.append((self.main.control(PATCH, grain=counter), repeat.counts))

        def counted() -> None:
            self.main.control(ADVANCE, n=repeat.by, grain=counter)
        *steps, last = repeat.steps
        self._steps(tuple(steps))
        if isinstance(last, Atomic):
            self._atomic(last, counted)
        else:
            self._step(last)
            counted()
        if repeat.times > 1 or repeat.counts == "update":
            word = self.main.blocks.word(repeat.times)
            self._loops.append((word, repeat.times))
            if repeat.counts == "update":
                assert self._updates is None, "one Repeat counts the updates of a call"
                self._updates = self._loops[-1]
            self.main.control(LOOP, n=repeat.times, word=word, target=start)

    def _atomic(self, atomic: Atomic, counted: Callable[[], None] | None = None) -> None:
        """What must not be written is refused first. `counted` is done with the steps: what is done counts as done."""
        parts = [s.part for s in atomic.steps if isinstance(s, Run)]
        self._rows(upkeep.gradient_checks(self.plan, parts), stage="gradients")
        for part in parts:
            if part in self.plan.checks:
                self._rows(self.plan.checks[part].rows, f"{part}.check", stage="check")
        self.main.control(HOLD, n=1)
        for step in atomic.steps:
            if isinstance(step, Run):
                self._rows(self.plan.parts[step.part].rows, step.part, step.ahead, "update")
            else:
                self._step(step)
        if counted is not None:
            counted()
        self.main.control(HOLD, n=0)

    def _refresh(self, refresh: Refresh) -> None:
        """Skipped by a LOOP whose counter is 2; where it is 1 the rows run, and are not due any more."""
        word = self.main.blocks.word(1)
        row = self.main.control(LOOP, n=2, word=word)
        self._steps(refresh.steps)
        self.main.rows[row][5] = len(self.main)
        self._fresh.append(word)

    # ---- addresses

    def _seal(self, first: list[int]) -> None:
        for rows in (self.main, *self.lanes.values()):
            rows.seal()
        for row, counter in self._patched:
            self.main.table[row, 2:4] = self._patches(self.main, counter)
        for (part, ahead), lane in self.lanes.items():
            self.descriptors[part][ahead, :5] = lane.table.ctypes.data, len(lane), 0, *self._patches(lane, "micro-batch")
        for row, bases in zip(first, self._bases.values(), strict=True):
            table = np.array([(at, offset, 1, 1 << 62) for at, offset in bases], np.int64).reshape(-1, driver.PATCH_WORDS)
            self._keep.append(table)
            self.main.table[row, 2:4] = table.ctypes.data, len(table)

    def _patches(self, rows: Rows, counter: Counter) -> tuple[int, int]:
        """Address and number of the patches of the words that follow a counter."""
        moving: list[tuple[int, Moving]] = [(word, what) for word, what in rows.blocks.moving if what.counter == counter]
        table = np.zeros((len(moving), driver.PATCH_WORDS), np.int64)
        address = int(table.ctypes.data)
        for i, (word, what) in enumerate(moving):
            table[i] = rows.blocks.address(word), what.offset, what.stride, what.ring
            if what.name:
                self._bases[what.name].append((address + 8 * (i * driver.PATCH_WORDS + 1), what.offset))
        self._keep.append(table)
        return address, len(moving)

    # ---- calls

    def reset(self) -> None:
        """Forget what a call that ended early left half done."""
        for word, turns in self._loops:
            self.main.blocks.memory[word] = turns                                           # type: ignore[index]
        for lanes in self.descriptors.values():
            lanes[:, 2] = lanes[:, 5] = 0
        self.control[driver.HELD] = 0

    def set_updates(self, done: int) -> None:
        """The next call skips so many of its updates."""
        if self._updates is not None:
            word, turns = self._updates
            self.main.blocks.memory[word] = turns - done                                     # type: ignore[index]

    def set_due(self, due: bool) -> None:
        """Whether the next call refreshes what depends on states only."""
        for word in self._fresh:
            self.main.blocks.memory[word] = 1 if due else 2                                  # type: ignore[index]

    def check_rows(self) -> Iterator[tuple[Row, np.ndarray]]:
        """Each row of the checks, with a table that runs it alone."""
        for part in self.plan.checks.values():
            for row in part.rows:
                rows = Rows(self.seed)
                rows.control(PATCH, grain=driver.ITERATION)
                for bound in bind([row], self.arenas.resolve(0), self.arenas.settled(part.arena)):
                    rows.call(bound, False, NOBODY)
                rows.seal()
                rows.table[0, 2:4] = self._patches(rows, "update")
                yield row, rows.table

    def failed(self, pc: int, status: int) -> tuple[Owner, int]:
        """Whose row failed, and its status: in a wave, those of the first lane that did."""
        if self.main.rows[pc][0] == WAVE:
            part = next(p for p, lanes in self.descriptors.items() if int(lanes.ctypes.data) == self.main.rows[pc][2])
            lanes = self.descriptors[part]
            ahead = int(np.flatnonzero(lanes[:, 5])[0])
            return self.lanes[part, ahead].owners[int(lanes[ahead, 2])], int(lanes[ahead, 5])
        return self.main.owners[pc], status
