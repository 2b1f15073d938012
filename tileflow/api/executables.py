"""load_executable: a model out of a file that holds its program, for which neither its source nor its compilation is needed."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..loss import without_labels
from ..optim import Optimizer, remembered
from ..optim.schedules import Run, is_state
from ..options.options import Options, declarations, renamed
from ..program.fields import Fault
from ..runtime.executable_file import Opened, is_executable
from ..runtime.executable_source import source_of
from ..runtime.host import Progress
from ..runtime.inference_model import InferenceModel
from ..runtime.recipes import loss_of, optimizer_of, structure_data
from ..runtime.stored import Stored
from ..runtime.training_model import TrainingModel
from ..system.errors import ModelError, OptionError
from .models import chosen_progress
from .models import source_of as fresh_source


def load_executable(path: str | os.PathLike[str], edit_options: Callable[[Options], Any] | None = None, *, optimizer: Optimizer | None = None,
                    progress: Progress | bool | None = None, **changes: Any) -> TrainingModel | InferenceModel:
    """A model out of the file that `compile_and_export` or `save` of another one wrote, with its weights and, of a training model, all that its
    optimizer remembers: it goes on as that one would have, to the same bits on the same CPU path.

        model = tileflow.load_executable("digits.tileflow")
        prediction, loss = model(x, labels)

    Nothing of the file is executed, and nothing is compiled but kernels that are in no cache. The model has a session of its own: weights by name,
    connected to no other model until one is made of it (`tileflow.inference_model(model)`).

    Args:
        edit_options: called with the model's options, to change those that a compiled program may run with: threads, detect_anomaly, output_mode.
        optimizer: where the file cannot hold the one that it was trained with, since its rates are Python functions: the same again.
        changes: single options by keyword, after edit_options.

    Raises:
        ModelError: the file cannot be read, is damaged, from another version or no executable, or it was written with export_model=False.
        OptionError: a changed option is compiled in, or an optimizer is asked for, or is another one.
        OutOfMemoryError: there is no room for it.
    """
    opened = Opened(path)
    return model_of(opened, edited(opened, edit_options, changes), optimizer, chosen_progress(progress))


def edited(opened: Opened, edit: Callable[[Options], Any] | None, changes: Mapping[str, Any]) -> Options:
    """An executable's options with changes (OptionError for one of something that is compiled in)."""
    own, made = opened.options, opened.options.clone()
    if edit is not None:
        if not callable(edit):
            raise OptionError(f"edit_options is a function that gets the options and changes them, not {type(edit).__name__}; single options are "
                              "given by keyword.")
        edit(made)
    for name, value in renamed(changes).items():
        setattr(made, name, value)
    for name, (before, after) in own.diff(made).items():
        if declarations()[name].is_compiled:
            raise _compiled_in(opened, name, before, after)
    return made


def _compiled_in(opened: Opened, name: str, before: Any, after: Any) -> OptionError:
    return OptionError(f"Option {name} is compiled into executable {opened.path} as {before!r} and cannot become {after!r}, for something else would "
                       "be computed. Export the model again with it, or leave it as it is.")


def _without_weights(opened: Opened) -> ModelError:
    return ModelError(f"Executable {opened.path} was written with export_model=False, so that it has no weights: make the model as it was exported, "
                      "with tileflow.training_model or inference_model, and call model.load_executable(path).")


def named(model: Any, options: Options) -> tuple[Any, Options]:
    """What somebody named, and the options with it: of an executable's path what it holds, and its own where nobody gave others.

    Raises:
        ModelError: the executable cannot be used, or has no weights.
        OptionError: an option was given that is compiled in, with another value.
    """
    if not is_executable(model):
        return model, options
    opened = Opened(model)
    if not opened.header.whole:
        raise _without_weights(opened)
    told = opened.options.told()
    rows = next((shape[0] for shape in (t.shape for t in opened.header.inputs) if shape), 1)
    own = {**{name: value for name, (value, _) in told.items()}, "micro_batch_size": rows}
    made = options.filled(own)
    wanted = opened.options.clone(micro_batch_size=rows)
    for name, (before, after) in wanted.diff(made).items():
        if declarations()[name].is_compiled:
            raise _compiled_in(opened, name, before, after)
    return opened, made


def export(model: Any, path: str | os.PathLike[str], options: Options, training: bool, progress: Progress | None = None) -> Path:
    """Write the executable of an ONNX file by options that are checked, for the inputs that the file declares.

    The loss of a training one is the option's; auto is that which a model with such outputs is most likely trained with.

    Raises:
        ModelError: the model cannot be read. DataError: sizes of its inputs stay open.
        UnsupportedError: there is no one program of it. CheckpointError: the file cannot be written.
    """
    if not training:
        options = options.clone(gradient_accumulation=1) if not options.given("gradient_accumulation", files=False) else options
        return InferenceModel(fresh_source(model, options), options, progress).save(path)
    source = fresh_source(model, options)
    loss = options.loss
    if loss == "auto":
        loss = without_labels(source.signature(list(source.input_types().values()), True).outputs[0])
    return TrainingModel(source, options, None, loss, progress).save(path)


def model_of(opened: Opened, options: Options, optimizer: Optimizer | None, progress: Progress | None) -> TrainingModel | InferenceModel:
    """The model of an executable, ready to be called."""
    header = opened.header
    if not header.whole:
        raise _without_weights(opened)
    chosen = optimizer_in(opened, optimizer)
    source = source_of(opened, options)
    made: TrainingModel | InferenceModel
    if chosen is None:
        made = InferenceModel(source, options, progress)
    else:
        made = TrainingModel(source, options, chosen, loss_in(opened), progress)
        made.run = Run(*header.run)
    made.anchors.names = header.anchored
    made.take(Stored(opened).types)
    return made


def loss_in(opened: Opened) -> Any:
    """The loss that a training model of an executable has."""
    try:
        return loss_of(opened.header.loss)
    except Fault as fault:
        raise opened.refused(fault) from None


def optimizer_in(opened: Opened, given: Optimizer | None) -> Optimizer | None:
    """The optimizer that an executable is trained with: the one in it, or the one that is given in its place; None of an inference model."""
    header = opened.header
    if header.model != "TrainingModel":
        if given is not None:
            raise OptionError(f"Executable {opened.path} is of an inference model, which has no optimizer; leave optimizer out.")
        return None
    if given is None and header.asked:
        raise OptionError(f"Executable {opened.path} was trained with what is no data and so is not in it: {'; '.join(header.asked)}. Give the same "
                          "again: tileflow.load_executable(path, optimizer=...).")
    try:
        made = optimizer_of(header.optimizer) if given is None else given
        if structure_data(made) != header.structure:
            if given is None:
                raise Fault("the optimizer", "is not the one that is compiled in")
            raise OptionError(f"Executable {opened.path} was compiled with another optimizer: what is constant, its groups or the class of "
                              f"{type(made).__name__} differ; give one as it was exported with.")
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
