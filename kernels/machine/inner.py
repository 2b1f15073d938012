"""Inner functions: compiled code that only leaves call.

Numba compiles a function that another one calls as if Python would call it too: with two wrappers and machine code of its
own. A leaf needs neither; it takes the callee's code in before its own is made.
"""
from __future__ import annotations

from typing import Any

from numba import _dynfunc
from numba.core import codegen, compiler, compiler_machinery, typed_passes
from numba.extending import register_jitable as _register_jitable


class _Library(codegen.JITCodeLibrary):
    """Code that others link with, and that never becomes machine code by itself."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Numba's last pass without what makes a function callable from Python."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        lowered, library = state["cr"], state.library
        library._ensure_finalized()
        # What Numba knows the function by: nobody has it who could call its address, null.
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), state.func_id.func_name, "inner", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class _Compiler(compiler.Compiler):
    def define_pipelines(self) -> list[Any]:
        [pipeline] = super().define_pipelines()
        pipeline.passes = [(_Lowering if step is typed_passes.NativeLowering else step, text) for step, text in pipeline.passes]
        pipeline._finalized = False
        pipeline.finalize()
        return [pipeline]


def register_jitable(function: Any = None, **options: Any) -> Any:
    """Numba's decorator of this name, for functions that leaves call and Python calls as they stand."""
    wrap = _register_jitable(pipeline_class=_Compiler, **options)
    return wrap if function is None else wrap(function)
