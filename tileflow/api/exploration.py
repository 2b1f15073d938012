"""explore: one model compiled for several machines with several settings, none run, all compared."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import compiler
from ..exploration import Exploration
from ..exploration.grid import Setting, check_effects, settings
from ..importers.onnx import fixed_batch
from ..nn import Module
from ..options.options import Options, renamed, with_defaults
from ..options.uses import AXES
from ..system.errors import OptionError
from ..system.text import one_line
from .models import Modelish, load, model_name
from .simulation import DEFAULT_MACHINE, compiled

if TYPE_CHECKING:
    from ..exploration.search import Progress

Inputs = Sequence[Any]


def explore(model: Modelish, options: Options | None = None, *, machines: Any = None, training: bool | Sequence[bool] = False,
            ipus: int | Sequence[int] | None = None, inputs: Inputs | None = None, out: str | os.PathLike[str] | None = None,
            processes: int = 1, progress: Progress | None = None, **changes: Any) -> Exploration:
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
        inputs: for a network of layers, as for `compile`; the first size of shapes and arrays becomes the micro-batch's
            where that is an axis.
        out: folder for the files, also of what was done before Ctrl-C.
        processes: that analyse settings side by side, started for this call. Figures do not depend on it.
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
    if "micro_batch_size" not in axes and not isinstance(model, Module):
        model = load(model) if isinstance(model, (str, os.PathLike)) else model
        axes["micro_batch_size"] = (None if base.given("micro_batch_size") else fixed_batch(model)) or base.micro_batch_size
    found = checked(settings(base, axes), given)
    called = one_line(model_name(model))
    model = load(model) if isinstance(model, (str, os.PathLike)) else model
    from ..exploration.explore import explored
    return explored(called, found, maker(model, inputs, "micro_batch_size" in given), out, progress, processes)


def maker(model: Modelish, inputs: Inputs | None, batched: bool) -> Callable[[bool, Options], compiler.Compilation]:
    """Compiles a model for training or inference with these options or those; `batched`: the first size of inputs is
    the micro-batch's."""
    def make(training: bool, chosen: Options) -> compiler.Compilation:
        given = [_of_rows(one, chosen.micro_batch_size) for one in inputs] if batched and inputs is not None else inputs
        return compiled(model, chosen, training, given, None)
    return make


def _of_rows(given: Any, rows: int) -> Any:
    """An input, a shape or an array, of so many rows: only its shape and type count."""
    return (rows, *given[1:]) if isinstance(given, tuple) else np.resize(given, (rows, *np.shape(given)[1:]))


def checked(found: list[Setting], given: Mapping[str, Any]) -> list[Setting]:
    """The settings, once what was given has an effect on them and does not contradict itself; OptionError before
    anything is compiled."""
    from ..exploration import planning
    check_effects([n for n in given if n != "machine"], found)
    for setting in found:
        planning.machine(setting.options)
        planning.tile_options(setting.options)
    return found
