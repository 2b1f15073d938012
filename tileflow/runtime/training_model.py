"""Training models: models with a loss whose calls update the weights."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collective import current
from ..custom.names import code_of
from ..loss import ClassLoss, Loss, WeightedLoss
from ..memory.types import TensorType, type_of
from ..optim import Optimizer, bound, from_options, remembered
from ..optim.scaling import LossScaling
from ..optim.schedules import UNKNOWN, Run
from ..options.options import Options
from ..system.errors import TrainingError, UnsupportedError
from ..system.text import one_line
from .compiling import Begun
from .dynamic import DecidingCalls
from .exchange import joined, owner_of, share_of
from .failure import uncounted
from .host import Host, Progress
from .loss_model import LONGEST_NOTE, LossModel
from .loss_scale import LossScale
from .model_optimizer import ModelOptimizer
from .programs import Compiled
from .recipes import Recipe, structure_data
from .source import Source
from .stored import Stored

if TYPE_CHECKING:
    from .. import compiler
    from ..graph import Graph
    from ..program.batching import Batching


class TrainingModel(LossModel):
    """A model with a loss and an optimizer: each call does `device_iterations` weight updates and returns outputs and
    loss, once each."""

    training = True

    def __init__(self, source: Source, options: Options, optimizer: Optimizer | None = None,
                 loss: str | compiler.Loss | Loss = "cross_entropy", progress: Progress | None = None) -> None:
        super().__init__(source, options, loss, progress)
        chosen = optimizer if optimizer is not None else from_options(options)
        self._optimizer = ModelOptimizer(chosen, source.session, self.programs)
        self._scale = LossScale(options, self._optimizer, source.session)
        self._deciding = DecidingCalls(source, self.options, self.programs, progress)
        self._fingerprint = ""
        self._group = current()
        self._share = share_of(self._group, options.replication_factor)
        self._owner = owner_of(self._group, options)
        self.run: Run = UNKNOWN
        """What schedules know of the run that the calls are of."""
        self.last_losses: np.ndarray | None = None
        """The loss of every micro-batch of the last call, whatever the output mode."""
        bound.attach(self)

    def _made_from(self) -> tuple[Any, ...]:
        return *super()._made_from(), self.optimizer, self.loss

    def _remembered(self) -> Mapping[str, np.ndarray] | None:
        return self.optimizer_state_dict() if self.is_compiled else self._optimizer.awaited

    def destroy(self) -> None:
        super().destroy()
        self._optimizer.forget()
        self._deciding.forget()

    @property
    def fingerprint(self) -> str:
        """The digest of the graph that is trained ("" before there is one)."""
        if not self._fingerprint:
            self._require_graph()
        return self._fingerprint

    # ---- the optimizer and the loss scale

    @property
    def optimizer(self) -> Optimizer:
        """What updates the weights."""
        return self._optimizer.current

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Update the weights with another optimizer of the same structure from the next call on: its variable
        attributes take the place of the old one's at once, and moments and counts go on. Nothing is compiled.
        (Attributes of the optimizer that the model has need no call.)

        Raises:
            OptionError: it is of another class, other attributes are constant or have other values, or anything else
                that is compiled in differs.
        """
        self._optimizer.replace(optimizer)

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all that the optimizer remembers, by name and after the same whole update: moments, its count of
        updates, the loss scale, attributes that may change, what schedules have come to. With `state_dict` it is all
        that training goes on from, bit for bit.

        Raises:
            TileflowError: before the first call or `compile`.
        """
        return self._optimizer.state_dict()

    def load_optimizer_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `optimizer_state_dict` gave; nothing changes unless all of it fits. Before the first call it
        is kept until then.

        After `load_state_dict`, not before: what 16-bit weights lack of float32 numbers is in the optimizer's state,
        and weights that are set begin without.

        Raises:
            CheckpointError: it is empty, PyTorch's own, or of another optimizer or model; the sentence says what
                differs.
        """
        self._optimizer.load_state_dict(tensors)

    @property
    def scaling(self) -> LossScaling:
        """How the loss scale changes by itself, and whether updates that are not finite are skipped."""
        return self._scale.scaling

    @property
    def loss_scaling(self) -> float:
        """The loss scale that was asked for: the optimizer's, else that of the options."""
        return self._scale.asked

    @property
    def loss_scale(self) -> float:
        """The loss scale as it is now: one that adapts is another after each update."""
        return self._scale.now

    @property
    def skipped_updates(self) -> int:
        """Updates that were skipped, since their loss or gradients were not finite."""
        return self._scale.skipped

    # ---- making programs; where sizes follow from data, of what is left to be trained once they are known

    def _decided(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        deciding = self._deciding
        if not deciding.is_whole and deciding.ready is None:
            types = tuple(map(type_of, arrays))
            entry = None if (stored := self._stored(types)) is not None else self._entry(types)
            deciding.is_whole = stored is not None or (entry is not None and entry.kept is not None)
        return arrays if deciding.is_whole else deciding.decide(arrays, self._own_count(len(arrays)), self.rows)

    def _prepare(self, arrays: Sequence[np.ndarray]) -> Compiled:
        ready = self._deciding.ready
        if ready is None:
            return super()._prepare(arrays)
        types = tuple(type_of(a) for a in arrays)
        return self.programs.get((ready.key, types), lambda: self._compile(types))

    def _begun(self, types: tuple[TensorType, ...]) -> Begun:
        ready = self._deciding.ready
        if ready is None:
            return super()._begun(types)
        from ..graph.copy import copied
        return copied(ready.graph), ready.weights, types, len(ready.inputs)

    def _shaped_by(self) -> list[Any] | None:
        scale, optimizer = self._scale, self._optimizer.compiled_in()
        if self._deciding.ready is not None:
            return None
        return [*self._shaped_by_source(), optimizer.structure(), asdict(scale.scaling), scale.first()]

    def _known(self) -> dict[str, Any]:
        return {**super()._known(), "fingerprint": self._fingerprint}

    def _recall(self, known: Mapping[str, Any]) -> None:
        super()._recall(known)
        self._fingerprint = known["fingerprint"]

    def _declared(self) -> tuple[TensorType, ...]:
        own = super()._declared()
        if not own or self.loss.takes == "nothing":
            return own
        signature = self.source.signature(self.rows.micro_types(own), True)
        label = self.loss.label_type([v.type for v in signature.outputs])
        if label is None:
            return ()
        return (*own, label.with_shape((own[0].shape[0], *label.shape[1:])) if label.rank and own[0].rank else label)

    def _description(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        return {**super()._description(types), "structure": structure_data(self.optimizer)}

    def _facts(self, types: tuple[TensorType, ...]) -> dict[str, Any]:
        if self._deciding.ready is not None:
            raise UnsupportedError("Sizes in the model follow from data, so that a call may be another program than "
                                   "the one before: there is no one program of it for an executable.")
        self._optimizer.check(self.optimizer)
        self.source.session.turn.change(self._optimizer.take_awaited)
        recipe = Recipe(self.optimizer, self.source.parameter_names())
        plateaus = remembered.with_state(self.optimizer)
        return {**super()._facts(types), "optimizer": recipe.data, "asked": tuple(recipe.asked),
                "run": (self.run.updates, self.run.per_epoch),
                "plateaus": tuple((name, tuple(map(float, p.state()))) for name, p in plateaus.items())}

    def _loaded(self, stored: Stored) -> None:
        super()._loaded(stored)
        self._fingerprint = stored.fingerprint
        self._optimizer.compiled_in()
        self._scale.first()

    def _example(self) -> list[np.ndarray]:
        if self._deciding.ready is None or self._deciding.seen is None:
            return super()._example()
        draw = np.random.default_rng(0)
        drawn = ((t, draw.standard_normal(t.shape) if t.is_float else draw.random(t.shape) < 0.5)
                 for t in self._deciding.seen.values())
        return [array.astype(t.numpy) for t, array in drawn]

    def _build(self, graph: Graph, batching: Batching, more: tuple[TensorType, ...]) -> compiler.Compilation:
        from .. import compiler
        from ..compiler import CompileOptions
        from ..graph.digest import digest
        own = sorted({node.op.name for node in graph.walk() if node.op.code is not None})
        self._fingerprint = " ".join([digest(graph), *(f"{name} {code_of(name)}" for name in own)])
        optimizer, loss = self._optimizer.compiled_in(), self._fitted(graph, more)
        chosen = replace(CompileOptions.of(self.options, self.source.precision), scaling=self.scaling,
                         loss_scaling=self._scale.first())
        made = compiler.training(graph, loss, optimizer, batching, chosen, anchors=list(self.anchors.found.values()),
                                 anchored_gradients=self.anchors.gradients, named=self.source.parameter_names())
        for note in made.program.notes:
            warnings.warn(one_line(note, LONGEST_NOTE), stacklevel=2)
        return made

    def _host(self) -> Host:
        return replace(super()._host(), share=self._share, owner=self._owner)

    # ---- calls

    def _scalars(self) -> Callable[[int], Mapping[str, float]]:
        self._optimizer.check(self._optimizer.current)
        self._scale.assign()
        return lambda update: self._optimizer.current.values(update, self.run)

    def run_call(self, *arrays: Any, first_update: int = 0, last_update: int | None = None) -> list[np.ndarray]:
        """One call for a training loop: every output of every micro-batch, [micro-batches, *micro-batch shape] each.

        Needs output_mode "all". `first_update` skips updates that were done before, the call ends after `last_update`
        of its updates (None: all); `engine.completed` says how far it came.
        """
        given = self._arrays(arrays, self._own_of(len(arrays)))
        return self.source.session.turn.call(self._within, None, self._run, given, first_update, last_update)

    def _run(self, arrays: Sequence[np.ndarray], first_update: int = 0,
             last_update: int | None = None) -> list[np.ndarray]:
        if self._optimizer.awaited is not None:
            self._prepare(self._decided(arrays))
            self._optimizer.take_awaited()
        try:
            results = super()._run(arrays, first_update, last_update)
        except TrainingError:
            if (without := self._without_labels(arrays)) is not None:
                raise without from None
            raise
        compiled = self.programs.current
        assert compiled is not None
        assert compiled.loss is not None
        if self._group is not None and self._share is not None:
            joined(self._group, self._share, self.options.replication_factor, results)
        self.last_losses = results[compiled.loss].reshape(-1)
        self._scale.require_progress()
        return results

    def _without_labels(self, arrays: Sequence[np.ndarray]) -> TrainingError | None:
        """Why the loss of the last call was not finite, where the micro-batch has no label that counts."""
        current = self.programs.current
        failed = None if current is None else current.engine.not_finite
        loss = self.loss.inner if isinstance(self.loss, WeightedLoss) else self.loss
        if current is None or failed is None or not isinstance(loss, ClassLoss):
            return None
        micro, where = failed
        labels = self.rows.dealt(arrays)[self._own_count(len(arrays))]
        labels = labels.reshape(current.engine.image.micro_batches, -1)[micro]
        return uncounted(what, where) if (what := loss.uncounted(labels)) else None
