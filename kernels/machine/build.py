"""An object of compiled functions that stands alone: no wrappers for Python, no exceptions,
nothing that is not asked of the system's own libraries by name."""
from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from llvmlite import binding, ir

from ..isa.target import Target
from . import codegen
from .stored import OUTSIDE


@dataclass(frozen=True)
class Emitted:
    """A function that is LLVM's code from the beginning: `define` makes it in a module, of the first of an entry's
    words. It returns a word or nothing."""

    define: Callable[[ir.Module], ir.Function]


@dataclass(frozen=True)
class Entry:
    """A function of an object, by its symbol there: C's, of so many whole numbers, and it returns one."""

    symbol: str
    function: Emitted
    words: int = 4


_compiling = threading.RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """One compilation at a time: what LLVM makes code in is the process's, and Numba's, too, where that is there."""
    numba = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", nullcontext())
    with _compiling, numba:
        yield


@compiling()
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
    for entry in entries:
        module.link_in(_lowered(entry))
    return module


def _lowered(entry: Entry) -> binding.ModuleRef:
    """LLVM's code of the function that C calls, and of what it calls."""
    module, word = ir.Module(entry.symbol), ir.IntType(64)
    module.triple = binding.get_process_triple()
    function = ir.Function(module, ir.FunctionType(word, [word] * entry.words), entry.symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    called = entry.function.define(module)
    value = builder.call(called, function.args[:len(called.args)])
    builder.ret(ir.Constant(word, 0) if value.type == ir.VoidType() else value)
    return binding.parse_assembly(str(module))
