"""explore: one model compiled for several machines with several settings, none run, all compared."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import compiler
from ..exploration import Exploration, ExplorationInterrupted, Point
from ..exploration.found import made
from ..exploration.grid import Setting, check_effects, program_key, settings
from ..exploration.point import FAILED, FITS, OUT_OF_MEMORY
from ..importers.onnx import fixed_batch
from ..nn import Module
from ..options.options import Options, renamed, with_defaults
from ..options.uses import AXES
from ..system.errors import OptionError, TileflowError
from ..system.text import one_line
from ..tiles.system.ipus import counts
from ..tiles.tiled import TileProgram
from .models import Modelish, load, model_name
from .simulation import DEFAULT_MACHINE, bytes_per_ipu, compiled

Progress = Callable[[int, int, str], None]
"""Called with points done, how many there are, and a word on the fastest so far."""
Inputs = Sequence[Any]


def explore(model: Modelish, options: Options | None = None, *, machines: Any = None, training: bool | Sequence[bool] = False,
            ipus: int | Sequence[int] | None = None, inputs: Inputs | None = None, out: str | os.PathLike[str] | None = None,
            progress: Progress | None = None, **changes: Any) -> Exploration:
    """Compile a model for every combination of machines and settings and compare throughput and memory.

        found = tileflow.explore("model.onnx", machines=["gc200", "bow", "mine.toml"], micro_batch_size=[1, 2, 4, 8], precision=["16.16", "32.32"])
        print(found.to_text())
        found.save("explored")                         # explore.csv, explore.json, explore.svg
        found.best.options                             # those of the fastest that fits, for `compile`

    An axis takes one value or a list: `machines`, `training`, `ipus`, and by keyword micro_batch_size, gradient_accumulation, precision (with
    machine_precision's values as well), available_memory_proportion, replication_factor, recompute and optimizer_off_chip. What programs and
    plans have in common is made once. A setting that fails, or does not fit, is a point that says why.

    Args:
        options, changes: as for `compile`; what is not an axis holds for all settings.
        machines: chips, TOML files, or tables of constants; gc200 unless set.
        ipus: stages of equal length, each on an IPU of its own (auto_pipeline), pipelined unless `strategy` says otherwise; 1 is one IPU.
        inputs: for a network of layers, as for `compile`; the first size of shapes becomes the micro-batch's where that is an axis.
        out: folder for the files, also of what was done before Ctrl-C.
        progress: called with points done, how many there are, and the fastest so far.

    Raises:
        OptionError: a value is wrong, before anything is compiled.
        ExplorationInterrupted: Ctrl-C; its `exploration` has what was done.
    """
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options must be a tileflow.Options, got {type(options).__name__}; single options are given by keyword.")
    given = renamed(changes)
    if machines is not None and "machine" in given:
        raise OptionError("machines and machine are the same; give one of them.")
    base = with_defaults((options or Options()).clone(**{n: v for n, v in given.items() if n not in AXES}))
    axes = {name: value for name, value in {**given, "training": training, "ipus": ipus, "machine": machines}.items()
            if name in AXES and value is not None}
    axes.setdefault("machine", given.get("machine", base.machine or DEFAULT_MACHINE))
    called = one_line(model_name(model))
    if "micro_batch_size" not in axes and not isinstance(model, Module):
        model = load(model) if isinstance(model, (str, os.PathLike)) else model
        axes["micro_batch_size"] = (None if base.given("micro_batch_size") else fixed_batch(model)) or base.micro_batch_size
    found = settings(base, axes)
    check_effects([n for n in given if n != "machine"], found)
    run = _Run(model, found, inputs, "micro_batch_size" in given)
    if out is not None:
        made(out)
    shown: dict[str, list[Any]] = {name: [] for name in found[0].values}
    for setting in found:
        for name, value in setting.values.items():
            if value is not None and value not in shown[name]:
                shown[name].append(value)
    points: dict[int, Point] = {}

    def so_far() -> Exploration:
        return Exploration(called, shown, [points[i] for i in sorted(points)], len(found))
    try:
        for i, point in run.points():
            points[i] = point
            if progress is not None:
                best = so_far().best
                progress(len(points), len(found), "" if best is None else f"{best.samples_per_second:,.0f} samples/s")
    except KeyboardInterrupt:
        where = "" if out is None else f"; they are in {so_far().save(out)}"
        raise ExplorationInterrupted(f"Interrupted: {len(points)} of {len(found)} settings were tried{where}.", so_far()) from None
    if out is not None:
        so_far().save(out)
    return so_far()


@dataclass
class _Run:
    """The settings of an exploration, in the order in which programs are shared."""

    model: Modelish
    settings: list[Setting]
    inputs: Inputs | None
    batched: bool

    def __post_init__(self) -> None:
        """Check what can be checked before anything is compiled: machines, and options that contradict one another."""
        from ..exploration import simulate
        for setting in self.settings:
            simulate.machine(setting.options)
            simulate.tile_options(setting.options)
        if not isinstance(self.model, Module):
            self.model = load(self.model) if isinstance(self.model, (str, os.PathLike)) else self.model
        elif self.batched and any(not isinstance(given, tuple) for given in self.inputs or ()):
            raise OptionError("micro_batch_size, where it is given, takes the place of the first size of inputs, such as inputs=[(16, 784)]; "
                              "give them as shapes, or leave it out.")

    def points(self) -> Iterator[tuple[int, Point]]:
        """Each setting's number and point; those of one program follow one another, and only that program is held."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, setting in enumerate(self.settings):
            groups.setdefault(program_key(setting, bytes_per_ipu), []).append(i)
        for members in groups.values():
            program: compiler.Compilation | Exception | None = None
            for i in members:
                if program is None:
                    program = self._compiled(self.settings[i])
                yield i, self._point(self.settings[i], program)

    def _compiled(self, setting: Setting) -> compiler.Compilation | Exception:
        """The program, or why there is none: that fails its points and no others."""
        inputs = self.inputs
        if self.batched and inputs is not None:
            inputs = [(setting.options.micro_batch_size, *shape[1:]) for shape in inputs]
        try:
            return compiled(self.model, setting.options, setting.training, inputs, None)
        except Exception as error:
            return error

    def _point(self, setting: Setting, program: compiler.Compilation | Exception) -> Point:
        from ..exploration import simulate
        failed = Point(setting.values, setting.training, FAILED, options=setting.options)
        if isinstance(program, Exception):
            return replace(failed, reason=_sentence(program))
        try:
            return _measured(setting, simulate.analyzed(program, setting.options))
        except Exception as error:
            return replace(failed, reason=_sentence(error))


def _measured(setting: Setting, tiled: TileProgram) -> Point:
    """The point of an analysed program."""
    return Point(setting.values, setting.training, FITS if tiled.fits else OUT_OF_MEMORY, "" if tiled.fits else _memory(tiled),
                 float(tiled.samples_per_second), int(tiled.peak[tiled.worst_tile]), int(tiled.chip.usable_bytes), int(tiled.cycles_per_update),
                 tiled.cycles_per_sample, float(tiled.tflops), float(tiled.peak_fraction), counts(tiled.ipus, tiled.options.replicas)["all"],
                 setting.options)


def _memory(tiled: TileProgram) -> str:
    """Which tile needs how much, and what most of it is."""
    most = tiled.contributors()[:1]
    of = "".join(f" Most of it: {one_line(c.layer)} {c.nbytes:,} ({', '.join(f'{kind} {n:,}' for kind, n in c.categories.items())})." for c in most)
    return tiled.infeasible[-1] + of


def _sentence(error: Exception) -> str:
    """Why a setting failed; a mistake of tileflow's own is called one."""
    if isinstance(error, TileflowError):
        return str(error)
    return f"internal error {one_line(repr(error))}: please report it."
