"""Claimed work: rows are shared out in chunks by atomic claims, and whoever finishes a row's last chunk goes on with the table.

So nobody waits for a thread that holds nothing: a helper that the system does not run has claimed no chunk, or it has and then only that chunk is
late. A chunk is one or more whole grains of a row, so results do not depend on who computes which.

    publish     open a row of a board: its walker only, while no chunk of it is claimed
    take_part   claim and run what is open on a board; as its last finisher, walk on
    walk        interpret rows (see `table`) until a row is open again or the board has nothing left to do
    serve       take part in all boards: a helper until it is told to quit, a caller in those of its job until none of them runs

Memory orders. CLAIM is exchanged in seq_cst, which releases the row's description and all results before it; a claim acquires them. DONE is
added to in acq_rel, so the last finisher sees everybody's results and hands them on. Sleeping is Dekker's pattern: a publisher stores CLAIM, then
reads SLEEPERS; a sleeper adds to SLEEPERS, then reads CLAIM; all four are seq_cst. EPOCH is read before that last look.
"""
from __future__ import annotations

from .atomics import (
    add,
    add_done,
    condition_broadcast,
    condition_wait,
    exchange,
    futex_wait,
    futex_wake,
    give_way,
    load,
    load_acquire,
    load_ordered,
    lower_to,
    mutex_lock,
    mutex_unlock,
    now,
    pause,
    raise_to,
    store,
    swap_if,
)
from .boards import (
    ASLEEP,
    AT_HOST,
    BITS,
    BLOCK,
    BOARD_BYTES,
    CHUNK,
    CLAIM,
    CONDITION,
    DEADLINE,
    DONE,
    EPOCH,
    FAILED,
    FUNCTION,
    FUTEX,
    GOING,
    HELD,
    JOB,
    JOIN,
    LATE,
    MASK,
    MUTEX,
    NOBODY,
    PARENT,
    PARKED,
    PC,
    POOL_BYTES,
    QUIT,
    ROW_WORDS,
    ROWS,
    RUNNING,
    SLEEPERS,
    SLOTS,
    SPIN,
    STARTING,
    STATUS,
    STEPS,
    TABLE,
    TASK_WORDS,
    TASKS,
    WORKERS,
    YIELD,
    N,
)
from .leaf import invoke
from .table import ADVANCE, AGAIN, BRANCH, HOLD, HOST, LEAF, PATCH, PATCH_WORDS, REPEAT, SPAWN, WAIT

EVERYBODY = 1 << 20
OFTEN = 16
"""Short serial rows between two looks at the clock."""
_DONE, _PARKED, _FAILED, _HOST = range(4)


# ---- waking and sleeping --------------------------------------------------------------------------------------------------------

def wake(pool: int, count: int) -> None:
    """Wake as many sleepers. With a futex the waker takes them off the count, so that rows published before they run wake nobody again."""
    if load_ordered(pool + SLEEPERS) > 0:
        if load(pool + FUTEX) != 0:
            add(pool + EPOCH, 1)
            woken = futex_wake(pool + EPOCH, count)
            if woken > 0:
                add(pool + SLEEPERS, -woken)
        else:
            mutex_lock(pool + MUTEX)
            add(pool + EPOCH, 1)
            condition_broadcast(pool + CONDITION)
            mutex_unlock(pool + MUTEX)


def sleep(pool: int, root: int, first: int, count: int, me: int) -> None:
    """Sleep until something is published, unless there is something to do."""
    if root != 0:
        exchange(root + ASLEEP, 1)
    add(pool + SLEEPERS, 1)
    epoch = load_ordered(pool + EPOCH)                          # before the last look: who publishes after that look changes it
    idle = load_ordered(pool + QUIT) == 0 or root != 0
    if root != 0:
        idle = load_ordered(root + RUNNING) != 0
    else:
        idle = idle and count == load_ordered(pool + SLOTS)
    for i in range(count):
        idle = idle and not claimable(load_ordered(first + i * BOARD_BYTES + CLAIM), me)
    woken = False
    if idle:
        if load(pool + FUTEX) != 0:
            woken = futex_wait(pool + EPOCH, epoch) == 0
        else:
            mutex_lock(pool + MUTEX)
            while load(pool + EPOCH) == epoch:
                condition_wait(pool + CONDITION, pool + MUTEX)
            mutex_unlock(pool + MUTEX)
    if not woken:
        add(pool + SLEEPERS, -1)
    if root != 0:
        store(root + ASLEEP, 0)


# ---- boards ---------------------------------------------------------------------------------------------------------------------

def claimable(word: int, me: int) -> bool:
    """Whether a claim word has a chunk left for worker `me`."""
    return (word & MASK) < ((word >> BITS) & MASK) and me < (word >> (2 * BITS))


def opened(workers: int, chunks: int) -> int:
    """The claim word of a row with these chunks, all of them left."""
    return (workers << (2 * BITS)) | (chunks << BITS)


def from_front(word: int, me: int) -> bool:
    """Whether worker `me` is of the half that claims the first chunk that is left, not the last."""
    return 2 * me < word >> (2 * BITS)


def chunk_of(word: int, me: int) -> int:
    """The chunk that worker `me` claims: the first that is left or, for the later half of the workers, the last. So what
    a worker computes lies about where it lay in the rows before, and in its core's own cache (a recogniser of text by
    two: 0.95 of the time)."""
    if from_front(word, me):
        return word & MASK
    return ((word >> BITS) & MASK) - 1


def claimed(word: int, me: int) -> int:
    """The claim word without that chunk."""
    if from_front(word, me):
        return word + 1
    return word - (1 << BITS)


def chunks_of(board: int) -> int:
    """How many chunks the row has of which I hold one."""
    size = load(board + CHUNK)
    return (load(board + N) + size - 1) // size


def publish(pool: int, board: int, function: int, block: int, n: int, chunk: int, workers: int, me: int) -> None:
    """Open a row of which worker `me` has claimed a chunk (NOBODY: nothing is claimed). Function 0: the one chunk is the
    board's table, to be walked."""
    store(board + FUNCTION, function)
    store(board + BLOCK, block)
    store(board + N, n)
    store(board + CHUNK, chunk)
    store(board + DONE, 0)
    left = chunks_of(board)
    word = opened(workers, left)
    if me != NOBODY:
        word, left = claimed(word, me), left - 1
    exchange(board + CLAIM, word)
    if workers > 1:
        wake(pool, min(left, workers - 1))


def run_chunk(board: int, chunk: int, me: int) -> None:
    n, size = load(board + N), load(board + CHUNK)
    status = invoke(load(board + FUNCTION), load(board + BLOCK), chunk * size, min(n, (chunk + 1) * size), me)
    if status != 0:
        raise_to(board + STATUS, status)


def leave(pool: int, board: int, me: int) -> int:
    """A board stops running: at its end, at the deadline, or because it waits for others. 0."""
    job = load(board + JOB)
    if add(job + RUNNING, -1) == 1 and me != 0 and load_ordered(job + ASLEEP) != 0:      # the caller is worker 0
        wake(pool, EVERYBODY)
    return 0


def park(pool: int, board: int, me: int, why: int) -> int:
    store(board + PARKED, why)
    return leave(pool, board, me)


def begin(board: int, job: int, parent: int, at: int) -> None:
    """A board at the first row of a task, whose table and number of rows are at an address."""
    store(board + TABLE, load(at))
    store(board + ROWS, load(at + 8))
    store(board + PC, 0)
    store(board + PARENT, parent)
    store(board + JOB, job)
    store(board + PARKED, GOING)
    store(board + HELD, 0)
    store(board + STEPS, 0)
    store(board + STATUS, 0)
    store(board + JOIN, 1)
    store(board + FAILED, NOBODY)


def late(board: int) -> bool:
    """Whether the deadline has come and this board may stop for it."""
    return load(board + HELD) == 0 and now() > load(load(board + JOB) + DEADLINE)


def ended(pool: int, board: int, me: int) -> int:
    """After a task's last row or its failure: the board to go on with, its parent's if this was the last it waited for; 0: none.

    A failed task ends when all that it has spawned have ended, and its parent fails after WAIT, by the first of its tasks that did: which
    failure is told does not depend on time.
    """
    while True:
        failed = load(board + STATUS) != 0 or load(board + FAILED) != NOBODY
        if failed and add(board + JOIN, -1) != 1:
            return leave(pool, board, me)
        parent = load(board + PARENT)
        if parent == 0:
            return leave(pool, board, me)
        if failed:
            lower_to(parent + FAILED, (board - load(board + JOB)) // BOARD_BYTES)
        if add(parent + JOIN, -1) != 1:
            return leave(pool, board, me)
        board = parent                                           # and this board's place in RUNNING is its parent's
        store(board + JOIN, 1)
        store(board + STEPS, OFTEN)                              # its tasks took their time: the next row looks at the clock
        if load(board + STATUS) == 0 and load(board + FAILED) == NOBODY:
            store(board + PC, load(board + PC) + 1)
            return board


# ---- the interpreter ------------------------------------------------------------------------------------------------------------

def patch(patches: int, count: int, index: int) -> None:
    """Write words that depend on a counter: word at address = base + (index % ring) * stride."""
    for i in range(count):
        at = patches + i * PATCH_WORDS * 8
        store(load(at), load(at + 8) + index % load(at + 24) * load(at + 16))


def walk(pool: int, board: int, me: int) -> int:
    """Go on with a table from its row PC. The board of a row that is open now, of which a chunk is mine; 0: there is
    nothing left to do."""
    while True:
        pc = load(board + PC)
        if pc >= load(board + ROWS):
            board = ended(pool, board, me)
            if board == 0:
                return 0
            continue
        row = load(board + TABLE) + pc * ROW_WORDS * 8
        kind, a, b, c = load(row), load(row + 8), load(row + 16), load(row + 24)
        after, look = pc + 1, False
        if kind == LEAF:
            chunk = load(row + 32)
            workers = load(load(board + JOB) + WORKERS)
            if chunk < c and workers > 1:
                publish(pool, board, a, b, c, chunk, workers, me)
                return board
            status = invoke(a, b, 0, c, 0)                      # alone: whoever runs it, scratch of one worker is enough
            if status != 0:
                store(board + STATUS, status)
                board = ended(pool, board, me)
                if board == 0:
                    return 0
                continue
            steps = load(board + STEPS) + 1
            look = steps >= OFTEN or load(row + 40) != 0
            store(board + STEPS, 0 if look else steps)
        elif kind == PATCH:
            patch(a, b, load(c) + load(row + 32))
        elif kind == REPEAT or kind == AGAIN:  # noqa: SIM109    (counter, n, address of n or 0, the other end)
            if kind == AGAIN:
                store(a, load(a) + 1)
                look = True
            n = load(c) if c != 0 else b
            if load(a) < n:
                after = load(row + 32) if kind == AGAIN else pc + 1
            else:
                store(a, 0)
                after = pc + 1 if kind == AGAIN else load(row + 32)
        elif kind == BRANCH:
            if load(a) != b:
                after = c
        elif kind == ADVANCE:
            store(a, load(a) + b)
        elif kind == HOLD:
            store(board + HELD, a)
            look = a == 0
        elif kind == SPAWN:
            job = load(board + JOB)
            store(board + PC, after)
            add(board + JOIN, b)
            add(job + RUNNING, b)
            for i in range(a, a + b):
                child = job + i * BOARD_BYTES
                begin(child, job, board, load(job + TASKS) + i * TASK_WORDS * 8)
                publish(pool, child, 0, 0, 1, 1, load(job + WORKERS), NOBODY)
        elif kind == WAIT:
            if add(board + JOIN, -1) != 1:
                leave(pool, board, me)
                return 0
            store(board + JOIN, 1)
            if load(board + FAILED) != NOBODY:
                board = ended(pool, board, me)
                if board == 0:
                    return 0
                continue
        elif kind == HOST:
            store(load(board + JOB) + DEADLINE, 0)              # the others shall come to a rest soon
            park(pool, board, me, AT_HOST)
            return 0
        store(board + PC, after)
        if look and after < load(board + ROWS) and late(board):
            park(pool, board, me, LATE)
            return 0


def take_part(pool: int, board: int, me: int, walking: bool) -> int:
    """Run what can be claimed from a board, and its table as long as the last chunk is mine; `walking`: begin with the table.

    Returns whether there was anything.
    """
    mine, chunks, found = 0, 0, 0
    while True:
        if not walking:
            word = load(board + CLAIM)
            while claimable(word, me):
                seen = swap_if(board + CLAIM, word, claimed(word, me))
                if seen == word:
                    break
                word = seen
            if claimable(word, me):                  # the claim of a chunk, whose row stays open until I am done
                found = 1
                if load(board + FUNCTION) != 0:
                    chunks = chunks_of(board)
                    run_chunk(board, chunk_of(word, me), me)
                    mine += 1
                    continue
            elif mine == 0 or add_done(board + DONE, mine) + mine < chunks:
                return found                                     # others still hold chunks: the last of them goes on; touch nothing more
            elif load(board + STATUS) != 0:
                board = ended(pool, board, me)
                if board == 0:
                    return 1
            else:
                pc = load(board + PC) + 1
                store(board + PC, pc)
                if pc < load(board + ROWS) and late(board):
                    park(pool, board, me, LATE)
                    return 1
        walking = False
        board = walk(pool, board, me)
        if board == 0:
            return 1
        chunks, mine = chunks_of(board), 1
        run_chunk(board, chunk_of(opened(load(board + CLAIM) >> (2 * BITS), chunks), me), me)


# ---- threads --------------------------------------------------------------------------------------------------------------------

def _serve(pool: int, root: int, boards: int, me: int) -> int:
    """A helper (root 0): all boards until QUIT. A caller: its own boards until RUNNING is 0. 0."""
    since = 0
    first = root if root != 0 else pool + POOL_BYTES
    while True:
        count = boards if root != 0 else load(pool + SLOTS)
        found = 0
        for i in range(count):
            found |= take_part(pool, first + i * BOARD_BYTES, me, False)
        if root != 0:
            if load_acquire(root + RUNNING) == 0:
                return 0
        elif load(pool + QUIT) != 0:
            return 0
        if found:
            since = 0
            continue
        for _ in range(8):
            pause()
        t = now()
        if since == 0:
            since = t
        elif t - since > load(pool + SPIN) + load(pool + YIELD):
            sleep(pool, root, first, count, me)
            since = 0
        elif t - since > load(pool + SPIN):
            give_way()


serve = _serve


def _drive(asked: int) -> int:
    """One slice of a job, from its start where `tasks` is given: 0 it is done, 1 the deadline came, 2 it failed, 3 it is at a HOST row.

    `asked`: the address of six words, for it takes ctypes longer to hand over each than to do the rest of a call: pool,
    root, boards, tasks, workers, nanoseconds.

    First all parked boards are marked, then started: a board started here may spawn others that park at once, which are not to be started
    (and have not been counted) in this slice.
    """
    pool, root, boards = load(asked), load(asked + 8), load(asked + 16)
    tasks, workers, nanoseconds = load(asked + 24), load(asked + 32), load(asked + 40)
    if tasks != 0:
        store(root + TASKS, tasks)
        store(root + ASLEEP, 0)
        begin(root, root, 0, tasks)
        store(root + PARKED, LATE)
        for i in range(1, boards):
            store(root + i * BOARD_BYTES + PARKED, GOING)
    store(root + WORKERS, workers)
    store(root + DEADLINE, now() + nanoseconds)
    started = 0
    for i in range(boards):
        board = root + i * BOARD_BYTES
        if load(board + PARKED) == LATE:
            store(board + PARKED, STARTING)
            started += 1
    store(root + RUNNING, started)
    mine = 0
    for i in range(boards):
        board = root + i * BOARD_BYTES
        if load(board + PARKED) == STARTING:
            store(board + PARKED, GOING)
            if mine == 0:
                mine = board
            else:
                publish(pool, board, 0, 0, 1, 1, workers, NOBODY)
    if mine != 0:
        take_part(pool, mine, 0, True)
    serve(pool, root, boards, 0)
    state = _DONE
    for i in range(boards):
        parked = load(root + i * BOARD_BYTES + PARKED)
        if parked == AT_HOST:
            return _HOST
        if parked == LATE:
            state = _PARKED
    if state == _DONE and (load(root + STATUS) != 0 or load(root + FAILED) != NOBODY):
        return _FAILED
    return state


def _quit(pool: int) -> int:
    """End the helpers. 0."""
    exchange(pool + QUIT, 1)
    wake(pool, EVERYBODY)
    return 0


