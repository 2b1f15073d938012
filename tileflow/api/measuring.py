"""What labels say about outputs that are there already: the metrics that train would measure."""
from __future__ import annotations

from math import prod

import numpy as np

from ..loss import choose
from ..metrics import Collector, defaults
from ..options.options import Options
from ..runtime.data import Dataset
from ..runtime.labels import look, ready
from ..system.errors import DataError
from .models import Made, source_of

OF_NUMBERS = ("mae", "rmse", "r2")
"""What is measured of numbers where nothing else was asked for: infer has no loss to show."""
CHUNK = 1 << 12
"""Rows measured together."""


def agreement(dataset: Dataset, output: np.ndarray) -> float | None:
    """The share of labels that a model predicts whose first output is labels itself, whole numbers or texts, as scikit-learn's exporter writes
    classifiers; None where there are no labels or the output is something else.

    Raises:
        DataError: numbers are predicted where the labels are texts, or the other way round.
    """
    labels = dataset.labels
    if labels is None or output.dtype.kind not in "biuOU" or labels.size != output.size or not output.size:
        return None
    found, wanted, texts = output.reshape(-1), labels.reshape(-1), output.dtype.kind in "OU"
    if texts != (dataset.classes is not None) and (texts or not dataset.numbers):
        given = f"texts such as {str(found[0])!r}" if texts else f"numbers such as {found[0]}"
        raise DataError(f"The model predicts {given}, and the labels of data {dataset.name} are {'numbers' if texts else 'texts'}.")
    if texts and dataset.classes is not None:
        wanted = np.array(dataset.classes, object)[wanted]
    return float(np.mean(found == wanted))


def measure(model: Made, options: Options, dataset: Dataset, output: np.ndarray) -> dict[str, float | None]:
    """The option metrics, and those that fit, of a model's first output for all rows; None where one is not defined. Empty without labels.

    What the labels are follows from the option loss, or from the output and the labels as in training.

    Raises:
        OptionError: it cannot be decided what the labels are, or a metric does not fit.
        DataError: the labels do not fit the output.
    """
    if dataset.label is None:
        return {}
    plain = options.clone(label_smoothing=0.0, class_weights=())
    source = source_of(model, plain)
    outputs = source.signature(list(source.input_types(dataset).values()), False).outputs
    choice = choose(plain.loss, plain, outputs, look(dataset, plain.ignore_index))
    wanted = choice.loss.label_type([v.type for v in outputs])
    labels = ready(dataset, choice, outputs[0].type, dataset.classes).labels
    if wanted is None or labels is None or prod(labels.shape[1:]) != prod(wanted.shape[1:]):
        return {}
    view = choice.loss.view(outputs)
    fitting = OF_NUMBERS if view is not None and view.task == "numbers" else defaults(view)
    collector = Collector([*options.metrics, *(m for m in fitting if m not in options.metrics)], view, choice.loss.name)
    labels = labels.reshape(len(labels), *wanted.shape[1:])
    for start in range(0, len(output), CHUNK):
        collector.update(output[start:start + CHUNK], labels[start:start + CHUNK])
    return collector.values()
