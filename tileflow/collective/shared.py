"""The communicator between processes of one host: messages through memory that they have in common."""
from __future__ import annotations

import atexit
import os
import platform
import threading
import time
import zlib

import numpy as np

from ..system.errors import ProcessError
from ..system.text import one_line
from .communicator import Communicator, differing, ended, wait
from .control import BEAT, BOX, FAILED, LEFT, LENGTH, SEQUENCE, STATE, TAG, THERE, Control

EVERY = 0.25
"""Seconds between two heartbeats."""


class SharedMemory(Communicator):
    """Process `rank` of the group of a control file."""

    def __init__(self, control: Control, rank: int, launcher: int | None = None) -> None:
        """`launcher`: the process to end with; None: nobody's heart listens."""
        self.control, self.rank, self.size = control, rank, control.size
        self.hosts = (platform.node(),) * self.size
        self._sent = 0
        self._process = os.getpid()
        control.lines[rank, STATE] = THERE
        atexit.register(self._leave)
        if launcher is not None:
            threading.Thread(target=self._beat, args=(launcher,), name="tileflow-heartbeat", daemon=True).start()

    def allgather(self, send: np.ndarray, what: str) -> np.ndarray:
        flat = send.reshape(-1)
        found = np.empty((self.size, flat.size), np.uint8)
        for start in range(0, max(1, flat.size), BOX):
            self._piece(flat[start:start + BOX], found[:, start:start + BOX], what)
        return found.reshape(self.size, *send.shape)

    def _piece(self, send: np.ndarray, found: np.ndarray, what: str) -> None:
        """A message that goes at once. A box is written anew two messages later, when all have answered the one
        between."""
        control, lines = self.control, self.control.lines
        self._sent += 1
        side, tag = self._sent % 2, zlib.crc32(what.encode())
        control.boxes[self.rank, side, :send.size] = send
        lines[self.rank, LENGTH + side], lines[self.rank, TAG + side] = send.size, tag
        control.order()
        lines[self.rank, SEQUENCE] = self._sent
        wait(lambda: bool((lines[:, SEQUENCE] >= self._sent).all()), lambda: self._check(what))
        control.order()
        for rank in range(self.size):
            if lines[rank, LENGTH + side] != send.size or lines[rank, TAG + side] != tag:
                raise differing(what, rank)
            found[rank] = control.boxes[rank, side, :send.size]

    def _check(self, what: str) -> None:
        """ProcessError where somebody who is waited for will not come."""
        states = self.control.lines[:, STATE]
        for rank in np.flatnonzero((states >= FAILED) & (self.control.lines[:, SEQUENCE] < self._sent)):
            if states[rank] == FAILED:
                cause = self.control.cause(int(rank))
                why = f": {one_line(cause)}" if cause else "."
                raise ProcessError(f"Process {rank} of {self.size} has failed{why}")
            raise ended(int(rank), what)

    def fail(self, cause: str) -> None:
        self.control.end(self.rank, FAILED, cause)

    def _leave(self) -> None:
        if os.getpid() == self._process and self.control.state(self.rank) == THERE:
            self.control.end(self.rank, LEFT)

    def _beat(self, launcher: int) -> None:
        """Show the launcher that this process runs; end without it."""
        while os.getpid() == self._process:
            self.control.lines[self.rank, BEAT] += 1
            if os.getppid() != launcher:
                os._exit(1)
            time.sleep(EVERY)
