"""Inner functions: compiled code that only leaves call, and how Numba is led to it.

Numba compiles a function that another one calls as if Python would call it too: with two wrappers and machine code of its
own. A leaf needs neither; it takes the callee's code in before its own is made (`codegen`).
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from numba import _dynfunc
from numba.core import compiler, compiler_machinery, transforms, typed_passes, types, untyped_passes
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
        self._worker._compiler_pipeline = lambda state: _passes(*_untyped(state, untyped_passes.InlineInlinables))
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


class _Passes(compiler_machinery.PassManager):
    """Numba's passes, one after the other. Numba's own manager finds the lifetimes of all variables anew after each of
    them, for which nobody asks before the last one, which does so itself; and it keeps times, events and texts of what
    it does."""

    def __init__(self, passes: Sequence[type]) -> None:
        super().__init__("nopython")
        for step in passes:
            self.add_pass(step, step.__name__)
        self.finalize()

    def _runPass(self, index: int, pss: Any, internal_state: Any) -> None:
        pss.analysis = self._analysis
        pss.run_initialization(internal_state)
        pss.run_pass(internal_state)
        pss.run_finalizer(internal_state)
        if compiler_machinery._pass_registry.get(type(pss)).mutates_CFG:
            internal_state.func_ir.blocks = transforms.canonicalize_cfg(internal_state.func_ir.blocks)


@functools.cache
def _passes(*steps: type) -> _Passes:
    return _Passes(steps)


def _untyped(state: Any, inlining: type) -> list[type]:
    """Those of Numba's passes before types are found that such code needs: without `with`, exceptions with values and
    loops over tuples of several types; those for functions within functions where there are any."""
    nested = any(isinstance(constant, CodeType) for constant in state.func_id.code.co_consts)
    return [untyped_passes.TranslateByteCode, untyped_passes.FixupArgs, untyped_passes.IRProcessing,
            *([untyped_passes.InlineClosureLikes] if nested else []),
            untyped_passes.RewriteSemanticConstants, untyped_passes.DeadBranchPrune, untyped_passes.GenericRewrites,
            *([untyped_passes.MakeFunctionToJitFunction] if nested else []),
            inlining, untyped_passes.DeadBranchPrune]


def _pipeline(state: Any, inlining: type, lowering: type) -> list[_Passes]:
    """All of them: without arithmetic on arrays as a whole, too, and what is written down for viewers."""
    return [_passes(*_untyped(state, inlining), untyped_passes.ReconstructSSA, untyped_passes.DeadBranchPrune,
                    typed_passes.NopythonTypeInference, typed_passes.PreLowerStripPhis, typed_passes.InlineOverloads,
                    typed_passes.NoPythonSupportedFeatureValidation, typed_passes.IRLegalization, lowering,
                    typed_passes.NoPythonBackend)]


class _Compiler(compiler.Compiler):
    def define_pipelines(self) -> list[Any]:
        return _pipeline(self.state, untyped_passes.InlineInlinables, _InnerLowering)


class Outermost(compiler.Compiler):
    """What compiles the function that becomes an entry, which takes another one in (`inline="always"`)."""

    def define_pipelines(self) -> list[Any]:
        return _pipeline(self.state, _Inlining, _Lowering)


_signatures: dict[tuple[int, Any], tuple[Any, Any]] = {}
"""What calls of functions that Numba knows by name came to, by function and types; and the functions, which so stay
where they are."""


@contextlib.contextmanager
def resolved_once(context: Any) -> Iterator[None]:
    """While this lasts, a call of one of Numba's functions (operators, mathematics) is looked up among its many forms
    once for each combination of types. Whoever enters holds the compiler's lock: no code but ours is typed
    meanwhile."""
    resolve = context.resolve_function_type

    def once(function: Any, args: Any, kws: Any) -> Any:
        known = context._lookup_global(function) if not isinstance(function, types.Type) else function
        if not isinstance(known, types.Function) or kws:
            return resolve(function, args, kws)
        key = id(known), args
        if key not in _signatures:
            _signatures[key] = known, resolve(function, args, kws)
        return _signatures[key][1]

    context.resolve_function_type = once
    try:
        yield
    finally:
        del context.resolve_function_type


def register_jitable(function: Any = None, **options: Any) -> Any:
    """Numba's decorator of this name, for functions that leaves call and Python calls as they stand."""
    wrap = _register_jitable(pipeline_class=_Compiler, **options)
    return wrap if function is None else wrap(function)
