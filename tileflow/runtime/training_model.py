"""Models with a loss: labels follow their inputs, and a training model updates the weights as well."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import compiler
from ..compiler import CompileOptions
from ..feed.items import array_of
from ..graph import Graph, TensorType, kind_of, type_of
from ..graph.copy import copied
from ..graph.digest import digest
from ..importers.onnx import UnsupportedNodesError
from ..loss import LABELS, ClassLoss, Loss, find
from ..metrics.view import View
from ..optim import Optimizer, bound, from_options
from ..optim.optimizer import same_structure
from ..optim.scaling import IN_A_ROW, LOSS_SCALE, SKIPPED, Scaling
from ..optim.schedules import UNKNOWN, Run
from ..options.options import Options
from ..program.program import Batching
from ..system.errors import DataError, OptionError, TrainingError, TypeMismatchError
from ..system.text import one_line
from . import optimizer_state
from .executable import Host
from .failure import stuck, uncounted
from .model import Compiled, Model, Progress
from .source import OnnxSource, Source, as_array
from .training_cut import Ready, TrainingCut, is_cut

LONGEST_NOTE = 2000
"""Characters of a sentence on what training will not do; such sentences list nodes and weights."""


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
        loss = self.loss.within(graph).fitted(graph.outputs, labels[0] if labels else None)
        self.view = loss.view(graph.outputs)
        return loss

    def _arrays(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        count = self._own_count(len(arrays))
        if self.loss.takes in ("classes", "numbers") and len(arrays) == count:
            raise DataError(f"The loss {self.loss_name} needs {LABELS} after the model's inputs: call model(x, {LABELS}); "
                            "where forward() computes its loss itself, set loss='identity'; outputs alone are what tileflow.inference_model gives.")
        return [*super()._arrays(arrays[:count]), *(self._label(array_of(a)) for a in arrays[count:])]

    def _label(self, labels: np.ndarray) -> np.ndarray:
        """Class numbers as int64, targets in the model's precision; for a loss of one's own by what they are."""
        kind = kind_of(labels.dtype)
        if kind not in "biu" and self.loss.takes == "classes":
            raise TypeMismatchError(f"Data type mismatch for {LABELS}: expected int64 but got {labels.dtype}; the loss {self.loss_name} takes class "
                                    "numbers. For numbers to be predicted choose the loss mse, for yes or no bce_with_logits.")
        if kind in "biu" and self.loss.takes in ("classes", "anything"):
            labels = labels.astype(np.int64)
        elif kind in "biuf" and self.loss.takes != "classes":
            labels = labels.astype(self.source.precision.loss)
        return as_array(labels, None, LABELS)


class TrainingModel(LossModel):
    """A model with a loss and an optimizer: each call does `device_iterations` weight updates and returns outputs and loss, once each."""

    training = True

    def __init__(self, source: Source, options: Options, optimizer: Optimizer | None = None, loss: str | compiler.Loss | Loss = "cross_entropy",
                 progress: Progress | None = None) -> None:
        super().__init__(source, options, loss, progress)
        self.optimizer = optimizer if optimizer is not None else from_options(options)
        self.scaling = Scaling.of(options, self.optimizer.loss_scaling is not None)
        self._structure: Mapping[str, Any] | None = None
        """What of the optimizer is compiled in."""
        self._fits: tuple[Optimizer | None, int] = None, 0
        """The optimizer, and its changes so far, that was seen to fit that."""
        self.fingerprint = ""
        """The digest of the graph that is trained."""
        self.run: Run = UNKNOWN
        """What schedules know of the run that the calls are of."""
        self._awaited: Mapping[str, Any] | None = None
        """An optimizer's state that waits for the model to be compiled."""
        self.last_losses: np.ndarray | None = None
        """The loss of every micro-batch of the last call, whatever the output mode."""
        self._whole = False
        """The model was found to be one program."""
        self._cut: TrainingCut | None = None
        """How it is trained where it is none."""
        self._ready: Ready | None = None
        """What is trained of it for the call at hand."""
        self._seen: Mapping[str, TensorType] | None = None
        bound.attach(self)

    # ---- models whose sizes follow from data

    def _decided(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Where sizes follow from data, what decides them is computed of a call's arrays first."""
        if self._whole or not isinstance(self.source, OnnxSource):
            return arrays
        count = LossModel._own_count(self, len(arrays))
        micro = LossModel._micro_types(self, [type_of(a) for a in arrays[:count]])
        if self._cut is None:
            try:
                self.source.signature(micro, True)
            except UnsupportedNodesError as error:
                if not is_cut(error):
                    raise
                self._cut = self._new_cut()
            else:
                self._whole = True
                return arrays
        names = [port.name for port in self.source.model.inputs]
        kinds = dict(zip(names, micro, strict=False))
        self._check_kinds(kinds, self._seen)
        self._ready, self._seen = self._cut(dict(zip(names, arrays[:count], strict=True))), kinds
        return [*self._ready.inputs, *arrays[count:]]

    def _new_cut(self) -> TrainingCut:
        for name in ("gradient_accumulation", "device_iterations", "replication_factor"):
            if getattr(self.options, name) != 1:
                raise OptionError(f"Sizes in the model follow from data, so that micro-batches differ, and a call trains one: leave "
                                  f"{name}={getattr(self.options, name)} out.")
        assert isinstance(self.source, OnnxSource)
        return self.source.training_cut(Host.of(self.options), self.progress)

    def _prepare(self, arrays: Sequence[np.ndarray]) -> Compiled:
        if self._ready is None:
            return super()._prepare(arrays)
        types = tuple(type_of(a) for a in arrays)
        self._current = self._programs.get((self._ready.key, types), lambda: self._timed(types))
        return self._current

    def _micro_types(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return tuple(types) if self._ready is not None else super()._micro_types(types)

    def _own_inputs(self, micro: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return super()._own_inputs(micro) if self._ready is None else micro[:len(self._ready.inputs)]

    def _graph(self, own: tuple[TensorType, ...]) -> tuple[Graph, Mapping[str, np.ndarray]]:
        return super()._graph(own) if self._ready is None else (copied(self._ready.graph), self._ready.weights)

    def _example(self) -> list[np.ndarray]:
        if self._ready is None or self._seen is None:
            return super()._example()
        draw = np.random.default_rng(0)
        return [draw.standard_normal(t.shape).astype(t.numpy) if t.is_float else (draw.random(t.shape) < 0.5).astype(t.numpy)
                for t in self._seen.values()]

    # ---- compiling

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        self.fingerprint = digest(graph)
        self._check_optimizer(self.optimizer)
        self._structure = self.optimizer.structure()
        chosen = replace(CompileOptions.of(self.options, self.source.precision), scaling=self.scaling,
                         loss_scaling=self.source.session.assigned.setdefault(LOSS_SCALE, self.loss_scaling))
        made = compiler.training(graph, self._fitted(graph, more), self.optimizer, batching, chosen,
                                 anchors=list(self._found.values()), named=self.source.parameter_names())
        for note in made.program.notes:
            warnings.warn(one_line(note, LONGEST_NOTE), stacklevel=2)
        return made

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update the weights with another optimizer of the same structure from the next call on: its variable attributes take the place of the
        old one's at once, and moments and counts go on. Nothing is compiled. (Attributes of the optimizer that the model has need no call.)

        Raises:
            OptionError: it is of another class, other attributes are constant or have other values, or anything else that is compiled in differs.
        """
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"set_optimizer takes an optimizer such as tileflow.optim.SGD(lr=0.1), not {type(optimizer).__name__}.")
        self._check_optimizer(optimizer)
        self.optimizer = optimizer

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        """OptionError where an optimizer does not fit what was compiled of one."""
        if self._structure is None or (self._fits[0] is optimizer and self._fits[1] == optimizer.changes):
            return
        same_structure(self._structure, optimizer.structure())
        self._fits = optimizer, optimizer.changes

    def destroy(self) -> None:
        super().destroy()
        self._structure, self._fits = None, (None, 0)
        self._whole, self._cut, self._ready, self._seen = False, None, None, None

    @property
    def loss_scaling(self) -> float:
        """The loss scale that was asked for: the optimizer's, else that of the options."""
        chosen = (self.optimizer.loss_scaling, self.options.loss_scaling, self.scaling.first)
        return self.scaling.check(next(x for x in chosen if x is not None))

    @property
    def loss_scale(self) -> float:
        """The loss scale as it is now: one that adapts is another after each update."""
        session = self.source.session
        return float(session[LOSS_SCALE]) if LOSS_SCALE in session else self.loss_scaling

    @property
    def skipped_updates(self) -> int:
        """Updates that were skipped, since their loss or gradients were not finite."""
        return self._counted(SKIPPED)

    def _counted(self, name: str) -> int:
        session = self.source.session
        return int(session[name]) if self.scaling.skip and name in session else 0

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all that the optimizer remembers, by name and after the same whole update: moments, its count of updates, the loss scale,
        attributes that may change, what schedules have come to. With `state_dict` it is all that training goes on from, bit for bit.

        Raises:
            TileflowError: before the first call or `compile`.
        """
        session, states = self.source.session, self._remembered()

        def read() -> dict[str, np.ndarray]:
            self._take_awaited()
            return optimizer_state.collect(session, self.optimizer, states)
        return session.turn.hold(read)

    def load_optimizer_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `optimizer_state_dict` gave; nothing changes unless all of it fits. Before the first call it is kept until then.

        After `load_state_dict`, not before: what 16-bit weights lack of float32 numbers is in the optimizer's state, and weights that are set
        begin without.

        Raises:
            CheckpointError: it is empty, PyTorch's own, or of another optimizer or model; the sentence says what differs.
        """
        optimizer_state.check_form(tensors)
        if self._current is None:
            self._awaited = {name: np.array(value) for name, value in tensors.items()}
        else:
            self.source.session.turn.change(optimizer_state.load, self.source.session, self.optimizer, self._remembered(), tensors)

    def _remembered(self) -> list[str]:
        """Names of the optimizer's states in the compiled program."""
        return [s.name for s in self.program.states.values() if s.kind == "optimizer"]

    def _take_awaited(self) -> None:
        """The model is compiled: what its optimizer's state was to be takes effect."""
        if self._awaited is not None:
            optimizer_state.load(self.source.session, self.optimizer, self._remembered(), self._awaited)
            self._awaited = None

    def _scalars(self) -> Callable[[int], Mapping[str, float]]:
        self._check_optimizer(self.optimizer)
        self.source.session.assign(LOSS_SCALE, self.loss_scaling)
        return lambda update: self.optimizer.values(update, self.run)

    def run_call(self, *arrays: Any, first_update: int = 0) -> list[np.ndarray]:
        """One call for a training loop: every output of every micro-batch, [micro-batches, *micro-batch shape] each.

        Needs output_mode "all". `first_update` skips updates that were done before; `engine.completed` says how far it came.
        """
        given = self._arrays(arrays)

        return self.source.session.turn.call(self._run, given, first_update)

    def _run(self, arrays: Sequence[np.ndarray], first_update: int = 0) -> list[np.ndarray]:
        if self._awaited is not None:
            self._prepare(self._decided(arrays))
            self._take_awaited()
        try:
            results = super()._run(arrays, first_update)
        except TrainingError:
            if (without := self._without_labels(arrays)) is not None:
                raise without from None
            raise
        loss = self.program.loss
        assert loss is not None
        self.last_losses = results[self.engine.outputs.index(loss)].reshape(-1)
        if self.scaling.skip and self.scaling.stuck(self.loss_scale, bad := self._counted(IN_A_ROW)):
            raise stuck(self.scaling.automatic, self.loss_scale, bad, self.source.session.updates)
        return results

    def _without_labels(self, arrays: Sequence[np.ndarray]) -> TrainingError | None:
        """Why the loss of the last call was not finite, where the micro-batch has no label that counts."""
        failed = self._current.engine.not_finite if self._current is not None else None
        if failed is None or not isinstance(self.loss, ClassLoss):
            return None
        micro, where = failed
        labels = self._dealt(arrays)[-1].reshape(self.program.batching.micro_batches, -1)[micro]
        return uncounted(what, where) if (what := self.loss.uncounted(labels)) else None
