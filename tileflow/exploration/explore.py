"""explore: every combination of an exploration's axes is tried, those that share a program one after the other."""
from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from ..compiler import Compilation
from ..options.options import Options
from ..tiles.system.ipus import counts
from .found import Exploration, ExplorationInterrupted, made
from .grid import Setting
from .point import FAILED, FITS, OUT_OF_MEMORY, Point
from .search import Outcome, Planner, Progress, Search, program_key

Make = Callable[[bool, Options], Compilation]
"""Compiles the model, for training or for inference."""


def explored(model: str, settings: Sequence[Setting], make: Make, out: str | os.PathLike[str] | None,
             progress: Progress | None) -> Exploration:
    """Try all settings of a model, and write what was found into the folder `out`. Where a program cannot be compiled, its points
    fail and no others.

    Raises:
        ExplorationInterrupted: Ctrl-C; what was done is in it, and written.
    """
    if out is not None:
        made(out)
    axes: dict[str, list[Any]] = {name: [] for name in settings[0].values}
    for setting in settings:
        for name, value in setting.values.items():
            if value is not None and value not in axes[name]:
                axes[name].append(value)
    search = Search[Point](most=len(settings), progress=progress)

    def so_far() -> Exploration:
        return Exploration(model, axes, [search.points[i] for i in sorted(search.points)], len(settings))
    try:
        _run(search, settings, make, so_far)
    except KeyboardInterrupt:
        where = "" if out is None else f"; they are in {so_far().save(out)}"
        done = f"{len(search.points)} of {len(settings)} settings were tried"
        raise ExplorationInterrupted(f"Interrupted: {done}{where}.", so_far()) from None
    if out is not None:
        so_far().save(out)
    return so_far()


def _run(search: Search[Point], settings: Sequence[Setting], make: Make, so_far: Callable[[], Exploration]) -> None:
    groups: dict[tuple[bool, Hashable], list[int]] = {}
    for i, setting in enumerate(settings):
        groups.setdefault((setting.training, program_key(setting.options)), []).append(i)
    for (training, _), members in groups.items():
        model = Planner(partial(make, training))                          # so that one program at a time is held
        for i in members:
            search.points[i] = _point(settings[i], model.tried(settings[i].options))
            if search.progress is not None:
                best = so_far().best
                search.tell("" if best is None else f"{best.samples_per_second:,.0f} samples/s")


def _point(setting: Setting, outcome: Outcome) -> Point:
    tiled = outcome.tiled
    if tiled is None:
        return Point(setting.values, setting.training, FAILED, outcome.reason, options=setting.options)
    return Point(setting.values, setting.training, FITS if tiled.fits else OUT_OF_MEMORY, outcome.reason,
                 samples_per_second=float(tiled.samples_per_second), bytes=int(tiled.peak[tiled.worst_tile]),
                 bytes_per_tile=int(tiled.chip.usable_bytes), cycles=int(tiled.cycles_per_update),
                 cycles_per_sample=tiled.cycles_per_sample, tflops=float(tiled.tflops), peak_fraction=float(tiled.peak_fraction),
                 ipus=counts(tiled.ipus, tiled.options.replicas)["all"], options=setting.options)
