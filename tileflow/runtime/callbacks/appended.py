"""Tables that a run appends to in its folder: on the disk before the checkpoint that counts on them, and cut back to it
where the run goes on."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...system.errors import CheckpointError
from ...system.files import append, atomic_write_bytes
from ...system.reading import open_regular
from .base import Callback
from .logs import Logs

WAITING = 1 << 20
"""Bytes of rows that wait in memory at most."""


class AppendedFile(Callback):
    """A file in the run's folder that gets rows. `put` them in hooks: they reach the disk at the end of an epoch, after
    an evaluation within one and before a checkpoint. A run that goes on from a checkpoint has the rows that were there
    then, and no others."""

    remembered: ClassVar[tuple[str, ...]] = ("length",)
    transient: ClassVar[tuple[str, ...]] = ("waiting",)

    def __init__(self, name: str, head: bytes = b"") -> None:
        """name: the file's. head: what it begins with."""
        self.name, self.head = name, head
        self.length = -1
        """Bytes that it has; -1 where there is none."""
        self.waiting = b""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.run.folder / self.name

    def on_train_begin(self, logs: Logs) -> None:
        """A run begins, or goes on: what was written of later updates is done once more.

        Raises:
            CheckpointError: the file cannot be read or written.
        """
        kept = self._kept() if self.run.updates and self.length >= len(self.head) else b""
        self.waiting = b""
        if not kept.startswith(self.head):
            kept = b""
        atomic_write_bytes(self.path, kept or self.head, follow=False)
        self.length = len(kept or self.head)

    def _kept(self) -> bytes:
        """What the file had at the checkpoint: whole lines."""
        return b"".join(self._read().rpartition(b"\n")[:2])

    def _read(self) -> bytes:
        """As much of the file as it had at the checkpoint."""
        if not os.path.exists(self.path):
            return b""
        try:
            with open_regular(self.path) as file:
                return bytes(file.read(min(self.length, os.fstat(file.fileno()).st_size)))
        except OSError as error:
            raise CheckpointError(f"The log {self.path} cannot be read: {error.strerror or error}.") from None

    def put(self, rows: bytes) -> None:
        """Rows, each with its end of line."""
        self.waiting += rows
        if len(self.waiting) > WAITING:
            self.write()

    def write(self) -> None:
        """Bring the rows to the disk that are not there yet.

        Raises:
            CheckpointError: that fails; they wait, and the file is as it was.
        """
        if self.waiting:
            append(self.path, self.waiting)
            self.length += len(self.waiting)
            self.waiting = b""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.write()

    def on_evaluate_end(self, logs: Logs) -> None:
        if self.run.options.eval_every:                      # else the epoch is at its end, and told of next
            self.write()

    def on_save(self, path: Path) -> None:
        self.write()

    def state(self) -> dict[str, Any]:
        return {"length": self.length}

    def restore(self, state: Mapping[str, Any]) -> None:
        if type(state["length"]) is not int or not -1 <= state["length"] < 2**63:
            raise ValueError("length")
        self.length = state["length"]
