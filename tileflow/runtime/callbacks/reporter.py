"""Reporters, which watched runs before callbacks did, as callbacks."""
from __future__ import annotations

from typing import Any

from .base import Callback
from .logs import Logs


class Reports(Callback):
    """Tells a reporter, an object with the methods say(sentence) and, as it likes, compiling(kernel, done, total),
    begin_epoch(epoch, epochs, batches), batch(loss, accuracy, samples), learning_rate(rate) and end_epoch(record), what
    a run does. Epochs are counted from 1."""


    def __init__(self, reporter: Any) -> None:
        self.reporter = reporter

    def _tell(self, method: str, *told: Any) -> None:
        found = getattr(self.reporter, method, None)
        if found is not None:
            found(*told)

    def on_compile(self, kernel: str, done: int, total: int) -> None:
        self._tell("compiling", kernel, done, total)

    def on_message(self, sentence: str) -> None:
        self._tell("say", sentence)

    def on_train_begin(self, logs: Logs) -> None:
        if self.run.updates_in_epoch and self.run.epoch < self.run.epochs:
            self.on_epoch_begin(self.run.epoch, logs)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self._tell("begin_epoch", epoch + 1, self.run.epochs, self.run.batches or 0)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if self.run.rates:
            self._tell("learning_rate", self.run.rates[-1])
        self._tell("batch", logs["loss"], logs.get("accuracy"), logs["samples"])

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._tell("end_epoch", self.run.history[-1])
