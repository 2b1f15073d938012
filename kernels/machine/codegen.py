"""A code generator for CPU paths: Numba's, with machine code for a processor that is told, and in objects that stand
alone.

Numba's own compiles for the very processor it runs on, and its settings are the process's: a user's functions beside
ours keep both. Until they are linked, inner functions and leaves are made for no processor in particular; the path
comes in with `emitted`.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import binding
from numba.core import cgutils, codegen
from numba.core.llvm_bindings import create_pass_builder
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from ..isa.target import Target

OPTIMISATION = 3


class Library(codegen.CPUCodeLibrary):
    """Code in LLVM's form, which others link with; it never becomes machine code by itself, and takes in no runtime of
    Numba's."""

    def add_linking_library(self, library: Any) -> None:
        if library is not rtsys.library:
            super().add_linking_library(library)

    def add_ir_module(self, ir_module: Any) -> None:
        """As Numba's, but that the code is verified with all that calls it, in `emitted`."""
        module = binding.parse_assembly(cgutils.normalize_ir_text(str(ir_module)))
        module.name = ir_module.name
        self.add_llvm_module(module)

    def _optimize_functions(self, ll_module: Any) -> None:
        """As Numba's, with the passes made once for all functions."""
        ll_module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Left to `emitted`, when all that is linked is there."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def linked(self) -> binding.ModuleRef:
        """The module with all that it calls, for one caller, who takes it."""
        self._ensure_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        return self._final_module


class _Codegen(codegen.CPUCodegen):
    """Makes libraries of code that is for no processor in particular."""

    _library_class = Library

    def _customize_tm_features(self) -> str:
        return ""

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        options.update(_machine(), cpu="", features="", opt=OPTIMISATION)

    def _add_module(self, module: Any) -> None:
        """Nothing runs here."""


@functools.cache
def _machine() -> dict[str, Any]:
    """What holds for all processors: objects are linked where they run."""
    x86 = binding.get_process_triple().startswith(("x86", "i386"))
    return {"reloc": "static" if x86 else "default", "codemodel": "jitdefault", "jit": True}


@functools.cache
def _own() -> tuple[_Codegen, dict[Any, Any]]:
    return _Codegen("tileflow"), {}


def contextual(context: Any) -> Any:
    """A target context of Numba's (or what it made of it for some flags) with this code generator, and without
    reference counts: leaves own no memory."""
    generator, internal = _own()
    return context.subtarget(_internal_codegen=generator, cached_internal_func=internal, enable_nrt=False)


def context() -> Any:
    """Where a compilation begins."""
    return contextual(cpu_target.target_context)


def empty_module() -> binding.ModuleRef:
    """A module to link others into."""
    return binding.parse_assembly(str(_own()[0]._create_empty_module("tileflow")))


def emitted(module: binding.ModuleRef, target: Target, entries: frozenset[str]) -> bytes:
    """The object of a whole module, in which nothing but the functions `entries` has a name. The module is changed."""
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=target.processor, features=target.features, opt=OPTIMISATION, **_machine())
    # As Numba does it: inlining first, cheaply, and loops turned to test at their ends, by which the vectoriser knows
    # them.
    builder = create_pass_builder(machine, opt=0)
    passes = builder.getModulePassManager()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_jump_threading_pass()
    passes.run(module, builder)
    builder = create_pass_builder(machine, opt=OPTIMISATION, loop_vectorize=True)
    builder.getModulePassManager().run(module, builder)
    _nameless(module, entries)
    module.verify()
    return bytes(machine.emit_object(module))


def text_of(module: binding.ModuleRef, entries: frozenset[str]) -> str:
    """The module's code, the same whatever was counted through the process before, and whatever the entries are
    called."""
    copy = module.clone()
    _nameless(copy, entries)
    for number, name in enumerate(sorted(entries)):
        copy.get_function(name).name = f"entry{number}"
    return str(copy)


def _nameless(module: binding.ModuleRef, entries: frozenset[str]) -> None:
    """Take the names from all but the entries, and what nobody calls away: Numba counts names through the process, and
    code is to be the same wherever it is made."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in entries:
            value.linkage = "internal"
    module.name = "tileflow"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.add_strip_symbols_pass()
    passes.run(module, binding.create_pass_builder(_own()[0]._tm, binding.create_pipeline_tuning_options()))
