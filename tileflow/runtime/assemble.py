"""From a Plan to an Image: argument blocks, patches, and the driver's tables, written by a small interpreter of the
schedule."""
from __future__ import annotations

import contextlib
import functools
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from ..executable.hosts import HostedRow
from ..executable.image import (
    DONE,
    DUE,
    LAST,
    MICRO,
    NAMED,
    STREAMS,
    UPDATE,
    Image,
    Judged,
    Owner,
    RowTable,
    Span,
    Stage,
)
from ..graph import Node, Value
from ..kernels.machine.boards import ROW_WORDS
from ..kernels.machine.host import HostCall
from ..kernels.machine.leaf import Leaf
from ..kernels.machine.table import ADDRESSES, PATCH_WORDS, Table, Task, Word
from ..lower.anomaly import Judge
from ..lower.plan import Plan
from ..lower.row import ArrayOperand, Count, HostRow, Item, Place, Row
from ..lower.shards import PutTogether
from ..lower.tasks import Task as Together
from ..memory.tensor import Tensor
from ..memory.types import TensorType
from ..program.schedule import (
    Atomic,
    Begin,
    Commit,
    Counter,
    Exchange,
    Fold,
    Join,
    Refresh,
    Repeat,
    Run,
    Step,
    Steps,
    Wave,
    atomic,
    folded,
    per,
    rounds,
    visits,
)
from ..state import Session
from . import budget, update_steps
from .binding import (
    Blocks,
    BoundChoice,
    BoundCycle,
    BoundHost,
    BoundItem,
    BoundRow,
    Moving,
    Words,
    bind_items,
    every_bound,
)
from .exchange import Exchanging
from .grouped_rows import gather
from .segments import Segments

COUNTERS: tuple[Counter, ...] = ("micro-batch", "update")


def image_of(plan: Plan, session: Session, final: frozenset[str] = frozenset(),
             exchange: Exchanging | None = None) -> tuple[Image, Mapping[str, Leaf], Sequence[HostedRow]]:
    """A plan as an Image, its leaves by what the cache calls their code, and what Python does in it; nothing is
    compiled for it.

    The graphs' constants lie in the Image from now on, and the graphs' own arrays are views of them.

    Args:
        session: has the plan's states; the Image is for sessions in which they lie as they do there.
        final: outputs of which only a call's last micro-batch is wanted.
        exchange: what is done where micro-batches of other processes are wanted.
    """
    maker = _Assembler(plan, session, final, exchange)
    return maker.image(), maker.segments.leaves, maker.hosts


class _Distant(Word):
    """A word at a virtual address."""

    def __init__(self, address: int) -> None:
        self.address = address


@dataclass(frozen=True)
class _Patches:
    """Patches among an image's words: which they are the first of, and how many."""

    first: int
    count: int


class _RowGroup:
    """Rows with addresses, which run one after the other: argument blocks, and patches for the words that follow a
    counter.

    items: the rows, and the branches and loops that others stand in. patches: by counter and what is ahead of it; those
    of a loop's own counts are for the rows within it.
    """

    def __init__(self, items: Sequence[BoundItem], words: Words, kernel: Callable[[Leaf], int]) -> None:
        words.line()
        blocks = Blocks(words, kernel)
        self.items = items
        self.block = {id(b): words.at(blocks.add(b)) for b in every_bound(items)}
        self.bases: list[tuple[str, int, int]] = []
        """Of the caller's arrays: name, address of the word that holds where a patch begins, its offset in the
        array."""
        self.patches = self._patches(words, blocks.moving)

    def _patches(self, words: Words,
                 moving: Sequence[tuple[int, Moving]]) -> dict[tuple[Counter | Count, int], _Patches]:
        """The patches, each with a target that is known: a slower counter moves the base of a quicker one."""
        tables: dict[tuple[Counter | Count, int], list[tuple[Moving, int]]] = {}
        chains = [(word, _chain(what)) for word, what in moving]
        counts = Counts((m.counter, m.ahead) for _, chain in chains for m in chain)
        found, at = {}, len(words)
        for key, n in counts.items():
            found[key], at = _Patches(at, n), at + PATCH_WORDS * n
            tables[key] = []
        for word, chain in chains:
            target = words.at(word)
            for what in reversed(chain):
                key = what.counter, what.ahead
                base = words.at(found[key].first + PATCH_WORDS * len(tables[key]) + 1)
                tables[key].append((what, target))
                target = base
                if what.name:
                    self.bases.append((what.name, target, what.offset))
        for table in tables.values():
            for what, target in table:
                words.address(target)
                (words.add if what.name or what.base is not None else words.address)(what.offset)
                words.add(what.stride, what.ring)
        return found

    def of(self, counter: Counter | Count) -> list[tuple[int, _Patches]]:
        """The patches that follow a counter, with what is ahead of it."""
        return [(ahead, table) for (key, ahead), table in self.patches.items() if key == counter]


def _chain(what: Moving) -> list[Moving]:
    """What moves an address, the slowest first."""
    return [*(_chain(what.base) if what.base is not None else ()), what]


class _Assembler:
    """Writes a plan's image."""

    def __init__(self, plan: Plan, session: Session, final: frozenset[str], exchange: Exchanging | None = None) -> None:
        program = plan.program
        self._exchanging = exchange
        batches = program.batching.micro_batches
        self.plan, self.final, self.words = plan, final, Words()
        self.kept = tuple(plan.lanes if v.name in final else batches for v in program.outputs)
        slots = {v.name: n for v, n in zip(program.outputs, self.kept, strict=True)}
        self.segments = Segments(plan, session, dict.fromkeys((v.name for v in program.inputs), batches) | slots)
        names = dict.fromkeys([*(v.name for v in (*program.inputs, *program.outputs)), STREAMS])
        self.names = {name: NAMED + i for i, name in enumerate(names)}
        self.words.add(*[0] * (NAMED + len(names)))
        self.counters: dict[Counter, Word] = {"micro-batch": self._word(MICRO), "update": self._word(UPDATE)}
        self.table = Table()
        self.hosts: list[HostedRow] = []
        self.loops: list[int] = []
        self._counter: Counter = "micro-batch"            # that of the Repeat around
        self._waves: list[tuple[list[Together], list[Task]]] = []
        folds = folded(plan.schedule)
        self._often = {name for name in per("micro-batch", plan.schedule) if name not in folds}
        runs = dict.fromkeys((v.step.part, plan.bound_once(v.step.part, v.step.ahead)) for v in visits(plan.schedule))
        self._groups = {(part, ahead): self._group(plan.parts[part].rows, part, ahead) for part, ahead in runs}
        self._owners: dict[Owner, int] = {}
        self._point(self.table.main)
        self._steps(plan.schedule)

    def image(self) -> Image:
        """All of it."""
        program, words = self.plan.program, self.words
        tasks = tuple(self._rows(task) for task in self.table.tasks)
        checks = tuple(self._rows(task) for task in self._checks())
        gradients = []
        for name, t, place in update_steps.gradients(self.plan, atomic(program.schedule)):
            kind, where = place.region
            state, at = (where, 0) if kind == "state" else ("", self._span(place, 0, t.nbytes).address)
            if common := self.segments.common_sums.get(state):
                state, at = "", common
            gradients.append((Tensor(name, t.dtype, t.shape), state, at))
        segments = self.segments.all
        segments[0] = replace(segments[0], nbytes=8 * len(words))
        batching, found = program.batching, self.segments
        return Image(
            words=np.array(words.words, np.int64), relocations=np.array(words.relocations, np.int64),
            seeds=np.array(words.seeds, np.int64), segments=tuple(segments), constants=tuple(found.constants),
            tasks=tasks, checks=checks, owners=tuple(self._owners), names=self.names, loops=tuple(self.loops),
            inputs=tuple(map(_tensor, program.inputs)), outputs=tuple(map(_tensor, program.outputs)), kept=self.kept,
            states=found.states, layout=found.layout, scalars=found.scalars, gradients=tuple(gradients),
            workers=self.plan.workers, several=self.plan.lanes > 1, lane_bytes=self.plan.lane_bytes,
            needs=budget.fixed(self.plan, self.final), per_update=batching.per_update,
            iterations=batching.device_iterations, training=program.training)

    def _rows(self, task: Task) -> RowTable:
        """A table's rows among the words."""
        self.words.line()
        first = len(self.words)
        for i, row in enumerate(task.rows):
            self.words.relocations += [first + ROW_WORDS * i + at for at in ADDRESSES.get(row[0], ())]
            self.words.add(*row)
        numbers = self._owners
        owners = (-1 if owner is None else numbers.setdefault(owner, len(numbers)) for owner in task.owners)
        return RowTable(first, len(task.rows), tuple(owners))

    def _checks(self) -> Iterator[Task]:
        """Each row of the checks, as a table that runs it alone."""
        for part in self.plan.checks.values():
            for row in part.rows:
                if _puts_together(row):
                    continue                                    # what was put together still lies there
                assert isinstance(row, Row)
                task = Table().main
                self._add(task, self._group([row], part.arena), stage="check")
                yield task

    def _word(self, index: int) -> Word:
        return _Distant(self.words.at(index))

    def _group(self, rows: Sequence[Item], part: str = "", ahead: int = 0) -> _RowGroup:
        """Rows with addresses; equal updates of neighbours are one, wherever their arrays lie."""
        resolve, settled = self.segments.resolve(ahead), self.segments.settled(part)
        rows = [self._handing_over(row) if _puts_together(row) else row for row in rows]
        items = bind_items(rows, resolve, settled, list if part in self._often else gather)
        return _RowGroup(items, self.words, self.segments.kernel)

    def _point(self, task: Task) -> None:
        """A call begins: patches of what lies in the caller's arrays begin where these do."""
        bases: dict[str, list[tuple[int, int]]] = {}
        for group in self._groups.values():
            for name, at, offset in group.bases:
                bases.setdefault(name, []).append((at, offset))
        for name, patches in bases.items():
            self._set(task, patches, self._word(self.names[name]), 1)

    def _set(self, task: Task, values: Sequence[tuple[int, int]], counter: Word, stride: int) -> None:
        """Words at addresses become numbers, each with `stride` times a counter added."""
        first = len(self.words)
        for at, value in values:
            self.words.address(at)
            self.words.add(value, stride, 1 << 62)
        task.patch_at(self.words.at(first), len(values), counter)

    def _follow(self, task: Task, patches: _Patches, counter: Word, ahead: int) -> None:
        task.patch_at(self.words.at(patches.first), patches.count, counter, ahead)

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
            self._add(main, self._group_of(step.part, step.ahead), step)
        elif isinstance(step, Fold):
            self._fold(main, step)
        elif isinstance(step, Begin):
            self._begin(step)
        elif isinstance(step, Commit):
            self._alone(update_steps.commit(self.plan, step.ipu))
        elif isinstance(step, Repeat):
            self._repeat(step)
        elif isinstance(step, Atomic):
            self._atomic(step)
        elif isinstance(step, Refresh):
            self._refresh(step)
        elif isinstance(step, Exchange):
            self._exchange(step)
        elif isinstance(step, Join):
            self._join()
        else:
            raise AssertionError(f"{step} is nothing that a machine with one memory does")

    def _begin(self, step: Begin) -> None:
        """Sums that all processes have are cleared when all have done with the update before."""
        if self.plan.common_sums:
            assert self._exchanging is not None, "somebody who exchanges"
            self._alone([HostRow(HostCall(self._exchanging.release, []), [], [])])
        self._alone(update_steps.begin(self.plan, step.ipu))

    def _fold(self, task: Task, fold: Fold) -> None:
        self._alone(update_steps.loss_checks(self.plan, fold.part), fold, task=task)
        self._add(task, self._group_of(fold.part, fold.ahead), fold)

    def _exchange(self, step: Exchange) -> None:
        """The contributions of all replicas, each in the slot of its number."""
        assert self._exchanging is not None, "somebody who exchanges"
        replicas, found = self.plan.program.batching.replicas, {} if step.done else self.plan.contributed(step.part)
        types = [TensorType("uint8", (replicas * nbytes,)) for nbytes in found.values()]
        arrays = [ArrayOperand(place, t.shape, 1) for place, t in zip(found, types, strict=True)]
        cuts = [self.plan.slices.contributions.get(place.region[1]) for place in found]
        call = HostCall(self._exchanging.release if step.done else functools.partial(self._exchanging.gather, cuts), [])
        self._alone([HostRow(call, arrays, types)])

    def _join(self) -> None:
        """The sums of all processes' slices."""
        assert self._exchanging is not None, "somebody who exchanges"
        sums = self.plan.slices.sums
        if sums:
            types = [TensorType("uint8", (cuts[-1].stop,)) for cuts in sums.values()]
            arrays = [ArrayOperand(Place(("state", name)), t.shape, 1) for name, t in zip(sums, types, strict=True)]
            self._alone([HostRow(HostCall(functools.partial(self._exchanging.join, [*sums.values()]), []), arrays,
                                 types)])

    def _handing_over(self, row: HostRow, last: bool = False) -> HostRow:
        """What puts slices of processes together."""
        what, exchanging = row.call.function, self._exchanging
        assert isinstance(what, PutTogether)
        assert exchanging is not None, "somebody who exchanges"
        return replace(row, call=HostCall(functools.partial(exchanging.hand_over, what.cuts, what.written, last), []))

    def _settle(self) -> None:
        """Before an update of which each process does its slices."""
        if self.plan.shards.states:
            assert self._exchanging is not None, "somebody who exchanges"
            self._alone([HostRow(HostCall(self._exchanging.settle, []), [], [])])

    def _hand_over(self) -> None:
        """The weights after such an update, in all processes."""
        if self.plan.shards.states:
            self._alone([self._handing_over(self.plan.shards.together(), last=True)])

    def _alone(self, rows: Sequence[Item], step: Run | Fold | None = None, stage: Stage = "step", part: str = "",
               task: Task | None = None) -> None:
        """Rows of the host's own, beside those of a step."""
        self._add(task or self.table.main, self._group(rows, part, 0 if step is None else step.ahead), step, stage,
                  part)

    def _add(self, task: Task, group: _RowGroup, step: Run | Fold | None = None, stage: Stage = "step",
             part: str | None = None, parallel: bool = True) -> None:
        """Rows of a group, each over all workers where that pays."""
        ahead, part = 0 if step is None else step.ahead, part if part is not None or step is None else step.part
        for counter in COUNTERS:
            for _, patches in group.of(counter):
                self._follow(task, patches, self.counters[counter], ahead if counter == self._counter else 0)
        self._items(task, group, group.items, Owner(stage, part or "", ahead), parallel)

    def _items(self, task: Task, group: _RowGroup, items: Sequence[BoundItem], owner: Owner, parallel: bool) -> None:
        """Rows, and what stands around them."""
        for item in items:
            if isinstance(item, BoundRow):
                self._leaf(task, item, group.block[id(item)], self._owner(owner, item.row.node), parallel)
            elif isinstance(item, BoundHost):
                self._host(task, item, group.block[id(item)], self._owner(owner, item.item.node))
            elif isinstance(item, BoundChoice):
                word = self._at(item.item.word, owner.ahead)
                for value, branch in zip((1, 0), item.branches, strict=True):
                    with task.when(word, value):
                        self._items(task, group, branch, owner, parallel)
            else:
                self._cycle(task, group, item, owner, parallel)

    def _cycle(self, task: Task, group: _RowGroup, cycle: BoundCycle, owner: Owner, parallel: bool) -> None:
        """A loop: its words are set, then every turn its rows' addresses follow the counts."""
        loop = cycle.item
        words = {count: self._at(count.word, owner.ahead) for count, _ in loop.counts}
        start = [(self.segments.word(place, owner.ahead), n) for place, n in loop.start]
        self._set(task, start, self.counters["update"], 0)
        self._items(task, group, cycle.before, owner, parallel)
        with task.repeat(self._at(loop.limit, owner.ahead), self._at(loop.counter, owner.ahead)):
            for count, word in words.items():
                for ahead, patches in group.of(count):
                    self._follow(task, patches, word, ahead)
            self._items(task, group, cycle.body, owner, parallel)
            for count, by in loop.counts:
                task.advance(words[count], by)
        done, _ = loop.counts[0]
        for ahead, patches in group.of(done):
            self._follow(task, patches, words[done], ahead)
        self._items(task, group, cycle.after, owner, parallel)

    def _host(self, task: Task, bound: BoundHost, block: int, owner: Owner) -> None:
        """What Python does, with the arrays whose addresses begin at a block."""
        first = (block - self.words.at(0)) // 8
        task.host_at(len(self.hosts), owner)
        self.hosts.append(HostedRow(bound.item.call, tuple(range(first, first + len(bound.places))),
                                    tuple(bound.item.types), owner))

    def _at(self, place: Place, ahead: int) -> Word:
        """A word of an arena."""
        return _Distant(self.segments.word(place, ahead))

    def _leaf(self, task: Task, bound: BoundRow, block: int, owner: Owner, parallel: bool) -> None:
        """A row over its range, over all workers where that pays."""
        row = bound.row
        cost = row.cost * bound.n / max(1, row.n)
        task.leaf(self.segments.kernel(row.leaf), block, bound.n, max(1, row.grain), cost=cost, owner=owner,
                  parallel=parallel and self.plan.workers > 1)

    def _owner(self, owner: Owner, node: Node | None) -> Owner:
        """The same with what is said of a node."""
        if node is None:
            return owner
        judged = None
        if isinstance(node.op, Judge):
            of, output, made = node.op.node, node.op.output, node.operands[0]
            direction = "the backward pass of " if of.origin.role == "backward" else ""
            judged = Judged(f"{direction}{of.origin}", f"{of.op.name} in its output {output.shown} ({output.type})",
                            self._span(self.plan.parts[owner.part].places[made], owner.ahead, made.type.nbytes))
        return replace(owner, operator=node.op.name, origin=str(node.origin), judged=judged)

    def _span(self, place: Place, ahead: int, nbytes: int) -> Span:
        """What lies at a place for a run."""
        at = self.segments.resolve(ahead)(place)
        return Span(at.offset, nbytes, at.stride, at.ring) if isinstance(at, Moving) else Span(at, nbytes)

    def _group_of(self, part: str, ahead: int = 0) -> _RowGroup:
        """The rows of a part in a run of the schedule."""
        return self._groups[part, self.plan.bound_once(part, ahead)]

    def _wave(self, wave: Wave, folds: Sequence[Fold] = ()) -> None:
        """Side by side what may be, the longest first; shorter waves are the first tasks of longer ones. Rows of a part
        with one arena may be shared
        out among workers that have no task left: there is scratch for each. What one worker does is no task: at the end
        of a slice every task of a wave may have begun, and stages in one memory must not."""
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
                self._add(task, self._group_of(step.part, step.ahead), step,
                          parallel=self.plan.in_flight[step.part] == 1)
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
        """The rows added within, for every turn; a call may skip the first updates, and end before the last."""
        updates = repeat.counts == "update"
        if repeat.times == 1 and not updates:
            yield
            return
        counter = DONE if updates else self.words.add(0)
        self.loops.append(counter)
        with self.table.main.repeat(self._word(LAST) if updates else repeat.times, self._word(counter)):
            yield

    def _atomic(self, atomic: Atomic, counted: Callable[[], None] | None = None) -> None:
        """What must not be written is refused first. `counted` is done with the steps: what is done counts as done."""
        parts = [s.part for s in atomic.steps if isinstance(s, Run)]
        self._alone(update_steps.gradient_checks(self.plan, parts), stage="gradients")
        for part in parts:
            if part in self.plan.checks:
                self._alone(self.plan.checks[part].rows, stage="check", part=f"{part}.check")
        self._settle()
        with self.table.main.hold():
            for step in atomic.steps:
                if isinstance(step, Run):
                    self._add(self.table.main, self._group_of(step.part, step.ahead), step, "update")
                else:
                    self._step(step)
            if counted is not None:
                counted()
            self._hand_over()

    def _refresh(self, refresh: Refresh) -> None:
        """Once they have run the steps are not due any more."""
        due = self._word(DUE)
        with self.table.main.when(due):
            self._steps(refresh.steps)
            self.table.main.advance(due, -1)


def _puts_together(row: Item) -> TypeGuard[HostRow]:
    return isinstance(row, HostRow) and isinstance(row.call.function, PutTogether)


def _tensor(value: Value) -> Tensor:
    return Tensor(value.name, value.type.dtype, value.type.shape)
