"""What an executable's header comes to where its model is made again: options with changes, the loss, the optimizer."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..loss import Loss
from ..optim import Optimizer, remembered
from ..optim.schedules import is_state
from ..options.options import Options, declarations, renamed
from ..program.fields import Fault
from ..system.errors import ModelError, OptionError
from .executable_file import Opened
from .recipes import loss_of, optimizer_of, structure_data


def edited(opened: Opened, edit: Callable[[Options], Any] | None, changes: Mapping[str, Any]) -> Options:
    """An executable's options with changes (OptionError for one of something that is compiled in)."""
    own, made = opened.options, opened.options.clone()
    if edit is not None:
        if not callable(edit):
            raise OptionError("edit_options is a function that gets the options and changes them, not "
                              f"{type(edit).__name__}; single options are given by keyword.")
        edit(made)
    for name, value in renamed(changes).items():
        setattr(made, name, value)
    require_same(opened, own, made)
    return made


def require_same(opened: Opened, wanted: Options, made: Options) -> None:
    """Refuse options that differ in something that is compiled in; OptionError."""
    for name, (before, after) in wanted.diff(made).items():
        if declarations()[name].is_compiled:
            raise OptionError(f"Option {name} is compiled into executable {opened.path} as {before!r} and cannot "
                              f"become {after!r}, for something else would be computed. "
                              "Export the model again with it, or leave it as it is.")


def require_weights(opened: Opened) -> None:
    """Refuse an executable without weights; ModelError."""
    if not opened.header.whole:
        raise ModelError(f"Executable {opened.path} was written with export_model=False, so that it has no weights: "
                         "make the model as it was exported, with tileflow.training_model or inference_model, and call "
                         "model.load_executable(path).")


def loss_in(opened: Opened) -> Loss:
    """The loss that a training model of an executable has."""
    try:
        return loss_of(opened.header.loss, len(opened.header.outputs))
    except Fault as fault:
        raise opened.refused(fault) from None


def optimizer_in(opened: Opened, given: Optimizer | None) -> Optimizer | None:
    """The optimizer that an executable is trained with: the one in it, or the one that is given in its place; None of
    an inference model."""
    header = opened.header
    if given is not None and not isinstance(given, Optimizer):
        raise OptionError(f"optimizer must be one of tileflow.optim, such as SGD(lr=0.1), not {type(given).__name__}.")
    if header.model != "TrainingModel":
        if given is not None:
            raise OptionError(f"Executable {opened.path} is of an inference model, which has no optimizer; leave "
                              "optimizer out.")
        return None
    if given is None and header.asked:
        raise OptionError(f"Executable {opened.path} was trained with what is no data and so is not in it: "
                          f"{'; '.join(header.asked)}. Give the same again: "
                          "tileflow.load_executable(path, optimizer=...).")
    try:
        made = optimizer_of(header.optimizer) if given is None else given
        if structure_data(made) != header.structure:
            if given is None:
                raise Fault("the optimizer", "is not the one that is compiled in")
            raise OptionError(f"Executable {opened.path} was compiled with another optimizer: what is constant, its "
                              f"groups or the class of {type(made).__name__} differ; give one as it was exported with.")
        _restore(made, dict(header.plateaus))
    except Fault as fault:
        raise opened.refused(fault) from None
    return made


def _restore(optimizer: Optimizer, come_to: Mapping[str, tuple[float, ...]]) -> None:
    """Let schedules with a state go on from what they had come to."""
    plateaus = remembered.with_state(optimizer)
    for name, state in come_to.items():
        if name not in plateaus or not is_state(np.array(state, np.float64)):
            raise Fault(f"the state of the schedule {name!r:.80}", "belongs to no schedule of the optimizer")
        plateaus[name].restore(np.array(state, np.float64))
