"""The loss of a run, for its labels, their weights and several outputs; and which rows its epochs have."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..loss import AS_CHOSEN, WEIGHTS, Build, ChosenLoss, ClassLoss, Output, OutputLoss, SeveralLosses, choose
from ..loss.dice import BinaryDiceLoss, DiceLoss
from ..loss.labels import is_one_hot
from ..options.data import MIXING
from ..options.losses import losses_by_output
from ..options.needs import joined
from ..options.options import Options
from ..options.registries import LOSSES
from ..runtime.data import Dataset, Field
from ..runtime.data.columns import Column, Known, is_read_by_row
from ..runtime.data.sampling import WeightedSampler, balanced, counted
from ..runtime.labels import Fit, look, ready
from ..runtime.source import Signature
from ..system.errors import DataError, OptionError


def chosen_loss(loss: str | Build, options: Options, outputs: Sequence[Output], data: Dataset,
                nameless: bool) -> ChosenLoss:
    """The loss that fits outputs and labels; `options.class_weights` then are numbers. nameless: names of outputs are
    ours, so that a loss for each of them goes by their order."""
    table = losses_by_output(loss) if isinstance(loss, str) else {}
    places = {v.name: i for i, v in enumerate(outputs)}
    if nameless and len(table) == len(outputs):
        places = {output: i for i, output in enumerate(table)}
    if table and any(name in MIXING for name in options.augment):
        raise OptionError("Option augment: mixup and cutmix are for one loss of one output.")
    choice = _of_outputs(table, places, options, outputs, data) if table else _of_labels(loss, options, outputs, data)
    if any(name in MIXING for name in options.augment):
        choice = _softened(choice, outputs[0])
    if WEIGHTS not in data.more or options.sampling == "weighted":
        return choice
    several = isinstance(choice.loss, SeveralLosses)
    if choice.loss.takes in ("anything", "nothing") or (several and not choice.loss.has_rows):
        raise OptionError(f"The loss {choice.loss.name} has no value for each row, so that rows cannot have weights "
                          f"({WEIGHTS}); weigh them in the "
                          "loss itself, or choose losses by name, several without class_weights and ignore_index.")
    return replace(choice, weighted=True)


def _softened(choice: ChosenLoss, output: Output) -> ChosenLoss:
    """The loss of labels that are mixed (OptionError where they are none that can be)."""
    if choice.loss.takes not in ("classes", "numbers") or isinstance(choice.loss, BinaryDiceLoss | DiceLoss):
        raise OptionError(f"Option augment: mixup and cutmix mix labels, which the loss {choice.loss.name} does not "
                          "take so.")
    if not isinstance(choice.loss, ClassLoss):
        return choice
    choice.loss.for_like_labels()
    if output.type.rank != 2:
        raise OptionError("Option augment: mixup and cutmix are for one label for each row; the model's first output "
                          f"is {output.type}.")
    return replace(choice, softened=True)


def fit_of(signature: Signature, choice: ChosenLoss, data: Dataset, options: Options) -> Fit:
    """How data sets become what a training with this loss takes."""
    types = [v.type for v in signature.outputs]
    parts = choice.loss.parts if isinstance(choice.loss, SeveralLosses) else ()
    more = {p.output: (types[p.place], wanted) for p in parts[1:]
            if (wanted := p.loss.label_type([types[p.place]])) is not None}
    first, label = types[parts[0].place if parts else 0], choice.minimised.label_type(types)
    return Fit(signature.inputs, first, label, choice, data.classes, options, more, data.numbers)


def _of_outputs(table: dict[str, tuple[str, float]], places: dict[str, int], options: Options,
                outputs: Sequence[Output], data: Dataset) -> ChosenLoss:
    """A loss for each output that has one; the first of them has the labels of the data set, the others the arrays that
    are called like them."""
    unused = [name for name in LOSSES.own if getattr(options, name) != getattr(Options(), name)
              and not any(name in LOSSES[loss].options for loss, _ in table.values())]
    if unused:
        losses = joined(LOSSES.having(unused[0]))
        raise OptionError(f"Option {unused[0]} is for the loss {losses}, which no output has.")
    parts: list[OutputLoss] = []
    chosen: dict[str, ChosenLoss] = {}
    for output, (loss, factor) in table.items():
        if output not in places:
            raise OptionError(f"Option loss: the model has no output {output!r}; it has {', '.join(places)}.")
        if loss == "identity":
            raise OptionError("Option loss: identity is the model's own loss and goes with no other.")
        label = data.label if not parts else data.more.get(output)
        if label is None:
            raise DataError(f"Data {data.name} have no array {output!r}, which is to hold the labels of the output of "
                            "that name.")
        others_own = [name for name in LOSSES.own if name not in LOSSES[loss].options]
        its = options.clone(**{name: getattr(Options(), name) for name in others_own})
        view = data if not parts else replace(data, label=label, classes=None, more={})
        chosen[output] = _of_labels(loss, its, [outputs[places[output]]], view)
        parts.append(OutputLoss(output, places[output], chosen[output].loss, factor))
        if its.class_weights != options.class_weights and "class_weights" in LOSSES[loss].options:
            options.class_weights = its.class_weights
    first, *others = chosen
    return replace(chosen[first], loss=SeveralLosses(tuple(parts)), reason=AS_CHOSEN,
                   more={name: chosen[name] for name in others},
                   notes=tuple(note for part in chosen.values() for note in part.notes))


def _of_labels(loss: str | Build, options: Options, outputs: Sequence[Output], data: Dataset) -> ChosenLoss:
    """The loss for a data set's labels."""
    facts = look(data, options.ignore_index)
    if options.class_weights == "balanced":
        plain = choose(loss, options.clone(class_weights=()), outputs, facts)
        if isinstance(plain.loss, ClassLoss):
            labels = ready(data, plain, outputs[0].type, data.classes)
            counts = counted(_in_memory(labels, "Option class_weights: balanced"), plain.loss.classes(outputs[0].type),
                             "Option class_weights: balanced", plain.loss.ignore_index)
            options.class_weights = balanced(counts, data.classes)
    return choose(loss, options, outputs, facts)


def _in_memory(data: Dataset, what: str) -> np.ndarray:
    """All labels (DataError where they are read one by one, or there are none)."""
    array = None if data.label is None else data.label.array
    if array is None or is_read_by_row(array):
        raise DataError(f"{what} needs the labels of all rows, and data {data.name} have " + (
            "none." if array is None else "them one by one; give arrays, a table or a folder of images, or weights."))
    found = data.labels
    assert found is not None
    return np.asarray(found)


def sampler_of(data: Dataset, options: Options, weights: Field | None) -> WeightedSampler | None:
    """What draws the rows of an epoch of fitted data; None where it has each once.

    Raises:
        DataError: there is nothing to draw them by.
    """
    if options.sampling == "each":
        return None
    what = f"Option sampling: {options.sampling}"
    if options.sampling == "balanced":
        labels = _in_memory(data, what)
        if labels.ndim == 2 and labels.shape[1] > 1 and is_one_hot(labels, 0):
            labels = labels.argmax(axis=1)
        if labels.size != len(labels) or labels.dtype.kind not in "biu":
            raise DataError(f"{what} takes one class number for each row; the labels are "
                            f"{labels.dtype}{list(labels.shape)}.")
        _, place, counts = np.unique(labels.reshape(-1), return_inverse=True, return_counts=True)
        return WeightedSampler(1.0 / counts[place], options.seed)
    if weights is None or is_read_by_row(weights.array):
        raise DataError(f"{what} draws rows by their weights, which data {data.name} " + (
            "do not have; give sample_weight." if weights is None else "have one by one; give arrays or a table."))
    drawn = np.asarray(weights.array[:] if data.rows is None else weights.array[data.rows], np.float64).reshape(-1)
    if len(drawn) != len(data) or not (np.isfinite(drawn) & (drawn >= 0)).all() or not drawn.any():
        raise DataError(f"{what} takes one finite weight of at least 0 for each row, of which one is above 0.")
    return WeightedSampler(drawn, options.seed)


def with_weights(data: Dataset, weights: Any) -> Dataset:
    """Data whose rows have these weights (DataError where there are not as many)."""
    field, column = Field.of(weights, "The array sample_weight"), next(iter(data.fields.values())).array
    if isinstance(column, Column):
        known = data.label.array if data.label is not None else None
        if not isinstance(known, Known):
            raise DataError(f"The rows of data {data.name} are read one by one: let each have its weight (a dict with "
                            "the key sample_weight).")
        made = Known(known.numbers, np.asarray(field.array))
        field = Field(made, made.shape[1:], made.dtype)
    if len(field.array) != len(column):
        raise DataError(f"There are {len(field.array):,} weights in sample_weight and {len(column):,} rows of data "
                        f"{data.name}.")
    return replace(data, more={**data.more, WEIGHTS: field})
