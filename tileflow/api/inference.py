"""infer: a model over all rows of data."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from ..graph import TensorType, kind_of
from ..options import Options
from ..runtime.data import Data, DataLoader, Dataset, open_data
from ..runtime.model import InferenceModel, Progress
from ..runtime.source import NetSource, OnnxSource, Source
from .models import Modelish, chosen_options, source_of


def infer(model: Modelish, options: Options | None = None, *, data: Any = None, progress: Progress | None = None,
          **changes: Any) -> dict[str, np.ndarray]:
    """Run a model over all rows of data (labels, if any, are not used).

    Returns:
        the model's outputs by name, [rows, ...] each.
    """
    chosen = chosen_options(options, changes)
    source = source_of(model, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to run on; give data=x, a path, or the name digits.")
    opened = open_data(given, chosen)
    dataset = measured(opened)
    if isinstance(source, OnnxSource):
        wanted = source.graph_for_batch(chosen.micro_batch_size, False).binding.types
    else:
        wanted = input_types(source, chosen, dataset)
    dataset = dataset.adapt_to(wanted, None, chosen)
    run_options = chosen.clone()
    run_options.gradient_accumulation, run_options.output_mode = 1, "all"
    model_ = InferenceModel(source, run_options, progress)
    loader = DataLoader(model_.options, dataset, shuffle=False, pad_last=True)
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        outputs = model_(*batch[:len(dataset.fields)])
        parts.append(list(outputs) if isinstance(outputs, tuple) else [outputs])
    names = [v.name for v in model_.program.micro.outputs]
    return {name: np.concatenate([p[i] for p in parts])[:len(dataset)] for i, name in enumerate(names)}


def measured(data: Data) -> Dataset:
    """The part of a source that is for measuring: its test part where it has one."""
    return data.train if data.test is None else data.test


def input_types(source: Source, options: Options, dataset: Dataset) -> dict[str, TensorType]:
    """The model's inputs for a micro-batch: an ONNX file declares them, a network takes the data's shapes in its precision."""
    if isinstance(source, OnnxSource):
        return source.graph_for_batch(options.micro_batch_size, True).binding.types
    assert isinstance(source, NetSource)
    wanted = {}
    for name, field in zip(source.input_names, dataset.fields.values(), strict=False):
        dtype = options.precision if kind_of(field.array.dtype) in "fu" else field.array.dtype.name
        wanted[name] = TensorType(dtype, (options.micro_batch_size, *field.sample))
    return wanted
