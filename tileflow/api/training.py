"""train: from a model and data to a run folder, and what comes of it."""
from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, ModelError, OptionError
from ..graph import TensorType
from ..importers.onnx import OnnxModel, folded_norms
from ..loss import CLASS_LOSSES, LABELS
from ..optim import Optimizer
from ..options import Options
from ..runtime.data import Dataset, open_data
from ..runtime.evaluate import label_type
from ..runtime.history import Epoch
from ..runtime.model import TrainingModel
from ..runtime.preprocessing import Preprocessing
from ..runtime.run_folder import checkpoint_of, run_folder
from ..runtime.source import OnnxSource, Source
from ..runtime.trained_file import write_trained
from ..runtime.trainer import Reporter, Silent, Trainer
from ..text import one_line
from .inference import input_types, measured, preprocessing_of, report_foreign
from .models import Modelish, chosen_optimizer, chosen_options, source_of


@dataclass
class TrainResult:
    """What `train` returns. `history` has one array per figure, one element per epoch (NaN where there is none)."""

    epochs: list[Epoch]
    folder: Path
    _trainer: Trainer
    _model: OnnxModel | None
    _preprocessing: Preprocessing

    @property
    def history(self) -> dict[str, np.ndarray]:
        """epoch, loss, accuracy, test_loss, test_accuracy, samples_per_second as float64 arrays."""
        names = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "samples_per_second")
        return {n: np.array([np.nan if getattr(e, n) is None else getattr(e, n) for e in self.epochs], np.float64) for n in names}

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the trained parameters and buffers by name."""
        weights: dict[str, np.ndarray] = self._trainer.session.snapshot("parameter", "buffer")
        return weights

    @property
    def model(self) -> TrainingModel:
        return self._trainer.model

    def save_onnx(self, path: str | os.PathLike[str], keep_training_mode: bool | None = None) -> Path:
        """Write the original ONNX model with the trained weights, atomically, if read again it computes what the engine does.

        Args:
            keep_training_mode: leave batch normalisation and dropout as the model has them, instead of writing the form for inference;
                by default the run's option.

        Raises:
            ModelError: the model did not come from an ONNX file, or the written one computes something else.
        """
        trainer, source = self._trainer, self._trainer.model.source
        if not isinstance(source, OnnxSource):
            raise ModelError("This network was built from layers and has no ONNX file to write back; use state_dict().")
        options = trainer.options if keep_training_mode is None else trainer.options.clone(keep_training_mode=keep_training_mode)
        rows = np.arange(trainer.loader.batch_size) % len(trainer.train)
        inputs = trainer.train.gather(rows)[:source.input_count]
        write_trained(source, self.weights, Path(path), options, inputs, self._preprocessing.to_metadata(), trainer.reporter.compiling)
        return Path(path)

    def evaluate(self, data: Any = None) -> dict[str, float | None]:
        """Mean loss and accuracy of the trained weights on data (anything `train` takes; by default the run's test part), scaled as the
        training data were."""
        dataset = self._trainer.test if data is None else self._adapted(data)
        if dataset is None:
            raise DataError("The run has no test data; give some to evaluate on.")
        loss, accuracy = self._trainer.evaluator.measure(dataset)
        return {"loss": loss, "accuracy": accuracy}

    def _adapted(self, data: Any) -> Dataset:
        """Data of a later evaluation, made to fit like the training data."""
        options, known = self._trainer.options, self._preprocessing
        types = {v.name: v.type for v in self._trainer.model.program.inputs}
        label = types.pop(LABELS, None)
        dataset = measured(open_data(data, options, known.roles)).adapt_to(types, label, options, known.scalings)
        report_foreign(known, dataset)
        return dataset

    def __repr__(self) -> str:
        if not self.epochs:
            return f"TrainResult(no epochs, {one_line(self.folder)})"
        last = self.epochs[-1]
        shown = last.test_accuracy if last.test_accuracy is not None else last.accuracy
        accuracy = "" if shown is None else f", accuracy {100 * shown:.2f} %"
        return f"TrainResult({len(self.epochs)} epochs, loss {last.loss:.4f}{accuracy}, {one_line(self.folder)})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        def cell(x: float | None, form: str) -> str:
            return "" if x is None or np.isnan(x) else format(x, form)
        rows = "".join(f"<tr><td>{e.epoch}</td><td>{cell(e.loss, '.4f')}</td><td>{cell(e.accuracy, '.2%')}</td><td>{cell(e.test_loss, '.4f')}</td>"
                       f"<td>{cell(e.test_accuracy, '.2%')}</td><td>{e.samples_per_second:,.0f}</td></tr>" for e in self.epochs)
        return ("<table><thead><tr><th>epoch</th><th>loss</th><th>accuracy</th><th>test loss</th><th>test accuracy</th><th>samples/s</th></tr>"
                f"</thead><tbody>{rows}</tbody></table><p>{html.escape(one_line(self.folder))}</p>")


def train(model: Modelish, options: Options | None = None, *, data: Any = None, optimizer: Optimizer | str | None = None,
          reporter: Reporter | None = None, **changes: Any) -> TrainResult:
    """Train a model on data and write trained ONNX file, metrics and checkpoint into a run folder.

        result = tileflow.train("model.onnx", data=(x, y), epochs=3, micro_batch_size=32)
        result.save_onnx("trained.onnx")

    Args:
        model: an ONNX file, a loaded one, or a network of layers.
        data: overrides `options.data`: arrays (x, y), a dict, a path, or "digits".
        optimizer: a name, or an optimizer in place of the one that the options describe.
        reporter: gets progress; None: silent.
        changes: single options by keyword.

    Raises:
        TileflowError: in one of its kinds, with a sentence that says how to mend it.
        Interrupted: Ctrl-C; the state is saved and `resume=True` goes on bit for bit.
    """
    chosen = chosen_options("train", options, changes)
    optimizer = chosen_optimizer(optimizer, chosen)
    reporter = reporter or Silent()
    source = source_of(model, chosen)
    given = data if data is not None else chosen.data
    if given is None:
        raise DataError("There is no data to train on; give data=(x, y), a path, or the name digits.")
    known = preprocessing_of(source)
    opened = open_data(given, chosen, known.roles)
    test = measured(open_data(chosen.test_data, chosen, known.roles)) if chosen.test_data else opened.test
    _check_remainder(chosen, len(opened.train))
    wanted = input_types(source, chosen, opened.train, True)
    loss = _loss_name(chosen, opened.train)
    label = _label_type(source, wanted, loss)
    train_set = opened.train.images_as_bytes(wanted).adapt_to(wanted, label, chosen, known.scalings)
    found = Preprocessing.of(opened.train, train_set)
    test_set = None if test is None else test.adapt_to(wanted, label, chosen, found.scalings)
    for note in (*train_set.notes, *(() if known.scalings else train_set.unscaled_bytes())):
        reporter.say(note)
    report_foreign(known, train_set)
    if test_set is not None:
        report_foreign(found, test_set)
    if isinstance(source, OnnxSource) and source.imported is not None:
        for warning in (*source.imported.warnings, *filter(None, [folded_norms(source.model)])):
            reporter.say(warning)
    loop_options = chosen.clone()
    loop_options.output_mode = "all"
    folder = run_folder(chosen.out, chosen.resume)
    training = TrainingModel(source, loop_options, optimizer, loss, reporter.compiling)
    trainer = Trainer(training, train_set, test_set, loop_options, folder, reporter)
    training.compile(*_example(trainer))
    training.compile_seconds = 0.0
    for part in (train_set, test_set):
        if part is not None and loss in CLASS_LOSSES:
            _check_labels(part, training.program.micro.outputs[0].shape[1])
    if checkpoint := checkpoint_of(folder, chosen.resume, reporter.say):
        trainer.resume(checkpoint)
    trainer.run()
    result = TrainResult(trainer.history, folder, trainer, source.model if isinstance(source, OnnxSource) else None, found)
    if result._model is not None:
        result.save_onnx(folder / "model.onnx")
    return result


def _check_remainder(options: Options, rows: int) -> None:
    """Refuse a shorter last batch: the engine's calls have one size."""
    size = options.micro_batch_size * options.gradient_accumulation * options.device_iterations
    if not options.drop_last and rows % size:
        raise OptionError(f"The {rows:,} training rows do not divide into calls of {size:,} (micro_batch_size * gradient_accumulation * "
                          f"device_iterations), and drop_last is off; set drop_last, or choose sizes that divide {rows:,}.")


def _check_labels(dataset: Dataset, classes: int) -> None:
    """Refuse labels that are no class of the model before anything is trained."""
    labels = dataset.labels
    if labels is None:
        return
    rows = labels.reshape(len(labels), -1)
    wrong = (rows < 0) | (rows >= classes)
    if wrong.any():
        at = int(np.flatnonzero(wrong.any(axis=1))[0])
        raise DataError(f"Data {dataset.name}: the label {rows[at][wrong[at]][0]} of row {at} is outside of the model's classes 0..{classes - 1}; "
                        "check the label column or the number of classes of the model.")


def _example(trainer: Trainer) -> tuple[np.ndarray, ...]:
    """Arrays of a whole call, to compile for before anything is read."""
    rows = np.zeros(trainer.loader.combined_batch_size, np.int64)
    return trainer.train.gather(rows)


def _loss_name(options: Options, dataset: Dataset) -> str:
    """`auto` by the labels: classes for whole numbers, squared error otherwise."""
    if options.loss != "auto":
        return options.loss
    if dataset.label is None:
        raise DataError("The data have no labels: name them with the option label, or set loss='identity' for a model that computes its loss.")
    values = dataset.label.array
    if values.dtype.kind in "iub":
        return "cross_entropy"
    one = values.ndim == 1 and values.size and bool(np.all(np.mod(values[:65536], 1) == 0)) and float(np.min(values)) >= 0
    return "cross_entropy" if one else "mse"


def _label_type(source: Source, wanted: Mapping[str, TensorType], loss: str) -> TensorType | None:
    """The element type and shape that the loss takes; None where the model computes its loss itself."""
    if loss == "identity":
        return None
    graph, _ = source.graph(list(wanted.values()), True)
    return label_type(loss, graph.outputs[0].type)
