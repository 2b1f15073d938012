"""The words that threads share: one pool, and boards on each of which one table is walked. Offsets in bytes.

A board has at most one open row. Its chunks are claimed by compare-and-swap on one word, CLAIM = workers:16 | end:24 |
next:24 (those from next to end are left): all that decides whether a claim is valid is in the word that is exchanged. So
a late thread can only claim a chunk of the row that is open *now*; it reads the row's description after the claim, and
the row cannot end before that chunk is done. Boards are never freed, only used again, so that a late thread may look at
any of them at any time.
"""
from __future__ import annotations

import platform
import sys

MACHINE = platform.machine().lower()
FUTEX_CALL = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98}.get(MACHINE, 0) if sys.platform == "linux" else 0
"""The system call's number; 0 where there is none: then a mutex and a condition serve."""

# Pool. A line that everybody reads, one that sleepers write, one for the way without futex.
EPOCH, SLEEPERS = 0, 8
"""What sleepers wait on, and how many there are."""
QUIT, SLOTS, SPIN, YIELD, FUTEX = 128, 136, 144, 152, 160
"""Whether helpers shall end; boards that may be in use; nanoseconds of spinning, then of yielding, before a thread sleeps; whether by futex."""
MUTEX, CONDITION = 256, 384
POOL_BYTES = 512

# Board, first line: what a claimer reads, which moves between cores at once.
CLAIM, FUNCTION, BLOCK, N, CHUNK = 0, 8, 16, 24, 32
# Second line: what those write who finish chunks.
DONE, STATUS = 128, 136
# Third line: the walker's.
TABLE, ROWS, PC, PARENT, JOB, PARKED, HELD, STEPS = 256, 264, 272, 280, 288, 296, 304, 312
"""PARENT: board of the task that spawned this one, 0 of the root. JOB: the root. PARKED: see below. HELD: a HOLD is on. STEPS: serial rows since
the last look at the clock."""
# Fourth line: what the tasks of a job write to each other, and the job's own words on its root.
JOIN, FAILED = 384, 392
"""JOIN: 1 + tasks spawned and not ended; who brings it to 0 goes on after WAIT. FAILED: the first task (in order) that ended with a failure."""
RUNNING, DEADLINE, WORKERS, TASKS, ASLEEP = 448, 456, 464, 472, 480
"""RUNNING: boards with a walker or an open row. ASLEEP: the caller may sleep. TASKS: address of (table, rows) of each task."""
BOARD_BYTES = 512

GOING, LATE, STARTING, AT_HOST = range(4)
"""PARKED: not; the deadline came; about to be started again; at a HOST row."""
NOBODY = 1 << 30
"""FAILED while no task has failed."""

BITS = 24
MASK = (1 << BITS) - 1
MOST_WORKERS = (1 << 15) - 1
TASK_WORDS = 2
ROW_WORDS = 8
