"""explore: every combination of an exploration's axes is tried, those that share a program one after the other."""
from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from ..compiler import Compilation
from ..options.options import Options
from ..system.errors import OptionError
from ..system.text import shown
from .crew import Crew, together
from .found import Exploration, ExplorationInterrupted, made
from .grid import Setting
from .point import Point
from .search import Planner, Progress, Search, point_of, program_key

MOST_PROCESSES = 256
Make = Callable[[bool, Options], Compilation]
"""Compiles the model, for training or for inference."""


def explored(model: str, settings: Sequence[Setting], make: Make, out: str | os.PathLike[str] | None,
             progress: Progress | None, processes: int = 1) -> Exploration:
    """Try all settings of a model, and write what was found into the folder `out`. Where a program cannot be compiled,
    its points fail and no others.

    Args:
        processes: that analyse settings side by side; 1: this one alone. Figures do not depend on it.

    Raises:
        OptionError: processes is no such number.
        ExplorationInterrupted: Ctrl-C; what was done is in it, and written.
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= MOST_PROCESSES:
        raise OptionError(f"processes must be a whole number from 1 to {MOST_PROCESSES}, not {shown(processes)}.")
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
        _run(search, settings, make, so_far, processes)
    except KeyboardInterrupt:
        where = "" if out is None else f"; they are in {so_far().save(out)}"
        done = f"{len(search.points)} of {len(settings)} settings were tried"
        raise ExplorationInterrupted(f"Interrupted: {done}{where}.", so_far()) from None
    if out is not None:
        so_far().save(out)
    return so_far()


def _run(search: Search[Point], settings: Sequence[Setting], make: Make, so_far: Callable[[], Exploration],
         processes: int) -> None:
    groups: dict[tuple[bool, Hashable], list[int]] = {}
    for i, setting in enumerate(settings):
        groups.setdefault((setting.training, program_key(setting.options)), []).append(i)

    def found(i: int, point: Point) -> None:
        setting = settings[i]
        search.points[i] = dataclasses.replace(point, values=setting.values, training=setting.training,
                                               options=setting.options)
        if search.progress is not None:
            best = so_far().best
            search.tell("" if best is None else f"{best.samples_per_second:,.0f} samples/s")
    with contextlib.closing(Crew(min(processes, len(settings)))) as crew:
        for (training, _), members in groups.items():
            model = Planner(partial(make, training))                      # so that one program at a time is held
            program = model.program(settings[members[0]].options)
            if len(members) > 1 and crew.helps(program):
                for i, point in crew.points([(i, settings[i].options) for i in members]):
                    found(i, point)
                continue
            for group in together([(i, settings[i].options) for i in members]):
                for i, options in group:
                    found(i, point_of(model.tried(options)))
