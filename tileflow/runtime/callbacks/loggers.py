"""Logs of a run as files that other tools read: lines of JSON, and CSV."""
from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .appended import AppendedFile
from .logs import Logs

JSON_LOG, CSV_LOG = "log.jsonl", "log.csv"


def _number(x: float) -> str:
    """A number as JSON has it, which knows neither NaN nor infinity."""
    return repr(float(x)) if math.isfinite(x) else "null"


class JSONLogger(AppendedFile):
    """`log.jsonl`: a line of JSON for each update (update, loss, learning_rate), each evaluation and each epoch (epoch,
    update and all figures); `null` for what is no finite number. Every run has one."""

    def __init__(self, name: str = JSON_LOG) -> None:
        super().__init__(name)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        losses, rates = logs["losses"], logs["learning_rates"]
        first = self.run.updates - len(losses) + 1
        self.put("".join(f'{{"update":{first + i},"loss":{_number(loss)},"learning_rate":{_number(rate)}}}\n'
                         for i, (loss, rate) in enumerate(zip(losses.tolist(), rates.tolist(), strict=True))).encode())

    def on_evaluate_end(self, logs: Logs) -> None:
        if self.run.options.eval_every:
            self._row({"evaluation": self.run.updates}, logs)
        super().on_evaluate_end(logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._row({"epoch": epoch + 1, "updates": self.run.updates}, logs)
        super().on_epoch_end(epoch, logs)

    def _row(self, start: Mapping[str, int], logs: Logs) -> None:
        figures = {name: float(x) if math.isfinite(x) else None for name, x in logs.items()}
        self.put(json.dumps({**start, **figures}, separators=(",", ":")).encode() + b"\n")


class CSVLogger(AppendedFile):
    """`log.csv`: a row for each epoch, its columns the figures of the first one: epoch, updates, loss, accuracy,
    test_loss and so on. What later epochs lack is empty."""

    def __init__(self, name: str = CSV_LOG, separator: str = ",") -> None:
        super().__init__(name)
        self.separator = separator
        self.columns: list[str] = []

    def on_train_begin(self, logs: Logs) -> None:
        super().on_train_begin(logs)
        if not self.length:
            self.columns = []

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        rows: list[Iterable[Any]] = []
        if not self.columns:
            self.columns = list(logs)
            rows.append(("epoch", "updates", *self.columns))
        rows.append((epoch + 1, self.run.updates, *(_cell(logs.get(n)) for n in self.columns)))
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\n").writerows(rows)
        self.put(text.getvalue().encode(errors="replace"))
        super().on_epoch_end(epoch, logs)

    def state(self) -> dict[str, Any]:
        return super().state() | {"columns": self.columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        if not isinstance(columns := state["columns"], list) or not all(isinstance(c, str) for c in columns):
            raise ValueError("columns")
        self.columns = columns


def _cell(x: Any) -> Any:
    return "" if x is None else float(x) if isinstance(x, (float, np.floating)) else x
