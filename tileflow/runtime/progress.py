"""Bars for a person at a terminal or a notebook: over kernels that are compiled, and over what searches try."""
from __future__ import annotations

import sys
import time
import warnings
from typing import Any, TextIO

from tqdm import TqdmWarning, tqdm

from ..system.terminal import say
from ..system.text import one_line

BAR_DELAY = 0.5
"""Seconds that compiling takes before it gets a bar: reading kernels from the cache does not."""


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, whose streams are no terminals and show bars all the same."""
    return "ipykernel.zmqshell" in sys.modules                      # as tqdm tells


def wanted(stream: TextIO) -> bool:
    """Whether bars are shown where nobody says."""
    return stream.isatty() or in_notebook()


def make_bar(stream: TextIO, **settings: Any) -> Any:
    """A bar of tqdm's: in a notebook the one that fits what is installed there (ipywidgets or text), else a line of
    text."""
    if not in_notebook():
        return tqdm(file=stream, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)               # a notebook without ipywidgets has bars of text
        from tqdm.auto import tqdm as fitting
    return fitting(file=stream, **settings)


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
        self._bar = make_bar(self.stream, total=total, unit="kernel", leave=False, disable=not self.bars,
                             delay=BAR_DELAY,
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
            say(f"Compiled {len(self._compiled)} kernels in {seconds:.1f} s; the next start reads them from "
                f"{cache.folder()}.", self.stream)
        self._compiled = []


class TuneBar:
    """A bar over the programs that a search analyses. Call it with (programs analysed, at most, best setting so
    far)."""

    def __init__(self, bars: bool, stream: TextIO | None = None) -> None:
        self._bar = make_bar(stream or sys.stderr, total=0, unit="program", leave=False, disable=not bars,
                             desc="Tuning",
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
        self._bar = make_bar(stream or sys.stderr, total=0, unit="setting", leave=False, disable=not bars,
                             desc="Exploring", mininterval=0,
                         bar_format="{desc}: {n_fmt} of {total_fmt} |{bar}| {elapsed}<{remaining} {postfix}")

    def __call__(self, done: int, count: int, best: str) -> None:
        self._bar.total = count
        self._bar.set_postfix_str(f"best {one_line(best)}" if best else "", refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
