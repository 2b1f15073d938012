"""Made-up rows in place of data, for runs that measure speed: of the data's shapes, or of the model's."""
from __future__ import annotations

import numpy as np

from ..memory import budget
from ..memory.types import TensorType
from ..options.options import Options
from ..options.registries import LOSSES
from ..system.errors import DataError
from .data import Dataset
from .source import Source

CALLS = 16
"""Calls of the engine that rows are made up for where there are no data."""


def like(data: Dataset, options: Options) -> Dataset:
    """Rows of the same number, shapes and types with the same labels, whose floating inputs are made up; whole numbers and truth values are zero.

    Raises:
        DataError: the data are no arrays.
    """
    if not all(isinstance(f.array, np.ndarray) for f in data.tensors):
        raise DataError(f"Option synthetic_data makes rows like those of arrays, and rows of {data.name} are read one by one; leave the data out, or "
                        "give arrays.")
    draw = np.random.default_rng(options.seed)
    inputs = {name: _values(field.array.dtype, field.array.shape, options, draw) for name, field in data.fields.items()}
    return Dataset.of(inputs, None if data.label is None else data.label.array, f"{data.name} (synthetic)", label_name=data.label_name)


def made_up(source: Source, options: Options) -> Dataset:
    """Rows for a few calls of a model, from what it declares of its inputs and what its first output is: class numbers where the loss takes such.

    Raises:
        DataError: the model does not say what shapes its inputs have.
    """
    types = source.input_types()
    if not types:
        raise DataError("The shapes of the network's inputs are not known: give data for synthetic_data to be like.")
    rows = CALLS * options.combined_batch_size
    draw = np.random.default_rng(options.seed)
    inputs = {name: _values(t.numpy, (rows, *t.shape[1:]), options, draw) for name, t in types.items()}
    output = source.signature(list(types.values()), True).outputs[0].type
    return Dataset.of(inputs, _labels(output, rows, options, draw), "synthetic")


def _values(dtype: np.dtype, shape: tuple[int, ...], options: Options, draw: np.random.Generator) -> np.ndarray:
    """Zeros, or normal numbers in place of floating ones."""
    budget.require(int(np.prod(shape, dtype=object)) * max(dtype.itemsize, 4), "Made-up rows",
                   "give fewer rows, or a smaller micro_batch_size")
    if dtype.kind != "f" or options.synthetic_data == "zeros":
        return np.zeros(shape, dtype)
    return draw.standard_normal(shape, np.float32).astype(dtype, copy=False)


def _labels(output: TensorType, rows: int, options: Options, draw: np.random.Generator) -> np.ndarray | None:
    """Labels for an output of a micro-batch: none for a loss of the model's own, class numbers, yes or no, or numbers like the output."""
    shape = (rows, *output.shape[1:])
    if options.loss == "identity":
        return None
    if options.loss in ("auto", *LOSSES.having("ignore_index")) and len(shape) > 1:
        axis = (options.class_axis or -1) % len(shape)
        found: np.ndarray = draw.integers(0, max(1, shape[axis]), (*shape[:axis], *shape[axis + 1:]))
        return found
    if options.loss in ("kl", "soft_cross_entropy"):
        return np.full(shape, 1 / max(1, shape[options.class_axis or 1]), np.float32)
    if options.loss.startswith("bce"):
        return draw.integers(0, 2, shape).astype(np.float32)
    return _values(np.dtype(np.float32), shape, options, draw)
