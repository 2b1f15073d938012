"""metrics.json: the figures of a run, whole again after each epoch."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from ...options.options import Options
from ...program.arrays import digest_of_all
from ...system.files import atomic_write_bytes
from ..history import runs
from .base import Callback
from .logs import Logs

METRICS = "metrics.json"


class MetricsFile(Callback):
    """The file of a run's folder: the figures of all finished epochs, what was minimised, the learning rates, the
    settings.

    reason: why it is this loss. options: those of the run as they were given.
    """

    transient: ClassVar[tuple[str, ...]] = ("written",)

    def __init__(self, reason: str, options: Options) -> None:
        self.reason, self.options = reason, options
        self.written: tuple[int, int] | None = None
        """Updates and epochs that the file tells of."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._write()

    def on_save(self, path: Path) -> None:
        if self.written != (self.run.updates, len(self.run.history)):
            self._write()

    def on_train_end(self, logs: Logs) -> None:
        if self.run.stopped is not None:
            self._write()

    def _write(self) -> None:
        run = self.run
        records = []
        for e in [*run.history, *([run.partial] if run.partial is not None else [])]:
            record = asdict(e) | {"samples_per_second": e.samples_per_second}
            records.append(record | {f"test_{name}": value for name, value in record.pop("test_metrics").items()})
        ended = {} if run.stopped is None else {"ended_early": run.stopped}
        text = json.dumps({"schema": 1, "updates": run.updates, **ended,
                           "loss": {**run.model.loss.describe(), "reason": self.reason},
                           "epochs": records, "learning_rates": runs(run.rates),
                           "weights_sha256": digest_of_all(run.state_dict()),
                           "options": _plain(self.options.to_dict())}, indent=2)
        atomic_write_bytes(run.folder / METRICS, text.encode(), follow=False)
        self.written = run.updates, len(run.history)


def _plain(value: Any) -> Any:
    """JSON's types only."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
