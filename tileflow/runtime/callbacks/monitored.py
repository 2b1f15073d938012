"""What callbacks share that watch one figure: its name, which way is better, and by how much."""
from __future__ import annotations

from dataclasses import dataclass, field

from ...metrics.named import best_is
from ...system.errors import OptionError
from .base import Callback
from .logs import Logs, measured_name

MODES = ("auto", "min", "max")


@dataclass
class Monitored(Callback):
    """Looks at `monitor` whenever it is measured: at the end of an epoch, and for figures of the test data with
    eval_every at each evaluation. mode: whether its least (min) or greatest (max) value is best; auto knows that of
    losses and metrics with a name."""

    monitor: str = "val_loss"
    mode: str = "auto"
    min_delta: float = field(default=0.0, kw_only=True)
    """An absolute change of less is none."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"{type(self).__name__}: mode must be auto, min or max, not {self.mode!r}.")
        assert self.least in (True, False)

    @property
    def least(self) -> bool:
        """The least value is the best one."""
        found = self.mode if self.mode != "auto" else best_is(measured_name(self.monitor).removeprefix("test_"))
        if found is None:
            raise OptionError(f"{type(self).__name__}: whether {self.monitor} is best when least or when greatest is "
                              "not known; say mode='min' or mode='max'.")
        return found == "min"

    def better(self, value: float, than: float | None) -> bool:
        """A value improves on another one; on none in any case."""
        if than is None:
            return True
        delta = abs(self.min_delta)
        return bool(value + delta < than) if self.least else bool(value - delta > than)

    def on_train_begin(self, logs: Logs) -> None:
        known = self.run.measures
        if measured_name(self.monitor) not in known:
            untested = measured_name(self.monitor).startswith("test_") and "test_loss" not in known
            none = " and has no test data" if untested else ""
            shown = ", ".join(n.replace("test_", "val_") if self.monitor.startswith("val_") else n for n in known)
            raise OptionError(f"{type(self).__name__} monitors {self.monitor}, which this run does not measure{none}; "
                              f"it measures {shown}.")
        if self.run.updates == 0:
            self.reset()

    def reset(self) -> None:
        """A run begins: forget an earlier one."""

    @property
    def _at_evaluations(self) -> bool:
        return bool(self.run.options.eval_every) and measured_name(self.monitor).startswith("test_")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if not self._at_evaluations and (value := logs.get(self.monitor)) is not None:
            self.measured(epoch, float(value))

    def on_evaluate_end(self, logs: Logs) -> None:
        if self._at_evaluations and (value := logs.get(self.monitor)) is not None:
            self.measured(self.run.epoch, float(value))

    def measured(self, epoch: int, value: float) -> None:
        """The figure has this value, in the epoch of this number."""
        raise NotImplementedError
