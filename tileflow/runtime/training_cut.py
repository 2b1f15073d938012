"""Training of models whose sizes follow from data: what decides the sizes is computed first, call by call, and all else is one program."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import Graph, type_of
from ..graph.op import plain_domain
from ..importers.onnx import UnsupportedNodesError
from ..importers.onnx.hosted import Datum, is_plain
from ..importers.onnx.model import title
from ..importers.onnx.pieces import Cutter, Frame, Piece, Step, frame_of
from ..system.errors import UnsupportedError
from ..system.text import one_line
from .pieces import Pieces, kind

SHAPES = ("Shape", "Size")
"""Operators that read a type and no numbers."""
SHOWN = 5
"""Names that a message lists."""
MOST_KEPT = 64
"""Final pieces that are kept, over all sizes."""


@dataclass(frozen=True)
class Ready:
    """What is trained for the data of a call: a graph, the data of its inputs, the elements of its states. key: equal ones have one program."""

    key: tuple[Any, ...]
    graph: Graph
    inputs: tuple[np.ndarray, ...]
    weights: Mapping[str, np.ndarray]


class TrainingCut:
    """A model in two: what decides sizes, which depends on no weight that is trained and is computed as in inference, and the rest, one graph.

    Args:
        pieces: runs the first part. cutter: imports the second one for training. trained: names of the weights that are trained.
    """

    def __init__(self, pieces: Pieces, cutter: Cutter, trained: Iterable[str]) -> None:
        self._pieces, self._cutter, self._trained = pieces, cutter, frozenset(trained)
        self._main = cutter.main()
        self._deciding: tuple[str, ...] = ()
        """Names that must be there before the rest can be one graph, as far as is known."""
        self._rests: dict[tuple[str, ...], tuple[Frame, Frame]] = {}
        self._kept: dict[tuple[Any, ...], Piece] = {}

    def __call__(self, data: Mapping[str, np.ndarray]) -> Ready:
        """What is trained for the data of the model's inputs, by name. Whoever calls has the session's turn.

        Raises:
            UnsupportedError: what decides a size depends on weights that are trained, or is within a branch, a body or a function.
        """
        while True:
            first, rest = self._parts()
            here: dict[str, Datum] = {**data, **self._pieces.values(first, data)}
            read = {name: here[name] for name in rest.reads if name in here}
            piece = self._kept.get(_key(rest, read))
            if piece is None:
                types = {name: type_of(x) for name, x in read.items() if is_plain(x)}
                piece = self._cutter.cut(rest, types, read.keys() - types.keys(), read)
                if piece.rest is not None or piece.hosted:
                    self._decide(piece)
                    continue
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[_key(rest, read)] = piece                # the cut has found out which values decide
            if piece.graph is None:
                raise UnsupportedError(f"{self._cutter.model.where}: all of it is known before anything is trained.")
            return Ready(_key(rest, read), piece.graph, tuple(np.ascontiguousarray(here[name]) for name in piece.inputs), piece.weights)

    def _parts(self) -> tuple[Frame, Frame]:
        """The frames of what decides and of the rest."""
        names = self._deciding
        if names not in self._rests:
            steps = [step for step in self._main.steps if not any(name in names for name in step.writes)]
            self._rests[names] = frame_of(self._main.steps, names), frame_of(steps, self._main.wanted)
        return self._rests[names]

    def _decide(self, piece: Piece) -> None:
        """Let what stopped a piece be computed before it."""
        found = {name for step in piece.hosted for name in step.writes} | (set() if piece.rest is None else piece.rest.baked)
        makers = {name: step for step in self._main.steps for name in step.writes}
        new = [name for name in found if name in makers and name not in self._deciding]
        nodes = [makers[name] for name in new] or list(piece.hosted)
        if not new:
            raise UnsupportedError(f"{self._cutter.model.where}: sizes within a branch, a body or a function follow from data at "
                                   f"{_listed(nodes)}, and training needs one program: export the model without it, or let the sizes be constants.")
        for name in new:
            weights = [at for at in self._before([name], makers) if at in self._trained]
            sizes = self._before(sorted(piece.deciding.get(makers[name], ())), makers)
            if weights and sizes and self._trained.isdisjoint(sizes):
                inputs = [port.name for port in self._cutter.model.inputs if port.name in sizes]
                raise UnsupportedError(
                    f"{self._cutter.model.where}: within {title(makers[name].node)} sizes follow from data (of {_names(inputs)}), and training needs "
                    f"one program. Export the model with constants there: bags of embeddings, say, as a matrix [bags, indices] without offsets.")
            if weights:
                raise UnsupportedError(
                    f"{self._cutter.model.where}: at {title(makers[name].node)} sizes follow from numbers that training changes (by "
                    f"{_names(weights)}), and training needs one program. Freeze these weights (option frozen), give the model an output before that "
                    f"node for the loss, or let a constant decide, as the k of a TopK.")
        self._deciding = tuple(sorted({*self._deciding, *new}))

    def _before(self, names: Sequence[str], makers: Mapping[str, Step]) -> list[str]:
        """These names, and those on whose numbers they depend."""
        found = dict.fromkeys(names)
        stack = list(names)
        while stack:
            step = makers.get(stack.pop())
            if step is None or (step.node.op_type in SHAPES and plain_domain(step.node.domain) == ""):
                continue
            for read in step.reads:
                if read not in found:
                    found[read] = None
                    stack.append(read)
        return list(found)


def _key(frame: Frame, read: Mapping[str, Datum]) -> tuple[Any, ...]:
    """What the graph of a frame depends on of what it reads: types, and the values that are compiled in."""
    return (frame.number, *((name, kind(x)) for name, x in read.items()), *(read[name].tobytes() for name in sorted(frame.baked) if name in read))


def is_cut(error: UnsupportedNodesError) -> bool:
    """Nothing but sizes, turns and types that follow from data stops one program."""
    return bool(error.refused) and set(error.refused) == set(error.waiting)


def _listed(steps: Sequence[Step]) -> str:
    return _names([title(step.node) for step in steps])


def _names(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return one_line(", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else ""))
