"""The training loop: epochs over a DataLoader, checkpoints, metrics; resumable bit for bit."""
from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..collective import current
from ..executable.engine import Engine
from ..memory import budget
from ..metrics import accuracy_counts
from ..metrics.named import Function, name_of
from ..optim import noise
from ..optim.scaling import LOSS_SCALE
from ..options.options import Options
from ..system.errors import (
    CheckpointError,
    DataError,
    Interrupted,
    OptionError,
    ProcessError,
    TrainingError,
    WeightsLostError,
)
from ..system.files import require_space
from ..system.text import one_line
from .agreement import agree, same_run
from .averages import averaged
from .bad_rows import not_finite, with_doubts
from .call_models import CallModels
from .callbacks.logs import Logs, logs_of
from .callbacks.run import Request, TrainingRun, kept_name
from .callbacks.several import Callbacks
from .data import DataLoader, Dataset
from .data.augmentation import Augmentation
from .data.sampling import WeightedSampler
from .evaluate import Evaluator
from .failure import none_counted, untrained
from .fingerprint import changed_attributes, differences, fingerprint, loss_scaling
from .going_on import go_on, last_good, saved_failed
from .history import Epoch, Running
from .run_folder import CHECKPOINT, FAILED, RunPosition, load_run, remove, save_run
from .schedule import CallSchedule, UpdateCall
from .shards import to_first
from .stop import Stop, asked_by_signals
from .training_model import TrainingModel

LEARNING_RATE = "optimizer.lr"
"""The state that the learning rate (of the first group) is read from."""
RATES = "optimizer.lr.history"
"""What the learning rates of all updates are called in a checkpoint."""


@dataclass
class Trainer:
    """Trains a TrainingModel on a Dataset, with everything that must survive an interruption in `folder`."""

    model: TrainingModel
    train: Dataset
    test: Dataset | None
    folder: Path
    callbacks: Callbacks
    sampler: WeightedSampler | None = None
    """What draws the rows of an epoch; None: each once."""
    augment: Augmentation | None = None
    """What is done to training rows at random."""
    has_command: bool = False
    """The folder says all that the command needs to go on with this run."""
    history: list[Epoch] = field(default_factory=list)
    epoch: int = 0
    begun: int = 0
    """Epochs whose beginning callbacks were told of."""
    running: Running = field(default_factory=Running)
    updates_in_epoch: int = 0
    short_updates: int = 0
    """The last of them, with fewer rows than the others."""
    rates: list[float] = field(default_factory=list)
    """The learning rate of every update of the run (NaN: of a checkpoint that did not tell)."""
    write_model: Callable[[Path], Any] | None = None
    """Writes the model as an ONNX file."""

    def __post_init__(self) -> None:
        self.loader = DataLoader(self.options, self.train, drop_last=self.options.drop_last, sampler=self.sampler,
                                 augment=self.augment)
        batch, rows = self.options.combined_batch_size, len(self.train)
        self.schedule = CallSchedule.of(rows // batch * batch if self.train.is_open else rows, self.options)
        self._length = self.schedule.length
        """Updates of an epoch; of data that end where they end, those of the last one."""
        self._told = False
        """Somebody was told that lengths change."""
        self._evaluated = -1
        """The update at which the test data were measured last."""
        self._figures: dict[str, float | None] = {}
        """What was measured then."""
        self._group = current()
        self._alike = False
        """The run has failed in every process of the group, at the same update."""
        self._stop = Stop(self._group)
        self.loader.stop = self._stop.is_set if self._group is None else None
        self.evaluator = Evaluator(self.model, self.callbacks.compiling, self._stop.is_asked)
        self._models = CallModels(self.model, self.train, self.schedule, self.callbacks.compiling, self._stop.is_asked)
        self.run_handle = TrainingRun(self.model, self.folder, self.options, self.callbacks.say, self.options.epochs,
                                      rates=self.rates, history=self.history)

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
        self._models.compile()
        _ = self._fingerprint                       # of the model for these rows, whatever lengths come
        if self.test is not None:
            self.evaluator.prepare(self.test)

    # ---- the loop

    def run(self) -> list[Epoch]:
        """Train until `options.epochs` epochs are done, or a callback stops the run.

        Raises:
            Interrupted: Ctrl-C or SIGTERM came; the state is saved.
            TrainingError: the loss is not finite or a label is out of range; the state before that update is in
                `checkpoint.failed`, and the last checkpoint is as it was.
            WeightsLostError: an update wrote a weight that is not finite; nothing is saved.
            NoUpdateError: no update of the last epoch counted; the state is saved.
            CheckpointError: a checkpoint would not fit on the disk, which is found before anything is trained, or
                cannot be written.
        """
        nbytes = sum(self.session.nbytes_of(name) for name in self.session.lasting())
        require_space(self.folder, nbytes, "A checkpoint of this run")
        if self._group is not None:
            same_run(self._group, self._fingerprint)
        self._begin()
        self._agree()
        with asked_by_signals(self._stop):
            try:
                if self._is_due:                    # an evaluation that somebody interrupted
                    self._between()
                else:
                    self._carry_out()
                while not self._is_over and not self._stop.is_set():
                    self._epoch()
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, DataError):
                    is_torn = self.session.parts and not self._alike
                    if isinstance(error, (WeightsLostError, ProcessError)) or is_torn:
                        error.add_note(last_good(self.folder, self.has_command))
                    elif self.session.updates:
                        error.add_note(self._save_failed())
                with contextlib.suppress(Exception):                  # what failed first is what is told
                    self.callbacks.call("on_exception", error)
                raise
            finally:
                self.loader.terminate()
                self.evaluator.close()
            path = self.save()
            if self._group is not None:
                self._group.barrier("the end of a run")     # who went before the state is written would end all
        return self._end(path)

    def _begin(self) -> None:
        """What callbacks may know before the first update."""
        run = self.run_handle
        measured = [name_of(m) for m in self.evaluator.metrics if self.test is not None or m == "accuracy"]
        names = ["loss", *(["accuracy"] if "accuracy" in measured else [])]
        run.measures = (*names, *(f"test_{n}" for n in ("loss", *measured) if self.test is not None), "learning_rate")
        run.updates_per_epoch = self._models.per_epoch
        run.epoch, run.updates_in_epoch = self.epoch, self.updates_in_epoch
        run.rates, run.history = self.rates, self.history
        run.batches = None if self.loader.rows is None else len(self.loader)
        run.example = self._example
        self.callbacks.attach(run)
        self.callbacks.call("on_train_begin", run.metrics)

    def _example(self, rows: int) -> np.ndarray:
        """Input of so many rows as the data begin with; empty where each element is a whole of its own."""
        if self.train.whole:
            return np.zeros(0)
        first: np.ndarray = self.train.example(np.arange(min(rows, len(self.train))))[0]
        return first

    def _end(self, path: Path) -> list[Epoch]:
        """The run is over, or somebody has asked it to end; its state is saved at `path`."""
        run = self.run_handle
        done = self.epoch >= self.options.epochs
        if self.history and done and self._counted_none(last := self.history[-1]):
            kept = f"the state is saved in {path}"
            raise with_doubts(untrained(last.epoch, last.skipped, last.loss_scale, kept), self.train)
        if self._stop.is_set() and (not self._is_over or self._is_due):
            stopped = Interrupted(f"Stopped after {self.session.updates} updates; saved {path}. "
                                  f"Go on with {go_on(self.folder, self.has_command)}.")
            self.callbacks.call("on_exception", stopped)
            raise stopped
        if not done and self.updates_in_epoch:
            run.partial = self._record(None if self.test is None else self._measured())
            self.evaluator.close()
            run.metrics.update(self._logs(run.partial))
        self.callbacks.call("on_train_end", run.metrics)
        states = to_first(self.session, any(not r.gone for r in run.requests))
        for name, onnx, gone in run.requests:
            self._keep(name, onnx, gone, states)
        run.requests.clear()
        if run.stopped is not None:
            self.callbacks.say(f"The run ended early: {run.stopped}.")
        return self.history

    @property
    def _is_over(self) -> bool:
        """All epochs are done, or a callback stopped the run and the epoch's rows are not all trained, so that it is no
        epoch."""
        whole = not self.train.is_open and 0 < self.schedule.length <= self.updates_in_epoch
        return self.epoch >= self.options.epochs or (self.run_handle.stopped is not None and not whole)

    def _epoch(self) -> None:
        row, first_update = self.schedule.after(self.updates_in_epoch, self.short_updates)
        self.loader.set_epoch(self.epoch, row)
        self.run_handle.epoch, self.run_handle.updates_in_epoch = self.epoch, self.updates_in_epoch
        if self.begun == self.epoch:
            self.begun += 1
            self.callbacks.call("on_epoch_begin", self.epoch, self.run_handle.metrics)
            self._carry_out()
            self._agree()
        if self._ends_now:
            return
        batches = iter(self.loader)
        try:
            for batch in batches:
                self._tell_lengths(batch)
                if self.train.whole or len(batch[0]) == self.options.combined_batch_size:
                    self._calls(self.model, batch, first_update, self.options.device_iterations)
                else:
                    self._last(batch, CallSchedule.of(len(batch[0]), self.options).rest, first_update)
                first_update = 0
                if self._ends_now:
                    return
        finally:
            if hasattr(batches, "close"):
                batches.close()
        if not self._stop.is_set():                 # while the next batch was waited for
            self._end_epoch()

    @property
    def _ends_now(self) -> bool:
        """The epoch goes no further: a signal came, or a callback stopped the run before the epoch's last update."""
        is_within = self.train.is_open or self.updates_in_epoch < self.schedule.length
        return self._stop.is_set() or (self.run_handle.stopped is not None and is_within)

    def _end_epoch(self) -> None:
        """All rows are done: measure, and tell."""
        anew = self.test is not None and self._evaluated != self.session.updates
        figures = self._measured() if anew else self._figures
        if self.test is not None and figures is None:
            return                                  # the epoch is not over before it is measured
        record, epoch = self._record(figures), self.epoch
        self.history.append(record)
        self._length = self.updates_in_epoch
        self.epoch, self.running, self.updates_in_epoch, self.short_updates = self.epoch + 1, Running(), 0, 0
        if anew:
            self._note(figures)
        run = self.run_handle
        run.updates_in_epoch = 0
        logs = self._logs(record)
        run.metrics.update(logs)
        self._moment(*([("on_evaluate_end", (self._tested(),))] if anew else []), ("on_epoch_end", (epoch, logs)))
        if self.options.checkpoint_every and self.epoch % self.options.checkpoint_every == 0 and not self._is_over:
            self.save()
        if self._counted_none(record) and self.epoch < self.options.epochs:
            self.callbacks.say(none_counted(record.epoch, record.skipped, record.loss_scale))

    def _record(self, figures: Mapping[str, float | None] | None) -> Epoch:
        """The epoch at hand in figures."""
        record = self.running.record(self.epoch + 1)
        if not self.train.whole and len(next(iter(self.train.fields.values())).sample) >= 2:
            record.unit = "images"
        if self.test is not None and figures is not None:
            more = dict(figures)
            record.test_loss, record.test_accuracy = more.pop("loss"), more.pop("accuracy", None)
            record.test_metrics = more
        record.loss_scale = self.model.loss_scale if self.model.scaling.automatic != "off" else None
        record.learning_rate = self.rates[-1] if self.rates and self.rates[-1] == self.rates[-1] else None
        return record

    def _logs(self, record: Epoch) -> Logs:
        return logs_of(record, noise.scale_of(self.session) if self.options.gradient_noise else None)

    def _measured(self) -> dict[str, float | None] | None:
        """The figures of the test data; None where a signal came meanwhile."""
        assert self.test is not None
        with averaged(self.session):
            figures = self.evaluator.measure(self.test)
        if figures is None:
            self._stop.set()                        # somebody has asked a process to end
        return None if self._stop.is_set() else figures

    def _note(self, figures: Mapping[str, float | None] | None) -> None:
        """The test data have these figures now."""
        self._evaluated, self._figures = self.session.updates, dict(figures or {})
        self.run_handle.metrics.update(self._tested())

    def _tested(self) -> Logs:
        return Logs({f"test_{name}": x for name, x in self._figures.items() if x is not None})

    @property
    def _is_due(self) -> bool:
        """The test data are to be measured at this update."""
        every, updates = self.options.eval_every, self.session.updates
        return bool(self.test is not None and every and updates and updates % every == 0 and self._evaluated != updates)

    def _between(self, *told: tuple[str, tuple[Any, ...]]) -> None:
        """Between two calls: callbacks are told of the updates, and of an evaluation where one is due; then what they
        ask for is saved. What a signal cuts off is done when the run goes on."""
        for hook, args in told:
            self.callbacks.call(hook, *args)
        if self._is_due:
            figures = None if self._stop.is_set() else self._measured()
            if figures is None:
                return
            self._note(figures)
            self.callbacks.call("on_evaluate_end", self._tested())
        self._carry_out()
        self._agree()
        every = self.options.save_every_updates
        if every and self.session.updates % every == 0 and not self._stop.is_set():
            self.save()

    def _moment(self, *told: tuple[str, tuple[Any, ...]]) -> None:
        """Callbacks are told, each of all of it whatever another does; then what they ask for is saved."""
        failed: Exception | None = None
        for hook, args in told:
            try:
                self.callbacks.call(hook, *args)
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        self._carry_out()
        self._agree()

    def _agree(self) -> None:
        """What callbacks of the first process have decided holds in all, and a signal to one asks all."""
        if self._group is None:
            return
        agree(self._group, self.run_handle, self.session)
        self._stop.agree()

    def _carry_out(self) -> None:
        """Save what callbacks have asked for, the run's own checkpoint last. What fails stays asked for."""
        asked = self.run_handle.requests
        own, states = any(not r.name for r in asked), to_first(self.session, any(not r.gone for r in asked))
        asked[:] = [*(r for r in asked if r.name and not r.gone), *(r for r in asked if r.gone)]
        while asked:
            self._keep(*asked[0], states)
            del asked[0]
        if own:
            self.save(states=states)

    def _keep(self, name: str, onnx: bool, gone: bool, states: Mapping[str, np.ndarray]) -> None:
        """Do one thing that was asked for."""
        paths = [self.folder / f"{name}{ending}" for ending in (".safetensors", ".onnx")]
        if gone:
            for path in paths:
                remove(path)
            return
        self.save(paths[0].name if name else CHECKPOINT, states)
        if onnx and name:
            if self.write_model is None:
                raise OptionError("The model of this run is no ONNX file; keep checkpoints without onnx, and write it "
                                  "with result.save_onnx.")
            with averaged(self.session):
                self.write_model(paths[1])

    def _tell_lengths(self, batch: tuple[np.ndarray, ...]) -> None:
        """A word, once, where a batch has another length than the first row."""
        if self._told or self.train.whole:
            return
        if all(a.shape[1:] == f.sample for f, a in zip(self.train.tensors, batch, strict=True)):
            return
        self._told = True
        how = ("it is rounded up to 8, 12, 16, 24, 32 and so on and filled with zeros, labels with ignore_index. "
               "The model must know padding by its mask; with round_lengths=False lengths stay as they come."
               if self.options.round_lengths else "each length has a program of its own.")
        self.callbacks.say(f"Batches of data {one_line(self.train.name)} change their length: {how}")

    def _counted_none(self, record: Epoch) -> bool:
        """All updates of an epoch were skipped."""
        return 0 < self._length <= record.skipped

    def _last(self, batch: tuple[np.ndarray, ...], rest: Sequence[UpdateCall], done: int) -> None:
        """The rows at the end that fill no call, after so many updates of them."""
        row = 0
        for i, step in enumerate(rest):
            if i >= done:
                own = tuple(a[row:row + step.rows] for a in batch)
                self._calls(self._models.of(step), own, 0, 1, short=step.rows < self.schedule.rows)
            row += step.rows
            if self._ends_now:
                return

    def _calls(self, model: TrainingModel, batch: tuple[np.ndarray, ...], first: int, updates: int,
               short: bool = False) -> None:
        """The updates of a call from `first` on, in as many calls as somebody wants to have the word in between."""
        while first < updates and not self._ends_now:
            now, o = self.session.updates, self.options
            every = o.eval_every if self.test is not None else None, o.save_every_updates
            ends = [now - now % n + n for n in every if n]
            asked = self.callbacks.next_update(now)
            asked = asked if self._group is None else self._group.told(asked, "when callbacks have the word")
            last = min([updates, *(first + end - now for end in (*ends, asked) if end is not None)])
            self._call(model, batch, first, last, short)
            first = model.engine.completed

    def _call(self, model: TrainingModel, batch: tuple[np.ndarray, ...], first_update: int, last_update: int,
              short: bool) -> None:
        """One call, or what is left of it up to `last_update`; counts only the updates that were done."""
        began, skipped = time.perf_counter(), model.skipped_updates
        number = self.updates_in_epoch // self.options.device_iterations
        try:
            outputs = model.run_call(*batch, first_update=first_update, last_update=last_update)
        except TrainingError as error:
            self._alike = self._group is not None and model.engine.alike
            row = self.schedule.after(self.updates_in_epoch, self.short_updates)[0]
            if said := not_finite(batch, self.train, self.loader, self.epoch, row):
                error.add_note(said)
            self.running.skipped += model.skipped_updates - skipped
            self.updates_in_epoch += model.engine.completed - first_update      # the call's whole updates stand
            self._note_rates(model.engine, first_update)
            raise
        seconds = time.perf_counter() - began
        engine = model.engine
        if self._group is not None and engine.completed < last_update:
            self._stop.set()
        accumulation = model.batching.per_update
        rows = self.train.counted(batch) if self.train.whole else model.batching.micro_batch
        if (updates := engine.completed - first_update) <= 0:
            return
        done = slice(first_update * accumulation, engine.completed * accumulation)
        losses = model.last_losses[done] if model.last_losses is not None else np.zeros(0)
        correct, predictions = self._correct(outputs, self.train.labels_of(batch), done)
        rates = self._note_rates(engine, first_update)
        logs = Logs(losses=losses.reshape(updates, -1).astype(np.float64).mean(1), learning_rates=rates,
                    samples=(done.stop - done.start) * rows)
        r = self.running
        r.skipped += model.skipped_updates - skipped
        losses = r.add(losses, rows, model.scaling.skip)
        r.correct += correct
        r.predictions += predictions
        r.samples += logs["samples"]
        r.seconds += seconds - model.programs.seconds
        model.programs.seconds = 0.0
        self.updates_in_epoch += updates
        self.short_updates += updates if short else 0
        self.run_handle.updates_in_epoch = self.updates_in_epoch
        logs["loss"] = float(np.mean(losses)) if len(losses) else np.nan
        if predictions:
            logs["accuracy"] = correct / predictions
        self.run_handle.model = model
        self._between(("on_train_batch_end", (number, logs)))
        self.run_handle.model = self.model

    def _note_rates(self, engine: Engine, first_update: int) -> np.ndarray:
        """With which learning rates the updates of a call were done."""
        used: np.ndarray = engine.used(LEARNING_RATE)[first_update:engine.completed]
        self.rates += used.tolist()
        return used

    def _correct(self, outputs: list[np.ndarray], labels: np.ndarray | None, done: slice) -> tuple[int, int]:
        """Right predictions and predictions of the micro-batches `done`; scores [M, mb, C, ...]."""
        view = self.model.view
        if "accuracy" not in self.evaluator.metrics or view is None or labels is None:
            return 0, 0
        scores = outputs[0][done]
        wanted = labels.reshape(len(outputs[0]), -1, *labels.shape[1:])[done]
        return accuracy_counts(view, scores.reshape(-1, *scores.shape[2:]), wanted.reshape(-1, *wanted.shape[2:]))

    # ---- what survives

    def save(self, name: str = CHECKPOINT, states: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write weights, optimizer states (`states`: those that processes divide), the position and what callbacks have
        come to; the path."""
        path, run = self.folder / name, self.run_handle
        states = to_first(self.session) if states is None else states
        if self._group is not None and not self._group.is_first:
            return path

        def write() -> None:
            plain, arrays = self.callbacks.state()
            pending = [] if name not in (CHECKPOINT, FAILED) else [list(r) for r in run.requests]
            at = RunPosition(self.session.updates, self.session.micro_batches, self.epoch, self.updates_in_epoch,
                             self.running, self.history, self.short_updates, self.begun, self._evaluated, self._figures,
                             run.stopped or "", run.stopped_by, run.chosen_rates, pending, plain)
            tensors = self.session.lasting() | dict(states) | {RATES: np.array(self.rates, np.float64)} | arrays
            save_run(path, tensors, at, self._fingerprint)
        for sentence in self.callbacks.forgetful():
            self.callbacks.say(sentence)
        self.callbacks.call("on_save", path)
        self.session.turn.hold(write)
        return path

    def _restore(self, path: Path, tensors: Mapping[str, np.ndarray], at: RunPosition, changed: Container[str]) -> None:
        """Learning rates, and what callbacks and schedules had come to, out of a checkpoint at `path`."""
        rates = tensors.get(RATES, np.zeros(0)).reshape(-1)[:self.session.updates].tolist()
        self.rates[:] = [float("nan")] * (self.session.updates - len(rates)) + rates
        if "lr" not in changed:
            for role, rate in at.rates_set.items():
                self.model.optimizer.set_number(role, rate)
                self.run_handle.chosen_rates[role] = rate
        for sentence in self.callbacks.restore(path, at.callbacks, tensors):
            self.callbacks.say(sentence)

    def _save_failed(self) -> str:
        """Keep the state of a failed run apart from the last checkpoint; what to tell the user."""
        try:
            told = saved_failed(self.folder, self.has_command, self.save(FAILED))
        except CheckpointError as error:
            told = f"The state before the failure could not be saved: {error}"
        except ProcessError:
            return last_good(self.folder, self.has_command)
        if self._group is not None and self._alike:
            with contextlib.suppress(ProcessError):        # the first one ends soon after another that does not wait
                self._group.barrier("the state of a run that failed")
        return told

    def resume(self, path: Path) -> None:
        """Take over a checkpoint, and say what has changed since it was made.

        Raises:
            CheckpointError: damaged, of another model or other data, or of a run with other settings that shape the
                result.
        """
        tensors, at, made = load_run(path)
        said = differences(path, made, self._fingerprint, self.model, self.options)
        if at.updates_in_epoch > self.schedule.length and made.get("data") == self._fingerprint["data"]:
            raise CheckpointError(f"{path} says that {at.updates_in_epoch:,} updates of its epoch are done, and an "
                                  f"epoch of this run has {self.schedule.length:,}; restore it from a copy or train "
                                  "anew.")
        missing = at.updates - tensors.get(RATES, np.zeros(0)).size
        budget.require(sys.getsizeof(0.0) * max(0, missing),
                       f"The learning rates of the {at.updates:,} updates that {path} tells of",
                       "restore it from a copy or train anew")
        self.session.assigned[LOSS_SCALE] = loss_scaling(made)
        # older files have no such state
        scale = tensors.setdefault(LOSS_SCALE, np.array(loss_scaling(made), np.float32))
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise CheckpointError(f"{path} holds {scale.reshape(-1)[0]} under {LOSS_SCALE}, and a loss scale is a "
                                  "finite number above 0; restore it from a copy or train anew.")
        self.session.restore(tensors, updates=at.updates, micro_batches=at.micro_batches)
        self.epoch, self.updates_in_epoch, self.short_updates = at.epoch, at.updates_in_epoch, at.short_updates
        self.begun, self._evaluated, self._figures = at.begun, at.evaluated, at.figures
        if not self.train.is_open:                  # older checkpoints do not say it
            self.short_updates = self.schedule.short(at.updates_in_epoch)
        self.history[:], self.running = at.history, at.running
        if self.history:
            self.run_handle.metrics.update(self._logs(self.history[-1]))
        self.run_handle.metrics.update(self._tested())
        self.run_handle.requests[:] = [Request(name and kept_name(name), onnx, gone) for name, onnx, gone in at.pending]
        self._restore(path, tensors, at, changed_attributes(made, self._fingerprint))
        for sentence in said:
            self.callbacks.say(sentence)
        if self.epoch >= self.options.epochs:
            self.callbacks.say(f"The run has done {self.epoch} epochs, so there is nothing left to train; "
                               "ask for more with epochs.")
        elif at.stopped and made.get("epochs") == self.options.epochs and at.stopped_by in map(repr, self.callbacks):
            self.run_handle.stopped, self.run_handle.stopped_by = at.stopped, at.stopped_by
            if self._is_over and not self._is_due:
                self.callbacks.say("There is nothing left to train; ask for more with epochs, "
                                   "or change what ended the run.")

    @property
    def data_digest(self) -> str:
        """SHA-256 of the training data."""
        return str(self._fingerprint["data"])

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self.model, self.train, self.options)
