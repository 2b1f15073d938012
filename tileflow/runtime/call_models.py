"""The models of a run's calls: that of whole calls, and others for the rows of an epoch that fill none."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..optim.schedules import Run
from ..system.errors import OptionError, TileflowError
from .data import Dataset
from .host import Progress
from .schedule import CallSchedule, UpdateCall
from .training_model import TrainingModel


@dataclass
class CallModels:
    """Models that train the same weights, by what a call of theirs has."""

    model: TrainingModel
    """That of whole calls."""
    train: Dataset
    schedule: CallSchedule
    compiling: Progress
    stop: Callable[[], bool]
    """Whether somebody has asked for the run's end."""
    _rest: dict[UpdateCall, TrainingModel] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int | None:
        """Updates of an epoch; None where only the end of the data says it."""
        return None if self.train.is_open and self.model.options.max_batches is None else self.schedule.length

    def compile(self) -> None:
        """Compile all that an epoch of a known length runs.

        Raises:
            OptionError: the model cannot take the rows that fill no micro-batch.
        """
        o = self.model.options
        accumulation = o.gradient_accumulation * o.device_iterations
        self._compile(UpdateCall(o.micro_batch_size, accumulation, o.replication_factor), self.model)
        for step in self.schedule.rest:
            self.of(step)

    def of(self, step: UpdateCall) -> TrainingModel:
        """The model of a call of one update, compiled; data that end before they said have one that nobody foresaw."""
        if step not in self._rest:
            options = self.model.options.clone(
                micro_batch_size=step.micro_batch, gradient_accumulation=step.accumulation, device_iterations=1,
                strategy="none", replication_factor=step.replicas)
            whole = self.model
            model = TrainingModel(whole.source, options, whole.optimizer, whole.loss, self.compiling)
            self._compile(step, model)
            self._rest[step] = model
        return self._rest[step]

    def _compile(self, step: UpdateCall, model: TrainingModel) -> None:
        model.stop, o = self.stop, self.model.options
        ends = [o.max_updates, None if self.per_epoch is None else o.epochs * self.per_epoch]
        model.run = Run(min((n for n in ends if n is not None), default=None), self.per_epoch)
        try:
            model.compile(*self.train.example(np.zeros(step.rows, np.int64)))
        except TileflowError as error:
            if model is self.model or step.micro_batch == o.micro_batch_size:
                raise
            raise OptionError(f"With drop_last off the last {step.micro_batch} rows are a micro-batch of their own, "
                              f"which this model cannot take: {error} Set drop_last, or a micro_batch_size that "
                              "divides the rows.") from None
        model.programs.seconds = 0.0
