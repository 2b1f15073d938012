"""Kept checkpoints: the best, the best few, or one every so often."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ...system.errors import OptionError
from .logs import Logs
from .monitored import Monitored
from .run import kept_name


class KeptCheckpoint(NamedTuple):
    """A checkpoint that is kept, and what it was kept for (None: every one is). epoch: counted from 0."""

    name: str
    value: float | None
    epoch: int
    updates: int


@dataclass
class ModelCheckpoint(Monitored):
    """Keeps checkpoints in the run's folder, each of which holds the whole run and can be resumed (`resume=path`), with
    Lightning's rules. The run's own checkpoint, its last, is there anyway.

    Args:
        monitor: keep the checkpoints with the best values of it; None: the newest.
        save_top_k: how many are kept; -1: all.
        every_n_epochs: at the end of so many epochs.
        every_n_updates: after so many updates instead, exactly. With a figure of the test data eval_every must divide
            it.
        onnx: keep the model as an ONNX file as well.
        filename: a pattern of {epoch} and {updates}; by default `best` where one is kept by a figure, else
            `epoch=3-updates=1200`.
    """

    monitor: str | None = None                                  # type: ignore[assignment]
    save_top_k: int = 1
    every_n_epochs: int = 1
    every_n_updates: int | None = None
    onnx: bool = False
    filename: str | None = None
    kept: list[list[Any]] = field(init=False, repr=False, default_factory=list)

    remembered: ClassVar[tuple[str, ...]] = ("kept",)

    def __post_init__(self) -> None:
        if self.monitor is not None:
            super().__post_init__()
        elif self.save_top_k not in (-1, 0, 1):
            raise OptionError("ModelCheckpoint: without a figure to monitor save_top_k must be 1, the newest, -1, "
                              f"all, or 0, not {self.save_top_k}.")
        if self.save_top_k < -1 or self.every_n_epochs < 1 or (self.every_n_updates is not None
                                                               and self.every_n_updates < 1):
            raise OptionError("ModelCheckpoint: save_top_k must be -1 or more, every_n_epochs and every_n_updates 1 or "
                              "more.")
        kept_name(self._name(0, 0))

    def _name(self, epoch: int, updates: int) -> str:
        alone = self.monitor is not None and self.save_top_k == 1
        pattern = self.filename or ("best" if alone else "epoch={epoch}-updates={updates}")
        return pattern.replace("{epoch}", str(epoch + 1)).replace("{updates}", str(updates))

    def on_train_begin(self, logs: Logs) -> None:
        if self.monitor is not None:
            super().on_train_begin(logs)
            every, wanted = self.run.options.eval_every, self.every_n_updates
            if wanted and self.monitor.startswith(("val_", "test_")) and (not every or wanted % every):
                raise OptionError(f"ModelCheckpoint: {self.monitor} is not measured every {wanted} updates; set "
                                  "eval_every to a number that divides it.")
        elif self.run.updates == 0:
            self.reset()

    def reset(self) -> None:
        self.kept = []

    def next_update(self, updates: int) -> int | None:
        every = self.every_n_updates
        return None if every is None else updates - updates % every + every

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        every = self.every_n_updates
        if every is None or self.run.updates % every:
            return
        if self.monitor is None:
            self._save(self.run.epoch, None)
        elif not self._at_evaluations and (value := logs.get(self.monitor)) is not None:
            self._save(self.run.epoch, float(value))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.every_n_updates is None and (epoch + 1) % self.every_n_epochs == 0:
            if self.monitor is None:
                self._save(epoch, None)
            else:
                super().on_epoch_end(epoch, logs)

    def on_evaluate_end(self, logs: Logs) -> None:
        if self.monitor is not None and (self.every_n_updates is None or self.run.updates % self.every_n_updates == 0):
            super().on_evaluate_end(logs)

    def measured(self, epoch: int, value: float) -> None:
        self._save(epoch, value)

    def _save(self, epoch: int, value: float | None) -> None:
        """Keep this moment, if it is among the best, and let go of what is not any more."""
        if self.save_top_k == 0:
            return
        if value is not None and isnan(value):
            value = inf if self.least else -inf
        new = KeptCheckpoint(self._name(epoch, self.run.updates), value, epoch, self.run.updates)
        found = [KeptCheckpoint(*k) for k in self.kept]
        going = self._worst(found) if 0 < self.save_top_k <= len(found) else None
        if going is not None and value is not None and not self.better(value, going.value):
            return
        self.kept = [list(k) for k in found if k is not going and k.name != new.name] + [list(new)]
        self.run.save(new.name, onnx=self.onnx)
        if going is not None and going.name != new.name:
            self.run.discard(going.name)

    def _worst(self, found: list[KeptCheckpoint]) -> KeptCheckpoint:
        """The one that goes first: the oldest, where nobody looks at a figure."""
        if self.monitor is None:
            return found[0]
        return (max if self.least else min)(found, key=lambda k: k.value or 0.0)

    @property
    def best(self) -> KeptCheckpoint | None:
        """The best of those that are kept; the newest where none is better."""
        found = [KeptCheckpoint(*k) for k in self.kept]
        if not found or self.monitor is None:
            return found[-1] if found else None
        return (min if self.least else max)(found, key=lambda k: k.value or 0.0)

    @property
    def best_model_path(self) -> Path | None:
        """Where the best checkpoint is."""
        return None if (best := self.best) is None else self.run.folder / f"{best.name}.safetensors"

    def restore(self, state: Mapping[str, Any]) -> None:
        kinds: tuple[Any, ...] = (str, (float, int, type(None)), int, int)
        for row in state["kept"]:
            if len(row) != len(kinds) or not all(isinstance(x, kind) for x, kind in zip(row, kinds, strict=True)):
                raise ValueError("kept")
            if row[0] != self._name(row[2], row[3]):
                raise ValueError("name")
        super().restore(state)
