"""The rows that the driver interprets, and the builder of tables of them.

A job is a main task and those that it spawns. A task is a table of rows, eight int64 words each, interpreted by whoever is its walker (see
`claim`); only one thread at a time is. Words of memory that rows count in or look at are int64 at fixed addresses, so that leaves, Python and
other tasks may read and write them between their rows.

    LEAF      function, block, n, chunk, look         leaf(block, lo, hi, worker) over 0..n, in chunks that workers claim where chunk < n
    REPEAT    counter, n, word, exit                  counter < n (or < the word, where there is one): to the next row; else counter = 0, to exit
    AGAIN     counter, n, word, start                 counter += 1; then as REPEAT, with the body's start for the next row and the next for exit
    BRANCH    word, value, target                     the word is not the value: to target
    PATCH     patches, count, counter, offset         each patch: word at address = base + ((counter + offset) % ring) * stride
    SPAWN     first task, count                       those tasks begin, side by side with what follows here
    WAIT                                              until all tasks spawned here have ended; fails if one of them failed
    HOST      number                                  Python's function of that number is called by whoever runs the job; then on
    HOLD      1 or 0                                  from here on the deadline does not stop this task; it may again
    ADVANCE   word, n                                 word += n

An outer PATCH may write a base of an inner one's, a word that REPEAT or BRANCH looks at, or an argument of a leaf: all are words.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .boards import FAILED, NOBODY, PC, ROW_WORDS, STATUS, TASK_WORDS

LEAF, REPEAT, AGAIN, BRANCH, PATCH, SPAWN, WAIT, HOST, HOLD, ADVANCE = range(10)
PATCH_WORDS = 4
"""address, base, stride, ring"""
ADDRESSES = {LEAF: (1, 2), REPEAT: (1, 3), AGAIN: (1, 3), BRANCH: (1,), PATCH: (1, 3), ADVANCE: (1,)}
"""By kind, which words of a row are addresses (0: there is none)."""
FORK_NS = 8_000.0
"""Nanoseconds of one core's work from which a range is shared out: claims cost less than that by far, waking a sleeper
about as much. A MobileNet of small images by two workers takes 0.94, one with excitations 0.91 of the time that it takes
with 20 us and chunks of 15."""
CHUNK_NS = 15_000.0
"""Nanoseconds of one core's work that a chunk has, about: short beside what is lost when a thread is not run in the middle of one, long beside a
claim (50 ns when cores share the word)."""
SHORT_NS, FEW = 4_000.0, 8
"""Likewise of the chunks of a short range, which are so many at most: fewer would not be even, more would be claimed all
at once."""
MOST_CHUNKS = 1 << 20
LOOK_NS = 5_000.0
"""From this cost on the clock is looked at after a serial row; after several shorter ones otherwise."""

def chunk(n: int, grain: int, cost: float) -> int:
    """How many units of a range of n a worker claims at once: whole grains, about equal parts of its `cost` (ns)."""
    grains = -(-n // grain)
    parts = max(2, min(max(round(cost / CHUNK_NS), min(round(cost / SHORT_NS), FEW)), grains, MOST_CHUNKS))
    return -(-grains // parts) * grain


class Word:
    """An int64 in memory that rows count in or look at: a new one, or the first of an array."""

    def __init__(self, value: int | np.ndarray = 0) -> None:
        self._memory = value if isinstance(value, np.ndarray) else np.array([value], np.int64)
        assert self._memory.dtype == np.int64
        self.address = int(self._memory.ctypes.data)

    @property
    def value(self) -> int:
        return int(self._memory[0])

    @value.setter
    def value(self, value: int) -> None:
        self._memory[0] = value


@dataclass(frozen=True)
class Failure:
    """The row of a job that failed: a leaf's status, the task (0: the main one) and row, and whose row that is."""

    status: int
    task: int
    row: int
    owner: Any


@dataclass
class Task:
    """One table under construction. Every method that adds rows takes an `owner`: whatever a failure shall tell of them."""

    table: Table
    index: int
    rows: list[list[int]] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)
    _spawned: bool = False

    def _add(self, owner: Any, *words: int) -> int:
        self.rows.append([*words, *[0] * (ROW_WORDS - len(words))])
        self.owners.append(owner)
        return len(self.rows) - 1

    def leaf(self, function: int, block: int, n: int, grain: int = 1, *, cost: float = 0.0, parallel: bool = False, owner: Any = None) -> int:
        """leaf(block, lo, hi, worker) over 0..n; `parallel`: shared out among the workers at multiples of `grain` where it costs enough. Alone it
        runs as worker 0.

        cost: estimated nanoseconds of the whole range on one core. Returns the row, whose block `move` may set later.
        """
        split = parallel and n > grain and cost >= FORK_NS
        return self._add(owner, LEAF, function, block, n, chunk(n, grain, cost) if split else max(1, n), int(cost >= LOOK_NS))

    def move(self, row: int, address: int) -> None:
        """Set where the argument block of a leaf, or the patches of a patch, lie."""
        self.rows[row][1 if self.rows[row][0] == PATCH else 2] = address

    @contextlib.contextmanager
    def repeat(self, n: int | Word, counter: Word | None = None, owner: Any = None) -> Iterator[Word]:
        """The rows added within, n times; gives the counter, which counts up from 0 and is 0 again at the end.

        A counter that begins at k skips the first k. A Word for `n` is looked at before every turn.
        """
        counter = counter or Word()
        self.table.keep((counter, n))
        words = (counter.address, 0, n.address) if isinstance(n, Word) else (counter.address, n, 0)
        start = self._add(owner, REPEAT, *words)
        yield counter
        again = self._add(owner, AGAIN, *words, start + 1)
        self.rows[start][4] = again + 1

    @contextlib.contextmanager
    def when(self, word: Word, value: int = 1, owner: Any = None) -> Iterator[None]:
        """The rows added within, if the word is `value` then."""
        self.table.keep(word)
        row = self._add(owner, BRANCH, word.address, value)
        yield
        self.rows[row][3] = len(self.rows)

    def patch(self, patches: np.ndarray, counter: Word, offset: int = 0, owner: Any = None) -> int:
        """Write words that depend on a counter. patches [count, PATCH_WORDS]: address, base, stride, ring each."""
        assert patches.dtype == np.int64, patches.dtype
        assert patches.flags.c_contiguous, patches.strides
        assert patches.shape[1:] == (PATCH_WORDS,), patches.shape
        self.table.keep(patches)
        return self.patch_at(int(patches.ctypes.data), len(patches), counter, offset, owner)

    def patch_at(self, address: int, count: int, counter: Word, offset: int = 0, owner: Any = None) -> int:
        """`patch` with so many patches at an address, which somebody keeps."""
        self.table.keep(counter)
        return self._add(owner, PATCH, address, count, counter.address, offset)

    def spawn(self, tasks: Sequence[Task], owner: Any = None) -> None:
        """Begin tasks, which run side by side with each other and with what follows here; their indices must follow each other."""
        assert [t.index for t in tasks] == list(range(tasks[0].index, tasks[0].index + len(tasks)))
        self._spawned = True
        self._add(owner, SPAWN, tasks[0].index, len(tasks))

    def wait(self, owner: Any = None) -> None:
        """Go on when all that was spawned here has ended. Fails if a task failed, with the failure of the first of them in order."""
        self._spawned = False
        self._add(owner, WAIT)

    def host(self, function: Callable[[], None], owner: Any = None) -> None:
        """Have Python's function called, by the thread that runs the job, between two slices. What it raises ends the job."""
        self.host_at(len(self.table.hosts), owner)
        self.table.hosts.append(function)

    def host_at(self, number: int, owner: Any = None) -> None:
        """`host` with the function that is to have this number among the table's."""
        self._add(owner, HOST, number)

    @contextlib.contextmanager
    def hold(self, owner: Any = None) -> Iterator[None]:
        """The rows added within are not interrupted by the deadline of a slice: all are done, or a row fails."""
        self._add(owner, HOLD, 1)
        yield
        self._add(owner, HOLD, 0)

    def advance(self, word: Word, n: int = 1, owner: Any = None) -> None:
        """word += n."""
        self.table.keep(word)
        self._add(owner, ADVANCE, word.address, n)


class Table:
    """All tasks of a job: `main` and those that it spawns. Sealed once it is complete; then `job.run` runs it, again and again."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.hosts: list[Callable[[], None]] = []
        self._kept: list[Any] = []
        self._arrays: list[np.ndarray] = []
        self.descriptors = np.zeros((0, TASK_WORDS), np.int64)
        self.address = 0
        self.shared = True
        """Whether there is work for more than one worker: rows in chunks, or tasks."""
        self.boards: Any = None
        """Boards of its own, for running on one worker (`pool.Boards`)."""
        self.slice: Any = None
        """What the driver is asked for (`driver.Slice`)."""
        self.main = self.task()

    @classmethod
    def of(cls, tasks: Iterable[tuple[np.ndarray, list[Any]]]) -> Table:
        """A sealed table of tasks whose rows are there: [rows, ROW_WORDS] each, and their owners."""
        table = cls()
        for index, (rows, owners) in enumerate(tasks):
            task = table.main if index == 0 else table.task()
            task.rows, task.owners = rows.tolist(), owners
        table.seal()
        return table

    def task(self) -> Task:
        """A new task."""
        self.tasks.append(Task(self, len(self.tasks)))
        return self.tasks[-1]

    def keep(self, memory: Any) -> None:
        """Have something live as long as the table: its rows have the address."""
        self._kept.append(memory)

    def seal(self) -> None:
        """Fix all rows."""
        assert not any(t._spawned for t in self.tasks), "a task ends without waiting for those it spawned"
        self._arrays = [np.array(t.rows, np.int64).reshape(-1, ROW_WORDS) for t in self.tasks]
        self.descriptors = np.array([(a.ctypes.data, len(a)) for a in self._arrays], np.int64).reshape(-1, TASK_WORDS)
        self.address = int(self.descriptors.ctypes.data)
        self.shared = len(self.tasks) > 1 or any(row[0] == LEAF and row[4] < row[3] for row in self.main.rows)

    def failure(self, boards: np.ndarray) -> Failure:
        """What a job that failed failed of, read from its boards [tasks, words]: of a task's failures its own, then that of the first it spawned."""
        task = 0
        while not boards[task, STATUS // 8] and boards[task, FAILED // 8] != NOBODY:
            task = int(boards[task, FAILED // 8])
        row = int(boards[task, PC // 8])
        return Failure(int(boards[task, STATUS // 8]), task, row, self.tasks[task].owners[row])
