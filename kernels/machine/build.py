"""An object of compiled functions that stands alone: no wrappers for Python, no exceptions, no runtime of Numba's,
nothing that is not asked of the system's own libraries by name."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import binding, ir
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing import Signature

from ..isa.target import Target
from . import codegen, inner
from .status import RAISED

_MATHEMATICS = ("acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor fmod log log1p pow rint sin "
                "sinh sqrt tan tanh ceilf expf floorf fmodf logf nearbyintf powf rintf roundf sqrtf truncf")
OUTSIDE = frozenset({"memset", "memcpy", "memmove", "sched_yield", "clock_gettime", "syscall", "pthread_mutex_lock",
                     "pthread_mutex_unlock", "pthread_cond_broadcast", "pthread_cond_wait", *_MATHEMATICS.split()})
"""What objects may ask of others: the system's memory, threads and clock, and the C library's mathematics, for float64
mostly."""

OPTIONS = {"error_model": "numpy"}
"""Numba's options for all code: a division by zero raises nothing. None lets floats be reordered."""


@dataclass(frozen=True)
class Emitted:
    """A function that is LLVM's code from the beginning: `define` makes it in a module, of the first of an entry's
    words. It returns a word or nothing."""

    define: Callable[[ir.Module], ir.Function]


@dataclass(frozen=True)
class Entry:
    """A function of an object, by its symbol there: C's, of whole numbers, one of which it returns."""

    symbol: str
    function: Callable[..., Any] | Emitted
    signature: Signature


@global_compiler_lock
def ready() -> None:
    """Fill Numba's tables, so that copies of this process have them."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


@global_compiler_lock
def built(entries: Sequence[Entry], target: Target) -> tuple[bytes, str]:
    """The object of these functions for a target, and a hash of their code as LLVM was given it, which is the same for
    the same code.

    Raises:
        AssertionError: the code asks for what is not on any system.
    """
    module, names = linked(entries), frozenset(entry.symbol for entry in entries)
    given = hashlib.sha256(codegen.text_of(module, names).encode()).hexdigest()[:16]
    made = codegen.emitted(module, target, names)
    unknown = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - OUTSIDE
    assert not unknown, f"{entries[0].symbol} asks for {', '.join(sorted(unknown))}"
    return made, given


def linked(entries: Sequence[Entry]) -> binding.ModuleRef:
    """All code of these functions as LLVM is given it."""
    module = codegen.empty_module()
    with inner.resolved_once(cpu_target.typing_context):
        for entry in entries:
            for part in _lowered(entry):
                module.link_in(part)
    return module


def _lowered(entry: Entry) -> Sequence[binding.ModuleRef]:
    """LLVM's code of the function that C calls, and of what it calls: in this order, for what nobody calls is not
    linked."""
    context, signature = codegen.context(), entry.signature
    module, word = context.create_module(entry.symbol), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [word] * len(signature.args)), entry.symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    if isinstance(entry.function, Emitted):
        called = entry.function.define(module)
        value = builder.call(called, function.args[:len(called.args)])
        builder.ret(ir.Constant(word, 0) if value.type == ir.VoidType() else value)
        return [binding.parse_assembly(str(module))]
    flags = compiler.Flags()
    # The last of these is what inner functions have: by other flags Numba would compile them once more for those of an
    # entry.
    cpu_target.options.parse_as_flags(flags, dict(OPTIONS, nopython=True, no_cpython_wrapper=True))
    result = compiler.compile_extra(cpu_target.typing_context, context, entry.function, signature.args,
                                    signature.return_type, flags, {}, pipeline_class=inner.Outermost)
    kind = context.call_conv.get_function_type(signature.return_type, signature.args)
    called = ir.Function(module, kind, result.fndesc.llvm_func_name)
    status, value = context.call_conv.call_function(builder, called, signature.return_type, signature.args,
                                                    function.args)
    builder.ret(builder.select(status.is_error, ir.Constant(word, RAISED), value))
    return [binding.parse_assembly(str(module)), result.library.linked()]
