"""Models whose sizes, branches or turns follow from data: run piece by piece, each a program from a small store, with Python between them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..executable.engine import Engine
from ..graph import CODES, Graph, type_of
from ..importers.onnx import Port
from ..importers.onnx.hosted import Datum, is_plain
from ..importers.onnx.model import OTHER_TYPES
from ..importers.onnx.pieces import Cutter, Frame, Piece, Step, run_hosted
from ..program.program import Program
from ..state import Session, build, declared
from ..system.errors import OutOfMemoryError, TileflowError, TypeMismatchError
from ..system.text import one_line
from .executable import Recent, make_engine
from .host import Host, Progress

MOST_PIECES, MOST_BYTES = 64, 1 << 28
"""Pieces that a model keeps, over all sizes and branches; the least recently used goes first. More, where all of them
hold so many bytes at most: a loop that grows has one for each turn, and would find none where it has one more."""
PIECE = 1 << 17
"""Bytes that Python holds of a piece."""
Compile = Callable[[Graph], Program]
"""A graph to the program that runs it."""


@dataclass(frozen=True, eq=False)
class _Ready:
    """A piece and the engine of its graph, if it has one."""

    piece: Piece
    engine: Engine | None

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return PIECE + (0 if self.engine is None else self.engine.nbytes)


class Pieces:
    """A model that runs in pieces. What lies between two of them are arrays, lists (sequences) and None (empty optionals), by name.

    A piece is compiled for the types of what it reads and for the values that decide its shapes, and kept. Whoever calls has the session's turn.
    """

    def __init__(self, cutter: Cutter, session: Session, host: Host, compile: Compile, progress: Progress | None = None) -> None:
        self.cutter, self._session, self._host, self._compile, self._progress = cutter, session, host, compile, progress
        self._main = cutter.main()
        self.outputs = list(self._main.wanted)
        """The names of what `run` gives."""
        self._stored = cutter.texts()
        self._ready: Recent[tuple[Any, ...], _Ready] = Recent(MOST_PIECES, MOST_BYTES, lambda ready: ready.nbytes)
        self._refused: Recent[tuple[Any, ...], None] = Recent(MOST_PIECES)
        """Frames of many turns that were found to be no program, by the same keys."""
        self._turns: dict[_Ready, int] = {}
        """How often the call at hand has run a piece: in loops."""
        self.compiled = 0
        """Pieces compiled so far."""

    def run(self, data: Mapping[str, Datum]) -> list[Datum]:
        """The model's outputs in order, for the data of all of its inputs by name."""
        self.cutter.check({name: type_of(x) for name, x in data.items() if is_plain(x)})
        self._turns.clear()
        found = self._run(self._main, {**self._stored, **data})
        given = [id(x) for x in data.values()]
        return [_own(x, given) for x in found]

    def values(self, frame: Frame, data: Mapping[str, Datum]) -> dict[str, Datum]:
        """What a frame of the model wants, by name, for the data of the model's inputs."""
        self._turns.clear()
        return dict(zip(frame.wanted, self._run(frame, {**self._stored, **data}), strict=True))

    def _run(self, frame: Frame, env: Mapping[str, Datum], first: _Ready | None = None) -> list[Datum]:
        """Do all steps of a frame: what it wants of what is there then. `first`: its first piece, where that is
        known; then there is only what the frame reads."""
        wanted = frame.wanted
        rest: Frame | None = frame
        here = dict(env) if first is not None else {name: env[name] for name in frame.reads if name in env}
        while rest is not None:
            ready, first = first or self._piece(rest, here), None
            piece, read = ready.piece, rest.reads
            found: Sequence[np.ndarray] = ()
            if ready.engine is not None:
                ready.engine.repeats = self._turns.get(ready, 0)
                self._turns[ready] = ready.engine.repeats + 1
                found = ready.engine.call([_contiguous(here[name]) for name in piece.inputs])
            for name, place in piece.results.items():                    # without a graph: sequences that are empty
                here[name] = _first(found[place]) if isinstance(place, int) else [_first(found[i]) for i in place]
            here.update(piece.known)
            for step in piece.hosted:
                here.update(self._hosted(step, here))
            rest = piece.rest
            if rest is not None and len(here) > 2 * len(read) + 16:
                kept = {*rest.reads, *wanted}
                here = {name: x for name, x in here.items() if name in kept}
        return [here[name] for name in wanted]

    def _hosted(self, step: Step, here: Mapping[str, Datum]) -> dict[str, Datum]:
        def around(frame: Frame, data: Sequence[Datum]) -> dict[str, Datum]:
            return {**here, **{port.name: x for port, x in zip(frame.formals, data, strict=True)}}
        return run_hosted(step, here, lambda frame, data: self._run(frame, around(frame, data)),
                          lambda frame, data, guessed: self._whole(frame, around(frame, data), guessed))

    def _whole(self, frame: Frame, env: Mapping[str, Datum], guessed: bool) -> list[Datum] | None:
        """What a frame of one step wants, where that step can be compiled; else None, for there is another way. Of one
        that is `guessed` also where it fails."""
        here = {name: env[name] for name in frame.reads if name in env}
        key = self._key(frame, here)
        if key in self._refused:
            return None
        try:
            ready = self._ready.get(key, _never) if key in self._ready else self._piece(frame, here)
            if guessed:
                return self._run(frame, here, ready)
        except TileflowError:                                   # the other way may meet the same, and then says it
            self._refused.get(self._key(frame, here), lambda: None)
            return None
        return self._run(frame, here, ready)

    def _piece(self, frame: Frame, here: Mapping[str, Datum]) -> _Ready:
        """The next piece of a frame for what is there, compiled if need be. A cut finds out which values decide, so it may be asked twice."""
        key = self._key(frame, here)
        if key in self._ready:
            return self._ready.get(key, _never)
        ready = build(partial(self._build, frame, here))
        return self._ready.get(self._key(frame, here), lambda: ready)

    def _key(self, frame: Frame, here: Mapping[str, Datum]) -> tuple[Any, ...]:
        kinds = [kind(here[name]) if name in here else None for name in frame.reads]
        return (frame.number, *kinds, *(here[name].tobytes() for name in sorted(frame.baked) if is_plain(here.get(name))))

    def _build(self, frame: Frame, here: Mapping[str, Datum]) -> _Ready:
        read = {name: here[name] for name in frame.reads if name in here}
        types = {name: type_of(x) for name, x in read.items() if is_plain(x)}
        piece = self.cutter.cut(frame, types, read.keys() - types.keys(), read)
        self._session.declare(declared(piece.apart), piece.weights)
        if piece.graph is None:
            return _Ready(piece, None)
        self.compiled += 1
        try:
            return _Ready(piece, self.engine(piece.graph, piece.weights))
        except OutOfMemoryError:
            if not len(self._ready):
                raise
            self._ready.clear()                                 # what is kept for other sizes gives way
            return _Ready(piece, self.engine(piece.graph, piece.weights))

    def engine(self, graph: Graph, weights: Mapping[str, np.ndarray]) -> Engine:
        """What runs the graph of a piece."""
        return make_engine(self._compile(graph), self._session, weights, self._host, progress=self._progress,
                           kept=False)


def _never() -> _Ready:
    raise AssertionError("it is there")


def kind(x: Datum) -> object:
    """What a piece depends on of a datum: a tensor's type, or that it is a sequence, text or nothing."""
    return (x.dtype, x.shape) if is_plain(x) else type(x)


def _first(x: np.ndarray) -> np.ndarray:
    """The one micro-batch of an output."""
    return x.reshape(x.shape[1:])


def _contiguous(x: np.ndarray) -> np.ndarray:
    return x if x.flags.c_contiguous else np.ascontiguousarray(x).reshape(x.shape)


def _own(x: Datum, given: Sequence[int]) -> Datum:
    """A datum that is the caller's alone."""
    if isinstance(x, list):
        return [_own(part, given) for part in x]
    return x.copy() if isinstance(x, np.ndarray) and (id(x) in given or not x.flags.writeable) else x


def as_datum(given: Any, port: Port) -> Datum:
    """What a caller gives for an input as programs and Python take it: a C-contiguous array, texts as objects, a list or None.

    Raises TypeMismatchError for anything else.
    """
    if given is None and port.dtype == "optional":
        return None
    if isinstance(given, list | tuple) and port.dtype in ("sequence", "optional"):
        return [as_datum(part, port) for part in given]
    array = np.asarray(given)
    if array.dtype.kind in "SUO" and port.dtype in OTHER_TYPES:
        texts = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in array.reshape(-1).tolist()]
        if all(isinstance(text, str) for text in texts):
            return np.array(texts, object).reshape(array.shape)
        raise TypeMismatchError(f"The input '{port.name}' holds {one_line(type(texts[0]).__name__)} objects; give texts.")
    if array.dtype.name not in CODES:
        raise TypeMismatchError(f"The input '{port.name}' has element type {array.dtype}; give one of {', '.join(CODES)}.")
    if port.dtype == "STRING":
        raise TypeMismatchError(f"The input '{port.name}' has element type {array.dtype}; give texts.")
    return np.ascontiguousarray(array).reshape(array.shape)
