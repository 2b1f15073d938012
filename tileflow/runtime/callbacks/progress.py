"""What a person at a terminal sees of a run: a bar while kernels are compiled, a bar per epoch, a line per epoch."""
from __future__ import annotations

import sys
from typing import Any, ClassVar, TextIO

from tqdm import tqdm

from ...system.terminal import encodable, say
from ...system.text import printable
from ..history import Epoch
from ..progress import CompileBar, make_bar, wanted
from .base import Callback
from .logs import Logs


class ProgressBar(Callback):
    """Bars and notes on standard error, one line per epoch on standard output.

    bars: None shows bars on a terminal and in notebooks.
    """

    transient: ClassVar[tuple[str, ...]] = ("_bar", "_loss_sum", "_samples", "_scheduled", "_rate")

    def __init__(self, bars: bool | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out, self.err = out or sys.stdout, err or sys.stderr
        self.bars = wanted(self.err) if bars is None else bars
        self._compile_bar = CompileBar(self.bars, self.err)
        self._bar: Any = None
        self._loss_sum, self._samples = 0.0, 0
        self._rate: float | None = None
        self._scheduled = False

    def on_compile(self, kernel: str, done: int, total: int) -> None:
        self._compile_bar(kernel, done, total)

    def on_message(self, sentence: str) -> None:
        tqdm.write(encodable(printable(sentence), self.err), file=self.err)

    def on_train_begin(self, logs: Logs) -> None:
        if self.run.updates_in_epoch and self.run.epoch < self.run.epochs:
            self.on_epoch_begin(self.run.epoch, logs)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        self.close()
        self._loss_sum, self._samples = 0.0, 0
        self._bar = make_bar(self.err, total=self.run.batches or None, unit="batch", leave=False, disable=not self.bars,
                             desc=f"Epoch {epoch + 1}/{self.run.epochs}")

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._note(logs["learning_rates"])
        samples, loss = logs["samples"], logs["loss"]
        self._loss_sum += loss * samples
        self._samples += samples
        if self._bar is not None and samples:
            accuracy = logs.get("accuracy")
            shown = f"loss {self._loss_sum / self._samples:.4f}" + ("" if accuracy is None
                                                                    else f", accuracy {accuracy:.2%}")
            shown += f", lr {self._rate:.3g}" if self._scheduled else ""
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(batch + 1 - self._bar.n)

    def _note(self, rates: Any) -> None:
        """Rates that never change are not shown."""
        if len(rates) and rates[-1] == rates[-1]:
            self._scheduled |= bool((rates != rates[0]).any()) or (self._rate is not None and rates[0] != self._rate)
            self._rate = float(rates[-1])

    def on_evaluate_end(self, logs: Logs) -> None:
        if self.run.updates_in_epoch:                           # not at the end of an epoch, whose line says it
            figures = "  ".join(f"{n.replace('_', ' ')} {x:{'.2%' if n == 'test_accuracy' else '.4f'}}"
                                for n, x in logs.items())
            tqdm.write(f"update {self.run.updates}  {figures}", file=self.out)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.close()
        say(epoch_line(self.run.history[-1], self.run.epochs, self._scheduled), self.out)

    def on_train_end(self, logs: Logs) -> None:
        self.close()
        if self.run.partial is not None:
            done = self.run.updates_in_epoch
            line = epoch_line(self.run.partial, self.run.epochs, self._scheduled)
            say(f"{line}  ({done} update{'s' * (done != 1)})", self.out)

    def close(self) -> None:
        """Take the bars away; harmless where there are none."""
        self._compile_bar.close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def epoch_line(record: Epoch, epochs: int, scheduled: bool = False) -> str:
    """One epoch's figures in one line; with the learning rate where it is scheduled."""
    parts = [f"epoch {record.epoch:>{len(str(epochs))}}/{epochs}", f"loss {record.loss:.4f}"]
    for name, value, form in (("accuracy", record.accuracy, ".2%"), ("test loss", record.test_loss, ".4f"),
                              ("test accuracy", record.test_accuracy, ".2%")):
        if value is not None:
            parts.append(f"{name} {value:{form}}")
    parts += [f"test {name} {value:.4f}" for name, value in record.test_metrics.items() if value is not None]
    if scheduled and record.learning_rate is not None:
        parts.append(f"lr {record.learning_rate:.3g}")
    if record.loss_scale is not None:
        parts.append(f"loss scale {record.loss_scale:g}")
    if record.skipped:
        parts.append(f"skipped {record.skipped} update{'s' if record.skipped > 1 else ''}")
    return "  ".join([*parts, f"{record.samples_per_second:,.0f} {record.unit}/s"])
