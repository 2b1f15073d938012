"""How many workers run beside other processes: fewer where threads get too little of the cores, more again once the caller waits for nobody."""
from __future__ import annotations

import itertools
import os
import time

import pytest

from tileflow.kernels.machine import share
from tileflow.kernels.machine.pool import Pool
from tileflow.kernels.machine.share import COUNT, COUNTS, DOUBT, LOOK, LOOKS, PATIENCE, REST, Share

pytestmark = pytest.mark.skipif(not Share.possible(), reason="needs /proc/thread-self/schedstat: Linux makes it run")


class Machine:
    """A clock, and the share of a core that each thread gets: the caller's first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, helpers: int) -> None:
        self.now, made = 100.0, iter([*range(1, helpers + 1), 0])
        self.got: list[float | None] = [1.0] * (helpers + 1)

        class Times:
            def __init__(_self, path: str) -> None:
                _self.index = next(made)

            def got(_self) -> float | None:
                return self.got[_self.index]

            def close(_self) -> None:
                pass
        monkeypatch.setattr(share, "_Times", Times)
        monkeypatch.setattr(share.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(share.os, "cpu_count", lambda: 1 << 20)          # only some of the machine's processors may be used
        self.share = Share(lambda: 64)
        for i in range(helpers):
            self.share.watch(i)

    def allowed(self, looks: int, workers: int = 99) -> int:
        """After so many looks."""
        for _ in range(looks):
            self.now += 2 * LOOK
            found = self.share.allowed(workers)
        return found


def test_one_busy_process_beside_two_threads_is_no_reason(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 1)
    machine.got = [0.66, 0.66]
    assert machine.allowed(50, 2) == 2


def test_two_busy_processes_are(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 1)
    machine.got = [0.5, 0.5]
    assert machine.allowed(LOOKS - 1, 2) == 2        # a woken thread may have waited: not at once
    assert machine.allowed(1, 2) == 1
    machine.got = [0.67, 1.0]                                     # the caller still meets others
    assert machine.allowed(150, 2) == 1
    machine.got = [None, None]                                    # it hardly ran: that says nothing
    assert machine.allowed(150, 2) == 1
    machine.got = [1.0, 1.0]
    assert machine.allowed(LOOKS - 1, 2) == 1
    assert machine.allowed(1, 2) == 2


def test_of_many_workers_as_many_as_they_got_cores(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 7)
    machine.got = [0.5] * 8
    assert machine.allowed(LOOKS, 8) == 4
    machine.got = [1.0] * 8
    assert machine.allowed(250, 8) == 8


def test_trying_too_early_makes_it_wait_longer(monkeypatch: pytest.MonkeyPatch):
    """A machine where the caller is alone on its core, and a helper never would be."""
    machine = Machine(monkeypatch, 1)
    tried, before = [], 2
    for _ in range(int(12 / (2 * LOOK))):
        now = machine.allowed(1, 2)
        if now > before:
            tried.append(machine.now)
        before = now
        machine.got = [0.5, 0.5] if now == 2 else [1.0, 1.0]
    rests = [b - a for a, b in itertools.pairwise(tried)]
    assert rests == sorted(rests)
    assert rests[0] < 5 * PATIENCE[0]
    assert PATIENCE[1] <= rests[-1] < PATIENCE[1] + 1


def test_affinity_and_quotas_are_asked_again(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 3)
    usable = 4
    machine.share._processors = lambda: usable
    assert machine.allowed(10) == 4
    usable = 1
    assert machine.allowed(10) == 1
    usable = 3
    assert (machine.allowed(10), machine.share.allowed(2)) == (3, 2)


def test_what_the_system_says_of_this_thread():
    times = share._Times("/proc/thread-self/schedstat")
    begin = time.thread_time()
    while time.thread_time() - begin < 0.02:
        pass
    assert 0 < times.got() <= 1
    assert times.got() is None                                    # it hardly ran since
    times.close()
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        times.got()
    assert os.path.exists("/proc/thread-self/schedstat")


SLICE = 2 * LOOK
"""Seconds between two calls that are long, or between slices of one."""


class Counted(Machine):
    """A machine that says how many threads want to run, and of which all may be used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processors: int = 2) -> None:
        super().__init__(monkeypatch, 1)
        self.running, self.awake = 2, 2

        class Runnable:
            def count(_self) -> int:
                return self.running

            def close(_self) -> None:
                pass
        monkeypatch.setattr(share, "_Runnable", Runnable)
        monkeypatch.setattr(share.os, "cpu_count", lambda: processors)
        self.share._processors, self.share._awake = lambda: processors, lambda: self.awake

    def counts(self, count: int, seconds: float = 1.1 * COUNT) -> int:
        """The workers allowed after so many counts."""
        for _ in range(count):
            self.now += seconds
            found = self.share.allowed(2)
        return found


def test_two_others_that_want_to_run_are_seen_within_milliseconds(monkeypatch: pytest.MonkeyPatch):
    machine = Counted(monkeypatch)
    assert machine.counts(20) == 2
    machine.running = 4
    assert machine.counts(COUNTS // 2) == 2             # for a moment: that is no reason
    assert machine.counts(1) == 1
    assert machine.counts(100) == 1
    machine.running, machine.awake = 1, 1                 # we are alone again
    assert machine.counts(COUNTS // 2) == 1
    assert machine.counts(1) == 2


def test_after_a_rest_the_first_count_decides(monkeypatch: pytest.MonkeyPatch):
    """The helper is asleep then: what else wants to run are others, but for the one that may have handed over the work."""
    machine = Counted(monkeypatch)
    for running, allowed in ((3, 1), (1, 2), (9, 1), (1, 2)):
        machine.running, machine.awake = running, 1
        assert machine.counts(1, 2 * REST) == allowed
        assert machine.counts(1) == allowed
    machine.running = 2
    assert machine.counts(1, 2 * REST) == 2
    assert machine.counts(COUNTS - 2) == 2
    assert machine.counts(1) == 1                         # it stays: that was no client


@pytest.mark.parametrize(("got", "allowed"), [(0.95, 2), (0.7, 1)])
def test_beside_one_that_stands_there_at_every_long_call_it_counts_what_it_leaves(monkeypatch: pytest.MonkeyPatch, got: float, allowed: int):
    """A client that hands over call after call takes next to nothing; a busy process takes its share."""
    machine = Counted(monkeypatch)
    machine.running, machine.awake, machine.got = 2, 1, [got, got]
    assert machine.counts(COUNTS + LOOKS, SLICE) == allowed


def test_a_moment_is_no_reason_to_run_fewer(monkeypatch: pytest.MonkeyPatch):
    machine = Counted(monkeypatch)
    assert machine.counts(50) == 2
    for _ in range(10):
        machine.running = 9
        assert machine.counts(COUNTS // 2) == 2
        machine.running = 2
        assert machine.counts(COUNTS - COUNTS // 2) == 2


@pytest.mark.parametrize(("processors", "others", "allowed"), [(2, 1, 1), (3, 1, 2), (8, 1, 2), (8, 5, 2), (4, 4, 1)])
def test_workers_have_processors_about_to_themselves(monkeypatch: pytest.MonkeyPatch, processors: int, others: int, allowed: int):
    machine = Counted(monkeypatch, processors)
    machine.running = 2 + others
    assert machine.counts(50) == allowed


def test_where_nobody_else_wants_to_run_threads_wait_for_their_own(monkeypatch: pytest.MonkeyPatch):
    """A helper that was woken on the caller's processor waits for it, call after call, although another is free."""
    machine = Counted(monkeypatch, 4)
    machine.got = [0.5, 0.5]
    assert machine.counts(100, SLICE) == 2
    machine.running = 3
    assert machine.counts(LOOKS, SLICE) == 1                          # beside somebody they say that it is not worth it
    machine.running = 2
    assert machine.counts(1, SLICE) == 2


def test_others_that_give_way_are_found_out(monkeypatch: pytest.MonkeyPatch):
    """The caller meets nobody although others are many: a second worker is tried, and stays where it gets a core. Else that is tried ever later."""
    machine = Counted(monkeypatch)
    machine.running, machine.awake = 3, 1
    assert machine.counts(int(0.9 * DOUBT[0] / SLICE), SLICE) == 1
    assert machine.counts(int(0.2 * DOUBT[0] / SLICE), SLICE) == 2
    assert machine.counts(500, SLICE) == 2                             # of lower priority
    machine.got = [0.5, 0.5]
    assert machine.counts(LOOKS, SLICE) == 1                       # no longer
    machine.got = [1.0, 0.5]
    tried = []
    for i in range(1500):
        tried += [i] * (machine.counts(1, SLICE) == 2)
    starts = [b for a, b in itertools.pairwise([-9, *tried]) if b > a + 1]
    rests = [b - a for a, b in itertools.pairwise(starts)]
    assert len(tried) <= len(starts) * (LOOKS + 1)
    assert len(rests) >= 2
    assert all(b > 1.8 * a for a, b in itertools.pairwise(rests))


def test_a_system_that_does_not_count_says_nothing(monkeypatch: pytest.MonkeyPatch):
    machine = Counted(monkeypatch)
    machine.running = 0
    assert machine.counts(50) == 2
    machine.got = [0.5, 0.5]
    assert machine.counts(LOOKS, SLICE) == 1                       # what threads got does


def test_the_machines_count_says_nothing_of_processors_that_may_not_be_used(monkeypatch: pytest.MonkeyPatch):
    machine = Counted(monkeypatch)
    monkeypatch.setattr(share.os, "cpu_count", lambda: 64)
    machine.running = 50
    assert machine.counts(50) == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors to use")
def test_sleeping_helpers_are_kept_off_their_callers_processor(monkeypatch: pytest.MonkeyPatch):
    """Where processors are virtual a woken thread is queued behind its waker, although another processor sleeps."""
    pool, usable = Pool(spin_ns=0, yield_ns=0), os.sched_getaffinity(0)
    monkeypatch.setattr(pool._share, "allowed", lambda workers: workers)

    def of_helper(mine: set[int]) -> set[int]:
        """The helper's processors after a call of a thread that may use `mine`."""
        end = time.monotonic() + 20
        while pool._awake() > 1 and time.monotonic() < end:
            time.sleep(0.001)
        os.sched_setaffinity(0, mine)
        try:
            pool.allowed(2)
        finally:
            os.sched_setaffinity(0, usable)
        return os.sched_getaffinity(pool.helpers[0].native_id or 0)
    try:
        pool.start(2)
        first, second = sorted(usable)[:2]
        apart = of_helper(usable)
        assert len(apart) == len(usable) - 1
        assert of_helper({first}) == apart                              # a caller with one processor has none to leave
        assert of_helper({first, second}) in ({first}, {second})
        assert len(of_helper(usable)) == len(usable) - 1                # and it follows what the caller may use
    finally:
        pool.close()


def test_a_pool_knows_how_many_of_its_threads_are_awake():
    pool = Pool()

    def come_to(count: int) -> bool:
        """Helpers sleep after a while; one that a signal wakes looks for work first."""
        for _ in range(2000):
            if pool._awake() == count:
                return True
            time.sleep(0.005)
        return False
    try:
        assert come_to(1)
        pool.start(3)
        assert come_to(1)                                             # the caller
        assert len(pool.helpers) == 2
        pool.take(1)
        pool.take(1)
        assert come_to(2)                                             # two callers
    finally:
        pool.close()
