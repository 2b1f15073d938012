"""load_executable: a model out of a file that holds its program, for which neither its source nor its compilation is
needed."""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..loss import without_labels
from ..optim import Optimizer
from ..optim.schedules import Run
from ..options.options import Options, declarations
from ..runtime.executable_file import Opened
from ..runtime.executable_source import source_of
from ..runtime.forms import nesting_of
from ..runtime.host import Progress
from ..runtime.inference_model import InferenceModel
from ..runtime.loading import edited, loss_in, optimizer_in, require_same, require_weights
from ..runtime.model_file import is_executable
from ..runtime.stored import Stored
from ..runtime.training_model import TrainingModel
from ..system.text import one_line
from .models import chosen_progress
from .models import source_of as fresh_source

LONGEST = 2000
"""Characters of a line that lists names."""


def load_executable(path: str | os.PathLike[str], edit_options: Callable[[Options], Any] | None = None, *,
                    optimizer: Optimizer | None = None,
                    progress: Progress | bool | None = None, **changes: Any) -> TrainingModel | InferenceModel:
    """A model out of the file that `compile_and_export` or `save` of another one wrote, with its weights and, of a
    training model, all that its optimizer remembers: it goes on as that one would have, to the same bits on the same
    CPU path.

        model = tileflow.load_executable("digits.tileflow")
        prediction, loss = model(x, labels)

    Nothing of the file is executed, and nothing is compiled but kernels that are in no cache. The model has a session
    of its own: weights by name, connected to no other model until one is made of it
    (`tileflow.inference_model(model)`).

    Args:
        edit_options: called with the model's options, to change those that a compiled program may run with: threads,
            detect_anomaly, output_mode.
        optimizer: where the file cannot hold the one that it was trained with, since its rates are Python functions:
            the same again.
        changes: single options by keyword, after edit_options.

    Raises:
        ModelError: the file cannot be read, is damaged, of another version of the format or no executable, or it was
            written with export_model=False.
        OptionError: a changed option is compiled in, or an optimizer is asked for, or is another one.
        OutOfMemoryError: there is no room for it.
    """
    opened = Opened(path)
    return model_of(opened, edited(opened, edit_options, changes), optimizer, chosen_progress(progress))


def named(model: Any, options: Options) -> tuple[Any, Options]:
    """What somebody named, and the options with it: of an executable's path what it holds, and its own where nobody
    gave others.

    Raises:
        ModelError: the executable cannot be used, or has no weights.
        OptionError: an option was given that is compiled in, with another value.
    """
    if not is_executable(model):
        return model, options
    opened = Opened(model)
    require_weights(opened)
    rows = next((shape[0] for shape in (t.shape for t in opened.header.inputs) if shape), 1)
    wanted = opened.options.clone(micro_batch_size=rows)
    own = {name: value for name, value in wanted.to_dict().items() if declarations()[name].is_compiled
           or name in opened.header.options}
    made = options.filled(own)
    require_same(opened, wanted, made)
    return opened, made


def export(model: Any, path: str | os.PathLike[str], options: Options, training: bool,
           progress: Progress | None = None) -> Path:
    """Write the executable of an ONNX file by options that are checked, for the inputs that the file declares.

    The loss of a training one is the option's; auto is that which a model with such outputs is most likely trained
    with.

    Raises:
        ModelError: the model cannot be read. DataError: sizes of its inputs stay open.
        UnsupportedError: there is no one program of it. CheckpointError: the file cannot be written.
    """
    if not training:
        options = options.for_inference()
        return InferenceModel(fresh_source(model, options), options, progress).save(path)
    source = fresh_source(model, options)
    loss = options.loss
    if loss == "auto":
        loss = without_labels(source.signature(list(source.input_types().values()), True).outputs[0])
    return TrainingModel(source, options, None, loss, progress).save(path)


def model_of(opened: Opened, options: Options, optimizer: Optimizer | None,
             progress: Progress | None) -> TrainingModel | InferenceModel:
    """The model of an executable, ready to be called."""
    header = opened.header
    require_weights(opened)
    chosen = optimizer_in(opened, optimizer)
    source = source_of(opened, options)
    made: TrainingModel | InferenceModel
    if chosen is None:
        made = InferenceModel(source, options, progress)
    else:
        made = TrainingModel(source, options, chosen, loss_in(opened), progress)
        made.run = Run(*header.run)
    made.anchors.names = header.anchored
    made.take(Stored(opened).types, nesting_of(opened).form)
    return made


def described(path: str | os.PathLike[str]) -> str:
    """What an executable says of itself, a line each (ModelError where it is none)."""
    opened = Opened(path)
    header, stored = opened.header, Stored(opened)
    training = header.model == "TrainingModel"
    lines = [f"An executable of {header.where}, for {'training' if training else 'inference'}, written by tileflow "
             f"{header.version}.",
             f"takes      {stored.takes}", f"returns    {', '.join(header.outputs)}", f"options    {opened.options!r}"]
    if training:
        told: dict[str, Any] = {} if header.asked else getattr(optimizer_in(opened, None), "describe", dict)()
        made = "; ".join(header.asked) or f"{told.pop('name')}({', '.join(f'{name}={x}' for name, x in told.items())})"
        lines += [f"loss       {loss_in(opened).name}", f"optimizer  {made}", f"updates    {header.updates:,}"]
    by_kind = Counter(s.kind for s in header.states if s.name in header.stored)
    kinds = ", ".join(f"{kind} {n}" for kind, n in by_kind.items())
    lines.append(f"states     {kinds or 'none: it was written with export_model=False'}")
    lines.append(f"model      {'the ONNX file is in it' if header.file is not None else 'the program alone'}")
    return "\n".join(one_line(line, LONGEST) for line in lines)
