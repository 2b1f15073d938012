"""infer: a model over all rows of data."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..collective import current, in_turns
from ..feed.items import RowStream
from ..memory import budget
from ..memory.tensor import kind_of
from ..memory.types import TensorType
from ..options.options import Options
from ..runtime.data import Data, DataLoader, Dataset, check_given, open_data
from ..runtime.host import Host, Progress
from ..runtime.inference_model import InferenceModel
from ..runtime.onnx_source import OnnxSource
from ..runtime.preprocessing import Preprocessing
from ..runtime.source import Source
from ..system.errors import DataError, OptionError, UnsupportedError
from ..system.text import one_line
from .executables import named
from .models import Made, chosen_options, chosen_progress, source_of


def infer(model: Made, options: Options | None = None, *, data: Any = None, progress: Progress | bool | None = None,
          say: Callable[[str], None] | None = None, **changes: Any) -> dict[str, np.ndarray]:
    """Run a model over all rows of data (labels, if any, are not used).

    A file that `train` wrote knows how its inputs were scaled and which columns they were: that is done here as well, unless options
    say otherwise, and data far from those it was trained on give a warning. (`inference_model` takes arrays as they are.)

    Args:
        data: overrides `options.data`: anything that `train` takes.
        progress: called with (kernel, done, total) while kernels are compiled; True shows a bar.
        say: gets sentences on how the data are made to fit.

    Returns:
        the model's outputs by name, [rows, ...] each; a map for each row (a classifier's probabilities by class) as an array [rows, classes], with a
        sentence that says which column is which.
    """
    made, chosen = named(model, chosen_options("infer", options, changes))
    source = source_of(made, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to run on; give data=x, a path, or the name digits.")
    known = preprocessing_of(source)
    opened = open_data(given, chosen, known.roles)
    check_given(given, opened, chosen)
    return outputs_over(source, measured(opened), chosen, known, chosen_progress(progress), say)


def outputs_over(source: Source, dataset: Dataset, chosen: Options, known: Preprocessing,
                 progress: Progress | None = None, say: Callable[[str], None] | None = None) -> dict[str, np.ndarray]:
    """A model's outputs by name over all rows, scaled as it is `known` to have been trained."""
    if dataset.whole:
        raise OptionError("Option whole_elements is for train; call the model from Python (tileflow.inference_model) with each element's arrays.")
    wanted = source.input_types(dataset)
    whole = _runs_whole(source, list(wanted.values()))             # what cannot run is said before anything is read
    try:
        dataset = dataset.images_as_bytes(wanted).adapt_to(wanted, None, chosen, known.scalings)
    except DataError as error:
        if dataset.columns and dataset.label is not None and not (chosen.label or chosen.inputs or known.roles.label):
            error.add_note(f"The column {dataset.label_name!r} was taken for the label; where the table has none, name all inputs with the option "
                           f"inputs.")
        raise
    for sentence in (*dataset.notes, *(() if known.scalings else dataset.unscaled_bytes())):
        (say or _unheard)(sentence)
    report_foreign(known, dataset)
    run_options = chosen.clone()
    run_options.gradient_accumulation, run_options.input_group_size, run_options.replica_grouping, run_options.output_mode = 1, 1, {}, "all"
    run_options.on_new_shape = "compile"                          # batches may change their length, and the last one may have fewer rows
    filled = whole and not isinstance(dataset.source, RowStream)     # where sizes follow from data it is not filled up
    model_ = InferenceModel(source, run_options, progress)
    loader = DataLoader(model_.options, dataset, shuffle=False, pad_last=filled, drop_last=False)
    parts: list[list[Any]] = []
    counts: list[int] = []
    keys: dict[str, tuple[Any, ...]] = {}
    group = current()
    if group is not None:
        group = group if whole and _stands_alone(model_, dataset, loader) else None
    loader.turn = (0, 1) if group is None else (group.rank, group.size)

    def made() -> Iterator[list[tuple[Any, ...]]]:
        for _, batch in loader.places():
            outputs = model_(*batch[:len(dataset.fields)])
            each = outputs if isinstance(outputs, tuple) else (outputs,)
            yield [tuple(_as_table(name, a, keys) for name, a in zip(model_.output_names, each, strict=True)),
                   (np.array(len(batch[0])),)]

    for outputs, (count,) in in_turns(group, made(), "what a model gives for data"):
        parts.append([*outputs])
        counts.append(int(count))
        if len(parts) == 1 and loader.rows is not None:           # all parts, and then what they are joined to
            nbytes = sum(a.nbytes for a in parts[0] if isinstance(a, np.ndarray))
            budget.require(2 * len(loader) * nbytes, f"What the model gives for {len(dataset):,} rows",
                           "run it on fewer rows at a time")
    rows = len(dataset) if filled else sum(counts)
    joined = {name: _joined(name, [p[i] for p in parts], counts, rows, not whole) for i, name in enumerate(model_.output_names)}
    return _told(joined, counts, rows, keys, say)


def _stands_alone(model: InferenceModel, dataset: Dataset, loader: DataLoader) -> bool:
    """What a batch gives depends on no other: the model, compiled here, writes nothing."""
    model.compile(*dataset.example(np.zeros(loader.combined_batch_size, np.int64))[:len(dataset.fields)])
    return all(state.output is None for state in model.program.states.values())


def _told(joined: dict[str, np.ndarray | str], counts: list[int], rows: int, keys: dict[str, tuple[Any, ...]],
          say: Callable[[str], None] | None) -> dict[str, np.ndarray]:
    """The outputs, and sentences on those that are no rows as the data's, that were maps, or that are missing."""
    found = {name: a for name, a in joined.items() if isinstance(a, np.ndarray)}
    tell = say or _unheard
    for name, a in joined.items():
        if isinstance(a, np.ndarray) and (bad := _not_finite(a)):
            total = len(a) if a.ndim else 1
            (say or _warn)(one_line(f"The output '{name}' is not finite in {bad:,} of {total:,} rows: it holds NaN or an infinity there."))
        if not isinstance(a, np.ndarray):
            if not found:
                raise DataError(f"{a}.")
            (say or _warn)(one_line(f"{a}; the other outputs are here."))
        elif len(counts) > 1 and len(a) != rows:
            tell(one_line(f"The output '{name}' has {len(a)} rows for {rows} of the data: what each batch of {counts[0]} gave, one after the other."))
        elif name in keys:
            tell(one_line(f"The output '{name}' maps the classes of each row to numbers; here it is an array whose columns are "
                          f"{', '.join(map(str, keys[name]))}."))
    return found


def _not_finite(a: np.ndarray) -> int:
    """Rows that hold NaN or an infinity."""
    return 0 if kind_of(a.dtype) != "f" else int(np.count_nonzero(~np.isfinite(a).reshape(len(a) if a.ndim else 1, -1).all(axis=1)))


def _runs_whole(source: Source, types: list[TensorType]) -> bool:
    """The model is one program for inputs of these types; else it runs in pieces. Raises UnsupportedError where it does neither."""
    try:
        source.signature(types, False)
        return True
    except UnsupportedError as error:
        from ..importers.onnx import DynamicOperandError
        if not isinstance(error, DynamicOperandError) or source.pieces(Host()) is None:
            raise
        return False


def _as_table(name: str, output: Any, keys: dict[str, tuple[Any, ...]]) -> Any:
    """A sequence of a map for each row (`ZipMap`, as scikit-learn's exporter writes classifiers' probabilities) as an array [rows, keys], where all
    rows have the same keys in one order, which `keys` learns by the output's name; any other output as it is."""
    if not isinstance(output, list) or not output or not isinstance(output[0], dict):
        return np.asarray(output) if isinstance(output, np.generic) else output
    columns = keys.setdefault(name, tuple(output[0]))
    if any(tuple(row) != columns for row in output):
        return output
    return np.array([list(row.values()) for row in output], np.float32)


def _joined(name: str, parts: list[Any], counts: list[int], rows: int, chosen: bool) -> np.ndarray | str:
    """What several batches of so many rows gave of an output, one after the other, without those that filled the last one up; or, where that is not
    the output for all rows (a mean, labels as [1, rows]), why.

    Args:
        chosen: sizes follow from data, so an output may be rows that were chosen (by Compress, say).
    """
    remedy = "call the model from Python (tileflow.inference_model)"
    if not all(isinstance(p, np.ndarray) for p in parts):
        return f"The output '{name}' is a sequence or a map, which is no array: {remedy}"
    if all(p.ndim and len(p) == count and p.shape[1:] == parts[0].shape[1:] for p, count in zip(parts, counts, strict=True)):
        return np.concatenate(parts)[:rows]
    if counts == [rows]:
        return np.asarray(parts[0])
    if chosen and not all(count in p.shape[1:] for p, count in zip(parts, counts, strict=True)) and len({p.shape[1:] for p in parts}) == 1:
        return np.concatenate(parts)
    return (f"The output '{name}' has the shape {list(parts[0].shape)} for {counts[0]} rows, so that what batches give of it cannot be put together: "
            f"choose a micro_batch_size of all {rows} rows, or {remedy}")


def _warn(sentence: str) -> None:
    """Nobody asked for sentences, and this one must be heard."""
    warnings.warn(sentence, stacklevel=4)


def _unheard(sentence: str) -> None:
    """Nobody asked for sentences."""


def preprocessing_of(source: Source) -> Preprocessing:
    """What the model's file says about the data it was trained on."""
    return Preprocessing.of_file(source.described) if isinstance(source, OnnxSource) else Preprocessing()


def report_foreign(known: Preprocessing, dataset: Dataset, frames: int = 3) -> None:
    """Warn of data that are far from those the model was trained on, at the line so many frames up."""
    for sentence in known.foreign(dataset):
        warnings.warn(one_line(sentence), stacklevel=frames)


def measured(data: Data) -> Dataset:
    """The part of a source that is for measuring: its test part where it has one."""
    return data.train if data.test is None else data.test
