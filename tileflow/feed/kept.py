"""Rows by number that are kept once they were read, as many of them as there is room for: dear ones are made once."""
from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from .items import Batch, Items, part


class KeptRows(Items):
    """Rows that are tuples of arrays of one shape each, and the same whenever they are read.

    The first rows by their number that fit into `room` bytes are kept, in memory that is mapped and taken page by page
    as they come; others are read anew each time. A copy in a worker process keeps none.
    """

    def __init__(self, data: Any, room: int) -> None:
        super().__init__(data)
        self.room = room
        self._parts: list[np.ndarray] = []
        self._have = np.zeros(len(data), bool)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "room": 0, "_parts": [], "_have": np.zeros(len(self.data), bool)}

    def holds(self, rows: np.ndarray | None = None) -> bool:
        return bool((self._have if rows is None else self._have[rows]).all())

    def read(self, rows: np.ndarray) -> Batch:
        """A batch of these rows; those that had to be read are kept."""
        held = self._have[rows]
        if not held.all():
            batch = super().read(rows[~held])
            self.keep(rows[~held], batch)
            if not held.any():
                return batch
            made = tuple(np.empty((len(rows), *a.shape[1:]), a.dtype) for a in batch)
            for whole, kept, new in zip(made, self._parts, batch, strict=True):
                whole[held], whole[~held] = kept[rows[held]], new
            return made
        return tuple(a[rows] for a in self._parts)

    def keep(self, rows: np.ndarray, batch: Batch) -> None:
        if not self._parts:
            size = sum(math.prod(a.shape[1:]) * a.itemsize for a in batch)
            count = min(len(self), self.room // max(1, size))
            if not count:
                self.room = 0
                return
            try:
                self._parts = [_mapped((count, *a.shape[1:]), a.dtype) for a in batch]
            except OSError:                                      # a limit on the process's memory
                self.room = 0
                return
        fits = rows < len(self._parts[0])
        for kept, new in zip(self._parts, part(batch, fits), strict=True):
            kept[rows[fits]] = new
        self._have[rows[fits]] = True


def _mapped(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array whose pages are taken when they are written; OSError where it cannot be had."""
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype, count).reshape(shape)
