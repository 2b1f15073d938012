"""A code generator for CPU paths: LLVM's, with machine code for a processor that is told, and in objects that stand
alone.

Numba compiles a user's functions beside ours for the very processor it runs on. Until it is linked, code is made for no
processor in particular; the path comes in with `emitted`.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import binding

from ..isa.target import Target

OPTIMISATION = 3


@functools.cache
def _machine() -> dict[str, Any]:
    """What holds for all processors: objects are linked where they run."""
    x86 = binding.get_process_triple().startswith(("x86", "i386"))
    return {"reloc": "static" if x86 else "default", "codemodel": "jitdefault", "jit": True}


@functools.cache
def _neutral() -> binding.TargetMachine:
    """A machine for no processor in particular."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return _for("", "")


def _for(processor: str, features: str) -> binding.TargetMachine:
    return binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=processor, features=features, opt=OPTIMISATION, **_machine())


def _passes(machine: binding.TargetMachine, level: int, loops: bool = False) -> binding.PassBuilder:
    tuning = binding.create_pipeline_tuning_options()
    tuning.speed_level, tuning.slp_vectorization, tuning.loop_vectorization = level, False, loops
    return binding.create_pass_builder(machine, tuning)


def empty_module() -> binding.ModuleRef:
    """A module to link others into."""
    module = binding.parse_assembly("")
    module.triple, module.data_layout = binding.get_process_triple(), str(_neutral().target_data)
    return module


def emitted(module: binding.ModuleRef, target: Target, entries: frozenset[str]) -> bytes:
    """The object of a whole module, in which nothing but the functions `entries` has a name. The module is changed."""
    machine = _for(target.processor, target.features)
    # As Numba does it: inlining first, cheaply, and loops turned to test at their ends, by which the vectoriser knows
    # them.
    builder = _passes(machine, 0)
    passes = builder.getModulePassManager()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_jump_threading_pass()
    passes.run(module, builder)
    builder = _passes(machine, OPTIMISATION, loops=True)
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
    """Take the names from all but the entries, and what nobody calls away: code is to be the same
    wherever it is made, whatever its parts are called."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in entries:
            value.linkage = "internal"
    module.name = "tileflow"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.add_strip_symbols_pass()
    passes.run(module, binding.create_pass_builder(_neutral(), binding.create_pipeline_tuning_options()))
