"""What a callback is: hooks with the field's names, a state that checkpoints keep, and one handle on the run."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .logs import Logs
from .run import TrainingRun

HOOKS = ("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_end", "on_evaluate_end",
         "on_save", "on_exception",
         "on_compile", "on_message")
"""The moments that callbacks may be told of."""


class Callback:
    """Something that watches a run and steers it. Override the hooks that matter; all others cost nothing.

    A call of the engine does `device_iterations` updates, so `on_train_batch_end` is called once for several of them,
    and told the loss of each as an array. After a call comes the evaluation where one is due, then the callbacks in
    their order, then what they asked to be saved, then the run's checkpoint: every file holds the states that all
    callbacks have come to by then.

    Epochs are counted from 0 in hooks, and `logs` are figures by name, both as in Keras. `self.run` is the run
    (`TrainingRun`).
    """

    run: TrainingRun
    """The run that the callback is of, from `on_train_begin` on."""
    remembered: ClassVar[tuple[str, ...]] = ()
    """Attributes that `state()` and `restore()` keep: numbers, texts, lists and None, or arrays."""
    transient: ClassVar[tuple[str, ...]] = ()
    """Attributes that hooks set and no checkpoint need keep: open files, bars, what is read again."""

    def on_train_begin(self, logs: Logs) -> None:
        """The run begins; or goes on from a checkpoint, where `self.run.updates` is above 0."""

    def on_train_end(self, logs: Logs) -> None:
        """The run has come to its end, early or not, and its last checkpoint is written."""

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """An epoch begins; not where a run goes on in the middle of one."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """An epoch is over and, where there are test data, measured: loss, accuracy, test_loss (val_loss), the metrics
        as test_f1 and so on, learning_rate. What is not defined is left out."""

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """A call is done, the `batch`-th of its epoch: loss (its mean), losses and learning_rates (float64 [updates],
        one of each update, NaN of one that was skipped), accuracy where it is measured, samples. The last of these
        updates is `self.run.updates`, counted from 1."""

    def on_evaluate_end(self, logs: Logs) -> None:
        """The test data are measured, at the end of an epoch or where eval_every asks for it: test_loss and the
        metrics."""

    def on_save(self, path: Path) -> None:
        """A checkpoint is about to be written to `path`: what must be on the disk before it is written now."""

    def on_exception(self, error: BaseException) -> None:
        """The run ends with an error, or somebody interrupts it."""

    def on_compile(self, kernel: str, done: int, total: int) -> None:
        """One more of a model's kernels is ready, also before the run begins."""

    def on_message(self, sentence: str) -> None:
        """There is something to tell of data, model or run, also before the run begins."""

    def next_update(self, updates: int) -> int | None:
        """The next update after `updates` at which the callback is to have the word: a call ends there, however many
        updates it would have had. None: at the end of each call."""
        return None

    def __repr__(self) -> str:
        """The callback with its settings: a run that it has ended goes on once these are others."""
        return f"{type(self).__name__}()"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the callback: numbers, texts, lists, None, and arrays, by name."""
        return {name: getattr(self, name) for name in self.remembered}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state()` gave. The checkpoint may come from anywhere.

        Raises:
            ValueError, TypeError, KeyError: it is not a state of such a callback.
        """
        for name in self.remembered:
            if not _alike(state[name], getattr(self, name)):
                raise ValueError(name)
        for name in self.remembered:
            setattr(self, name, state[name])


def _alike(value: Any, now: Any) -> bool:
    """A value may take the place of what an attribute is at the start: None may become a number, and back."""
    numbers = (int, float)
    if value is None or now is None:
        return value is None or isinstance(value, (str, list, np.ndarray, *numbers))
    if isinstance(now, bool) or isinstance(value, bool):
        return isinstance(now, bool) and isinstance(value, bool)
    if isinstance(now, float):
        return isinstance(value, numbers)
    if isinstance(now, int):
        return isinstance(value, int) and abs(value) < 2**63
    return isinstance(value, type(now))
