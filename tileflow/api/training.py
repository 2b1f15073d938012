"""train: from a model and data to a run folder, and what comes of it."""
from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ..feed.items import Collate
from ..importers.onnx import FileForm, OnnxModel, UnsupportedNodesError
from ..loss import AS_CHOSEN, Build, choose
from ..metrics import OutputMeaning, check_names, defaults
from ..metrics.named import Function
from ..optim import Optimizer
from ..options.options import MEASURED_TWICE, Options
from ..runtime import synthetic
from ..runtime.data import DataLoader, Dataset, check_given, open_data, open_more
from ..runtime.history import Epoch
from ..runtime.labels import Fit, is_hard, look, numbered_as, types_of
from ..runtime.onnx_source import OnnxSource
from ..runtime.preprocessing import Preprocessing
from ..runtime.replica_state import OF_REPLICA_0
from ..runtime.run_folder import checkpoint_of, run_folder
from ..runtime.run_settings import Recorded, file_digest, record, resumed
from ..runtime.source import Source
from ..runtime.trained_file import rehearse, write_trained
from ..runtime.trainer import Reporter, Silent, Trainer
from ..runtime.training_cut import is_cut
from ..runtime.training_model import TrainingModel
from ..system.errors import CheckpointError, DataError, ModelError, OptionError, TileflowError, UnsupportedError
from ..system.files import remove_link
from ..system.text import one_line
from .heard import Heard
from .inference import measured, preprocessing_of, report_foreign
from .models import Modelish, by_name, chosen_optimizer, chosen_options, source_of

FEW = 20
"""One row in so many is left out of an epoch without a word."""
CALLER = 5
"""Frames between a warning and whoever called `train`."""


@dataclass
class TrainResult:
    """What `train` returns. `history` has one array per figure, one element per epoch (NaN where there is none)."""

    epochs: list[Epoch]
    folder: Path
    options: Options
    _trainer: Trainer
    _model: OnnxModel | None
    _preprocessing: Preprocessing
    _fit: Fit
    _collate_fn: Collate | None = None

    @property
    def history(self) -> dict[str, np.ndarray]:
        """epoch, loss, accuracy, test_loss, test_accuracy, samples_per_second, learning_rate (of an epoch's last update), skipped (updates),
        loss_scale (where it adapts) and the other metrics (test_f1 ...) as float64 arrays."""
        names = ("epoch", "loss", "accuracy", "test_loss", "test_accuracy", "samples_per_second", "learning_rate", "skipped", "loss_scale")
        columns = {n: [getattr(e, n) for e in self.epochs] for n in names}
        measured = dict.fromkeys(n for e in self.epochs for n in e.test_metrics)
        columns |= {f"test_{n}": [e.test_metrics.get(n) for e in self.epochs] for n in measured}
        return {n: np.array([np.nan if x is None else x for x in column], np.float64) for n, column in columns.items()}

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
        return None if self._model is None else self._model.path

    @property
    def model(self) -> TrainingModel:
        return self._trainer.model

    def save_onnx(self, path: str | os.PathLike[str], keep_training_mode: bool | None = None, **form: Any) -> Path:
        """Write the original ONNX model, or that of a network of layers, with the trained weights, atomically, if read again it computes what the
        engine does.

        Args:
            keep_training_mode: leave batch normalisation and dropout as the model has them, instead of writing the form for inference;
                by default the run's option.
            form: for networks of layers, how they become a file: opset, batch, input_names, output_names, as `tileflow.save_onnx` has them.

        Raises:
            ModelError: what was asked is for other models, or the written one computes something else.
            UnsupportedError: ONNX has no words for a layer of the network.
        """
        trainer, source, asked = self._trainer, self._trainer.model.source, FileForm.of(form) if form else None
        options = trainer.options if keep_training_mode is None else trainer.options.clone(keep_training_mode=keep_training_mode)
        if options.replica_grouping:
            trainer.reporter.say(OF_REPLICA_0)
        inputs = _micro_batch(trainer)
        known = self._preprocessing.renamed(dict(zip(inputs, (asked and asked.inputs) or (), strict=False)))
        write_trained(source, self.weights, Path(path), options, list(inputs.values()), known.to_metadata(), trainer.reporter.compiling, asked)
        return Path(path)

    def evaluate(self, data: Any = None) -> dict[str, float | None]:
        """The loss and the metrics by name of the trained weights on data (anything `train` takes; by default the run's test part), scaled as the
        training data were.

        Every row counts. None stands for what is not defined: the accuracy of a loss without classes, the area under the curve of one class.
        """
        dataset = self._trainer.test if data is None else self._adapted(data)
        if dataset is None:
            raise DataError("The run has no test data; give some to evaluate on.")
        return {"loss": None, "accuracy": None, **(self._trainer.evaluator.measure(dataset) or {})}

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
                       f"<td>{cell(e.test_accuracy, '.2%')}</td><td>{e.samples_per_second:,.0f}</td></tr>" for e in self.epochs)
        return ("<table><thead><tr><th>epoch</th><th>loss</th><th>accuracy</th><th>test loss</th><th>test accuracy</th><th>samples/s</th></tr>"
                f"</thead><tbody>{rows}</tbody></table><p>{html.escape(one_line(self.folder))}</p>")


def train(model: Modelish | None = None, options: Options | None = None, *more: Any, data: Any = None, test_data: Any = None,
          optimizer: Optimizer | str | None = None, loss: str | Build | None = None, metrics: str | Function | Sequence[str | Function] | None = None,
          reporter: Reporter | None = None, collate_fn: Collate | None = None, **changes: Any) -> TrainResult:
    """Train a model on data and write trained ONNX file, metrics and checkpoint into a run folder.

        result = tileflow.train("model.onnx", data=(x, y), epochs=3, micro_batch_size=32)
        result.save_onnx("trained.onnx")

    Args:
        model: an ONNX file, a loaded one, or a network of layers; None: the file that the run to resume began with.
        data: overrides `options.data`: arrays (x, y), a dict, rows of your own, a loader, a path, or "digits".
        test_data: overrides `options.test_data`: what is measured after each epoch, in any form that data have.
        optimizer: a name, or an optimizer in place of the one that the options describe.
        loss: a name, or a function (builder, outputs) -> one number per micro-batch, in place of the option.
        metrics: overrides `options.metrics`: names, or functions (the model's first output over all rows, labels) -> number.
        reporter: gets progress; None: silent, but for bars and lines with progress=True.
        collate_fn: makes a batch of a list of rows, of data and of test_data that are read a row at a time; the first axis of each part are the
            rows, the others may be of another length in each batch.
        changes: single options by keyword.

    The folder's `run.toml` keeps every setting and the model's path: `train(resume=True, out=folder)` goes on with them, and takes
    from the call what it says otherwise. What shapes the numbers must be the same.

    Raises:
        TileflowError: in one of its kinds, with a sentence that says how to mend it.
        NoUpdateError: all updates of the last epoch were skipped, so there is no trained model; the state is saved.
        TileflowWarning: as a warning, once each: what there is to say of how data and model were read.
        Interrupted: Ctrl-C or SIGTERM; the state is saved and `resume=True` goes on bit for bit.
    """
    if more or (options is not None and not isinstance(options, Options)):
        raise OptionError("train takes a model and, after it, a tileflow.Options and nothing else: data are given as data=(x, y), single options by "
                          "keyword.")
    named = loss is not None and not callable(loss)
    if isinstance(test_data, (str, os.PathLike)):
        changes, test_data = changes | {"test_data": test_data}, None
    chosen = chosen_options("train", options, by_name(optimizer) | changes | ({"loss": loss} if named else {}))
    optimizer = chosen_optimizer(optimizer, chosen)
    built = loss if callable(loss) else None
    if reporter is None and chosen.progress:
        from ..runtime.progress import TrainPrinter
        printer = TrainPrinter(True)
        try:
            return _train(model, chosen, data, test_data, collate_fn, optimizer, built, metrics, cast(Reporter, Heard(printer)))
        finally:
            printer.close()
    reporter = reporter or Silent()
    if not hasattr(reporter, "say"):
        raise OptionError(f"reporter must have the methods of tileflow.runtime.trainer.Reporter, which {type(reporter).__name__} has not; "
                          "progress=True shows bars and lines.")
    return _train(model, chosen, data, test_data, collate_fn, optimizer, built, metrics, cast(Reporter, Heard(reporter)))


def _train(model: Modelish | None, options: Options, data: Any, test_data: Any, collate_fn: Collate | None, optimizer: Optimizer | None,
           loss: Build | None, metrics: str | Function | Sequence[str | Function] | None, reporter: Reporter) -> TrainResult:
    """`train` with what holds: `loss` is one of the caller's own, all else stands in the options."""
    chosen, kept = resumed(options)
    source = source_of(model if model is not None else _kept_model(chosen, kept, reporter), chosen)
    given = _opened(source, chosen, data, test_data, collate_fn, reporter)
    task = _task(source, chosen, given.train, loss, metrics)
    if given.test is None and (metrics or (chosen.metrics and chosen.given("metrics", files=False))):
        raise OptionError(f"Option metrics is about test data, and data {given.train.name} have none; give test_data, or keep some of the rows "
                          "with validation_split.")
    sets = _fitted(source, given, task, reporter)
    with run_folder(chosen.out, chosen.resume, reporter.say) as folder:
        trainer = _trainer(source, chosen, task, sets, optimizer, folder, reporter)
        written = folder / "model.onnx"
        if isinstance(source, OnnxSource):
            rehearse(source, written, trainer.options, list(_micro_batch(trainer).values()), sets.preprocessing.to_metadata())
        path = source.model.path if isinstance(source, OnnxSource) else None
        trainer.has_command = path is not None and chosen.data is not None
        trainer.compile()
        trainer.measure((*task.asked, *(m for m in _fitting(task.view, sets.train, sets.test) if m not in task.asked)))
        if checkpoint := checkpoint_of(folder, chosen.resume, reporter.say):
            trainer.resume(checkpoint)
        record(folder, chosen, path)
        trainer.run()
        result = TrainResult(trainer.history, folder, chosen, trainer, source.model if isinstance(source, OnnxSource) else None,
                             sets.preprocessing, task.fit, collate_fn)
        if result._model is not None:
            remove_link(written)
            result.save_onnx(written)
        return result


def _micro_batch(trainer: Trainer) -> dict[str, np.ndarray]:
    """The model's own inputs for the first rows of the training data, by name."""
    names = types_of(trainer.model.source, trainer.train)
    return dict(zip(names, trainer.train.example(np.arange(trainer.loader.batch_size) % len(trainer.train)), strict=False))


class _Given(NamedTuple):
    """Data as they were opened. known: what the model's file says of the data that it was trained on."""

    train: Dataset
    test: Dataset | None
    known: Preprocessing


def _opened(source: Source, options: Options, data: Any, test_data: Any, collate_fn: Collate | None, reporter: Reporter) -> _Given:
    """The data that were given, or that the options name, with labels numbered as the model knows them."""
    given = data if data is not None else options.data
    made_up = options.synthetic_data != "none"
    if test_data is None:
        test_data = options.test_data
    elif options.validation_split > 0:
        raise OptionError(MEASURED_TWICE)
    else:
        options.test_data = None
    if made_up and test_data is not None:
        raise OptionError("Options synthetic_data and test_data exclude each other: nothing is measured by a run on made-up rows.")
    if given is None and made_up:
        return _Given(synthetic.made_up(source, options), None, Preprocessing())
    if given is None:
        raise DataError("There is no data to train on; give data=(x, y), a path, or the name digits.")
    options.data = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    known = preprocessing_of(source)
    opened = open_data(given, options, known.roles, collate_fn)
    check_given(given, opened, options, test_data is not None, collate_fn)
    if made_up:
        return _Given(synthetic.like(opened.train, options), None, Preprocessing())
    train_set = numbered_as(opened.train, known.classes)
    if train_set.classes is not None and known.classes not in (None, train_set.classes):
        reporter.say("The labels are other classes than those that the model was trained on; they are numbered anew.")
    test = opened.test if test_data is None else measured(open_more(test_data, options, train_set, known.roles, collate_fn))
    return _Given(train_set, test, known)


class _Task(NamedTuple):
    """What is minimised and measured. asked: the metrics that somebody named. warnings: sentences on how the model was read."""

    fit: Fit
    view: OutputMeaning | None
    asked: tuple[str | Function, ...]
    warnings: tuple[str, ...]


def _task(source: Source, options: Options, train_set: Dataset, loss: Build | None,
          metrics: str | Function | Sequence[str | Function] | None) -> _Task:
    """The loss and the metrics that fit the model's outputs and the labels; `options.metrics` then are those that have a name."""
    try:
        signature = source.signature(list(types_of(source, train_set).values()), True)
    except TileflowError as error:
        if train_set.source is not None and not train_set.whole and len({f.sample[0] for f in train_set.fields.values() if f.sample}) > 1:
            error.add_note(f"Elements of data {one_line(train_set.name)} were taken for rows of micro-batches; where each is a micro-batch of its "
                           "own, as a graph is, set whole_elements.")
        if not isinstance(error, UnsupportedNodesError) or not is_cut(error):
            raise
        raise UnsupportedError(f"{error} Sizes in the model follow from data: train it call by call with tileflow.training_model.") from None
    choice = choose(loss or options.loss, options, signature.outputs, look(train_set, options.ignore_index))
    view = choice.loss.view(signature.outputs)
    asked = _listed(options.metrics if metrics is None else metrics)
    options.metrics = tuple(m for m in asked if isinstance(m, str))
    check_names(asked, view, choice.loss.name)
    label = choice.loss.label_type([v.type for v in signature.outputs])
    fit = Fit(signature.inputs, signature.outputs[0].type, label, choice, train_set.classes, options)
    return _Task(fit, view, asked, signature.warnings)


class _Sets(NamedTuple):
    """Data as the model takes them. preprocessing: what was done to them, for whoever uses the trained model."""

    train: Dataset
    test: Dataset | None
    preprocessing: Preprocessing


def _fitted(source: Source, given: _Given, task: _Task, reporter: Reporter) -> _Sets:
    """The data made to fit, and what there is to say of that and of the model."""
    fit, known = task.fit, given.known
    train_set = fit(given.train.images_as_bytes(fit.inputs), known.scalings)
    found = Preprocessing.of(given.train, train_set)
    test = None if given.test is None else fit.of(source, given.test)(given.test, found.scalings)
    if fit.choice.reason != AS_CHOSEN:
        reporter.say(f"Loss {fit.choice.loss.name}: {fit.choice.reason}.")
    said = (*fit.choice.notes, *train_set.notes, *(() if known.scalings else train_set.unscaled_bytes()))
    for note in (*said, *(note for note in (() if test is None else test.notes) if note not in said)):
        reporter.say(note)
    report_foreign(known, train_set, CALLER)
    if test is not None:
        report_foreign(found, test, CALLER)
    for warning in task.warnings:
        reporter.say(warning)
    return _Sets(train_set, test, found)


def _trainer(source: Source, options: Options, task: _Task, sets: _Sets, optimizer: Optimizer | None, folder: Path,
             reporter: Reporter) -> Trainer:
    """The loop with its model."""
    loop_options = options.clone()
    loop_options.output_mode, loop_options.input_group_size, loop_options.on_new_shape = "all", 1, "compile"
    choice = task.fit.choice
    if sets.train.whole:
        _check_whole(options)
        loop_options.micro_batch_size = 1
    training = TrainingModel(source, loop_options, optimizer, choice.loss, reporter.compiling)
    if sets.train.whole:
        training.rows.fixed = False                 # calls are fed as they are, whatever micro_batch_size says
    trainer = Trainer(training, sets.train, sets.test, folder, reporter, reason=choice.reason)
    _say_left_out(trainer.loader, reporter)
    return trainer


def _check_whole(options: Options) -> None:
    """OptionError for what would put several elements of the data into one call."""
    for name in ("gradient_accumulation", "device_iterations", "replication_factor", *(["micro_batch_size"] if options.given(
            "micro_batch_size", files=False) else [])):
        if getattr(options, name) != 1:
            raise OptionError(f"With whole_elements each element of the data is a micro-batch and an update: leave {name}={getattr(options, name)} "
                              "out.")


def _say_left_out(loader: DataLoader, reporter: Reporter) -> None:
    """A word where many rows are not trained in an epoch, or some in none."""
    left, rows = loader.left_out, loader.rows
    if rows is None and loader.options.max_batches is None:
        reporter.say(f"Data {one_line(loader.name)} do not say how many rows they have: an epoch ends where they end, or after max_batches.")
    if rows is None or loader.is_stream or not left or (loader.shuffle and left * FEW < rows):
        return
    which = "others each epoch" if loader.shuffle else "the same each epoch, without shuffle"
    reporter.say(f"{left:,} of the {rows:,} rows {'is' if left == 1 else 'are'} left out ({which}), for they fill no call of "
                 f"{loader.combined_batch_size:,}. With drop_last off (--no-drop-last) they are trained, too.")


def _kept_model(options: Options, kept: Recorded | None, reporter: Reporter) -> Path:
    """The model that the run to resume began with."""
    if not options.resume:
        raise ModelError("There is no model to train; give an ONNX file, a loaded one or a network of layers.")
    if kept is None or kept.model is None:
        raise CheckpointError(f"The folder {options.out or options.resume} does not say which model its run began with; name the model.")
    if not kept.model.exists():
        raise ModelError(f"The model {kept.model} that the run in {kept.folder} began with is not there any more; name the model.")
    if file_digest(kept.model) != kept.sha256:
        reporter.say(f"The model {kept.model} has changed since the run in {kept.folder} began.")
    return kept.model


def _listed(metrics: str | Function | Sequence[str | Function]) -> tuple[str | Function, ...]:
    """One metric, or several (OptionError where it is neither)."""
    if isinstance(metrics, str):
        return tuple(name.strip() for name in metrics.split(","))
    asked = (metrics,) if callable(metrics) or not isinstance(metrics, Iterable) else tuple(metrics)
    for one in asked:
        if not isinstance(one, str) and not callable(one):
            raise OptionError(f"A metric is a name or a function (outputs, labels) -> number, not {type(one).__name__}.")
    return asked


def _fitting(view: OutputMeaning | None, *parts: Dataset | None) -> tuple[str, ...]:
    """What is measured without being asked for: nothing of targets between yes and no."""
    soft = view is not None and view.task == "binary" and not all(part is None or is_hard(part) for part in parts)
    return () if soft else defaults(view)
