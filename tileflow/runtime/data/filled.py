"""Arrays that are filled some rows at a time: in memory, or in temporary files where they are too large for it."""
from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
from pathlib import Path
from typing import IO, Self

import numpy as np

from ...feed.unpacked import FULL
from ...memory import budget
from ...system.errors import DataError, OutOfMemoryError
from ...system.files import require_space

REMEDY = "the environment variable TMPDIR names another folder for temporary files"
CHANGED = "holds other rows than it said at first: it is damaged, or changed while it was read."


class FilledArray:
    """An array [rows, ...] that is written from its first row on, within a `with` block.

    Its file, where it has one, is without a name, so that nothing is left of it once nobody has the array, however the
    process ends; it is read from the disk as needed.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, what: str, in_memory: bool) -> None:
        """what: whose numbers they are, one thing: the beginning of a sentence. Who makes a file has asked for room
        (`require_room`)."""
        self.shape, self.dtype, self.what, self.rows = shape, dtype, what, 0
        self._file: IO[bytes] | None = None
        if in_memory:
            self._held = np.empty(shape, dtype)
            return
        self._file = _nameless()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):                    # what a full disk did not take is not wanted any more
                self._file.close()

    def append(self, rows: np.ndarray) -> None:
        """Write the next rows, [some, ...] of any type that can become the array's.

        Raises:
            DataError: the disk is full, or the array has no such rows.
        """
        end = self.rows + len(rows)
        if rows.shape[1:] != self.shape[1:] or end > self.shape[0]:
            raise DataError(f"{self.what} {CHANGED}")
        if self._file is None:
            self._held[self.rows:end] = rows
        else:
            self._write(self._file, np.ascontiguousarray(rows, self.dtype))
        self.rows = end

    def _write(self, file: IO[bytes], rows: np.ndarray) -> None:
        try:
            file.write(rows.data)
            file.flush()
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DataError(f"{self.what} is written into a temporary file, and {tempfile.gettempdir()} does not "
                            f"take it: {error.strerror}; {REMEDY}.") from None

    def finished(self) -> np.ndarray:
        """The array, which nobody writes any more.

        Raises:
            DataError: rows are missing.
            OutOfMemoryError: the process may not even have so many addresses.
        """
        if self.rows != self.shape[0]:
            raise DataError(f"{self.what} {CHANGED}")
        if self._file is None:
            return self._held
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.dtype)
        try:
            memory = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise OutOfMemoryError(f"{self.what} lies in a temporary file that this process cannot map: "
                                   f"{error.strerror}; allow it more addresses (ulimit -v).") from None
        return np.frombuffer(memory, self.dtype).reshape(self.shape)


def require_room(nbytes: int, what: str) -> None:
    """Return if temporary files may take so many bytes; what: the beginning of a sentence.

    Raises:
        DataError: the disk has no room for them.
        OutOfMemoryError: the folder of temporary files lies in memory, which has no room.
    """
    folder = Path(tempfile.gettempdir())
    require_space(folder, nbytes, f"{what}, in temporary files,", DataError, REMEDY)
    budget.require_for_file(folder, nbytes, f"{what}, in temporary files,", REMEDY)


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tileflow-")
