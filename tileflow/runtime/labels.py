"""Labels of data sets as the loss takes them: looked at before anything is trained, numbered, and checked for every row."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..loss import WEIGHTS, ChosenLoss, ClassLoss
from ..loss.labels import Labels, facts, is_one_hot, is_wrong, refuse
from ..memory.types import TensorType
from ..options.options import Options
from ..system.errors import DataError
from .data import Dataset, Scaling
from .data.classes import CHUNK, from_one_hot, renumbered
from .data.columns import Column, OneHot, is_read_by_row, one_hot
from .source import Source


def look(dataset: Dataset, ignore_index: int | None) -> Labels | None:
    """What is known of a data set's labels; None where it has none."""
    if dataset.label is None:
        return None
    if dataset.whole:
        rows = (x.reshape(-1, *x.shape[2:]) for _, x in _chunks(dataset))
        return facts(dataset.name, dataset.label.sample[1:], rows, ignore_index, texts_of(dataset))
    return facts(dataset.name, dataset.label.sample, (x for _, x in _chunks(dataset)), ignore_index, texts_of(dataset))


def texts_of(dataset: Dataset) -> tuple[str, ...] | None:
    """The names of the classes where the labels were strings."""
    return None if dataset.numbers else dataset.classes


def types_of(source: Source, dataset: Dataset) -> dict[str, TensorType]:
    """The types of a model's inputs for a micro-batch of these data, by name."""
    if not dataset.whole:
        return source.input_types(dataset)
    fields = dataset.for_inputs(source.names_for(dataset))
    return {name: TensorType(source.input_dtype(i, f.array[:1]), f.sample) for i, (name, f) in enumerate(fields.items())}


def is_hard(dataset: Dataset) -> bool:
    """All targets are 0 or 1."""
    found = look(dataset, None)
    return found is None or found.binary


@dataclass(frozen=True)
class Fit:
    """How any data set becomes what a training takes: its inputs, its labels, those checked for every row."""

    inputs: Mapping[str, TensorType]
    output: TensorType
    label: TensorType | None
    choice: ChosenLoss
    classes: tuple[str, ...] | None
    options: Options
    more: Mapping[str, tuple[TensorType, TensorType]] = field(default_factory=dict)
    """Of further outputs, by their names: the type, and that of its labels."""
    numbers: bool = False
    """The labels of the training data are numbers, and `classes` what these are called."""

    def __call__(self, dataset: Dataset, known: Mapping[str, Scaling]) -> Dataset:
        """`known`: by input the scaling of the data that the model was trained on."""
        inputs = {name: self._led(t, dataset) for name, t in self.inputs.items()}
        label = None if self.label is None else self._led(self.label, dataset)
        made = ready(dataset, self.choice.of_label, self.output, self.classes, self.numbers)
        others, types = dict(dataset.more), {}
        for name, (output, wanted) in self.more.items():
            if name not in dataset.more:
                raise DataError(f"Data {dataset.name} have no array {name!r}, which is to hold the labels of the "
                                "output of that name.")
            part = ready(replace(dataset, label=dataset.more[name], classes=None, more={}), self.choice.more[name],
                         output, None)
            assert part.label is not None
            others[name], types[name] = part.label, wanted
        if self.choice.weighted and WEIGHTS in dataset.more:
            _check_sample_weights(dataset)
            types[WEIGHTS] = TensorType(self.output.dtype, self.output.shape[:1])
        return replace(made, more=others).adapt_to(inputs, label, self.options, known, types)

    def of(self, source: Source, dataset: Dataset) -> Fit:
        """The same for data that may be of another length than those that it was made for."""
        if not dataset.may_vary:
            return self
        signature = source.signature(list(types_of(source, dataset).values()), True)
        label = self.choice.minimised.label_type([v.type for v in signature.outputs])
        return replace(self, inputs=signature.inputs, output=signature.outputs[0].type, label=label)

    @staticmethod
    def _led(t: TensorType, dataset: Dataset) -> TensorType:
        """The type of a row's array in a batch of one, where each row is all that is fed."""
        return t.with_shape((1, *t.shape)) if dataset.whole else t


def _check_sample_weights(dataset: Dataset) -> None:
    """DataError for a weight below 0, or none at all; of columns those that may be looked at."""
    array, rows = dataset.more[WEIGHTS].array, dataset.looked_at()
    weights = np.asarray(array[rows if dataset.rows is None else dataset.rows[rows]])
    if weights.size != len(rows):
        raise DataError(f"Data {dataset.name}: the weights of rows have shape {list(weights.shape[1:])} per row; one "
                        "number for each is needed.")
    if (wrong := ~(np.isfinite(weights) & (weights >= 0)).reshape(-1)).any():
        at = int(wrong.argmax())
        raise DataError(f"Data {dataset.name}: the weight {weights.reshape(-1)[at]} of row {rows[at]} is not a finite "
                        "number of at least 0.")


def ready(dataset: Dataset, choice: ChosenLoss, output: TensorType, classes: tuple[str, ...] | None,
          numbers: bool = False) -> Dataset:
    """The data set with labels that the loss takes: one-hot ones as class numbers, strings numbered as the training
    data's `classes`. numbers: those are only names of its numbers, so that other numbers are the same ones.

    Raises:
        DataError: a label that the loss cannot take, with its row.
    """
    if choice.loss.takes == "nothing":
        return replace(dataset, label=None)
    if dataset.label is None:
        raise DataError(f"Data {dataset.name} have no labels, which the loss {choice.loss.name} needs; name them with the option label.")
    same = (dataset.classes is None and numbers) or (dataset.numbers and classes is None)
    if dataset.classes != classes and not same:
        if dataset.classes is None or classes is None:
            have, other = ("numbers", "strings") if dataset.classes is None else ("strings", "numbers")
            raise DataError(f"The labels of data {dataset.name} are {have}, those of the training data {other}; give both in one form.")
        found = renumbered(dataset.label.array[:], dataset.classes, classes, f"Data {dataset.name}")
        dataset = dataset.with_labels(found, classes)
    assert dataset.label is not None
    if choice.one_hot is not None and dataset.whole:
        raise DataError(f"The labels of data {dataset.name} are one-hot; with whole_elements give class numbers.")
    if choice.one_hot is not None and prod(dataset.label.sample) == prod(output.shape[1:]):
        if not all(is_one_hot(x, choice.one_hot) for _, x in _chunks(dataset)):
            raise DataError(f"The labels of data {dataset.name} are not one-hot as those of the training data are.")
        dataset = dataset.with_labels(_numbers(dataset.label.array, choice.one_hot), dataset.classes)
    count = choice.loss.classes(output) if isinstance(choice.loss, ClassLoss) else None
    if choice.loss.takes != "anything":
        _check(dataset, choice, count)
    if choice.softened and count is not None and dataset.label is not None:
        array = dataset.label.array
        made = array.then(partial(one_hot, classes=count)) if isinstance(array, Column) else OneHot(array, count)
        dataset = dataset.with_labels(made, dataset.classes)
    return dataset


def _numbers(array: Any, axis: int) -> Any:
    """One-hot labels as class numbers; those of a column when they are read."""
    return array.unfillable().then(partial(from_one_hot, axis=axis)) if isinstance(array, Column) else from_one_hot(array, axis)


def numbered_as(dataset: Dataset, classes: tuple[str, ...] | None) -> Dataset:
    """The data set whose string labels are numbered as a trained file's `classes`, where those are among them; any other as it is."""
    if dataset.label is None or dataset.classes is None or classes is None or not set(dataset.classes) <= set(classes):
        return dataset
    return dataset.with_labels(renumbered(dataset.label.array[:], dataset.classes, classes, f"Data {dataset.name}"),
                               classes)


def _check(dataset: Dataset, choice: ChosenLoss, classes: int | None) -> None:
    """Refuse labels that the loss cannot take."""
    for first, chunk in _chunks(dataset):
        wrong = is_wrong(choice.loss, chunk, classes)
        if wrong.any():
            at = np.unravel_index(int(wrong.argmax()), wrong.shape)
            found = look(dataset, choice.loss.ignore_index if isinstance(choice.loss, ClassLoss) else None)
            assert found is not None
            raise refuse(choice.loss, found, classes, first + int(at[0]), chunk[at])


def _chunks(dataset: Dataset) -> Iterator[tuple[int, np.ndarray]]:
    """Labels in parts, each with the number of its first row."""
    assert dataset.label is not None
    array, step = dataset.label.array, max(1, CHUNK // max(1, prod(dataset.label.sample)))
    if is_read_by_row(array):
        for row in dataset.looked_at().tolist():
            yield row, dataset.part(np.array([row])).labels
        return
    for start in range(0, len(dataset), step):
        yield start, np.asarray(array[start:start + step] if dataset.rows is None else array[dataset.rows[start:start + step]])
