"""Ending a run whose figure does not get better any more."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ...system.errors import OptionError
from .logs import Logs
from .monitored import Monitored

WEIGHTS = "weights."
"""What names of the best weights begin with in a state."""


@dataclass
class EarlyStopping(Monitored):
    """Ends the run when a figure has not become better for `patience` epochs, by the rules of Keras' EarlyStopping.
    (With eval_every, and a
    figure of the test data: for so many evaluations.)

    Args:
        monitor: `val_loss` (that of the test data), `loss`, or any other figure of an epoch.
        min_delta: an absolute change of less is no improvement.
        patience: epochs without improvement after which the run ends.
        baseline: only improvements on it count anew.
        restore_best_weights: the run ends with the weights of its best epoch, whoever ends it. The run's checkpoint
            keeps the last ones, to go on from.
        start_from_epoch: epochs at the start that do not count.
    """

    patience: int = 0
    baseline: float | None = None
    restore_best_weights: bool = False
    start_from_epoch: int = 0
    wait: int = field(init=False, repr=False, default=0)
    stopped_epoch: int = field(init=False, repr=False, default=0)
    best_epoch: int = field(init=False, repr=False, default=0)
    best: float | None = field(init=False, repr=False, default=None)
    best_weights: dict[str, np.ndarray] | None = field(init=False, repr=False, default=None)

    remembered: ClassVar[tuple[str, ...]] = ("wait", "stopped_epoch", "best_epoch", "best")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 0:
            raise OptionError(f"EarlyStopping: patience must be a number of epochs, at least 0, not {self.patience!r}.")

    def reset(self) -> None:
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best = self.best_weights = None

    def measured(self, epoch: int, value: float) -> None:
        if epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self._keep(epoch)
        self.wait += 1
        if self.better(value, self.best):
            self.best = value
            self._keep(epoch)
            if self.baseline is None or self.better(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and (epoch > 0 or self._at_evaluations):
            self.stopped_epoch = epoch
            self.run.stop(f"{self.monitor} has not improved on {self.best:.6g} (epoch {self.best_epoch + 1}) since")

    def _keep(self, epoch: int) -> None:
        self.best_epoch = epoch
        if self.restore_best_weights:
            self.best_weights = self.run.state_dict()

    def on_train_end(self, logs: Logs) -> None:
        if self.restore_best_weights and self.best_weights is not None:
            self.run.load_state_dict(self.best_weights)
            self.run.say(f"The weights are those of epoch {self.best_epoch + 1}, the best one.")

    def state(self) -> dict[str, Any]:
        return super().state() | {WEIGHTS + name: array for name, array in (self.best_weights or {}).items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        found = {name.removeprefix(WEIGHTS): array for name, array in state.items() if name.startswith(WEIGHTS)}
        self.best_weights = found or None
