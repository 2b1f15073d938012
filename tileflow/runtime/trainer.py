"""The training loop: epochs over a DataLoader, checkpoints, metrics; resumable bit for bit."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..executable.engine import Engine
from ..memory import budget
from ..memory.tensor import kind_of
from ..metrics import accuracy_counts
from ..metrics.named import Function, name_of
from ..optim import remembered
from ..optim.scaling import LOSS_SCALE
from ..optim.schedules import Run, is_state
from ..options.options import Options
from ..system.errors import CheckpointError, DataError, Interrupted, OptionError, TileflowError, TrainingError, WeightsLostError
from ..system.files import require_space
from ..system.text import one_line
from .data import DataLoader, Dataset
from .data.values import doubts
from .evaluate import Evaluator
from .failure import none_counted, untrained
from .fingerprint import changed_attributes, differences, fingerprint, loss_scaling
from .history import Epoch, Running, runs
from .run_folder import CHECKPOINT, FAILED, Position, load_run, save_run, write_metrics
from .run_settings import resume_command
from .schedule import CallSchedule, Step
from .statistics import Log
from .stop import asked_by_signals
from .training_model import TrainingModel

LEARNING_RATE = "optimizer.lr"
"""The state that the learning rate (of the first group) is read from."""
RATES = "optimizer.lr.history"
"""What the learning rates of all updates are called in a checkpoint."""


class Reporter(Protocol):
    """What the loop tells whoever watches."""

    def compiling(self, kernel: str, done: int, total: int) -> None: ...
    def begin_epoch(self, epoch: int, epochs: int, batches: int) -> None: ...
    def batch(self, loss: float, accuracy: float | None, samples: int) -> None: ...
    def learning_rate(self, rate: float) -> None: ...
    def end_epoch(self, record: Epoch) -> None: ...
    def say(self, sentence: str) -> None: ...


class Silent:
    """A reporter that says nothing."""

    def compiling(self, kernel: str, done: int, total: int) -> None:
        pass

    def begin_epoch(self, epoch: int, epochs: int, batches: int) -> None:
        pass

    def batch(self, loss: float, accuracy: float | None, samples: int) -> None:
        pass

    def learning_rate(self, rate: float) -> None:
        pass

    def end_epoch(self, record: Epoch) -> None:
        pass

    def say(self, sentence: str) -> None:
        pass


@dataclass
class Trainer:
    """Trains a TrainingModel on a Dataset, with everything that must survive an interruption in `folder`."""

    model: TrainingModel
    train: Dataset
    test: Dataset | None
    folder: Path
    reporter: Reporter
    has_command: bool = False
    """The folder says all that the command needs to go on with this run."""
    history: list[Epoch] = field(default_factory=list)
    epoch: int = 0
    running: Running = field(default_factory=Running)
    updates_in_epoch: int = 0
    short_updates: int = 0
    """The last of them, with fewer rows than the others."""
    rates: list[float] = field(default_factory=list)
    """The learning rate of every update of the run (NaN: of a checkpoint that did not tell)."""
    reason: str = "as chosen"
    """Why it is this loss."""

    def __post_init__(self) -> None:
        self.loader = DataLoader(self.options, self.train, drop_last=self.options.drop_last)
        batch = self.options.combined_batch_size
        self.schedule = CallSchedule.of(len(self.train) // batch * batch if self.train.is_open else len(self.train), self.options)
        self._rest: dict[Step, TrainingModel] = {}
        self._length = self.schedule.length
        """Updates of an epoch; of data that end where they end, those of the last one."""
        self._logged = 0
        """Updates of the checkpoint that the run goes on from."""
        self._told = False
        """Somebody was told that lengths change."""
        self._stop = threading.Event()
        self.loader.stop = self._stop.is_set
        every = self.options.statistics
        self.statistics = None if every is None else Log(self.folder, every, f"Gradients and weights of {self.folder.name}")
        self.evaluator = Evaluator(self.model, self.reporter.compiling, lambda: self._stop.is_set())

    @property
    def options(self) -> Options:
        """Those of the model."""
        return self.model.options

    @property
    def session(self) -> Any:
        return self.model.source.session

    def measure(self, metrics: Sequence[str | Function]) -> None:
        """Let these be measured on the test data after each epoch; `accuracy` on the training batches as well."""
        self.evaluator.metrics = tuple(metrics)

    def compile(self) -> None:
        """Compile everything that an epoch runs, before anything is read.

        Raises:
            OptionError: the model cannot take the rows that fill no micro-batch.
        """
        o = self.options
        self._compile(Step(o.micro_batch_size, o.gradient_accumulation * o.device_iterations, o.replication_factor), self.model)
        for step in self.schedule.rest:
            self._model_of(step)
        _ = self._fingerprint                       # of the model for these rows, whatever lengths come
        if self.test is not None:
            self.evaluator.prepare(self.test)

    def _model_of(self, step: Step) -> TrainingModel:
        """The model of a call of one update, compiled; data that end before they said have one that nobody foresaw."""
        if step not in self._rest:
            options = self.options.clone(micro_batch_size=step.micro_batch, gradient_accumulation=step.accumulation, device_iterations=1,
                                         strategy="none", replication_factor=step.replicas)
            model = TrainingModel(self.model.source, options, self.model.optimizer, self.model.loss, self.reporter.compiling)
            self._compile(step, model)
            self._rest[step] = model
        return self._rest[step]

    def _compile(self, step: Step, model: TrainingModel) -> None:
        per_epoch = None if self.train.is_open and self.options.max_batches is None else self.schedule.length
        model.stop = lambda: self._stop.is_set()
        model.run = Run(None if per_epoch is None else self.options.epochs * per_epoch, per_epoch)
        try:
            model.compile(*self.train.example(np.zeros(step.rows, np.int64)))
        except TileflowError as error:
            if model is self.model or step.micro_batch == self.options.micro_batch_size:
                raise
            raise OptionError(f"With drop_last off the last {step.micro_batch} rows are a micro-batch of their own, which this model cannot "
                              f"take: {error} Set drop_last, or a micro_batch_size that divides the rows.") from None
        model.programs.seconds = 0.0

    # ---- the loop

    def run(self) -> list[Epoch]:
        """Train until `options.epochs` epochs are done.

        Raises:
            Interrupted: Ctrl-C or SIGTERM came; the state is saved.
            TrainingError: the loss is not finite or a label is out of range; the state before that update is in `checkpoint.failed`, and
                the last checkpoint is as it was.
            WeightsLostError: an update wrote a weight that is not finite; nothing is saved.
            NoUpdateError: no update of the last epoch counted; the state is saved.
            CheckpointError: a checkpoint would not fit on the disk, which is found before anything is trained, or cannot be written.
        """
        require_space(self.folder, sum(a.nbytes for a in self.session.lasting().values()), "A checkpoint of this run")
        self._check_watched()
        if self.statistics is not None:
            self.statistics.begin(self._logged)
        with asked_by_signals(self._stop):
            try:
                while self.epoch < self.options.epochs:
                    self._epoch()
                    if self._stop.is_set():
                        break
            except DataError:
                raise
            except Exception as error:
                if isinstance(error, WeightsLostError):
                    error.add_note(self._last_good())
                elif self.session.updates:
                    error.add_note(self._save_failed())
                raise
            finally:
                self.loader.terminate()
                self.evaluator.close()
            path = self.save()
        if self.history and self.epoch >= self.options.epochs and self._counted_none(last := self.history[-1]):
            raise self._with_bad_data(untrained(last.epoch, last.skipped, last.loss_scale, f"the state is saved in {path}"))
        if self._stop.is_set() and self.epoch < self.options.epochs:
            raise Interrupted(f"Stopped after {self.session.updates} updates; saved {path}. Go on with {self._go_on()}.")
        return self.history

    def _with_bad_data(self, error: TrainingError) -> TrainingError:
        """The error with what in the data is no number, of which losses that are not finite may come."""
        fields = {f"Input {name}": f for name, f in self.train.fields.items()} | ({} if self.train.label is None else {"The label": self.train.label})
        for what, f in fields.items():
            for sentence in doubts(what, f.array, self.train.rows, f.array.dtype):
                error.add_note(sentence)
        return error

    def _epoch(self) -> None:
        row, first_update = self.schedule.after(self.updates_in_epoch, self.short_updates)
        self.loader.set_epoch(self.epoch, row)
        self.reporter.begin_epoch(self.epoch + 1, self.options.epochs, 0 if self.loader.rows is None else len(self.loader))
        batches = iter(self.loader)
        try:
            for batch in batches:
                self._tell_lengths(batch)
                if self.train.whole or len(batch[0]) == self.options.combined_batch_size:
                    self._call(self.model, batch, first_update)
                else:
                    self._last(batch, CallSchedule.of(len(batch[0]), self.options).rest, first_update)
                first_update = 0
                if self._stop.is_set():
                    return
                self._save_between()
        finally:
            if hasattr(batches, "close"):
                batches.close()
        if self._stop.is_set():                     # while the next batch was waited for
            return
        record = self.running.record(self.epoch + 1)
        record.unit = "images" if not self.train.whole and len(next(iter(self.train.fields.values())).sample) >= 2 else "samples"
        if self.test is not None:
            figures = self.evaluator.measure(self.test)
            if figures is None or self._stop.is_set():
                return                  # the epoch is not over before it is measured
            record.test_loss, record.test_accuracy = figures.pop("loss"), figures.pop("accuracy", None)
            record.test_metrics = figures
        record.loss_scale = self.model.loss_scale if self.model.scaling.automatic != "off" else None
        record.learning_rate = self.rates[-1] if self.rates and self.rates[-1] == self.rates[-1] else None
        self._observe(record)
        self.history.append(record)
        self._length = self.updates_in_epoch
        self.epoch, self.running, self.updates_in_epoch, self.short_updates = self.epoch + 1, Running(), 0, 0
        if self.options.checkpoint_every and self.epoch % self.options.checkpoint_every == 0 and self.epoch < self.options.epochs:
            self.save()
        self._write_metrics()
        self.reporter.end_epoch(record)
        if self._counted_none(record) and self.epoch < self.options.epochs:
            self.reporter.say(none_counted(record.epoch, record.skipped, record.loss_scale))

    def _tell_lengths(self, batch: tuple[np.ndarray, ...]) -> None:
        """A word, once, where a batch has another length than the first row."""
        if self._told or self.train.whole or all(a.shape[1:] == f.sample for f, a in zip(self.train.tensors, batch, strict=True)):
            return
        self._told = True
        self.reporter.say(f"Batches of data {one_line(self.train.name)} change their length: " + (
            "it is rounded up to 8, 12, 16, 24, 32 and so on and filled with zeros, labels with ignore_index. The model must know padding by its "
            "mask; with round_lengths=False lengths stay as they come." if self.options.round_lengths else "each length has a program of its own."))

    def _counted_none(self, record: Epoch) -> bool:
        """All updates of an epoch were skipped."""
        return 0 < self._length <= record.skipped

    def _check_watched(self) -> None:
        """Raise OptionError where a schedule looks at a metric that no epoch will have."""
        measured = [name_of(m) for m in self.evaluator.metrics if self.test is not None or m == "accuracy"]
        for schedule in remembered.with_state(self.model.optimizer).values():
            if schedule.metric not in ("loss", *measured):
                raise _unmeasured(schedule.metric, ["loss", *measured])

    def _observe(self, record: Epoch) -> None:
        """Schedules that look at a metric are told that of the epoch: on the test data, where there are any.

        Raises:
            OptionError: one of them looks at what these data leave undefined.
        """
        measured: dict[str, float | None] = {"loss": record.loss, "accuracy": record.accuracy}
        if self.test is not None:
            measured = {"loss": record.test_loss, "accuracy": record.test_accuracy, **record.test_metrics}
        for schedule in remembered.with_state(self.model.optimizer).values():
            figure = measured.get(schedule.metric)
            if figure is None:
                raise _unmeasured(schedule.metric, [name for name, value in measured.items() if value is not None])
            schedule.observe(figure)

    def _last(self, batch: tuple[np.ndarray, ...], rest: Sequence[Step], done: int) -> None:
        """The rows at the end that fill no call, after so many updates of them."""
        row = 0
        for i, step in enumerate(rest):
            if i >= done:
                before = self.updates_in_epoch
                self._call(self._model_of(step), tuple(a[row:row + step.rows] for a in batch), 0)
                self.short_updates += self.updates_in_epoch - before if step.rows < self.schedule.rows else 0
            row += step.rows
            if self._stop.is_set():
                return

    def _call(self, model: TrainingModel, batch: tuple[np.ndarray, ...], first_update: int) -> None:
        """One call, or what is left of it; counts only the updates that were done."""
        began, skipped, before = time.perf_counter(), model.skipped_updates, self.session.updates
        try:
            outputs = model.run_call(*batch, first_update=first_update)
        except TrainingError as error:
            if said := self._not_finite(batch):
                error.add_note(said)
            self.running.skipped += model.skipped_updates - skipped
            self.updates_in_epoch += model.engine.completed - first_update      # the call's whole updates stand
            self._note_rates(model.engine, first_update)
            raise
        seconds = time.perf_counter() - began
        engine = model.engine
        accumulation = model.program.batching.per_update
        rows = self.train.counted(batch) if self.train.whole else model.program.batching.micro_batch
        done = slice(first_update * accumulation, engine.completed * accumulation)
        count = done.stop - done.start
        if count <= 0:
            return
        losses = model.last_losses[done] if model.last_losses is not None else np.zeros(0)
        correct, predictions = self._correct(outputs, batch[-1], done)
        self._note_rates(engine, first_update)
        r = self.running
        r.skipped += model.skipped_updates - skipped
        if model.program.skips:
            r.unmeasured += rows * int(np.count_nonzero(~np.isfinite(losses)))
            losses = losses[np.isfinite(losses)]
        r.loss = float(np.add.accumulate(np.append(r.loss, losses.astype(np.float64) * rows))[-1])          # one by one, wherever a call ends
        r.correct += correct
        r.predictions += predictions
        r.samples += count * rows
        r.seconds += seconds - model.programs.seconds
        model.programs.seconds = 0.0
        self.updates_in_epoch += engine.completed - first_update
        if self.statistics is not None:
            self.statistics.after(model, before)
        self.reporter.batch(float(np.mean(losses)) if len(losses) else np.nan, correct / predictions if predictions else None, count * rows)

    def _not_finite(self, batch: tuple[np.ndarray, ...]) -> str:
        """Where the inputs or labels of the call that is about to end hold what is no number."""
        for name, fed in zip((*(f"Input {one_line(name)}" for name in self.train.fields), "The label"), batch, strict=False):
            if kind_of(fed.dtype) == "f" and not (finite := np.isfinite(fed)).all():
                first = np.unravel_index(int(np.argmin(finite)), fed.shape)
                row, what = self.schedule.after(self.updates_in_epoch, self.short_updates)[0], f"of epoch {self.epoch + 1}"
                row += 0 if self.train.whole else int(first[0])
                if not self.loader.is_stream:
                    row, what = int(self.loader.order(self.epoch)[row]), "of the data"
                    row = row if self.train.rows is None else int(self.train.rows[row])
                return f"{name} holds {fed[first]} in row {row} {what}: mend that row, or leave it out."
        return ""

    def _note_rates(self, engine: Engine, first_update: int) -> None:
        """With which learning rates the updates of a call were done."""
        self.rates += engine.used(LEARNING_RATE)[first_update:engine.completed].tolist()
        if self.rates and hasattr(self.reporter, "learning_rate"):                 # reporters of callers' own need not know it
            self.reporter.learning_rate(self.rates[-1])

    def _correct(self, outputs: list[np.ndarray], labels: np.ndarray, done: slice) -> tuple[int, int]:
        """Right predictions and predictions of the micro-batches `done`; scores [M, mb, C, ...]."""
        view = self.model.view
        if "accuracy" not in self.evaluator.metrics or view is None:
            return 0, 0
        scores = outputs[0][done]
        wanted = labels.reshape(len(outputs[0]), -1, *labels.shape[1:])[done]
        return accuracy_counts(view, scores.reshape(-1, *scores.shape[2:]), wanted.reshape(-1, *wanted.shape[2:]))

    def _save_between(self) -> None:
        every = self.options.save_every_updates
        if every and self.updates_in_epoch % every < self.options.device_iterations:
            self.save()

    # ---- what survives

    def save(self, name: str = CHECKPOINT) -> Path:
        """Write weights, optimizer states and the position in the data; returns the checkpoint's path."""
        path = self.folder / name

        def write() -> None:
            if self.statistics is not None:
                self.statistics.write()
            at = Position(self.session.updates, self.session.micro_batches, self.epoch, self.updates_in_epoch, self.running, self.history,
                          self.short_updates)
            save_run(path, self.session.lasting() | self._kept(), at, self._fingerprint)
        self.session.turn.hold(write)
        self._write_metrics()
        return path

    def _kept(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds besides states: learning rates, and what schedules have come to."""
        schedules = {f"optimizer.{name}.schedule": schedule.state() for name, schedule in remembered.with_state(self.model.optimizer).items()}
        return {RATES: np.array(self.rates, np.float64), **schedules}

    def _take_kept(self, path: Path, tensors: Mapping[str, np.ndarray], changed: Container[str]) -> None:
        """The same out of a checkpoint at `path`. Schedules that have changed begin anew."""
        rates = tensors.get(RATES, np.zeros(0)).reshape(-1)[:self.session.updates].tolist()
        self.rates = [float("nan")] * (self.session.updates - len(rates)) + rates
        for name, schedule in remembered.with_state(self.model.optimizer).items():
            state = tensors.get(f"optimizer.{name}.schedule")
            if state is not None and name not in changed:
                if not is_state(state):
                    raise CheckpointError(f"{path} holds no state of a schedule under optimizer.{name}.schedule; restore it from a copy or train "
                                          "anew.")
                schedule.restore(state)

    def _save_failed(self) -> str:
        """Keep the state of a failed run apart from the last checkpoint; what to tell the user."""
        try:
            path = self.save(FAILED)
        except CheckpointError as error:
            return f"The state before the failure could not be saved: {error}"
        last = f" The last checkpoint, {self.folder / CHECKPOINT}, is as it was." if (self.folder / CHECKPOINT).exists() else ""
        return f"The state before the failure is saved in {path}. Go on from it with {self._go_on(path)}.{last}"

    def _go_on(self, checkpoint: Path | None = None) -> str:
        """How to go on with a run that has ended early."""
        if self.has_command:
            return resume_command(self.folder, checkpoint)
        return f"the same call and resume={str(checkpoint) if checkpoint else True!r}"

    def _last_good(self) -> str:
        """Where to go back to when the weights in memory are of no use."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return "This run had not written a checkpoint yet (checkpoint_every and save_every_updates do so on the way): start it anew."
        return f"The last good checkpoint is {path}. Go on from it with {self._go_on()}."

    def resume(self, path: Path) -> None:
        """Take over a checkpoint, and say what has changed since it was made.

        Raises:
            CheckpointError: damaged, of another model or other data, or of a run with other settings that shape the result.
        """
        tensors, at, made = load_run(path)
        said = differences(path, made, self._fingerprint, self.model, self.options)
        if at.updates_in_epoch > self.schedule.length and made.get("data") == self._fingerprint["data"]:
            raise CheckpointError(f"{path} says that {at.updates_in_epoch:,} updates of its epoch are done, and an epoch of this run has "
                                  f"{self.schedule.length:,}; restore it from a copy or train anew.")
        missing = at.updates - tensors.get(RATES, np.zeros(0)).size
        budget.require(sys.getsizeof(0.0) * max(0, missing), f"The learning rates of the {at.updates:,} updates that {path} tells of",
                       "restore it from a copy or train anew")
        self.session.assigned[LOSS_SCALE] = loss_scaling(made)
        tensors.setdefault(LOSS_SCALE, np.array(loss_scaling(made), np.float32))              # older files have no such state
        scale = tensors[LOSS_SCALE]
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise CheckpointError(f"{path} holds {scale.reshape(-1)[0]} under {LOSS_SCALE}, and a loss scale is a finite number above 0; "
                                  "restore it from a copy or train anew.")
        self.session.restore(tensors, updates=at.updates, micro_batches=at.micro_batches)
        self._logged = at.updates
        self.epoch, self.updates_in_epoch, self.short_updates = at.epoch, at.updates_in_epoch, at.short_updates
        if not self.train.is_open:                  # older checkpoints do not say it
            self.short_updates = self.schedule.short(at.updates_in_epoch)
        self.history, self.running = at.history, at.running
        self._take_kept(path, tensors, changed_attributes(made, self._fingerprint))
        for sentence in said:
            self.reporter.say(sentence)
        if self.epoch >= self.options.epochs:
            self.reporter.say(f"The run has done {self.epoch} epochs, so there is nothing left to train; ask for more with epochs.")

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self.model, self.train, self.options)

    def _write_metrics(self) -> None:
        if self.statistics is not None:
            self.statistics.page()
        write_metrics(self.folder, self.session.updates, self.history, self.options, self.model.loss.describe() | {"reason": self.reason},
                      runs(self.rates))


def _unmeasured(metric: str, known: Sequence[str]) -> OptionError:
    return OptionError(f"Schedule plateau looks at the metric {metric!r}, which this run does not measure; it measures {', '.join(known)}.")
