"""What a person at a terminal sees of a run: a bar while kernels are compiled, a bar per epoch, a line per epoch."""
from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from ..system.terminal import encodable, say
from ..system.text import one_line, printable

if TYPE_CHECKING:
    from .history import Epoch

BAR_DELAY = 0.5
"""Seconds that compiling takes before it gets a bar: reading kernels from the cache does not."""


class CompileBar:
    """A bar over the kernels of a model; afterwards a sentence where machine code was made anew. Call it with
    (kernel, kernels done, kernels in all)."""

    def __init__(self, bars: bool, stream: TextIO | None = None) -> None:
        self.bars, self.stream = bars, stream or sys.stderr
        self._bar: Any = None
        self._compiled: list[str] = []
        self._began = 0.0

    def __call__(self, kernel: str, done: int, total: int) -> None:
        if self._bar is None:
            self._open(total)
        self._bar.set_description(f"Compiling {one_line(kernel)}", refresh=False)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def _open(self, total: int) -> None:
        from ..kernels.machine import cache
        cache.on_compile.append(self._compiled.append)
        self._began = time.monotonic()
        self._bar = tqdm(total=total, file=self.stream, unit="kernel", leave=False, disable=not self.bars, delay=BAR_DELAY,
                         bar_format="{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}")

    def close(self) -> None:
        """Take the bar away; harmless where there is none."""
        if self._bar is None:
            return
        from ..kernels.machine import cache
        cache.on_compile.remove(self._compiled.append)
        self._bar.close()
        self._bar = None
        seconds = time.monotonic() - self._began
        if self._compiled and self.bars and seconds > BAR_DELAY:
            say(f"Compiled {len(self._compiled)} kernels in {seconds:.1f} s; the next start reads them from {cache.folder()}.", self.stream)
        self._compiled = []


class TuneBar:
    """A bar over the programs that a search analyses. Call it with (programs analysed, at most, best setting so far)."""

    def __init__(self, bars: bool, stream: TextIO | None = None) -> None:
        self._bar = tqdm(total=0, file=stream or sys.stderr, unit="program", leave=False, disable=not bars, desc="Tuning",
                         bar_format="{desc}: {n_fmt} of at most {total_fmt} |{bar}| {elapsed} {postfix}")

    def __call__(self, done: int, most: int, best: str) -> None:
        self._bar.total = most
        self._bar.set_postfix_str(f"best {one_line(best)}", refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


class ExploreBar:
    """A bar over the settings of an exploration. Call it with (settings tried, how many, the fastest so far)."""

    def __init__(self, bars: bool, stream: TextIO | None = None) -> None:
        self._bar = tqdm(total=0, file=stream or sys.stderr, unit="setting", leave=False, disable=not bars, desc="Exploring", mininterval=0,
                         bar_format="{desc}: {n_fmt} of {total_fmt} |{bar}| {elapsed}<{remaining} {postfix}")

    def __call__(self, done: int, count: int, best: str) -> None:
        self._bar.total = count
        self._bar.set_postfix_str(f"best {one_line(best)}" if best else "", refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()


class TrainPrinter:
    """Reports training: bars and notes on standard error, one line per epoch on standard output.

    bars: None shows bars on a terminal only.
    """

    def __init__(self, bars: bool | None = None, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out, self.err = out or sys.stdout, err or sys.stderr
        self.bars = self.err.isatty() if bars is None else bars
        self._compile_bar = CompileBar(self.bars, self.err)
        self._bar: Any = None
        self._epochs = 0
        self._loss_sum, self._samples = 0.0, 0
        self._rate: float | None = None
        self._scheduled = False

    def compiling(self, kernel: str, done: int, total: int) -> None:
        """One more of a model's kernels is ready."""
        self._compile_bar(kernel, done, total)

    def begin_epoch(self, epoch: int, epochs: int, batches: int) -> None:
        """Epoch `epoch` of `epochs` begins (counted from 1) and reads `batches` batches (0: nobody knows how many)."""
        self._epochs = epochs
        self._loss_sum, self._samples = 0.0, 0
        self._bar = tqdm(total=batches or None, file=self.err, unit="batch", leave=False, disable=not self.bars, desc=f"Epoch {epoch}/{epochs}")

    def batch(self, loss: float, accuracy: float | None, samples: int) -> None:
        """A batch of `samples` rows is done, with its mean loss."""
        self._loss_sum += loss * samples
        self._samples += samples
        if self._bar is not None and samples:
            shown = f"loss {self._loss_sum / self._samples:.4f}" + ("" if accuracy is None else f", accuracy {accuracy:.2%}")
            shown += f", lr {self._rate:.3g}" if self._scheduled else ""
            self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update()

    def learning_rate(self, rate: float) -> None:
        """The last update was done with this rate; rates that never change are not shown."""
        self._scheduled |= self._rate is not None and rate != self._rate
        self._rate = rate

    def end_epoch(self, record: Epoch) -> None:
        """The epoch is measured."""
        self.close()
        say(epoch_line(record, self._epochs, self._scheduled), self.out)

    def say(self, sentence: str) -> None:
        """A note on the run."""
        tqdm.write(encodable(printable(sentence), self.err), file=self.err)

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
