"""From a plan's schedule to the driver's table: a small interpreter that writes rows where others compute or count."""
from __future__ import annotations

import contextlib
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..graph import Node
from ..kernels.machine.table import PATCH_WORDS, Table, Task, Word
from ..lower.plan import Plan
from ..lower.row import Count, Item, Place, Row
from ..lower.tasks import Task as Together
from ..program.schedule import Atomic, Begin, Commit, Counter, Fold, Refresh, Repeat, Run, Step, Steps, Wave, folded, per, rounds, visits
from . import update_steps
from .arenas import Arenas
from .binding import STREAMS, Blocks, Bound, BoundChoice, BoundCycle, BoundItem, Moving, bind_items, every_bound
from .grouped_rows import gather

Stage = Literal["step", "gradients", "check", "update"]
COUNTERS: tuple[Counter, ...] = ("micro-batch", "update")


@dataclass(frozen=True)
class Owner:
    """Whose row it is: a part's (or nobody's) and its node's. stage: what it does for a call, which says what its failing means. ahead: of the
    micro-batch counter."""

    stage: Stage
    part: str
    node: Node | None
    ahead: int


class RowGroup:
    """Rows with addresses, which run one after the other: argument blocks, and patches for the words that follow a counter.

    items: the rows, and the branches and loops that others stand in. patches: by counter and what is ahead of it; those of a loop's own counts
    are for the rows within it.
    """

    def __init__(self, items: Sequence[BoundItem], seed: int) -> None:
        blocks = Blocks(seed=seed)
        bound = list(every_bound(items))
        words = [blocks.add(b) for b in bound]
        blocks.seal()
        self.blocks, self.items = blocks, items
        self.block = {id(b): blocks.address(word) for b, word in zip(bound, words, strict=True)}
        self.bases: list[tuple[str, int, int]] = []
        """Of the caller's arrays: name, address of the word that holds where a patch begins, its offset in the array."""
        self.patches = self._patches()

    def _patches(self) -> dict[tuple[Counter | Count, int], np.ndarray]:
        chains = [(word, _chain(what)) for word, what in self.blocks.moving]
        counts = Counts((m.counter, m.ahead) for _, chain in chains for m in chain)
        tables = {key: np.zeros((n, PATCH_WORDS), np.int64) for key, n in counts.items()}
        free = dict.fromkeys(tables, 0)
        for word, chain in chains:
            target = self.blocks.address(word)
            for what in reversed(chain):                             # a slower counter moves the base of a quicker one
                key = what.counter, what.ahead
                table, i = tables[key], free[key]
                free[key] += 1
                table[i] = target, what.offset, what.stride, what.ring
                target = int(table.ctypes.data) + 8 * (i * PATCH_WORDS + 1)
                if what.name:
                    self.bases.append((what.name, target, what.offset))
        return tables

    def of(self, counter: Counter | Count) -> list[tuple[int, np.ndarray]]:
        """The patches that follow a counter, with what is ahead of it."""
        return [(ahead, table) for (key, ahead), table in self.patches.items() if key == counter]


def _chain(what: Moving) -> list[Moving]:
    """What moves an address, the slowest first."""
    return [*(_chain(what.base) if what.base is not None else ()), what]


class Tables:
    """The table of a call, made from the schedule of a plan, and the words that a call sets.

    table: for `kernels.machine.job`. words: by index `MICRO` and `UPDATE`, which count what a call has done; `DONE`, the updates that it skips;
    `DUE`, whether what depends on states only runs; then the addresses of the caller's arrays, at the indices `names`.
    """

    MICRO, UPDATE, DONE, DUE = range(4)

    def __init__(self, plan: Plan, arenas: Arenas, seed: int, turns: Word | None = None) -> None:
        """`turns`: all of it so many times."""
        self.plan, self.arenas, self.seed = plan, arenas, seed
        names = dict.fromkeys([*(v.name for v in (*plan.program.inputs, *plan.program.outputs)), STREAMS])
        self.names = {name: 4 + i for i, name in enumerate(names)}
        self.words = np.zeros(4 + len(names), np.int64)
        self.counters: dict[Counter, Word] = {"micro-batch": self._word(self.MICRO), "update": self._word(self.UPDATE)}
        self.table = Table()
        self.table.keep(self.words)
        self._loops: list[Word] = []
        self._counter: Counter = "micro-batch"            # that of the Repeat around
        self._waves: list[tuple[list[Together], list[Task]]] = []
        folds = folded(plan.schedule)
        self._often = {name for name in per("micro-batch", plan.schedule) if name not in folds}
        runs = dict.fromkeys((v.step.part, plan.bound_once(v.step.part, v.step.ahead)) for v in visits(plan.schedule))
        self._groups = {(part, ahead): self._group(plan.parts[part].rows, part, ahead) for part, ahead in runs}
        main = self.table.main
        self._point(main)
        with main.repeat(turns) if turns is not None else contextlib.nullcontext():
            self._steps(plan.schedule)
        self.table.seal()

    def _word(self, index: int) -> Word:
        return Word(self.words[index:index + 1])

    def _group(self, rows: Sequence[Item], part: str = "", ahead: int = 0) -> RowGroup:
        """Rows with addresses; equal updates of neighbours are one, wherever their arrays lie."""
        resolve = self.arenas.resolve(ahead)
        items = bind_items(rows, resolve, self.arenas.settled(part), list if part in self._often else gather)
        group = RowGroup(items, self.seed)
        self.table.keep(group)
        return group

    def _point(self, task: Task) -> None:
        """A call begins: patches of what lies in the caller's arrays begin where these do."""
        bases: dict[str, list[tuple[int, int, int, int]]] = {}
        for group in self._groups.values():
            for name, at, offset in group.bases:
                bases.setdefault(name, []).append((at, offset, 1, 1 << 62))
        for name, patches in bases.items():
            task.patch(np.array(patches, np.int64), self._word(self.names[name]))

    # ---- the interpreter

    def _steps(self, steps: Steps) -> None:
        for together in rounds(steps):
            if isinstance(together[0], Wave):
                self._wave(together[0], [step for step in together[1:] if isinstance(step, Fold)])
                continue
            for step in together:
                self._step(step)

    def _step(self, step: Step) -> None:
        main = self.table.main
        if isinstance(step, Run):
            self._add(main, self.group(step.part, step.ahead), step)
        elif isinstance(step, Fold):
            self._fold(main, step)
        elif isinstance(step, Begin):
            self._alone(update_steps.begin(self.plan, step.ipu))
        elif isinstance(step, Commit):
            self._alone(update_steps.commit(self.plan, step.ipu))
        elif isinstance(step, Repeat):
            self._repeat(step)
        elif isinstance(step, Atomic):
            self._atomic(step)
        elif isinstance(step, Refresh):
            self._refresh(step)
        else:
            raise AssertionError(f"{step} is nothing that a machine with one memory does")

    def _fold(self, task: Task, fold: Fold) -> None:
        self._alone(update_steps.loss_checks(self.plan, fold.part), fold, task=task)
        self._add(task, self.group(fold.part, fold.ahead), fold)

    def _alone(self, rows: Sequence[Item], step: Run | Fold | None = None, stage: Stage = "step", part: str = "", task: Task | None = None) -> None:
        """Rows of the host's own, beside those of a step."""
        self._add(task or self.table.main, self._group(rows, part, 0 if step is None else step.ahead), step, stage, part)

    def _add(self, task: Task, group: RowGroup, step: Run | Fold | None = None, stage: Stage = "step", part: str | None = None,
             parallel: bool = True) -> None:
        """Rows of a group, each over all workers where that pays."""
        ahead, part = 0 if step is None else step.ahead, part if part is not None or step is None else step.part
        for counter in COUNTERS:
            for _, patches in group.of(counter):
                task.patch(patches, self.counters[counter], ahead if counter == self._counter else 0)
        self._items(task, group, group.items, Owner(stage, part or "", None, ahead), parallel)

    def _items(self, task: Task, group: RowGroup, items: Sequence[BoundItem], owner: Owner, parallel: bool) -> None:
        """Rows, and what stands around them."""
        for item in items:
            if isinstance(item, Bound):
                self.leaf(task, item, group.block[id(item)], replace(owner, node=item.row.node), parallel)
            elif isinstance(item, BoundChoice):
                word = self._at(item.item.word, owner.ahead)
                for value, branch in zip((1, 0), item.branches, strict=True):
                    with task.when(word, value):
                        self._items(task, group, branch, owner, parallel)
            else:
                self._cycle(task, group, item, owner, parallel)

    def _cycle(self, task: Task, group: RowGroup, cycle: BoundCycle, owner: Owner, parallel: bool) -> None:
        """A loop: its words are set, then every turn its rows' addresses follow the counts."""
        loop = cycle.item
        words = {count: self._at(count.word, owner.ahead) for count, _ in loop.counts}
        start = [(self._at(place, owner.ahead).address, n, 0, 1) for place, n in loop.start]
        task.patch(np.array(start, np.int64), self.counters["update"])
        self._items(task, group, cycle.before, owner, parallel)
        with task.repeat(self._at(loop.limit, owner.ahead), self._at(loop.counter, owner.ahead)):
            for count, word in words.items():
                for ahead, patches in group.of(count):
                    task.patch(patches, word, ahead)
            self._items(task, group, cycle.body, owner, parallel)
            for count, by in loop.counts:
                task.advance(words[count], by)
        done, _ = loop.counts[0]
        for ahead, patches in group.of(done):
            task.patch(patches, words[done], ahead)
        self._items(task, group, cycle.after, owner, parallel)

    def _at(self, place: Place, ahead: int) -> Word:
        """A word of an arena."""
        return Word(self.arenas.word(place, ahead))

    def leaf(self, task: Task, bound: Bound, block: int, owner: Owner, parallel: bool = True) -> None:
        """A row over its range, over all workers where that pays."""
        row = bound.row
        cost = row.cost * bound.n / max(1, row.n)
        task.leaf(row.leaf.address, block, bound.n, max(1, row.grain), cost=cost, parallel=parallel and self.plan.workers > 1, owner=owner)

    def group(self, part: str, ahead: int = 0) -> RowGroup:
        """The rows of a part in a run of the schedule."""
        return self._groups[part, self.plan.bound_once(part, ahead)]

    def _wave(self, wave: Wave, folds: Sequence[Fold] = ()) -> None:
        """Side by side what may be, the longest first; shorter waves are the first tasks of longer ones. Rows of a part with one arena may be shared
        out among workers that have no task left: there is scratch for each. What one worker does is no task: at the end of a slice every task of a
        wave may have begun, and stages in one memory must not."""
        found, rest = self.plan.tasks(wave, folds)
        if len(found) == 1:
            self._together(self.table.main, found[0])
        else:
            tasks = next((tasks for known, tasks in self._waves if known[:len(found)] == found), None)
            if tasks is None:
                tasks = [self.table.task() for _ in found]
                self._waves.append((found, tasks))
                for task, steps in zip(tasks, found, strict=True):
                    self._together(task, steps)
            self.table.main.spawn(tasks[:len(found)])
            self.table.main.wait()
        for fold in rest:
            self._step(fold)

    def _together(self, task: Task, steps: Together) -> None:
        """Steps that follow one another."""
        for step in steps:
            if isinstance(step, Run):
                self._add(task, self.group(step.part, step.ahead), step, parallel=self.plan.in_flight[step.part] == 1)
            else:
                self._fold(task, step)

    def _repeat(self, repeat: Repeat) -> None:
        outer, self._counter = self._counter, repeat.counts
        main = self.table.main
        last = repeat.steps[-1]

        def counted() -> None:
            main.advance(self.counters[repeat.counts], repeat.by)
        with self._turns(repeat):
            if isinstance(last, Atomic):
                self._steps(repeat.steps[:-1])
                self._atomic(last, counted)
            else:
                self._steps(repeat.steps)
                counted()
        self._counter = outer

    @contextlib.contextmanager
    def _turns(self, repeat: Repeat) -> Iterator[None]:
        """The rows added within, for every turn; a call may skip the first updates."""
        if repeat.times == 1 and repeat.counts != "update":
            yield
            return
        self._loops.append(self._word(self.DONE) if repeat.counts == "update" else Word())
        with self.table.main.repeat(repeat.times, self._loops[-1]):
            yield

    def _atomic(self, atomic: Atomic, counted: Callable[[], None] | None = None) -> None:
        """What must not be written is refused first. `counted` is done with the steps: what is done counts as done."""
        parts = [s.part for s in atomic.steps if isinstance(s, Run)]
        self._alone(update_steps.gradient_checks(self.plan, parts), stage="gradients")
        for part in parts:
            if part in self.plan.checks:
                self._alone(self.plan.checks[part].rows, stage="check", part=f"{part}.check")
        with self.table.main.hold():
            for step in atomic.steps:
                if isinstance(step, Run):
                    self._add(self.table.main, self.group(step.part, step.ahead), step, "update")
                else:
                    self._step(step)
            if counted is not None:
                counted()

    def _refresh(self, refresh: Refresh) -> None:
        """Once they have run the steps are not due any more."""
        due = self._word(self.DUE)
        with self.table.main.when(due):
            self._steps(refresh.steps)
            self.table.main.advance(due, -1)

    # ---- calls

    def reset(self) -> None:
        """Forget what a call that ended early left half done."""
        for counter in self._loops:
            counter.value = 0

    def rows_of(self, part: str) -> int:
        """How many rows a run of a part has."""
        return len(self._groups[part, 0].block)

    def checks(self) -> Iterator[tuple[Row, Table]]:
        """Each row of the checks, with a table that runs it alone."""
        for part in self.plan.checks.values():
            for row in part.rows:
                table = Table()
                group = self._group([row], part.arena)
                assert isinstance(row, Row)
                self._add(table.main, group, stage="check")
                table.seal()
                yield row, table
