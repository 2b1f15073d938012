"""Models with a loss: labels follow their inputs."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..feed.items import array_of
from ..loss import LABELS, Loss, find
from ..loss.base import Takes
from ..memory.tensor import kind_of
from ..memory.types import TensorType
from ..metrics.view import OutputMeaning
from ..options.options import Options
from ..system.errors import DataError, TypeMismatchError
from .arrays import as_array
from .host import Progress
from .model import Model
from .recipes import loss_data
from .source import Source
from .stored import Stored

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Graph

LONGEST_NOTE = 2000
"""Characters of a sentence on what gradients will not do; such sentences list nodes and weights."""


def _told(loss: Any) -> Any:
    """A loss with the losses in it, as values that can be written down where it is one of tileflow's."""
    if isinstance(loss, tuple):
        return [*map(_told, loss)]
    if not is_dataclass(loss) or isinstance(loss, type):
        return loss
    return [type(loss), [[f.name, _told(getattr(loss, f.name))] for f in fields(loss)]]


class LossModel(Model):
    """A model with a loss: labels follow its own inputs."""

    def __init__(self, source: Source, options: Options, loss: str | compiler.Loss | Loss,
                 progress: Progress | None = None) -> None:
        super().__init__(source, options, progress)
        self.loss = find(loss, options)
        self._view: OutputMeaning | None = None
        self._viewed = False
        """The view is known, be it None."""
        self._fitted_loss: Any = None
        """The loss for the outputs of the last graph, as data."""

    @property
    def loss_name(self) -> str:
        return self.loss.name

    @property
    def view(self) -> OutputMeaning | None:
        """How metrics read the first output; known once a program is compiled."""
        if not self._viewed:
            self._require_graph()
        if not self._viewed and (current := self.programs.current) is not None:
            self._view, self._viewed = self.loss.view(current.program.outputs), True
        return self._view

    def _own_of(self, given: int, named: int = 0) -> int:
        """How many of the arguments of a call are the model's own inputs; the loss takes the rest."""
        if self.loss.takes == "nothing":
            return given
        known = self.source.input_count
        return given - len(self.loss.takes_each) if known is None else max(0, known - named)

    def _divided(self, args: Sequence[Any],
                 named: Mapping[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Mapping[str, Any]]:
        if LABELS not in named or LABELS in self.source.parameters or self.loss.takes == "nothing":
            return super()._divided(args, named)
        own, labels = {name: x for name, x in named.items() if name != LABELS}, named[LABELS]
        return args, labels if len(self.loss.takes_each) > 1 and isinstance(labels, (tuple, list)) else [labels], own

    def _fitted(self, graph: Graph, labels: tuple[TensorType, ...]) -> Loss:
        """The loss for this graph's outputs and these labels."""
        loss = self.loss.within(graph).fitted(graph.outputs, *(labels[:max(1, len(self.loss.takes_each))] or (None,)))
        self._view, self._viewed, self._fitted_loss = loss.view(graph.outputs), True, loss_data(loss)
        return loss

    def _shaped_by_source(self) -> list[Any]:
        return [*super()._shaped_by_source(), _told(self.loss)]

    def _known(self) -> dict[str, Any]:
        return {"view": None if self._view is None else asdict(self._view)}

    def _recall(self, known: Mapping[str, Any]) -> None:
        view = known["view"]
        self._view, self._viewed = None if view is None else OutputMeaning(**view), True

    def _description(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        return {**super()._description(types), "loss": loss_data(self.loss)}

    def _facts(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        return {**super()._facts(types), "fitted": self._fitted_loss}

    def _loaded(self, stored: Stored) -> None:
        self._fitted_loss = stored.opened.header.fitted

    def _arrays(self, arrays: Sequence[Any], own: int) -> list[np.ndarray]:
        if self.loss.takes in ("classes", "numbers") and len(arrays) == own:
            raise DataError(f"The loss {self.loss_name} needs {LABELS} after the model's inputs: call model(x, "
                            f"{LABELS}); where forward() computes its loss itself, set loss='identity'; outputs alone "
                            "are what tileflow.inference_model gives.")
        takes = self.loss.takes_each
        if len(takes) > 1 and len(arrays) - own != len(takes):
            raise DataError(f"The loss {self.loss_name} takes {len(takes)} arrays after the model's inputs, and "
                            f"{len(arrays) - own} are given.")
        each = [array_of(a) for a in arrays[own:]]
        return [*super()._arrays(arrays[:own], own),
                *(self._label(a, takes[i] if i < len(takes) else "anything") for i, a in enumerate(each))]

    def _label(self, labels: np.ndarray, takes: Takes) -> np.ndarray:
        """Class numbers as int64, targets in the model's precision; for a loss of one's own by what they are."""
        kind = kind_of(labels.dtype)
        if kind not in "biu" and takes == "classes":
            raise TypeMismatchError(f"Data type mismatch for {LABELS}: expected int64 but got {labels.dtype}; the loss "
                                    f"{self.loss_name} takes class numbers. For numbers to be predicted choose the "
                                    "loss mse, for yes or no bce_with_logits.")
        if kind in "biu" and takes in ("classes", "anything"):
            labels = labels.astype(np.int64)
        elif kind in "biuf" and takes != "classes":
            labels = labels.astype(self.source.precision.loss)
        return as_array(labels, None, LABELS)
