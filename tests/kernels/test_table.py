"""The driver's row kinds and the pool that runs them: the same bits and the same failures with any number of workers, in slices of any length."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from places import PATH, ROOT

from tileflow.kernels.machine import boards, table
from tileflow.kernels.machine.atomics import now, pause
from tileflow.kernels.machine.job import run
from tileflow.kernels.machine.leaf import Leaf, leaf
from tileflow.kernels.machine.pool import Pool
from tileflow.kernels.machine.table import Failure, Table, Task, Word

WORKERS = (1, 2, 3, 5, 9)
TINY = 50_000
"""Nanoseconds of a slice that ends after a few rows."""


@leaf("f4[:], f4[r], lo")
def mix(x, y, lo):                              # type: ignore[no-untyped-def]
    """y[i] depends on three of x: a chunk that ran too early shows."""
    n = x.shape[0]
    for k in range(y.shape[0]):
        i = lo + k
        y[k] = x[i] * np.float32(0.7) + x[(i * 7 + 1) % n] * np.float32(0.2) + x[n - 1 - i] * np.float32(0.1001)


@leaf("i8[:], i8, i8, lo", checked=True)
def append(log, value, status, lo):             # type: ignore[no-untyped-def]
    """log[0] counts what follows it."""
    log[0] += 1
    log[log[0]] = value
    return status


@leaf("i8[:], i8")
def decide(said, i):                            # type: ignore[no-untyped-def]
    """How often (i % 4) and whether i is odd."""
    said[0], said[1] = i % 4, i % 2


@leaf("i8[r], i8, lo, hi", checked=True)
def failing(x, seventh, lo, hi):                # type: ignore[no-untyped-def]
    worst = 0
    for i in range(lo, hi):
        if i % 7 == seventh:
            worst = max(worst, i)
    return worst


@leaf("i8[w,:], i8[r], worker")
def whose(scratch, y, worker):                  # type: ignore[no-untyped-def]
    scratch[0] += y.shape[0]
    for i in range(y.shape[0]):
        y[i] = worker


@leaf("i8, i8[r], worker")
def linger(nanoseconds, y, worker):             # type: ignore[no-untyped-def]
    for i in range(y.shape[0]):
        y[i] = worker
        begin = now()
        while now() < begin + nanoseconds:
            pause()


class Rows:
    """Adds leaves with their blocks to a table, which they live as long as."""

    def __init__(self) -> None:
        self.table = Table()

    def add(self, task: Task, kernel: Leaf, *arguments: object, n: int = 1, grain: int = 1, parallel: bool = False,
            owner: object = None) -> np.ndarray:
        block = kernel.block(*arguments)
        self.table.keep((block, arguments))
        task.leaf(kernel.address, int(block.ctypes.data), n, grain, cost=1e9 if parallel else 0.0, parallel=parallel, owner=owner)
        return block


class Log:
    """What ran, in order."""

    def __init__(self, rows: Rows, length: int = 1000) -> None:
        self._rows, self._memory = rows, np.zeros(length, np.int64)

    def row(self, task: Task, value: int, status: int = 0, owner: object = None) -> np.ndarray:
        """A row that appends a value; returns its block: log's address and length, value, status."""
        return self._rows.add(task, append, self._memory, value, status, owner=owner)

    def take(self) -> list[int]:
        found = self._memory[1:1 + self._memory[0]].tolist()
        self._memory[0] = 0
        return found


@pytest.fixture(params=WORKERS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    yield from pool_of(request.param)


@pytest.fixture
def three() -> Iterator[Pool]:
    yield from pool_of(3)


def pool_of(workers: int, futex: bool = True) -> Iterator[Pool]:
    made = Pool(processors=lambda: workers, futex=futex and boards.FUTEX_CALL != 0)
    made._share.watched = False                                   # helpers shall come whatever else runs on this machine
    yield made
    made.close()


def many(rows: Rows, slice_ns: int = 20_000_000, pool: Pool | None = None) -> Failure | bool:
    rows.table.seal()
    return run(rows.table, 9, slice_ns=slice_ns, pool=pool)


# ---- bits

def mixed(rows: Rows, task: Task, seed: int, count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that each read what the row before wrote."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)
    for i in range(count):
        x, y = (a, b) if i % 2 == 0 else (b, a)
        rows.add(task, mix, x, y, n=n, grain=int(rng.choice([7, 64, 500, n - 1, 2 * n])), parallel=bool(rng.random() < 0.85))
    return a, b


def result(pool: Pool, children: int, slice_ns: int) -> bytes:
    """What a job leaves: a main task and others side by side with its middle."""
    rows = Rows()
    main, arrays = rows.table.main, []
    arrays += mixed(rows, main, 1, 80, 1500)
    tasks = [rows.table.task() for _ in range(children)]
    for i, t in enumerate(tasks):
        arrays += mixed(rows, t, 10 + i, 60, 900)
    if children:
        main.spawn(tasks)
    arrays += mixed(rows, main, 2, 60, 1500)
    if children:
        main.wait()
    arrays += mixed(rows, main, 3, 40, 700)
    assert many(rows, slice_ns, pool) is True
    return b"".join(a.tobytes() for a in arrays)


@pytest.mark.parametrize("children", [0, 3])
def test_bits_do_not_depend_on_workers_or_slices(children: int):
    wanted = None
    for workers in WORKERS:
        for made in pool_of(workers):
            for slice_ns in (20_000_000, TINY, 0):
                got = result(made, children, slice_ns)
                wanted = wanted or got
                assert got == wanted, (workers, slice_ns)


@pytest.mark.parametrize("futex", [True, False])
def test_slices_with_spawned_tasks_again_and_again(futex: bool):
    """What hangs once in a hundred times: under a time limit, in a process of its own."""
    script = (f"import test_table as t\nfor pool in t.pool_of(9, {futex}):\n    wanted = t.result(pool, 3, 20_000_000)\n"
              "    for _ in range(25):\n        assert t.result(pool, 3, t.TINY) == wanted\nprint('ok')")
    assert in_process(script) == "ok"


def in_process(script: str, timeout: float = 120) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ, "PYTHONPATH": PATH})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- kinds

def test_chunks_are_whole_grains_of_about_equal_cost():
    for n, grain, cost in ((100, 7, 1e6), (5, 1, 1e9), (1000, 64, 0.0), (1 << 40, 1, 1e15), (3, 2, 30_000.0)):
        size = table.chunk(n, grain, cost)
        assert size % grain == 0
        assert 1 <= size < n
        assert -(-n // size) <= min(-(-n // grain), 1 << 20)
    assert table.chunk(6400, 64, 10 * table.CHUNK_NS) == 640


def test_loops_count_up_and_begin_anew(pool: Pool):
    rows = Rows()
    log, task, times = Log(rows), rows.table.main, Word(2)
    with task.repeat(3) as outer:
        log.row(task, 100)
        with task.repeat(times):
            log.row(task, 1)
        with task.repeat(0):
            log.row(task, 7)
        with task.repeat(2):
            log.row(task, 2)
    log.row(task, 9)
    for slice_ns in (20_000_000, 0):
        assert many(rows, slice_ns, pool) is True
        assert log.take() == [100, 1, 1, 2, 2] * 3 + [9]
        assert outer.value == 0
    outer.value, times.value = 2, 0                               # the first two turns were done before; an inner loop of none
    assert many(rows, 0, pool) is True
    assert log.take() == [100, 2, 2, 9]


def test_a_leaf_says_how_often_and_whether(pool: Pool):
    """n of a loop and the word of a branch are written by a row of the same table, from what a counter patched into its block."""
    rows = Rows()
    log, task = Log(rows), rows.table.main
    said = np.zeros(2, np.int64)
    odd = Word(said[1:])
    with task.repeat(5) as i:
        patches = np.zeros((1, 4), np.int64)
        task.patch(patches, i)
        block = rows.add(task, decide, said, 0)
        patches[0] = int(block.ctypes.data) + 16, 0, 1, 1 << 60
        with task.repeat(Word(said[:1])):
            with task.when(odd, 0):
                log.row(task, 1)
            with task.when(odd):
                log.row(task, 2)
        log.row(task, 0)
    for slice_ns in (20_000_000, 0):
        assert many(rows, slice_ns, pool) is True
        assert log.take() == [0, 2, 0, 1, 1, 0, 2, 2, 2, 0, 0]


def test_patches_have_an_offset_and_may_be_patched(pool: Pool):
    """The outer patch writes the inner one's base: values base + (inner counter + offset) % ring * stride."""
    rows = Rows()
    log, task = Log(rows), rows.table.main
    inner, outer = np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64)
    with task.repeat(2) as j:
        task.patch(outer, j)
        with task.repeat(4) as i:
            task.patch(inner, i, offset=1)
            block = log.row(task, 0)
    inner[0] = int(block.ctypes.data) + 16, 0, 10, 3
    outer[0] = int(inner.ctypes.data) + 8, 1000, 500, 2
    assert many(rows, 0, pool) is True
    assert log.take() == [1010, 1020, 1000, 1010, 1510, 1520, 1500, 1510]


def test_tasks_in_tasks_each_with_its_counter(pool: Pool):
    rows = Rows()
    main = rows.table.main
    logs = [Log(rows) for _ in range(5)]
    outer = [rows.table.task() for _ in range(2)]
    inner = [rows.table.task() for _ in range(2)]
    with main.repeat(3) as turn:
        main.spawn(outer)
        logs[0].row(main, 1)
        main.wait()
    for i, t in enumerate(inner):
        with t.repeat(2 + i):
            logs[3 + i].row(t, i)
    with outer[0].repeat(2):
        outer[0].spawn(inner[:1])
        outer[0].spawn(inner[1:])                                 # one wait for both
        logs[1].row(outer[0], 8)
        outer[0].wait()
        logs[1].row(outer[0], 9)
    logs[2].row(outer[1], 7)
    for slice_ns in (20_000_000, TINY, 0):
        assert many(rows, slice_ns, pool) is True
        assert [log.take() for log in logs] == [[1] * 3, [8, 9] * 6, [7] * 3, [0] * 12, [1] * 18]
        assert turn.value == 0


def test_python_is_called_between_rows(pool: Pool):
    rows = Rows()
    log, task, lane = Log(rows), rows.table.main, rows.table.task()
    called: list[int] = []
    own = Log(rows)
    with lane.repeat(3):
        own.row(lane, 4)
    with task.repeat(2) as i:
        task.spawn([lane])
        log.row(task, 1)
        task.host(lambda: called.append(i.value))
        log.row(task, 2)
        task.wait()
    assert many(rows, pool=pool) is True
    assert (called, log.take(), own.take()) == ([0, 1], [1, 2, 1, 2], [4] * 6)

    def refuse() -> None:
        raise ValueError("no")
    task.host(refuse)
    log.row(task, 3)
    with pytest.raises(ValueError, match="no"):
        many(rows, pool=pool)
    assert log.take() == [1, 2, 1, 2]


def test_a_hold_is_not_interrupted(pool: Pool):
    """Between two slices the words of an update are all written or none, and its counter with them."""
    rows = Rows()
    task, log = rows.table.main, Log(rows)
    first, last, done = Word(), Word(), Word()
    seen = []
    with task.repeat(20):
        log.row(task, 0)
        with task.hold():
            task.advance(first)
            for _ in range(20):
                log.row(task, 1)
            with task.repeat(3):
                log.row(task, 2)
            task.advance(last)
            task.advance(done)
    rows.table.seal()

    def look() -> bool:
        seen.append((first.value, last.value, done.value))
        return False
    assert run(rows.table, 9, slice_ns=0, stop=look, pool=pool) is True
    assert (first.value, last.value, done.value) == (20, 20, 20)
    assert len(seen) >= 20
    assert all(a == b == c for a, b, c in seen)


def test_a_job_is_given_up_between_rows_and_begins_anew():
    rows = Rows()
    log = Log(rows)
    with rows.table.main.repeat(50) as i:
        log.row(rows.table.main, 1)
    rows.table.seal()
    left = iter([False, False, True])
    assert run(rows.table, slice_ns=0, stop=lambda: next(left)) is False
    assert 0 < len(log.take()) < 50
    i.value = 0
    asked: list[bool] = []
    assert run(rows.table, stop=lambda: asked.append(True) or True) is True         # at the end there is nothing to give up
    assert (len(log.take()), asked) == (50, [True])


# ---- failures

def test_the_same_failure_whoever_computes_it(pool: Pool):
    """The largest status of the chunks of a row, its owner; rows after it do not run."""
    for seventh in (0, 3, 6):
        rows = Rows()
        log, x = Log(rows), np.zeros(1000, np.int64)
        log.row(rows.table.main, 1)
        rows.add(rows.table.main, failing, x, seventh, n=1000, grain=10, parallel=True, owner="the seventh")
        log.row(rows.table.main, 2)
        for slice_ns in (20_000_000, 0):
            assert many(rows, slice_ns, pool) == Failure(max(i for i in range(1000) if i % 7 == seventh), 0, 1, "the seventh")
            assert log.take() == [1]


@pytest.mark.parametrize("slice_ns", [20_000_000, 0])
def test_the_first_of_the_tasks_that_fail_is_told(pool: Pool, slice_ns: int):
    """Whichever fails first in time: the others go on to their ends, and what follows WAIT does not run."""
    rows = Rows()
    main, log = rows.table.main, Log(rows)
    tasks = [rows.table.task() for _ in range(4)]
    inside = rows.table.task()
    kept = Log(rows)
    blocks = []
    for i, t in enumerate(tasks):
        own = Log(rows)
        with t.repeat(1 + 5 * (3 - i)):                           # the last is the fastest
            own.row(t, 1)
        blocks.append(own.row(t, 2, owner=f"task {i}"))
        if i == 2:
            t.spawn([inside])
            t.wait()
    for _ in range(10):
        kept.row(inside, 3)
    blocks.append(kept.row(inside, 4, owner="inside"))
    log.row(main, 1)
    main.spawn(tasks)
    main.wait()
    log.row(main, 2)
    rows.table.seal()
    for fails, told in (((3,), (3, "task 3")), ((1, 3), (1, "task 1")), ((0, 1, 2, 3), (0, "task 0")), ((4,), (5, "inside")), ((3, 4), (5, "inside")),
                        ((), None)):
        for i, block in enumerate(blocks):
            block[3] = 11 + i if i in fails else 0
        found = run(rows.table, 9, slice_ns=slice_ns, pool=pool)
        assert kept.take() == ([3] * 10 + [4] if 2 not in fails else [])
        if told is None:
            assert found is True
        else:
            assert isinstance(found, Failure)
            assert (found.task - 1, found.owner) == (told[0] if told[0] < 4 else 4, told[1])
            assert found.status == 11 + found.task - 1
        assert log.take() == ([1, 2] if told is None else [1])


def test_a_task_that_fails_waits_for_those_it_spawned(pool: Pool):
    """Memory of a job that failed is nobody's any more."""
    rows = Rows()
    main, child, log = rows.table.main, rows.table.task(), Log(rows)
    y = np.zeros(40, np.int64)
    rows.add(child, linger, 50_000, y, n=40)
    log.row(child, 5)
    main.spawn([child])
    own = Log(rows)
    own.row(main, 1, status=3, owner="bad")
    main.wait()
    for _ in range(3):
        assert many(rows, 0, pool) == Failure(3, 0, 1, "bad")
        assert (log.take(), own.take()) == ([5], [1])


# ---- workers

def test_a_job_with_fewer_workers_after_one_with_more():
    """Scratch has a row for each worker: a helper beyond them never gets in, not even one that is late."""
    for made in pool_of(5):
        for workers in (5, 2, 3, 1, 2) * 20:
            rows = Rows()
            y, scratch = np.full(64, -1), np.zeros((workers, 1), np.int64)
            for _ in range(4):
                rows.add(rows.table.main, whose, scratch, y, n=64, parallel=True)
            rows.table.seal()
            assert run(rows.table, workers, pool=made) is True
            assert y.min() >= 0
            assert y.max() < workers
            assert scratch.sum() == 4 * 64


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_halves_of_the_workers_claim_from_both_ends(workers: int):
    """So that in the next row a worker finds what it computed in this one in its core's own cache."""
    for made in pool_of(workers):
        rows, found = Rows(), [np.zeros(40, np.int64) for _ in range(8)]
        for y in found:
            rows.add(rows.table.main, linger, 50_000, y, n=40, parallel=True)
        rows.table.seal()
        assert run(rows.table, workers, pool=made) is True
        later = np.array([2 * y >= workers for y in found])
        assert (later[:, 1:] >= later[:, :-1]).all(), found
        assert later.any()
        assert not later.all()


def test_workers_follow_the_processors(monkeypatch: pytest.MonkeyPatch):
    """Affinity and quotas change while a process runs; what is computed does not."""
    monkeypatch.setattr("tileflow.kernels.machine.share.ASK", 0.0)
    monkeypatch.setattr("tileflow.kernels.machine.share.LOOK", 1e9)
    allowed = 4
    made = Pool(processors=lambda: allowed)
    made.start(4)
    for allowed, workers in ((4, 4), (1, 4), (2, 3), (8, 4)):
        assert made.allowed(workers) == min(allowed, workers)
        rows = Rows()
        y, scratch = np.zeros(64, np.int64), np.zeros((4, 1), np.int64)
        rows.add(rows.table.main, whose, scratch, y, n=64, parallel=True)
        rows.table.seal()
        assert run(rows.table, workers, pool=made) is True
        assert y.max() < min(allowed, workers)
    made.close()
    assert made.allowed(4) == 1


def test_several_callers_share_the_helpers(three: Pool):
    wanted = [result(three, k, 20_000_000) for k in (0, 1, 3)]
    failed: list[BaseException] = []

    def caller(i: int) -> None:
        try:
            for _ in range(3):
                assert result(three, (0, 1, 3)[i % 3], TINY) == wanted[i % 3]
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=caller, args=(i,), daemon=True) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a caller hangs"
    assert not failed


def test_without_a_free_board_the_caller_works_alone(three: Pool, monkeypatch: pytest.MonkeyPatch):
    wanted = result(three, 3, 20_000_000)
    monkeypatch.setattr("tileflow.kernels.machine.pool.MOST_BOARDS", 3)
    assert result(three, 3, 20_000_000) == wanted
    monkeypatch.undo()
    assert [three.take(2), three.take(3), three.take(1)] == [0, 2, 5]
    three.give_back(2, 3)
    assert [three.take(2), three.take(2), three.take(1)] == [2, 6, 4]


@pytest.mark.parametrize("futex", [True, False])
def test_helpers_come_after_a_rest(futex: bool):
    """A wake-up that gets lost shows as rows that nobody helps with."""
    for made in pool_of(2, futex):
        rows = Rows()
        y = np.zeros(200, np.int64)
        rows.add(rows.table.main, linger, 200_000, y, n=200, parallel=True)
        rows.table.seal()
        came = 0
        for _ in range(4):
            time.sleep(0.005)
            assert run(rows.table, 2, pool=made) is True
            came += bool((y == 1).any())
        assert came > 0


def test_a_table_with_nothing_to_share_starts_no_helpers():
    """Small models: a call takes as long with several workers as with one."""
    for parallel, units, helpers in ((False, 200, 0), (True, 1, 0), (True, 200, 2)):
        for made in pool_of(3):
            rows = Rows()
            y = np.full(units, -1, np.int64)
            rows.add(rows.table.main, linger, 1000, y, n=units, parallel=parallel)
            rows.table.seal()
            assert run(rows.table, 3, pool=made) is True
            assert y.min() >= 0
            assert len(made.helpers) == helpers


def test_start_and_close_again_and_again():
    for i in range(150):
        made = Pool(processors=lambda: 3, futex=i % 3 != 0 and boards.FUTEX_CALL != 0)
        made.start(3)
        if i % 10 == 0:
            time.sleep(0.001)
        made.close()
        assert not [t for t in made.helpers if t.is_alive()]


def test_ctrl_c_within_a_slice(three: Pool):
    rows = Rows()
    y = np.zeros(40, np.int64)
    with rows.table.main.repeat(1_000_000):
        rows.add(rows.table.main, linger, 20_000, y, n=40, parallel=True)
    rows.table.seal()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            run(rows.table, 3, pool=three)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    result(three, 3, TINY)


FORKING = """
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from tileflow.kernels.machine import pool
from tileflow.kernels.machine.job import run
import numpy as np
from forked import child
import test_table as t
pool.usable = lambda: 3

def computed():
    rows = t.Rows()
    arrays = t.mixed(rows, rows.table.main, 1, 40, 1500)
    rows.table.seal()
    assert run(rows.table, 3) is True
    return b"".join(a.tobytes() for a in arrays), pool.helpers()

wanted = computed()
assert wanted[1] == 2
print(child(lambda: computed() == wanted), child(lambda: child(lambda: computed() == wanted) == 0))     # idle helpers; a child of a child

over, rows = threading.Event(), t.Rows()
with rows.table.main.repeat(10**9):
    rows.add(rows.table.main, t.linger, 20_000, np.zeros(40, np.int64), n=40, parallel=True)
rows.table.seal()
driving = threading.Thread(target=lambda: run(rows.table, 3, stop=over.is_set))
driving.start()
print(*[child(lambda: computed() == wanted) for _ in range(5)])                                          # while another thread drives
over.set()
driving.join()

def within():
    rows, codes, log = t.Rows(), [], []
    arrays = t.mixed(rows, rows.table.main, 1, 20, 1500)

    def fork():
        log.append(os.getpid())
        pid = os.fork()
        if pid:
            codes.append(os.waitpid(pid, 0)[1])
    me = os.getpid()
    rows.table.main.host(fork)
    for i in range(20):
        rows.add(rows.table.main, t.mix, *(arrays if i % 2 == 0 else arrays[::-1]), n=1500, grain=64, parallel=True)
    rows.table.seal()
    assert run(rows.table, 3) is True
    if os.getpid() != me:
        os._exit(0)
    return codes
print(*within(), computed() == wanted)                                                                   # in the middle of a job of its own
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
def test_forked_children_start_helpers_of_their_own():
    assert in_process(FORKING).split() == [*"00", *"00000", "0", "True"]


ENDING = """
import threading, time
import numpy as np
import test_table as t
from tileflow.kernels.machine import pool
from tileflow.kernels.machine.job import run
pool.usable = lambda: 3
rows, y = t.Rows(), np.zeros(40, np.int64)
with rows.table.main.repeat({times}):
    rows.add(rows.table.main, t.linger, 20_000, y, n=40, parallel=True)
rows.table.seal()
threading.Thread(target=run, args=(rows.table, 3), daemon=True).start()
time.sleep({rest})
print("end")
"""


def test_the_process_ends_with_helpers_in_any_state():
    """Busy in another thread's job, asleep, and not yet asleep."""
    for times, rest in ((10**9, 0.1), (1, 0.1), (1, 0.0)):
        assert in_process(ENDING.format(times=times, rest=rest), 60) == "end"


def test_an_empty_table_and_ranges_of_nothing(pool: Pool):
    rows = Rows()
    assert many(rows, pool=pool) is True
    rows.add(rows.table.main, mix, np.zeros(0, np.float32), np.zeros(0, np.float32), n=0, parallel=True)
    assert many(rows, pool=pool) is True

