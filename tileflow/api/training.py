"""train: from a model and data to a run folder, and what comes of it."""
from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..collective import alone, current
from ..feed.items import Collate
from ..loss import AS_CHOSEN, WEIGHTS, Build, Loss
from ..metrics import OutputMeaning, check_names, defaults
from ..metrics.named import Function
from ..optim import Optimizer
from ..options.options import MEASURED_TWICE, Options
from ..runtime import synthetic
from ..runtime.callbacks.average import AveragedWeights
from ..runtime.callbacks.base import Callback
from ..runtime.callbacks.choose import from_options
from ..runtime.callbacks.metrics_file import MetricsFile
from ..runtime.callbacks.plateaus import PlateauSchedules
from ..runtime.callbacks.progress import ProgressBar
from ..runtime.callbacks.reporter import Reports
from ..runtime.callbacks.several import Callbacks
from ..runtime.callbacks.statistics import StatisticsLog
from ..runtime.data import DataLoader, Dataset, check_given, open_data, open_more
from ..runtime.data.augmentation import Augmentation
from ..runtime.data.sampling import WeightedSampler
from ..runtime.exchange import check_replicas
from ..runtime.executable_file import Opened
from ..runtime.labels import Fit, is_hard, numbered_as, types_of
from ..runtime.loading import loss_in, optimizer_in
from ..runtime.onnx_source import OnnxSource
from ..runtime.preprocessing import Preprocessing
from ..runtime.run_folder import checkpoint_of, run_folder
from ..runtime.run_settings import Recorded, file_digest, record, resumed
from ..runtime.schedule import CallSchedule
from ..runtime.source import Source
from ..runtime.trainer import Trainer
from ..runtime.training_model import TrainingModel
from ..runtime.writing import rehearsed
from ..system.errors import (
    CheckpointError,
    DataError,
    Interrupted,
    ModelError,
    OptionError,
    ProcessError,
    TileflowError,
    TileflowWarning,
    UnsupportedError,
)
from ..system.files import remove_link
from ..system.text import one_line
from .choosing import chosen_loss, fit_of, sampler_of, with_weights
from .executables import named
from .heard import Heard, Quiet
from .inference import measured, preprocessing_of, report_foreign
from .models import Modelish, by_name, chosen_optimizer, chosen_options, source_of
from .page import write_page
from .result import TrainResult, micro_batch_of

FEW = 20
"""One row in so many is left out of an epoch without a word."""
CALLER = 5
"""Frames between a warning and whoever called `train`."""


def train(model: Modelish | None = None, options: Options | None = None, *more: Any, data: Any = None, test_data: Any = None,
          optimizer: Optimizer | str | None = None, loss: str | Build | Mapping[str, str] | None = None,
          metrics: str | Function | Sequence[str | Function] | None = None, sample_weight: Any = None,
          callbacks: Callback | Sequence[Callback] = (), reporter: Any = None, collate_fn: Collate | None = None,
          **changes: Any) -> TrainResult:
    """Train a model on data and write trained ONNX file, metrics and checkpoint into a run folder.

        result = tileflow.train("model.onnx", data=(x, y), epochs=3, micro_batch_size=32)
        result.save_onnx("trained.onnx")

    Args:
        model: an ONNX file, a loaded one, or a network of layers; None: the file that the run to resume began with.
        data: overrides `options.data`: arrays (x, y), a dict, rows of your own, a loader, a path, or "digits".
        test_data: overrides `options.test_data`: what is measured after each epoch, in any form that data have.
        optimizer: a name, or an optimizer in place of the one that the options describe.
        loss: a name, a table of outputs and the losses that they have ({"boxes": "l1", "classes": "cross_entropy*0.5"}:
            the labels are the arrays that are called like them, the data's label that of the first), or a function
            (builder, outputs) -> one number per micro-batch.
        sample_weight: a weight of each row, an array [rows]; or the name of the array or column that holds them.
        metrics: overrides `options.metrics`: names, or functions (the model's first output over all rows, labels) -> number.
        callbacks: watch and steer the run, in this order (`tileflow.callbacks`); those that options ask for come after
            them. Without one that shows progress the run is silent, but for bars and lines with progress=True.
        reporter: what callbacks were before there were any, an object with the method say; goes on working.
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
    if isinstance(sample_weight, str):
        changes, sample_weight = changes | {"sample_weight": sample_weight}, None
    chosen = chosen_options("train", options, by_name(optimizer) | changes | ({"loss": loss} if named else {}))
    optimizer = chosen_optimizer(optimizer, chosen)
    built = loss if callable(loss) else None
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    if reporter is not None:
        if not hasattr(reporter, "say"):
            raise OptionError(f"reporter must have a method say, which {type(reporter).__name__} has not; "
                              "callbacks=[...] takes callbacks, and progress=True shows bars and lines.")
        given.append(Reports(reporter))
    draws = chosen.progress and reporter is None and not any(isinstance(c, ProgressBar) for c in given)
    bar = ProgressBar(True) if draws else None
    told = Heard([*given, *([bar] if bar else [])])
    if reporter is not None:
        warnings.warn("reporter goes on working; callbacks=[...] does the same and more: see docs/callbacks.md.",
                      TileflowWarning, stacklevel=2)
    check_replicas(chosen)
    group = current()
    if group is not None and not group.is_first:
        told = Quiet()
    task = _Run(model, chosen, data, test_data, collate_fn, optimizer, built, metrics, told, sample_weight)
    try:
        return _tried(task) if chosen.fast_dev_run else _train(task)
    except BaseException as error:
        if group is not None and not isinstance(error, (ProcessError, Interrupted)):
            group.fail(str(error) or type(error).__name__)
        raise
    finally:
        if bar:
            bar.close()


class _Run(NamedTuple):
    """What `train` was given. options: all that is in them holds; loss: one of the caller's own."""

    model: Modelish | None
    options: Options
    data: Any
    test_data: Any
    collate_fn: Collate | None
    optimizer: Optimizer | None
    loss: Build | Loss | None
    metrics: str | Function | Sequence[str | Function] | None
    callbacks: Callbacks
    sample_weight: Any = None


def _tried(run: _Run) -> TrainResult:
    """Every kind of step once, in a folder that goes again."""
    with tempfile.TemporaryDirectory(prefix="tileflow-") as folder:
        options = run.options.clone(out=os.path.join(folder, "run"), resume=False, epochs=1, max_updates=1,
                                    eval_every=1)
        result = _train(run._replace(options=options))
        run.callbacks.say("Every kind of step was done once; nothing is kept.")
    return result


def _train(run: _Run) -> TrainResult:
    callbacks = run.callbacks
    chosen, kept = resumed(run.options)
    model, chosen = named(run.model if run.model is not None else _kept_model(chosen, kept, callbacks), chosen)
    source = source_of(model, chosen)
    if isinstance(model, Opened):
        run = _trained_on(run, model, source)
    given = _opened(source, chosen, run.data, run.test_data, run.collate_fn, callbacks)
    if run.sample_weight is not None:
        train_set, test = given.train, given.test
        arrays = [next(iter(d.fields.values())).array for d in (train_set, test) if d is not None]
        was_split = arrays[0] is arrays[-1]
        given = given._replace(train=with_weights(train_set, run.sample_weight),
                               test=with_weights(test, run.sample_weight) if test is not None and was_split else test)
    task = _task(source, chosen, given.train, run.loss, run.metrics)
    if given.test is None and (run.metrics or (chosen.metrics and chosen.given("metrics", files=False))):
        raise OptionError(f"Option metrics is about test data, and data {given.train.name} have none; give test_data, or keep some of the rows "
                          "with validation_split.")
    sets = _few(_fitted(source, given, task, callbacks), chosen)
    with _folder(chosen, callbacks) as folder:
        trainer = _trainer(source, chosen, task, sets, run.optimizer, folder, callbacks)
        written = folder / "model.onnx"
        first = (group := current()) is None or group.is_first
        if isinstance(source, OnnxSource) and first:
            rehearsed(source, written, trainer.options, list(micro_batch_of(trainer).values()),
                      sets.preprocessing.to_metadata())
        path = source.path if isinstance(source, OnnxSource) else None
        trainer.has_command = path is not None and chosen.data is not None
        trainer.compile()
        trainer.measure((*task.asked, *(m for m in _fitting(task.view, sets.train, sets.test) if m not in task.asked)))
        result = TrainResult(trainer.history, folder, chosen, trainer, sets.preprocessing, task.fit, run.collate_fn)
        if isinstance(source, OnnxSource):
            trainer.write_model = result.save_onnx
        if checkpoint := checkpoint_of(folder, chosen.resume, callbacks.say):
            trainer.resume(checkpoint)
        if first:
            record(folder, chosen, path)
        trainer.run()
        if trainer.run_handle.partial is not None:
            result.epochs = [*result.epochs, trainer.run_handle.partial]
        if isinstance(source, OnnxSource) and first:
            remove_link(written)
            result.save_onnx(written)
        if first:
            with alone():
                write_page(trainer, result.history, chosen, task.fit.classes, task.fit.choice.reason)
        if group is not None:
            group.barrier("the end of a run")
        return result


@contextlib.contextmanager
def _folder(options: Options, callbacks: Callbacks) -> Iterator[Path]:
    """The run's folder, which of several processes the first one makes and writes to."""
    group = current()
    if group is not None and not group.is_first:
        yield Path(group.told(None, "the run's folder"))
        return
    with run_folder(options.out, options.resume, callbacks.say) as folder:
        if group is not None:
            group.told(str(folder), "the run's folder")
        yield folder


def _trained_on(run: _Run, opened: Opened, source: Source) -> _Run:
    """The run that goes on with an executable: with its loss and its optimizer, unless they were given; updates are
    counted from here."""
    if opened.header.model != "TrainingModel":
        raise OptionError(f"Executable {opened.path} is of an inference model and holds no update: export one for "
                          "training (tileflow compile MODEL --training --export, or compile_and_export of a training "
                          "model).")
    source.session.updates = 0
    return run._replace(optimizer=optimizer_in(opened, run.optimizer), loss=run.loss or loss_in(opened))


class _Given(NamedTuple):
    """Data as they were opened. known: what the model's file says of the data that it was trained on."""

    train: Dataset
    test: Dataset | None
    known: Preprocessing


def _opened(source: Source, options: Options, data: Any, test_data: Any, collate_fn: Collate | None,
            callbacks: Callbacks) -> _Given:
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
        callbacks.say("The labels are other classes than those that the model was trained on; they are numbered anew.")
    test = opened.test if test_data is None else measured(open_more(test_data, options, train_set, known.roles, collate_fn))
    return _Given(train_set, test, known)


class _Task(NamedTuple):
    """What is minimised and measured. asked: the metrics that somebody named. warnings: sentences on how the model was read."""

    fit: Fit
    view: OutputMeaning | None
    asked: tuple[str | Function, ...]
    warnings: tuple[str, ...]


def _task(source: Source, options: Options, train_set: Dataset, loss: Build | Loss | None,
          metrics: str | Function | Sequence[str | Function] | None) -> _Task:
    """The loss and the metrics that fit the model's outputs and the labels; `options.metrics` then are those that have a name."""
    try:
        signature = source.signature(list(types_of(source, train_set).values()), True)
    except TileflowError as error:
        if train_set.source is not None and not train_set.whole and len({f.sample[0] for f in train_set.fields.values() if f.sample}) > 1:
            error.add_note(f"Elements of data {one_line(train_set.name)} were taken for rows of micro-batches; where each is a micro-batch of its "
                           "own, as a graph is, set whole_elements.")
        from ..importers.onnx import UnsupportedNodesError
        from ..runtime.training_cut import is_cut
        if not isinstance(error, UnsupportedNodesError) or not is_cut(error):
            raise
        raise UnsupportedError(f"{error} Sizes in the model follow from data: train it call by call with tileflow.training_model.") from None
    choice = chosen_loss(loss or options.loss, options, signature.outputs, train_set,
                         not isinstance(source, OnnxSource))
    view = choice.loss.view(signature.outputs)
    asked = _listed(options.metrics if metrics is None else metrics)
    options.metrics = tuple(m for m in asked if isinstance(m, str))
    check_names(asked, view, choice.loss.name)
    return _Task(fit_of(signature, choice, train_set, options), view, asked, signature.warnings)


class _Sets(NamedTuple):
    """Data as the model takes them. preprocessing: what was done to them, for whoever uses the trained model."""

    train: Dataset
    test: Dataset | None
    preprocessing: Preprocessing
    sampler: WeightedSampler | None = None


def _fitted(source: Source, given: _Given, task: _Task, callbacks: Callbacks) -> _Sets:
    """The data made to fit, and what there is to say of that and of the model."""
    fit, known = task.fit, given.known
    train_set = fit(given.train.images_as_bytes(fit.inputs), known.scalings)
    found = Preprocessing.of(given.train, train_set)
    test = None if given.test is None else fit.of(source, given.test)(given.test, found.scalings)
    if fit.choice.reason != AS_CHOSEN:
        callbacks.say(f"Loss {fit.choice.loss.name}: {fit.choice.reason}.")
    said = (*fit.choice.notes, *train_set.notes, *(() if known.scalings else train_set.unscaled_bytes()))
    for note in (*said, *(note for note in (() if test is None else test.notes) if note not in said)):
        callbacks.say(note)
    report_foreign(known, train_set, CALLER)
    if test is not None:
        report_foreign(found, test, CALLER)
    for warning in task.warnings:
        callbacks.say(warning)
    return _Sets(train_set, test, found, sampler_of(train_set, fit.options, given.train.more.get(WEIGHTS)))


def _few(sets: _Sets, options: Options) -> _Sets:
    """The data of a run that is to learn a few rows by heart, or to do every kind of step once."""
    if options.overfit is not None:
        if sets.train.is_open or sets.train.whole:
            raise OptionError("Option overfit takes the first rows of data with rows, which "
                              f"{one_line(sets.train.name)} do not have.")
        few = sets.train.part(np.arange(min(options.overfit, len(sets.train))))
        return sets._replace(train=few, test=few, sampler=None)
    if options.fast_dev_run and sets.test is not None and not sets.test.is_open:
        return sets._replace(test=sets.test.part(np.arange(min(options.micro_batch_size, len(sets.test)))))
    return sets


def _trainer(source: Source, options: Options, task: _Task, sets: _Sets, optimizer: Optimizer | None, folder: Path,
             callbacks: Callbacks) -> Trainer:
    """The loop with its model."""
    loop_options = options.clone()
    loop_options.output_mode, loop_options.input_group_size, loop_options.on_new_shape = "all", 1, "compile"
    if options.overfit is not None:
        loop_options.drop_last = False
    choice = task.fit.choice
    if sets.train.whole:
        _check_whole(options)
        loop_options.micro_batch_size = 1
    options.epochs = loop_options.epochs = _epochs(loop_options, sets.train)
    training = TrainingModel(source, loop_options, optimizer, choice.minimised, callbacks.compiling)
    if sets.train.whole:
        training.rows.fixed = False                 # calls are fed as they are, whatever micro_batch_size says
    first = (group := current()) is None or group.is_first
    own = [PlateauSchedules(training.optimizer), *([] if training.optimizer.average is None else [AveragedWeights()]),
           *([StatisticsLog(options.statistics)] if options.statistics is not None and first else [])]
    callbacks.add(*own, first=True)
    if first:
        callbacks.add(*from_options(options, sets.test is not None, isinstance(source, OnnxSource)),
                      MetricsFile(choice.reason, loop_options))
    augment = Augmentation.of(options.augment, sets.train, options.seed,
                              loop_options.micro_batch_size) if options.augment else None
    trainer = Trainer(training, sets.train, sets.test, folder, callbacks, sets.sampler, augment)
    _say_left_out(trainer.loader, callbacks)
    return trainer


def _epochs(options: Options, data: Dataset) -> int:
    """How many epochs there are to be: as many as max_updates takes, where that was said and nothing of epochs."""
    def alone(files: bool) -> bool:
        return options.given("max_updates", files) and not options.given("epochs", files)
    if options.max_updates is None or not (alone(True) or alone(False)):
        return options.epochs
    length = 0 if data.is_open and options.max_batches is None else CallSchedule.of(len(data), options).length
    return max(options.epochs, -(-options.max_updates // max(1, length)))


def _check_whole(options: Options) -> None:
    """OptionError for what would put several elements of the data into one call."""
    rows = ["micro_batch_size"] if options.given("micro_batch_size", files=False) else []
    options.require_one(["gradient_accumulation", "device_iterations", "replication_factor", *rows],
                        "With whole_elements each element of the data is a micro-batch and an update")


def _say_left_out(loader: DataLoader, callbacks: Callbacks) -> None:
    """A word where many rows are not trained in an epoch, or some in none."""
    left, rows = loader.left_out, loader.rows
    if rows is None and loader.options.max_batches is None:
        callbacks.say(f"Data {one_line(loader.name)} do not say how many rows they have: an epoch ends where they end, "
                      "or after max_batches.")
    drawn = loader.shuffle or loader.sampler is not None
    if rows is None or loader.is_stream or not left or (drawn and left * FEW < rows):
        return
    which = "others each epoch" if drawn else "the same each epoch, without shuffle"
    callbacks.say(f"{left:,} of the {rows:,} rows {'is' if left == 1 else 'are'} left out ({which}), for they fill no "
                  "call of "
                 f"{loader.combined_batch_size:,}. With drop_last off (--no-drop-last) they are trained, too.")


def _kept_model(options: Options, kept: Recorded | None, callbacks: Callbacks) -> Path:
    """The model that the run to resume began with."""
    if not options.resume:
        raise ModelError("There is no model to train; give an ONNX file, a loaded one or a network of layers.")
    if kept is None or kept.model is None:
        raise CheckpointError(f"The folder {options.out or options.resume} does not say which model its run began with; name the model.")
    if not kept.model.exists():
        raise ModelError(f"The model {kept.model} that the run in {kept.folder} began with is not there any more; name the model.")
    if file_digest(kept.model) != kept.sha256:
        callbacks.say(f"The model {kept.model} has changed since the run in {kept.folder} began.")
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
