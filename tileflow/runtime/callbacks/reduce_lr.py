"""Lower learning rates where a figure does not get better any more."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...system.errors import OptionError
from .monitored import Monitored


@dataclass
class ReduceLROnPlateau(Monitored):
    """Multiplies the learning rate when a figure has not become better for `patience` epochs, by the rules of Keras'
    ReduceLROnPlateau. (The schedule `plateau` does the same by PyTorch's.) The rate must be a number, not a schedule.

    Args:
        monitor: `val_loss` (that of the test data), `loss`, or any other figure of an epoch.
        factor: what the rate is multiplied with, below 1.
        patience: epochs without improvement after which it is.
        min_delta: an absolute change of less is no improvement.
        cooldown: epochs after a reduction that do not count.
        min_lr: the rate falls no lower.
    """

    factor: float = 0.1
    patience: int = 10
    min_delta: float = field(default=1e-4, kw_only=True)
    cooldown: int = 0
    min_lr: float = 0.0
    wait: int = field(init=False, repr=False, default=0)
    cooling: int = field(init=False, repr=False, default=0)
    best: float | None = field(init=False, repr=False, default=None)

    remembered: ClassVar[tuple[str, ...]] = ("wait", "cooling", "best")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.factor < 1:
            raise OptionError(f"ReduceLROnPlateau: factor must be at least 0 and below 1, not {self.factor!r}.")

    def reset(self) -> None:
        self.wait = self.cooling = 0
        self.best = None

    def measured(self, epoch: int, value: float) -> None:
        if self.cooling > 0:
            self.cooling, self.wait = self.cooling - 1, 0
        if self.better(value, self.best):
            self.best, self.wait = value, 0
        elif self.cooling == 0:
            self.wait += 1
            if self.wait >= self.patience and (rate := self.run.learning_rate) > self.min_lr:
                self.run.learning_rate = lower = max(rate * self.factor, self.min_lr)
                self.cooling, self.wait = self.cooldown, 0
                self.run.say(f"The learning rate falls to {lower:g}: {self.monitor} has not improved on "
                             f"{self.best:.6g}.")
