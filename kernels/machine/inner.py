"""Inner functions: compiled code that only leaves call, and how Numba is led to it.

Numba compiles a function that another one calls as if Python would call it too: with two wrappers and machine code of its
own. A leaf needs neither; it takes the callee's code in before its own is made (`codegen`).
"""
from __future__ import annotations

from typing import Any

from numba import _dynfunc
from numba.core import compiler, compiler_machinery, typed_passes, untyped_passes
from numba.extending import register_jitable as _register_jitable

from . import codegen


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Numba's last pass, into a library of ours and without what makes a function callable from Python."""

    _name = "nameless_lowering"

    def run_pass(self, state: Any) -> bool:
        state.targetctx = codegen.contextual(state.targetctx)
        state.library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        return bool(super().run_pass(state))


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(_Lowering):
    """The same for a function that others call by name."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        super().run_pass(state)
        lowered, library = state["cr"], state.library
        library._ensure_finalized()
        # What Numba knows the function by: nobody has it who could call its address, null.
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), state.func_id.func_name, "inner", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class _Moved:
    """Puts a function's code where it is called. Numba's own worker copies it twice before, block by block and each with all variables of the
    function, which took up to a third of a large kernel's compilation; but nobody else has the code that was read for this."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def inline_function(self, caller: Any, block: Any, i: int, function: Any, types: Any = None) -> Any:
        code = self._worker.run_untyped_passes(function)
        blocks = list(code.blocks.values())
        for b in blocks:
            b.__deepcopy__ = lambda _memo, itself=b: itself
        made = self._worker.inline_ir(caller, block, i, code, function.__code__.co_freevars, types)
        for b in blocks:
            del b.__deepcopy__
        return made


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Inlining(untyped_passes.InlineInlinables):
    """Numba's pass that inlines, without copies."""

    _name = "moving_inlining"

    def _do_work(self, state: Any, work_list: Any, block: Any, i: int, expr: Any, worker: Any) -> Any:
        return super()._do_work(state, work_list, block, i, expr, _Moved(worker))


def _with(passes: dict[type, type], pipelines: list[Any]) -> list[Any]:
    """Numba's one pipeline with passes of ours in place of its own."""
    [pipeline] = pipelines
    pipeline.passes = [(passes.get(step, step), text) for step, text in pipeline.passes]
    pipeline._finalized = False
    pipeline.finalize()
    return [pipeline]


class _Compiler(compiler.Compiler):
    def define_pipelines(self) -> list[Any]:
        return _with({typed_passes.NativeLowering: _InnerLowering}, super().define_pipelines())


class Outermost(compiler.Compiler):
    """What compiles the function that becomes an entry, which takes another one in (`inline="always"`)."""

    def define_pipelines(self) -> list[Any]:
        return _with({untyped_passes.InlineInlinables: _Inlining, typed_passes.NativeLowering: _Lowering}, super().define_pipelines())


def register_jitable(function: Any = None, **options: Any) -> Any:
    """Numba's decorator of this name, for functions that leaves call and Python calls as they stand."""
    wrap = _register_jitable(pipeline_class=_Compiler, **options)
    return wrap if function is None else wrap(function)
