"""An `onnx.backend`-style backend: run any ONNX model through the engine, as ONNX's own backend tests do.

    rep = Backend.prepare(onnx.load("model.onnx"))
    y, = rep.run([x])
"""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from . import compiler
from .executable.engine import Engine
from .graph import CODES, Graph, type_of
from .importers.onnx import DynamicOperandError, OnnxModel, import_graph, load_model, resolved, unsupported_nodes, wrap_model
from .importers.onnx.pieces import Cutter, decides
from .program.batching import Batching
from .program.program import Program
from .runtime.executable import CallTypes, Recent, make_engine
from .runtime.host import Host
from .runtime.pieces import Pieces, as_datum
from .state import Session, Turn, build
from .system.errors import DataError, UnsupportedError


class Backend(OnnxBackend):
    """tileflow as an ONNX backend on the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Every operator of the model has an implementation, judged by name."""
        return cls.supports_device(device) and not unsupported_nodes(_loaded(model))

    @classmethod
    def prepare(cls, model: ModelProto | str | os.PathLike[str], device: str = "CPU", **kwargs: Any) -> Prepared:
        """Check a model. Programs are compiled when `run` brings arrays, whose shapes they are for.

        Args:
            threads (in kwargs): worker threads; by default one for each core that may be used.

        Raises:
            ModelError: the model is damaged, or uses operators that tileflow does not have.
        """
        if not cls.supports_device(device):
            raise UnsupportedError(f"The device is {device!r}, but tileflow runs on the CPU: ask for 'CPU'.")
        loaded = _loaded(model)
        if refused := unsupported_nodes(loaded):
            shown = "; ".join(f"{name}: {why}" for name, why in refused[:10])
            more = f"; and {len(refused) - 10} more" if len(refused) > 10 else ""
            raise UnsupportedError(f"{loaded.where} cannot run on tileflow ({shown}{more}): export it with other operators.")
        return Prepared(loaded, kwargs.get("threads"))


def _loaded(model: ModelProto | str | os.PathLike[str]) -> OnnxModel:
    """Load a model."""
    if not isinstance(model, ModelProto):
        return load_model(Path(model))
    return wrap_model(model)


class Prepared(BackendRep):
    """A checked model and the programs compiled for it so far. Threads that run it take turns."""

    def __init__(self, model: OnnxModel, threads: int | None = None) -> None:
        self.model, self._threads = model, threads
        self._turn = Turn()
        self._names = [p.name for p in model.inputs]
        self._baked: frozenset[str] = frozenset()
        self._engines: Recent[tuple[Any, ...], Engine] = Recent()
        self._pieces: Pieces | None = None
        """How the model runs, where it cannot run as one program."""
        self._last: tuple[CallTypes, Engine] | None = None
        """What ran last, where the types of its arrays are all that it is for."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for arrays in the order of the model's inputs (initializers left out), or for a dict by name.

        Texts are arrays of `str` objects, sequences are lists, an empty optional is None. Inputs that decide a shape are compiled into the
        program: other values of them make another program. A model whose sizes follow from data runs in pieces (`runtime/pieces.py`).
        """
        if self._last is not None:
            signature, engine = self._last
            given = [inputs.get(name) for name in self._names] if isinstance(inputs, dict) else inputs
            if isinstance(given, list | tuple) and signature.fits(given):
                return tuple([a[0] for a in self._turn.call(engine.call, given)])
        return self._turn.call(self._run, self._arrays(inputs))

    def _run(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """A call with other types than the last one, within this thread's turn."""
        engine = self._engine(arrays) if self._pieces is None else None
        if engine is None:
            assert self._pieces is not None
            return tuple(self._pieces.run(arrays))
        self._last = None if self._baked else (CallTypes([type_of(a) for a in arrays.values()]), engine)
        return tuple(a[0] for a in engine.call([a for name, a in arrays.items() if name not in self._baked]))

    def _arrays(self, inputs: Any) -> dict[str, Any]:
        names = self._names
        if not isinstance(inputs, Mapping):
            given: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]
            if len(given) != len(names):
                raise DataError(f"{self.model.where} has the inputs {', '.join(names) or 'none'} and got {len(given)} arrays; "
                                f"give one for each.")
            inputs = dict(zip(names, given, strict=True))
        if missing := [n for n in names if n not in inputs]:
            raise DataError(f"{self.model.where} needs its inputs {', '.join(missing)}; give an array for each.")
        return {port.name: as_datum(inputs[port.name], port) for port in self.model.inputs}

    def _engine(self, arrays: Mapping[str, Any]) -> Engine | None:
        """The program for these arrays, compiled if need be; None where the model runs in pieces."""
        if not all(port.dtype in CODES for port in (*self.model.inputs, *self.model.outputs)):
            self._cut()
            return None
        while True:
            values = {name: arrays[name] for name in sorted(self._baked)}
            key = (*((n, type_of(a)) for n, a in arrays.items()), *(a.tobytes() for a in values.values()))
            try:
                return self._engines.get(key, lambda: build(partial(self._compile, arrays, values)))          # noqa: B023    (called at once)
            except DynamicOperandError as error:
                if not error.names - self._baked or not decides(arrays[name] for name in error.names):
                    self._cut()
                    return None
                self._baked |= error.names

    def _cut(self) -> None:
        """From now on run in pieces."""
        def compile(graph: Graph) -> Program:
            return compiler.inference(graph, Batching(1)).program
        self._pieces = Pieces(Cutter(resolved(self.model)), Session(), Host(self._threads), compile)

    def _compile(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> Engine:
        types = {name: type_of(a) for name, a in arrays.items() if name not in values}
        imported = import_graph(self.model, input_types=types, values=values, training=None)
        program = compiler.inference(imported.graph, Batching(1)).program
        return make_engine(program, Session(), imported.weights, Host(self._threads))
