"""What `train` returns: figures, weights, the model as a file, and predictions."""
from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..feed.items import Collate
from ..options.options import Options
from ..runtime.callbacks.logs import measured_name
from ..runtime.callbacks.model_checkpoint import ModelCheckpoint
from ..runtime.callbacks.monitored import Monitored
from ..runtime.data import Dataset, open_data
from ..runtime.history import Epoch
from ..runtime.labels import Fit, types_of
from ..runtime.onnx_source import OnnxSource
from ..runtime.preprocessing import Preprocessing
from ..runtime.replica_state import OF_REPLICA_0
from ..runtime.trainer import Trainer
from ..runtime.training_model import TrainingModel
from ..runtime.writing import write
from ..system.errors import DataError
from ..system.text import one_line
from .history import History
from .inference import measured, outputs_over, report_foreign
from .page import Curves, plotted


@dataclass(frozen=True)
class Best:
    """The best epoch of a run, by one figure. epoch: counted from 1. checkpoint, model: the files that were kept of it;
    None where none were."""

    epoch: int
    monitor: str
    value: float
    checkpoint: Path | None = None
    model: Path | None = None


@dataclass
class TrainResult:
    """What `train` returns. `history` has one array per figure, one element per epoch (NaN where there is none)."""

    epochs: list[Epoch]
    folder: Path
    options: Options
    _trainer: Trainer
    _preprocessing: Preprocessing
    _fit: Fit
    _collate_fn: Collate | None = None

    @property
    def history(self) -> History:
        """epoch, loss, accuracy, test_loss, test_accuracy, samples_per_second, learning_rate (of an epoch's last
        update), skipped (updates), loss_scale (where it adapts) and the other metrics (test_f1 ...) as float64
        arrays."""
        names = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "samples_per_second", "learning_rate",
                 "skipped", "loss_scale")
        columns = {n: [getattr(e, n) for e in self.epochs] for n in names}
        measured = dict.fromkeys(n for e in self.epochs for n in e.test_metrics)
        columns |= {f"test_{n}": [e.test_metrics.get(n) for e in self.epochs] for n in measured}
        return History({n: np.array([np.nan if x is None else x for x in column], np.float64)
                        for n, column in columns.items()})

    @property
    def stopped(self) -> str | None:
        """Why the run ended early; None where it did all its epochs."""
        return self._trainer.run_handle.stopped

    @property
    def best(self) -> Best | None:
        """The best that a ModelCheckpoint kept; where there is none, the epoch that is best by the option monitor, by
        default the loss of the test data, else of the training's. None: there is no epoch with that figure."""
        for callback in self._trainer.callbacks:
            kept = callback.best if isinstance(callback, ModelCheckpoint) else None
            if kept is not None and callback.monitor is not None:
                files = [path if path.exists() else None for ending in (".safetensors", ".onnx")
                         if (path := self.folder / f"{kept.name}{ending}")]
                return Best(kept.epoch + 1, callback.monitor, float(kept.value or 0.0), *files)
        history = self.history
        tested = bool(np.isfinite(history["test_loss"]).any())
        watched = Monitored(self.options.monitor or ("val_loss" if tested else "loss"), self.options.monitor_mode)
        column = history.get(measured_name(watched.monitor))
        if column is None or not np.isfinite(column).any():
            return None
        at = int(np.nanargmin(column) if watched.least else np.nanargmax(column))
        return Best(int(history["epoch"][at]), watched.monitor, float(column[at]))

    @property
    def learning_rates(self) -> np.ndarray:
        """The learning rate of each update, float64 [updates] (of the first group, where there are several)."""
        return np.array(self._trainer.rates, np.float64)

    @property
    def loss(self) -> str:
        """The loss that was minimised, by name."""
        return self._trainer.model.loss_name

    @property
    def loss_reason(self) -> str:
        """Why it was that one: `as chosen`, or what decided where the option was auto."""
        return self._fit.choice.reason

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the trained parameters and buffers by name."""
        weights: dict[str, np.ndarray] = self._trainer.session.snapshot("parameter", "buffer")
        return weights

    @property
    def model_path(self) -> Path | None:
        """The ONNX file that was trained; None where it was none."""
        source = self._trainer.model.source
        return source.path if isinstance(source, OnnxSource) else None

    @property
    def model(self) -> TrainingModel:
        return self._trainer.model

    def save_onnx(self, path: str | os.PathLike[str], keep_training_mode: bool | None = None, **form: Any) -> Path:
        """Write the original ONNX model, or that of a network of layers, with the trained weights, atomically, if read
        again it computes what the engine does.

        Args:
            keep_training_mode: leave batch normalisation and dropout as the model has them, instead of writing the form
                for inference; by default the run's option.
            form: for networks of layers, how they become a file: opset, batch, input_names, output_names, as
                `tileflow.save_onnx` has them.

        Raises:
            ModelError: what was asked is for other models, or the written one computes something else.
            UnsupportedError: ONNX has no words for a layer of the network.
        """
        trainer, source, asked = self._trainer, self._trainer.model.source, None
        if form:
            from ..importers.onnx import FileForm
            asked = FileForm.of(form)
        options = trainer.options if keep_training_mode is None else trainer.options.clone(keep_training_mode=keep_training_mode)
        if options.replica_grouping:
            trainer.callbacks.say(OF_REPLICA_0)
        inputs = micro_batch_of(trainer)
        known = self._preprocessing.renamed(dict(zip(inputs, (asked and asked.inputs) or (), strict=False)))
        write(source, self.weights, Path(path), options, list(inputs.values()), known.to_metadata(),
              trainer.callbacks.compiling, asked)
        return Path(path)

    def evaluate(self, data: Any = None) -> dict[str, float | None]:
        """The loss and the metrics by name of the trained weights on data (anything `train` takes; by default the run's
        test part), scaled as the training data were.

        Every row counts. None stands for what is not defined: the accuracy of a loss without classes, the area under
        the curve of one class.
        """
        dataset = self._trainer.test if data is None else self._adapted(data)
        if dataset is None:
            raise DataError("The run has no test data; give some to evaluate on.")
        return {"loss": None, "accuracy": None, **(self._trainer.evaluator.measure(dataset) or {})}

    def confusion_matrix(self, data: Any = None) -> np.ndarray:
        """Which classes the trained weights take for which on data, as `evaluate` takes them: counts, int64 [labels,
        predicted classes] (scikit-learn's), of all labels that count; of yes and no in one column [2, 2].

        Raises:
            DataError: the loss has no classes, or there are more than 1024 of them.
        """
        self.evaluate(data)
        findings = self._trainer.evaluator.findings
        if findings is None or findings.confusion is None:
            raise DataError(f"There is no confusion matrix: the loss {self._trainer.model.loss_name} has no classes, "
                            "or too many.")
        return findings.confusion

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs (an array, a dict of arrays, or anything else that `train` takes as data;
        labels are not used), scaled as
        the training data were: one array [rows, ...], or a dict by name where the model has several."""
        dataset = measured(open_data(x, self._trainer.options, self._preprocessing.roles, self._collate_fn))
        found = outputs_over(self.model.source, dataset, self._trainer.options.clone(), self._preprocessing)
        return next(iter(found.values())) if len(found) == 1 else found

    def plot(self) -> Curves:
        """Losses and accuracies over the epochs as an SVG picture: notebooks show it,
        `result.plot().save("curves.svg")` writes it."""
        return plotted(self.history, f"Run {one_line(self.folder.name)}")

    def _adapted(self, data: Any) -> Dataset:
        """Data of a later evaluation, made to fit like the training data."""
        known = self._preprocessing
        opened = measured(open_data(data, self._trainer.options, known.roles, self._collate_fn))
        dataset = self._fit.of(self.model.source, opened)(opened, known.scalings)
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
                       f"<td>{cell(e.test_accuracy, '.2%')}</td><td>{e.samples_per_second:,.0f}</td></tr>"
                       for e in self.epochs)
        return ("<table><thead><tr><th>epoch</th><th>loss</th><th>accuracy</th><th>test loss</th><th>test "
                f"accuracy</th><th>samples/s</th></tr></thead><tbody>{rows}</tbody></table>"
                f"<p>{html.escape(one_line(self.folder))}</p>")


def micro_batch_of(trainer: Trainer) -> dict[str, np.ndarray]:
    """The model's own inputs for the first rows of the training data, by name."""
    names = types_of(trainer.model.source, trainer.train)
    return dict(zip(names, trainer.train.example(np.arange(trainer.loader.batch_size) % len(trainer.train)),
                    strict=False))
