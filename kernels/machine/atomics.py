"""What threads say to each other from compiled code: atomic words, the clock, giving way, sleeping until woken.

Words are int64 at addresses. Inline assembly is no way to any of this: Numba initialises no assembly parser and the process would die. Nor is
the cycle counter: on AArch64 LLVM reads one that traps in user mode.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .boards import FUTEX_CALL, MACHINE
from .leaf import WORD

INT32, VOID = ir.IntType(32), ir.VoidType()
_WAIT, _WAKE, _PRIVATE = 0, 1, 128
_MONOTONIC = 6 if sys.platform == "darwin" else 1


def _word(arguments: int, body: Callable[..., Any], returns: bool = True) -> Any:
    """An intrinsic on the word at an address: `body(builder, pointer, *values)` emits it."""
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        result = body(builder, builder.inttoptr(args[0], WORD.as_pointer()), *args[1:])
        return result if returns else context.get_dummy_value()

    signature = (types.intp if returns else types.void)(*[types.intp] * arguments)
    faces: dict[int, Any] = {1: lambda typing, address: (signature, generate), 2: lambda typing, address, x: (signature, generate),
                             3: lambda typing, address, x, y: (signature, generate)}
    return intrinsic(faces[arguments])


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


def _outside(builder: Any, name: str, result: Any, arguments: list[Any], variadic: bool = False) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments, var_arg=variadic), name)


@intrinsic
def pause(_typing: Any) -> Any:
    """Tell the core that this is a waiting loop."""
    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        if MACHINE in ("x86_64", "amd64"):
            builder.call(_outside(builder, "llvm.x86.sse2.pause", VOID, []), [])
        elif MACHINE in ("aarch64", "arm64"):
            builder.call(_outside(builder, "llvm.aarch64.hint", VOID, [INT32]), [INT32(1)])      # yield
        return context.get_dummy_value()
    return types.void(), generate


@intrinsic
def give_way(_typing: Any) -> Any:
    """Let another thread have this core, if one waits for it."""
    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.call(_outside(builder, "sched_yield", INT32, []), [])
        return context.get_dummy_value()
    return types.void(), generate


@intrinsic
def now(_typing: Any) -> Any:
    """Nanoseconds of the monotonic clock, Python's `time.monotonic_ns()`; a call takes about 25."""
    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        timespec = builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(WORD, 2)), WORD.as_pointer())
        builder.call(_outside(builder, "clock_gettime", INT32, [INT32, WORD.as_pointer()]), [INT32(_MONOTONIC), timespec])
        rest = builder.load(builder.gep(timespec, [WORD(1)]))
        return builder.add(builder.mul(builder.load(timespec), WORD(1_000_000_000)), rest)
    return types.intp(), generate


@intrinsic
def _futex(_typing: Any, address: Any, operation: Any, value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if not FUTEX_CALL:
            return WORD(0)
        call = _outside(builder, "syscall", WORD, [WORD], True)
        return builder.call(call, [WORD(FUTEX_CALL), args[0], builder.add(args[1], WORD(_PRIVATE)),
                                   builder.trunc(args[2], INT32), *[WORD(0)] * 3])
    return types.intp(types.intp, types.intp, types.intp), generate


def futex_wait(address: int, value: int) -> int:
    """Sleep while the lower half of the word is `value`: 0 if somebody's `futex_wake` ended that."""
    return _futex(address, _WAIT, value)


def futex_wake(address: int, count: int) -> int:
    """Wake at most `count` sleepers; how many there were."""
    return _futex(address, _WAKE, count)


def _posix(name: str, arguments: int) -> Any:
    """A function of the system's threads: addresses in, an int out."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.sext(builder.call(_outside(builder, name, INT32, [WORD] * arguments), list(args)), WORD)
    signature = types.intp(*[types.intp] * arguments)
    faces: dict[int, Any] = {1: lambda typing, a: (signature, generate), 2: lambda typing, a, b: (signature, generate)}
    return intrinsic(faces[arguments])


mutex_lock, mutex_unlock = _posix("pthread_mutex_lock", 1), _posix("pthread_mutex_unlock", 1)
condition_broadcast, condition_wait = _posix("pthread_cond_broadcast", 1), _posix("pthread_cond_wait", 2)
