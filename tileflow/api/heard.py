"""What a run says of data and model, heard by whoever calls from Python: the command prints it."""
from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from ..runtime.callbacks.base import Callback
from ..runtime.callbacks.several import Callbacks
from ..system.errors import TileflowWarning
from ..system.text import one_line

PACKAGE = str(Path(__file__).parents[1]) + os.sep


class Heard(Callbacks):
    """Callbacks of a run whose sentences are warnings as well, each once, at the line that called into this package."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        super().__init__(callbacks)
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Tell the callbacks, and warn."""
        super().say(sentence)
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(one_line(sentence), TileflowWarning, stacklevel=_frames())


def _frames() -> int:
    """How far up from `say` the caller of this package is."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, count = frame.f_back, count + 1
    return count


class Quiet(Heard):
    """Of a process that is not the first of its group: it says nothing."""

    def say(self, sentence: str) -> None:
        pass
