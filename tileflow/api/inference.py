"""infer: a model over all rows of data."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import memory
from ..errors import DataError
from ..feed.items import Stream
from ..graph import TensorType
from ..importers.onnx import DynamicOperandError
from ..options import Options
from ..runtime.data import Data, DataLoader, Dataset, check_given, open_data
from ..runtime.executable import Host
from ..runtime.model import InferenceModel, Progress
from ..runtime.preprocessing import Preprocessing
from ..runtime.source import OnnxSource, Source
from ..text import one_line
from .models import Modelish, chosen_options, chosen_progress, source_of


def infer(model: Modelish, options: Options | None = None, *, data: Any = None, progress: Progress | bool | None = None,
          say: Callable[[str], None] | None = None, **changes: Any) -> dict[str, np.ndarray]:
    """Run a model over all rows of data (labels, if any, are not used).

    A file that `train` wrote knows how its inputs were scaled and which columns they were: that is done here as well, unless options
    say otherwise, and data far from those it was trained on give a warning. (`inference_model` takes arrays as they are.)

    Args:
        data: overrides `options.data`: anything that `train` takes.
        progress: called with (kernel, done, total) while kernels are compiled; True shows a bar.
        say: gets sentences on how the data are made to fit.

    Returns:
        the model's outputs by name, [rows, ...] each.
    """
    chosen = chosen_options("infer", options, changes)
    source = source_of(model, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to run on; give data=x, a path, or the name digits.")
    known = preprocessing_of(source)
    opened = open_data(given, chosen, known.roles)
    check_given(given, opened, chosen)
    dataset = measured(opened)
    wanted = source.input_types(dataset)
    whole = _runs_whole(source, list(wanted.values()))             # what cannot run is said before anything is read
    dataset = dataset.images_as_bytes(wanted).adapt_to(wanted, None, chosen, known.scalings)
    for sentence in (*dataset.notes, *(() if known.scalings else dataset.unscaled_bytes())):
        (say or _unheard)(sentence)
    report_foreign(known, dataset)
    run_options = chosen.clone()
    run_options.gradient_accumulation, run_options.input_group_size, run_options.replica_grouping, run_options.output_mode = 1, 1, {}, "all"
    filled = whole and not isinstance(dataset.source, Stream)
    if not filled:
        run_options.on_new_shape = "compile"                      # the last batch may be shorter: where sizes follow from data it is not filled up
    model_ = InferenceModel(source, run_options, chosen_progress(progress))
    loader = DataLoader(model_.options, dataset, shuffle=False, pad_last=filled, drop_last=False)
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        outputs = model_(*batch[:len(dataset.fields)])
        parts.append(list(outputs) if isinstance(outputs, tuple) else [outputs])
        if len(parts) == 1:                                       # all parts, and then what they are joined to
            nbytes = sum(a.nbytes for a in parts[0] if isinstance(a, np.ndarray))
            memory.require(2 * len(loader) * nbytes, f"What the model gives for {len(dataset):,} rows", "run it on fewer rows at a time")
    if whole:
        return {name: np.concatenate([p[i] for p in parts])[:len(dataset)] for i, name in enumerate(model_.output_names)}
    return {name: _joined(name, [p[i] for p in parts]) for i, name in enumerate(model_.output_names)}


def _runs_whole(source: Source, types: list[TensorType]) -> bool:
    """The model is one program for inputs of these types; else it runs in pieces. Raises UnsupportedError where it does neither."""
    try:
        source.signature(types, False)
        return True
    except DynamicOperandError:
        if source.pieces(Host()) is None:
            raise
        return False


def _joined(name: str, parts: list[Any]) -> np.ndarray:
    """What several batches gave of an output, one after the other."""
    if all(isinstance(p, np.ndarray) and p.ndim and p.shape[1:] == parts[0].shape[1:] for p in parts):
        return np.concatenate(parts)
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        return parts[0]
    raise DataError(f"The output '{name}' has other sizes in other batches, or is a sequence, so that it is no one array: choose a "
                    f"micro_batch_size of all rows, or call the model from Python (tileflow.inference_model).")


def _unheard(sentence: str) -> None:
    """Nobody asked for sentences."""


def preprocessing_of(source: Source) -> Preprocessing:
    """What the model's file says about the data it was trained on."""
    return Preprocessing.of_file(source.model) if isinstance(source, OnnxSource) else Preprocessing()


def report_foreign(known: Preprocessing, dataset: Dataset, frames: int = 3) -> None:
    """Warn of data that are far from those the model was trained on, at the line so many frames up."""
    for sentence in known.foreign(dataset):
        warnings.warn(one_line(sentence), stacklevel=frames)


def measured(data: Data) -> Dataset:
    """The part of a source that is for measuring: its test part where it has one."""
    return data.train if data.test is None else data.test
