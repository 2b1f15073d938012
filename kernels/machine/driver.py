"""The driver: one native loop over a table of rows, resumed by Python after about 20 ms, on a stop or on a failing status.

A row is eight int64 words: kind, leaf, block, n, grain, target, -, -. Control flow (loops, waves of lanes) lives in the
table, so a whole training call runs without Python; Ctrl-C, progress and errors are what happens between two `drive`s.
"""
from __future__ import annotations

import contextlib
import functools
import os
import sys
import types as python_types
from typing import Any

import numba
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from . import cache, limits
from .leaf import WORD, invoke

CALL, FORK, WAVE, PATCH, LOOP, ADVANCE, HOLD = range(7)
"""Row kinds.
CALL     leaf(block, 0, n, worker 0) on this thread
FORK     the same range split over the workers at multiples of `grain`
WAVE     n lanes side by side, each a table of its own run serially; `block` = lane descriptors (LANE_WORDS each)
PATCH    n patches at `block`: word at address = base + (counter % ring) * stride, counter = control[grain]
LOOP     counter at `block`: one down; not yet 0: jump to `target`; 0: set back to n and go on
ADVANCE  control[grain] += n
HOLD     n = 1: from here on do not return for time or stop; n = 0: do so again (a weight update is all or nothing)
"""
ROW_WORDS = 8
LANE_WORDS = 8            # table, rows, pc, patches, number of patches, status, -, -
PATCH_WORDS = 4           # address, base, stride, ring

STOP, MICRO, ITERATION, STATUS, FAILED_PC, DEADLINE, HELD = range(7)
"""Words of the control block: stop request, micro-batch counter of the call, update counter of the call, status of the
failing leaf, its row (in a WAVE row look at the lanes), deadline (ns, monotonic clock), whether a HOLD is on."""
CONTROL_WORDS = 8


@intrinsic
def _load(_typing: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], WORD.as_pointer()), "monotonic", 8)
    return types.intp(types.intp), generate


@intrinsic
def _store(_typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], WORD.as_pointer()), "monotonic", 8)
        return context.get_dummy_value()
    return types.void(types.intp, types.intp), generate


_MONOTONIC = 6 if sys.platform == "darwin" else 1


@intrinsic
def now(_typing: Any) -> Any:
    """Nanoseconds of the monotonic clock, Python's `time.monotonic_ns()`."""
    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        timespec = cgutils.alloca_once(builder, ir.ArrayType(WORD, 2))
        pointer = builder.bitcast(timespec, WORD.as_pointer())
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), WORD.as_pointer()])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "clock_gettime"),
                     [ir.Constant(ir.IntType(32), _MONOTONIC), pointer])
        seconds = builder.load(pointer)
        rest = builder.load(builder.gep(pointer, [ir.Constant(WORD, 1)]))
        return builder.add(builder.mul(seconds, ir.Constant(WORD, 1_000_000_000)), rest)
    return types.intp(), generate


def _patch(patches: int, count: int, counter: int) -> None:
    for i in range(count):
        at = patches + i * PATCH_WORDS * 8
        _store(_load(at), _load(at + 8) + counter % _load(at + 24) * _load(at + 16))


def _fork(function: int, block: int, n: int, grain: int, workers: int) -> int:
    chunks = (n + grain - 1) // grain
    bad = 0
    for w in prange(workers):
        bad = max(bad, invoke(function, block, min(n, chunks * w // workers * grain),
                              min(n, chunks * (w + 1) // workers * grain), w))
    return bad


def _lane(lane: int, counter: int, deadline: int, control: int) -> int:
    """Run one lane's table from where it stopped; saves its row. Returns the status of the row that failed."""
    table, rows, pc = _load(lane), _load(lane + 8), _load(lane + 16)
    if pc == 0:
        _patch(_load(lane + 24), _load(lane + 32), counter)
    while pc < rows:
        row = table + pc * ROW_WORDS * 8
        status = invoke(_load(row + 8), _load(row + 16), 0, _load(row + 24), 0)
        if status != 0:
            _store(lane + 16, pc)
            _store(lane + 40, status)
            return status
        pc += 1
        if pc < rows and (_load(control) != 0 or now() > deadline):
            break
    _store(lane + 16, pc)
    return 0


def _wave(lanes: int, count: int, counter: int, deadline: int, control: int) -> int:
    bad = 0
    for i in prange(count):
        bad = max(bad, _lane(lanes + i * LANE_WORDS * 8, counter + i, deadline, control))
    return bad


def _drive(table: int, rows: int, pc: int, workers: int, control: int) -> int:
    """Run rows from pc until the end, a failure, a stop or the deadline; the row to resume from, or -1 at the end.

    With one worker no parallel region is opened, whatever the table was made for.
    """
    deadline = _load(control + DEADLINE * 8)
    steps = 0
    while pc < rows:
        row = table + pc * ROW_WORDS * 8
        kind, function, block, n = _load(row), _load(row + 8), _load(row + 16), _load(row + 24)
        grain, target = _load(row + 32), _load(row + 40)
        bad = 0
        after = pc + 1
        look = False
        if kind == CALL:
            bad = invoke(function, block, 0, n, 0)
            steps += 1
            look = steps % 16 == 0
        elif kind == FORK:
            if workers == 1:
                bad = invoke(function, block, 0, n, 0)
            else:
                bad = _fork(function, block, n, grain, workers)
            look = True
        elif kind == WAVE:
            counter = _load(control + MICRO * 8)
            if workers == 1:
                for i in range(n):
                    bad = max(bad, _lane(block + i * LANE_WORDS * 8, counter + i, deadline, control))
            else:
                bad = _wave(block, n, counter, deadline, control)
            look = True
            if bad == 0:
                done = True
                for i in range(n):
                    at = block + i * LANE_WORDS * 8
                    done = done and _load(at + 16) >= _load(at + 8)
                if done:
                    for i in range(n):
                        _store(block + i * LANE_WORDS * 8 + 16, 0)
                else:
                    after = pc
        elif kind == PATCH:
            _patch(block, n, _load(control + grain * 8))
        elif kind == LOOP:
            left = _load(block) - 1
            _store(block, left if left > 0 else n)
            if left > 0:
                after = target
            look = True
        elif kind == ADVANCE:
            _store(control + grain * 8, _load(control + grain * 8) + n)
        elif kind == HOLD:
            _store(control + HELD * 8, n)
            look = n == 0
        if bad != 0:
            _store(control + STATUS * 8, bad)
            _store(control + FAILED_PC * 8, pc)
            return pc
        pc = after
        if look and _load(control + HELD * 8) == 0 and (_load(control) != 0 or now() > deadline):
            return pc if pc < rows else -1
    return -1


def _compiled(function: Any, signature: str, names: dict[str, Any], parallel: bool) -> Any:
    """Compile a driver function with our cache; `names` are the compiled functions it calls."""
    code = function.__code__
    own = python_types.FunctionType(code, {**function.__globals__, **names}, function.__name__)
    own.__qualname__, own.__module__ = function.__name__, function.__module__
    dispatcher = njit(parallel=parallel, nogil=True, error_model="numpy")(own)
    cache.enable(dispatcher, own)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


@functools.cache
def drive() -> Any:
    """The compiled driver: `drive()(table, rows, pc, workers, control) -> pc`, all addresses as int."""
    patch = _compiled(_patch, "void(intp,intp,intp)", {}, False)
    lane = _compiled(_lane, "intp(intp,intp,intp,intp)", {"_patch": patch}, False)
    fork = _compiled(_fork, "intp(intp,intp,intp,intp,intp)", {}, True)
    wave = _compiled(_wave, "intp(intp,intp,intp,intp,intp)", {"_lane": lane}, True)
    return _compiled(_drive, "intp(intp,intp,intp,intp,intp)", {"_fork": fork, "_wave": wave, "_lane": lane, "_patch": patch}, False)


_orphaned = False
"""Whether this process is the fork of one that had started worker threads, so that they are not here."""


def _after_fork() -> None:
    global _orphaned
    with contextlib.suppress(ValueError):                 # none is started yet
        _orphaned = numba.threading_layer() != ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def workers(wanted: int) -> int:
    """How many of `wanted` workers may be used: one in a forked child, where OpenMP ends the process at its first parallel region."""
    return 1 if _orphaned else wanted


def start_threads(threads: int | None = None) -> int:
    """Choose the threading layer (OpenMP where it can be loaded) and the number of workers; returns that number.

    By default as many as can run at once (`limits.processors`), or NUMBA_NUM_THREADS where that is set.

    GNU OpenMP reads its spin count when it is loaded. Its default (300,000) spins for up to 7 ms at the end of a region: on a
    machine with other work that made small training calls a hundred times slower. 0.2 ms are too few: once a virtual
    machine's core was away for longer, both threads slept and woke each other for hundreds of regions, each five times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    most = numba.config.NUMBA_NUM_THREADS
    usual = most if "NUMBA_NUM_THREADS" in os.environ else min(most, limits.processors())
    count = workers(max(1, min(threads or usual, most)))
    if not _orphaned:
        numba.set_num_threads(count)
    return count
