"""What threads say to each other from compiled code: atomic words, the clock, giving way, sleeping until woken.

Words are int64 at addresses. Inline assembly is no way to any of this: nobody initialises an assembly parser and the process would die. Nor is
the cycle counter: on AArch64 LLVM reads one that traps in user mode.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..isa.inlined import Inlined, outside, over_words
from .boards import FUTEX_CALL, MACHINE
from .leaf import WORD

INT32, VOID = ir.IntType(32), ir.VoidType()
_WAIT, _WAKE, _PRIVATE = 0, 1, 128
_MONOTONIC = 6 if sys.platform == "darwin" else 1


def _word(arguments: int, body: Callable[..., Any], returns: bool = True) -> Inlined:
    """What is done with the word at an address: `body(builder, pointer, *values)` emits it."""
    @over_words(arguments)
    def at_word(b: ir.IRBuilder, address: Any, *args: Any) -> Any:
        result = body(b, b.inttoptr(address, WORD.as_pointer()), *args)
        return result if returns else None
    return at_word


load = _word(1, lambda b, p: b.load_atomic(p, "monotonic", 8))
load_acquire = _word(1, lambda b, p: b.load_atomic(p, "acquire", 8))
load_ordered = _word(1, lambda b, p: b.load_atomic(p, "seq_cst", 8))
store = _word(2, lambda b, p, x: b.store_atomic(x, p, "monotonic", 8), returns=False)
exchange = _word(2, lambda b, p, x: b.atomic_rmw("xchg", p, x, "seq_cst"))
add = _word(2, lambda b, p, x: b.atomic_rmw("add", p, x, "seq_cst"))
add_done = _word(2, lambda b, p, x: b.atomic_rmw("add", p, x, "acq_rel"))
"""The word before; the last of those who add sees what all of them wrote."""
raise_to = _word(2, lambda b, p, x: b.atomic_rmw("max", p, x, "acq_rel"))
lower_to = _word(2, lambda b, p, x: b.atomic_rmw("min", p, x, "acq_rel"))
swap_if = _word(3, lambda b, p, old, new: b.extract_value(b.cmpxchg(p, old, new, "acquire", "monotonic"), 0))
"""swap_if(address, old, new): the word before, which was `old` if it is `new` now."""


def _outside(b: ir.IRBuilder, name: str, result: Any, arguments: list[Any], variadic: bool = False) -> Any:
    return outside(b.module, ir.FunctionType(result, arguments, var_arg=variadic), name)


@over_words(0)
def pause(b: ir.IRBuilder) -> None:
    """Tell the core that this is a waiting loop."""
    if MACHINE in ("x86_64", "amd64"):
        b.call(_outside(b, "llvm.x86.sse2.pause", VOID, []), [])
    elif MACHINE in ("aarch64", "arm64"):
        b.call(_outside(b, "llvm.aarch64.hint", VOID, [INT32]), [INT32(1)])      # yield


@over_words(0)
def give_way(b: ir.IRBuilder) -> None:
    """Let another thread have this core, if one waits for it."""
    b.call(_outside(b, "sched_yield", INT32, []), [])


@over_words(0)
def now(b: ir.IRBuilder) -> Any:
    """Nanoseconds of the monotonic clock, Python's `time.monotonic_ns()`; a call takes about 25."""
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(WORD, 2))
    timespec = b.bitcast(memory, WORD.as_pointer())
    b.call(_outside(b, "clock_gettime", INT32, [INT32, WORD.as_pointer()]), [INT32(_MONOTONIC), timespec])
    rest = b.load(b.gep(timespec, [WORD(1)]))
    return b.add(b.mul(b.load(timespec), WORD(1_000_000_000)), rest)


@over_words(3)
def _futex(b: ir.IRBuilder, address: Any, operation: Any, value: Any) -> Any:
    if not FUTEX_CALL:
        return WORD(0)
    call = _outside(b, "syscall", WORD, [WORD], True)
    return b.call(call, [WORD(FUTEX_CALL), address, b.add(operation, WORD(_PRIVATE)), b.trunc(value, INT32),
                         *[WORD(0)] * 3])


def futex_wait(address: int, value: int) -> int:
    """Sleep while the lower half of the word is `value`: 0 if somebody's `futex_wake` ended that."""
    return _futex(address, _WAIT, value)


def futex_wake(address: int, count: int) -> int:
    """Wake at most `count` sleepers; how many there were."""
    return _futex(address, _WAKE, count)


def _posix(name: str, arguments: int) -> Inlined:
    """A function of the system's threads: addresses in, an int out."""
    @over_words(arguments)
    def called(b: ir.IRBuilder, *args: Any) -> Any:
        return b.sext(b.call(_outside(b, name, INT32, [WORD] * arguments), args), WORD)
    return called


mutex_lock, mutex_unlock = _posix("pthread_mutex_lock", 1), _posix("pthread_mutex_unlock", 1)
condition_broadcast, condition_wait = _posix("pthread_cond_broadcast", 1), _posix("pthread_cond_wait", 2)
