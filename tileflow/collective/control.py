"""The file that processes of one host and their launcher have in common: who is there, how far each is, small messages,
and why one ended.

Memory that is mapped, of a fixed layout: nothing in it is executed, and every length is compared with its room.
"""
from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np

from .messages import filled_text, text_of

BOX = 1 << 16
"""Bytes of a message that go at once."""
CAUSE = 4096
"""Bytes of the sentence that a process which failed leaves behind."""
WORDS = 8
"""int64 words of a process's line: a line of the cache of its own."""
SEQUENCE, STATE, BEAT, LENGTH, TAG = 0, 1, 2, 3, 5
"""Words of a line: messages sent; the state; heartbeats; length and tag of the last message of either parity (two words
each)."""
ABSENT, THERE, FAILED, LEFT = range(4)


class Control:
    """The mapped file of a group of `size` processes. lines: int64 [size, WORDS]; boxes: uint8 [size, 2, BOX]."""

    def __init__(self, path: str | os.PathLike[str], size: int) -> None:
        self.path, self.size = Path(path), size
        lines, boxes, causes = 8 * WORDS * size, 2 * BOX * size, CAUSE * size
        with open(self.path, "r+b") as file:
            if os.fstat(file.fileno()).st_size != lines + boxes + causes:
                raise OSError(f"{path} is no control file of {size} processes")
            self._memory = mmap.mmap(file.fileno(), lines + boxes + causes)
        memory = np.frombuffer(self._memory, np.uint8)
        self.lines = memory[:lines].view(np.int64).reshape(size, WORDS)
        self.boxes = memory[lines:lines + boxes].reshape(size, 2, BOX)
        self._causes = memory[lines + boxes:].reshape(size, CAUSE)
        self._fence = threading.Lock()

    @staticmethod
    def create(path: Path, size: int) -> Control:
        """A new file, all zero."""
        with open(path, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, size * (8 * WORDS + 2 * BOX + CAUSE))
        return Control(path, size)

    def order(self) -> None:
        """What was read and written before is so before what comes after: a lock's barrier."""
        with self._fence:
            pass

    def state(self, rank: int) -> int:
        return int(self.lines[rank, STATE])

    def end(self, rank: int, state: int, cause: str = "") -> None:
        """A process goes no further; the cause that is there first stays."""
        if cause and not self._causes[rank, 0]:
            self._causes[rank] = filled_text(cause, CAUSE)
        self.order()
        self.lines[rank, STATE] = state

    def cause(self, rank: int) -> str:
        """Why a process ended; "" where it did not say."""
        return text_of(self._causes[rank])
