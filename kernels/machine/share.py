"""How many workers are worth running now: on a machine that others use too, more threads than cores to be had are worse than fewer.

A thread that is not run in the middle of a chunk holds up its row, and two threads that share a core are slower than one. What others leave is
seen from within, in two ways. Linux says how many threads want to run at this moment: less our own those are the others, known at the first call
after a rest and a few milliseconds after they come or go. That says something where all processors may be used, and takes all threads for equals.
It also counts for each thread how long it ran and how long it waited to be run: that is known later, but is true in a container and beside threads
of lower priority, too. Nothing that is computed depends on the answer.
"""
from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

LOOK = 0.01
"""Seconds between two looks at what the threads got, at least; more helpers are looked at less often."""
ASK = 0.1
"""Seconds after which affinity and quotas, which change while a process runs, are looked at again."""
SEEN = 500_000
"""Nanoseconds for which a thread must have wanted to run to say anything."""
ENOUGH = 0.2
"""A further worker is withdrawn where all together get less than so much more of a core by it: two threads that get half a core each are slower
than one. (Beside nobody threads wait at times, too.)"""
FAIR = 0.6
"""The same where others are known to be there. One busy process beside two threads on two cores leaves each two thirds, or one all of its core
and the other half: measured, they were 1.02 to 1.08 times as slow as one, which meets nobody."""
ALONE = 0.9
"""The share of a core from which on the caller meets nobody, so that another worker may be tried."""
LOOKS = 3
"""Looks in a row at which workers got too little: a woken thread may share a core with its waker for some milliseconds although another is free."""
COUNT = 0.001
"""Seconds between two counts of the machine's threads that want to run, at least."""
COUNTS = 5
"""The others are the median of so many counts: what they do for a moment is no reason."""
REST = 0.01
"""Seconds after which earlier counts say nothing any more, whether we rested or computed: the next one decides alone, but for one thread."""
HANDED = 1
"""Threads that do not count until there are `COUNTS` counts: whoever handed this call its work and waits for the answer often stands behind us on our
own core for some milliseconds, to go to sleep as soon as it may. (A client of another process was seen at every other request, which then ran on one
worker of two and took twice as long. To sleep ourselves, so that it can, costs up to 5 ms beside busy processes.) One that stays is seen then, or by
what it leaves our threads."""
PATIENCE = (0.1, 1.6)
"""Seconds with fewer workers before more are tried again: at first, and at most; twice as many each time that was too early."""
DOUBT = (1.0, 64.0)
"""The same where the count of others alone forbids more workers, and the caller meets nobody: others may be there that give way."""
EVERY = 1 << 30
"""No limit."""


class _Times:
    """How long a thread ran and waited since the last look."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._ran, self._waited = self._read()

    def _read(self) -> tuple[int, int]:
        ran, waited, *_ = os.pread(self._file, 100, 0).split()
        return int(ran), int(waited)

    def got(self) -> float | None:
        """The share of a core it had while it wanted one; None where it hardly did."""
        ran, waited = self._read()
        a, b = ran - self._ran, waited - self._waited
        self._ran, self._waited = ran, waited
        return a / (a + b) if a + b >= SEEN else None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)


class _Runnable:
    """How many threads of the machine want to run at this moment, ours among them."""

    def __init__(self) -> None:
        self._file = os.open("/proc/loadavg", os.O_RDONLY)

    def count(self) -> int:
        return int(os.pread(self._file, 100, 0).split()[3].split(b"/")[0])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)


class _Caller(threading.local):
    times: _Times | None = None
    looked = 0.0


class Share:
    """Of one pool."""

    def __init__(self, processors: Callable[[], int], awake: Callable[[], int] = lambda: 1) -> None:
        """`processors`: how many threads may run at once, apart from what others do; `awake`: how many of ours are not asleep."""
        self._processors, self._usable, self._asked, self._whole = processors, 1, -ASK, False
        self._most = EVERY                                       # what others leave, by what our threads got
        self._until, self._patience, self._raised = 0.0, PATIENCE[0], 0.0
        self._looked, self._short, self._alone = 0.0, 0, 0
        self._caller = _Caller()
        self._helpers: list[_Times] = []
        self._runnable: _Runnable | None = None
        self._awake = awake
        self._counted, self._counts = 0.0, deque[int](maxlen=COUNTS)
        self._latest = deque([0] * COUNTS, maxlen=COUNTS)        # counts whatever lay between them: one that is there at each is no client
        self._others: int | None = None                          # by the counts; None: they say nothing
        self._since: float | None = None                         # when they became too many
        self._doubting, self._doubt = False, DOUBT[0]            # whether more workers run although they are
        self._lock = threading.Lock()
        self.watched = self.possible()

    @staticmethod
    def possible() -> bool:
        """Whether the system says what threads got."""
        return os.path.exists("/proc/thread-self/schedstat")

    def watch(self, helper: int) -> None:
        """Count a helper (its number in the system) in."""
        with contextlib.suppress(OSError, ValueError):
            self._helpers.append(_Times(f"/proc/self/task/{helper}/schedstat"))

    def allowed(self, workers: int) -> int:
        """How many of `workers` shall run now."""
        now = time.monotonic()
        if now - self._asked >= ASK:
            self._asked, self._usable = now, self._processors()
            self._whole = self._usable == os.cpu_count()
        if self.watched and now - self._counted >= COUNT and self._lock.acquire(blocking=False):
            try:
                self._count(now, workers)
                if now - self._looked >= LOOK * (1 + len(self._helpers) / 8):
                    self._look(now, workers)
            except (OSError, ValueError, IndexError):            # the system does not say after all
                self.watched, self._most, self._others = False, EVERY, None
            finally:
                self._lock.release()
        return self._limited(workers)

    def _limited(self, workers: int) -> int:
        """How many of `workers` others leave, as far as is known."""
        workers = max(1, min(workers, self._usable, self._most))
        return workers if self._doubting else self._left(workers)

    def _left(self, workers: int) -> int:
        """How many of `workers` are worth it beside as many others as were counted, all of them equals."""
        if not self._others:
            return workers
        return min(workers, _worth(workers * min(1.0, self._usable / (self._others + workers)), FAIR))

    def _count(self, now: float, workers: int) -> None:
        """Count the threads that want to run, less our own that are awake. They are the whole machine's: where all of it may be used."""
        rested, self._counted = now - self._counted > REST, now
        if self._runnable is None:
            self._runnable = _Runnable()
        running = self._runnable.count() if self._whole else 0
        if running < 1:                                          # or the system does not count: we run
            self._others = self._since = None
            return
        if rested:
            self._counts.clear()
        self._counts.append(max(0, running - self._awake()))
        self._latest.append(self._counts[-1])
        self._others = max(0, sorted(self._counts)[(len(self._counts) - 1) // 2] - HANDED * (len(self._counts) < COUNTS))
        workers = min(workers, self._usable)
        if self._left(workers) == workers:
            self._since = None
        elif self._since is None:
            self._since = now
        if not any(self._counts):                                # whatever threads waited for is gone, or was another of ours
            self._most, self._short = EVERY, 0

    def _look(self, now: float, workers: int) -> None:
        """Fewer workers where they got less than that many cores; more after a while in which the caller had to wait for nobody."""
        caller, before, self._looked = self._caller, self._looked, now
        if caller.times is None:
            caller.times = _Times("/proc/thread-self/schedstat")
        own = caller.times.got()
        if caller.looked != before:                              # other callers looked in the meantime
            own = None
        caller.looked = now
        helpers = self._helpers[:self._limited(workers) - 1]
        shares = [1.0 if got is None else got for got in (own, *(helper.got() for helper in helpers))]
        worth = _worth(sum(shares), FAIR if self._doubting or min(self._latest) > 0 else ENOUGH)
        self._short = self._short + 1 if worth < len(shares) else 0
        if own is not None:
            self._alone = self._alone + 1 if own > ALONE else 0
        if self._short >= LOOKS:
            self._short = self._alone = 0
            self._fewer(now, worth)
        elif self._alone >= LOOKS and self._limited(workers) < min(workers, self._usable, 1 + len(self._helpers)):
            self._more(now)
        elif now - self._raised > 4 * self._patience:
            self._patience = max(PATIENCE[0], self._patience / 2)

    def _fewer(self, now: float, worth: int) -> None:
        if self._doubting:                                       # the others that were counted do not give way
            self._doubting, self._since, self._doubt = False, None, min(2 * self._doubt, DOUBT[1])
            return
        if now - self._raised < 2 * self._patience:              # it was tried too early
            self._patience = min(2 * self._patience, PATIENCE[1])
        self._most, self._until = worth, now + self._patience

    def _more(self, now: float) -> None:
        """Try more workers, if it is time."""
        if self._most <= len(self._helpers):
            if now > self._until:
                self._most, self._raised = self._most + 1, now
        elif not self._doubting and self._since is not None and now - self._since > self._doubt:
            self._doubting = True

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        if self._runnable is not None:
            self._runnable.close()
        self._helpers, self._runnable = [], None


def _worth(cores: float, enough: float) -> int:
    """How many workers are worth it where all together get so many cores, and each is to bring `enough` of one."""
    return max(1, int(cores + 1 - enough))
