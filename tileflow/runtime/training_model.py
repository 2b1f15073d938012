"""Models with a loss: labels follow their inputs, and a training model updates the weights as well."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import compiler
from ..errors import DataError, TypeMismatchError
from ..graph import Graph, TensorType, kind_of
from ..graph.digest import digest
from ..loss import LABELS, Loss, find
from ..metrics.view import View
from ..optim import Optimizer, from_options
from ..options import Options
from ..program import Batching
from .model import Model, Progress
from .source import Source, as_array


class LossModel(Model):
    """A model with a loss: labels follow its own inputs."""

    def __init__(self, source: Source, options: Options, loss: str | compiler.Loss | Loss, progress: Progress | None = None) -> None:
        super().__init__(source, options, progress)
        self.loss = find(loss, options)
        self.view: View | None = None
        """How metrics read the first output; known once a program is compiled."""

    @property
    def loss_name(self) -> str:
        return self.loss.name

    def _own_inputs(self, micro: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return micro[:self._own_count(len(micro))]

    def _own_count(self, given: int) -> int:
        """How many of the arrays of a call are the model's own inputs; the loss takes the rest."""
        if self.loss.takes == "nothing":
            return given
        known = self.source.input_count
        return given - 1 if known is None else known

    def _fitted(self, graph: Graph, labels: tuple[TensorType, ...]) -> Loss:
        """The loss for this graph's outputs and these labels."""
        loss = self.loss.fitted(graph.outputs, labels[0] if labels else None)
        self.view = loss.view(graph.outputs)
        return loss

    def _arrays(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        count = self._own_count(len(arrays))
        if self.loss.takes in ("classes", "numbers") and len(arrays) == count:
            raise DataError(f"The loss {self.loss_name} needs {LABELS} after the model's inputs: call model(x, {LABELS}).")
        return [*super()._arrays(arrays[:count]), *(self._label(np.asarray(a)) for a in arrays[count:])]

    def _label(self, labels: np.ndarray) -> np.ndarray:
        """Class numbers as int64, targets in the model's precision; for a loss of one's own by what they are."""
        kind = kind_of(labels.dtype)
        if kind not in "biu" and self.loss.takes == "classes":
            raise TypeMismatchError(f"Data type mismatch for {LABELS}: expected int64 but got {labels.dtype}; the loss {self.loss_name} takes class "
                                    "numbers. For numbers to be predicted choose the loss mse, for yes or no bce_with_logits.")
        if kind in "biu" and self.loss.takes in ("classes", "anything"):
            labels = labels.astype(np.int64)
        elif kind in "biuf" and self.loss.takes != "classes":
            labels = labels.astype(self.options.precision)
        return as_array(labels, None, LABELS)


class TrainingModel(LossModel):
    """A model with a loss and an optimizer: each call does `device_iterations` weight updates and returns outputs and loss."""

    training = True

    def __init__(self, source: Source, options: Options, optimizer: Optimizer | None = None, loss: str | compiler.Loss | Loss = "cross_entropy",
                 progress: Progress | None = None) -> None:
        super().__init__(source, options, loss, progress)
        self.optimizer = optimizer if optimizer is not None else from_options(options)
        self.fingerprint = ""
        """The digest of the graph that is trained."""
        self.last_losses: np.ndarray | None = None
        """The loss of every micro-batch of the last call, whatever the output mode."""

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        self.fingerprint = digest(graph)
        return compiler.training(graph, self._fitted(graph, more), self.optimizer, batching, reduction=self.options.accumulation_reduction,
                                 loss_scaling=self.options.loss_scaling, serialized=self.options.serial_splits)

    def _scalars(self) -> Callable[[int], Mapping[str, float]]:
        return self.optimizer.values

    def run_call(self, *arrays: Any, first_update: int = 0) -> list[np.ndarray]:
        """One call for a training loop: every output of every micro-batch, [micro-batches, *micro-batch shape] each.

        Needs output_mode "all". `first_update` skips updates that were done before; `engine.completed` says how far it came.
        """
        given = self._arrays(arrays)

        return self.source.session.turn.call(self._run, given, first_update)

    def _run(self, arrays: Sequence[np.ndarray], first_update: int = 0) -> list[np.ndarray]:
        results = super()._run(arrays, first_update)
        loss = self.program.loss
        assert loss is not None
        self.last_losses = results[self.engine.outputs.index(loss)].reshape(-1)
        return results
