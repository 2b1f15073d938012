"""Runs that are done, read from the metrics in their folders: files that may come from anywhere."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..system.errors import CheckpointError
from ..system.reading import open_regular
from ..system.text import one_line
from .callbacks.metrics_file import METRICS

LARGEST = 64 << 20
"""Bytes of a file that is read."""
FIGURES = ("loss", "accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True)
class DoneRun:
    """What a folder's metrics tell. epochs: figures by name, one table for each. settings: options as plain values."""

    folder: Path
    updates: int
    epochs: tuple[Mapping[str, float], ...]
    ended: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Spent on training."""
        return sum(e.get("seconds", 0.0) for e in self.epochs)

    def last(self, name: str) -> float:
        """A figure after the last epoch; NaN where there is none."""
        return self.epochs[-1].get(name, math.nan) if self.epochs else math.nan

    def best(self, name: str, least: bool = True) -> float:
        """The best value of a figure; NaN where there is none."""
        found = [e[name] for e in self.epochs if name in e and math.isfinite(e[name])]
        return (min if least else max)(found) if found else math.nan


def read_run(folder: Path) -> DoneRun:
    """A run from its folder.

    Raises:
        CheckpointError: there are no metrics, or they are none of a run.
    """
    path = folder / METRICS
    shown = one_line(folder)
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise CheckpointError(f"{shown}: its {METRICS} is larger than {LARGEST:,} bytes, which no run's is.")
            content = json.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{shown} holds no run: its {METRICS} cannot be read "
                              f"({error.strerror or error}).") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{shown}: its {METRICS} is damaged.") from None
    listed = content.get("epochs") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(e, dict) for e in listed):
        raise CheckpointError(f"{shown}: its {METRICS} tells of no epochs.")
    epochs = tuple({str(n): float(x) for n, x in e.items()
                    if (isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300) or x != x}
                   for e in listed)
    updates, settings = content.get("updates"), content.get("options")
    return DoneRun(folder, updates if type(updates) is int and 0 <= updates < 2**63 else 0, epochs,
                   str(content.get("ended_early") or ""),
                   settings if isinstance(settings, dict) else {})


def find_runs(folder: Path) -> list[DoneRun]:
    """The runs in the folders of a folder, the newest last; what is none is left out.

    Raises:
        CheckpointError: it is no folder that can be read.
    """
    try:
        inside = [p for p in folder.iterdir() if (p / METRICS).is_file()]
        inside.sort(key=lambda p: ((p / METRICS).stat().st_mtime, p.name))
    except OSError as error:
        raise CheckpointError(f"{one_line(folder)} cannot be read ({error.strerror or error}); "
                              "name a folder of runs.") from None
    found = []
    for path in inside:
        try:
            found.append(read_run(path))
        except CheckpointError:
            continue
    return found


def differing(runs: Sequence[DoneRun]) -> dict[str, list[Any]]:
    """The settings in which runs differ, each with its value in every run (None: it has none)."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    columns = {name: [run.settings.get(name) for run in runs] for name in names if name not in ("out", "resume")}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}
