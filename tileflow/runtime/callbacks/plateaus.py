"""Schedules that look at how a metric comes on, told of it after each epoch."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...optim import remembered
from ...optim.optimizer import Optimizer
from ...optim.schedules import is_state
from ...system.errors import OptionError
from .base import Callback
from .logs import Logs

STATE, SETTINGS = ".schedule", ".settings"


class PlateauSchedules(Callback):
    """Tells the optimizer's `plateau` schedules the metric that each looks at: that of the test data, where there are
    any."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def on_train_begin(self, logs: Logs) -> None:
        known = self._known(self.run.measures)
        for schedule in remembered.with_state(self.optimizer).values():
            if schedule.metric not in known:
                raise _unmeasured(schedule.metric, known)

    def _known(self, measures: Sequence[str]) -> list[str]:
        """What may be looked at, by the names that schedules use."""
        tested = [n.removeprefix("test_") for n in measures if n.startswith("test_")]
        return tested or [n for n in measures if n != "learning_rate"]

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        known = self._known(self.run.measures)
        start = "test_" if "test_loss" in self.run.measures else ""
        for schedule in remembered.with_state(self.optimizer).values():
            figure = logs.get(start + schedule.metric)
            if figure is None:
                raise _unmeasured(schedule.metric, [name for name in known if start + name in logs])
            schedule.observe(figure)

    def state(self) -> dict[str, Any]:
        found = remembered.with_state(self.optimizer)
        return {name + STATE: schedule.state() for name, schedule in found.items()} | {name + SETTINGS: repr(s)
                                                                                       for name, s in found.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Schedules that have changed begin anew."""
        for name, schedule in remembered.with_state(self.optimizer).items():
            if state.get(name + SETTINGS) != repr(schedule):
                continue
            if not is_state(state[name + STATE]):
                raise ValueError(name)
            schedule.restore(state[name + STATE])


def _unmeasured(metric: str, known: Sequence[str]) -> OptionError:
    return OptionError(f"Schedule plateau looks at the metric {metric!r}, which this run does not measure; it measures "
                       f"{', '.join(known)}.")
