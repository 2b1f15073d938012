"""The compiled programs of a model, by the types of a call's arrays: kept, found again, refused where types stay."""
from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from ..executable.engine import Engine
from ..memory.types import TensorType
from ..options.options import Options
from ..state import build
from ..system.errors import DataError, ShapeError, TileflowError, TypeMismatchError, see
from ..system.logs import logger
from ..system.nested import Form, Results
from ..system.spans import span
from .executable import CallTypes, Recent
from .outputs import Shown
from .rows import Rows

if TYPE_CHECKING:
    from .. import compiler
    from ..program.program import Program

HINT = ("the model was compiled for other inputs; call destroy() to compile it anew, or set on_new_shape='compile'."
        + see("serving#rows"))


class Compiled:
    """A program that runs, the types of a call's arrays, and what calls return of each output.

    anchors: names of the outputs that are values within the model: the last ones. loss: the place of the loss among the
    outputs.
    """

    def __init__(self, engine: Engine, signature: CallTypes, shown: list[Shown], anchors: tuple[str, ...],
                 loss: str | None, compiled: Callable[[], compiler.Compilation], form: Form | None = None,
                 results: Results | None = None) -> None:
        """Args:
            loss: the name of the output that is the loss.
            compiled: gives the compilation that the engine comes from, made anew where an earlier start has kept only
                what runs.
            form, results: how arguments and results of calls are nested; None: arrays one after the other.
        """
        self.form, self.results = form, results
        self.engine, self.signature, self.shown, self.anchors = engine, signature, shown, anchors
        self.loss = None if loss is None else [v.name for v in engine.outputs].index(loss)
        self._compiled, self._lock = compiled, threading.Lock()
        self._compilation: compiler.Compilation | None = None

    def is_of(self, form: Form | None) -> bool:
        """Calls of this form run it, if their arrays fit."""
        return form is self.form or (form is not None and self.form is not None and form.key == self.form.key)

    @property
    def compilation(self) -> compiler.Compilation:
        """How it came about."""
        with self._lock:
            if self._compilation is None:
                self._compilation = self._compiled()
            return self._compilation

    @property
    def program(self) -> Program:
        return self.compilation.program


listeners: list[Callable[[compiler.Compilation, Options, bool], None]] = []
"""Told of every program that models compile: it, their options, and whether it trains."""


class Programs:
    """A model's compiled programs; `current` is the one used last, None before the first."""

    def __init__(self, options: Options, rows: Rows) -> None:
        self.current: Compiled | None = None
        self.absent: str | None = None
        """Why there is no one program, as a sentence; None: there is, once the model is compiled."""
        self.seconds = 0.0
        """Spent on compiling since someone last set it to zero."""
        self._fixed, self._rows = options.on_new_shape == "error", rows
        self._kept: Recent[Hashable, Compiled] = Recent()

    def __len__(self) -> int:
        return len(self._kept)

    def required(self) -> Compiled:
        """The current one (TileflowError where there is none)."""
        if self.absent is not None:
            raise TileflowError(self.absent)
        if self.current is None:
            raise TileflowError("The model has not been compiled yet; call it, or call compile() with example arrays.")
        return self.current

    def get(self, key: Hashable, make: Callable[[], Compiled]) -> Compiled:
        """The program of a key, made if need be and current from now on. Whoever calls has the session's turn."""
        self.current = self._kept.get(key, lambda: self._timed(make))
        return self.current

    def _timed(self, make: Callable[[], Compiled]) -> Compiled:
        began = time.perf_counter()
        try:
            with span("compile", "compile"):
                return build(make)
        finally:
            took = time.perf_counter() - began
            self.seconds += took
            logger("compile").debug("A program was compiled in %.2f s.", took)

    def forget(self) -> None:
        """Let them all go, and with them what shapes they had."""
        self._kept.clear()
        self.current = self.absent = None

    def check_types(self, types: tuple[TensorType, ...], key: Hashable, form: Form | None) -> None:
        """The sentence for arrays of other types than those the model was compiled for, where these are fixed; or for
        what is no call at all. Calls of another form are another program."""
        alike = next((made for made in reversed(self._kept.values()) if made.is_of(form)), None)
        if not self._fixed or alike is None or key in self._kept:
            return
        self._rows.micro_types(types)
        expected, names = alike.signature.types, [v.name for v in alike.engine.image.inputs]
        if len(types) != len(expected):
            raise DataError(f"Number of inputs mismatch: expected {len(expected)} but got {len(types)}; {HINT}")
        for name, want, got in zip(names, expected, types, strict=False):
            if want.dtype != got.dtype:
                raise TypeMismatchError(f"Data type mismatch for {name}: expected {want.dtype} but got {got.dtype}; "
                                        f"{HINT}")
            if want.shape != got.shape:
                raise ShapeError(f"Shape mismatch for {name}: expected {list(want.shape)} but got {list(got.shape)}; "
                                 f"{HINT}")

    def check_kinds(self, kinds: Mapping[str, TensorType], seen: Mapping[str, TensorType] | None) -> None:
        """The same for models without one program: the types of a call's inputs by name, and those of the call before
        (None: it is the first)."""
        if seen is None or kinds == seen or not self._fixed:
            return
        name = next((n for n in seen if kinds.get(n) != seen[n]), next(iter(kinds), ""))
        raise ShapeError(f"Shape mismatch for {name}: expected {seen.get(name)} but got {kinds.get(name)}; {HINT}")


def later(make: Callable[[tuple[TensorType, ...]], tuple[compiler.Compilation, Any]],
          types: tuple[TensorType, ...]) -> Callable[[], compiler.Compilation]:
    """What makes the compilation that an earlier start has kept the outcome of, by a model's method; the model is alive
    when somebody asks for it, and not by that."""
    built = weakref.WeakMethod(make)

    def compiled() -> compiler.Compilation:
        method = built()
        assert method is not None
        return method(types)[0]
    return compiled
