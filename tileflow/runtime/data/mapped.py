"""Arrays in temporary files, for what is larger than memory."""
from __future__ import annotations

import math
import mmap
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from ...feed.unpacked import FULL
from ...memory import budget
from ...system.errors import DataError
from ...system.files import require_space

CHANGED = "changed while it was read."
REMEDY = "the environment variable TMPDIR names another folder for temporary files"


class MappedArray:
    """An array [rows, ...] that is written from its first row on and then read from the disk as needed.

    Its file has no name, so that nothing is left of it once nobody has the array, however the process ends.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, what: str) -> None:
        """what: whose numbers they are: the beginning of a sentence.

        Raises:
            DataError: the disk has no room for them.
            OutOfMemoryError: the folder of temporary files lies in memory, which has no room.
        """
        self.shape, self.dtype, self.what = shape, dtype, what
        self.left = math.prod(shape) * dtype.itemsize
        self.folder = Path(tempfile.gettempdir())
        require_space(self.folder, self.left, f"{what}, in a temporary file,", DataError, REMEDY)
        budget.require_for_file(self.folder, self.left, f"{what}, in a temporary file,", REMEDY)
        self._file = _nameless(self.folder)

    def append(self, rows: np.ndarray) -> None:
        """Write the next rows, [some, ...] of any type that can become the array's (DataError where the disk is full, or there
        are more than the array has)."""
        made = np.ascontiguousarray(rows, self.dtype)
        if made.shape[1:] != self.shape[1:] or made.nbytes > self.left:
            raise DataError(f"{self.what} {CHANGED}")
        self.left -= made.nbytes
        try:
            self._file.write(made.data)
            self._file.flush()
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DataError(f"{self.what} are written into a temporary file, and {self.folder} does not take them: "
                            f"{error.strerror}; {REMEDY}.") from None

    def finished(self) -> np.ndarray:
        """The array, which cannot be written (DataError where rows are missing)."""
        if self.left:
            raise DataError(f"{self.what} {CHANGED}")
        with self._file as file:
            if not math.prod(self.shape):
                return np.zeros(self.shape, self.dtype)
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(memory, self.dtype).reshape(self.shape)


def _nameless(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tileflow-", dir=folder)
