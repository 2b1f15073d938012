"""Columns: parts of the rows of somebody's own data set, read when they are asked for."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from ...feed.items import Batch, Fills, Items, RowStream, lengthened, part, rows_of
from ...system.errors import DataError

LOOKED_AT = 64
"""Rows that are read to say what the data are like; their labels are checked, those of others when they are trained."""

UNKNOWN_LENGTH = 1 << 60
"""Rows that stand for data of which nobody knows where they end."""

SHORTEST = 8
"""The least that a length that changes is rounded up to."""

Step = Callable[[np.ndarray], np.ndarray]


def rounded(length: int) -> int:
    """The next of 8, 12, 16, 24, 32, 48 ...: few lengths, so that few programs are compiled, and at most half as much again."""
    size = SHORTEST
    while size < length:
        size *= 2
    return size * 3 // 4 if size > SHORTEST and length <= size * 3 // 4 else size


class FirstRows:
    """The first rows of a stream, which stand for all of them where somebody looks."""

    def __init__(self, stream: RowStream, rows: int = LOOKED_AT) -> None:
        self.rows = stream.peek(rows)
        if self.rows is None:
            raise DataError("The data have no rows: nothing came out of them.")

    def read(self, rows: np.ndarray) -> Batch:
        return part(self.rows, np.asarray(rows) % rows_of(self.rows))


class Last:
    """Reads rows; the columns of one batch ask for the same rows, which are read once. `fills`: what each is filled up with; `rounds`: lengths that
    change are rounded up."""

    def __init__(self, source: Items | FirstRows, fills: Fills, rounds: bool) -> None:
        self.source, self.fills, self.rounds = source, fills, rounds
        self._rows: bytes | None = None
        self._batch: Batch = None

    def read(self, rows: np.ndarray) -> Batch:
        asked = rows.tobytes()
        if asked != self._rows:
            self._batch, self._rows = self.source.read(rows), asked
        return self._batch


class Column:
    """A part of every row, as an array [rows, ...] that is read when it is indexed; `steps` are done to what was read."""

    def __init__(self, source: Last, key: Any, length: int, steps: tuple[Step, ...] = ()) -> None:
        self.source, self.key, self.length, self.steps = source, key, length, steps
        first = self[np.zeros(1, np.int64)]
        self.dtype, self.shape = first.dtype, (length, *first.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.length))
        batch = self.source.read(np.asarray(rows, np.int64))
        return self.finished(batch)

    def finished(self, batch: Batch) -> np.ndarray:
        """This part of a batch of whole rows."""
        try:
            found = batch[self.key]
        except (KeyError, IndexError):
            raise DataError(f"A row of the data set has no part {self.key!r}, which the first has.") from None
        for step in self.steps:
            found = step(found)
        return found

    def lengthened(self, found: np.ndarray) -> np.ndarray:
        """This part of a batch whose lengths are others than the first row's, which are rounded up and filled."""
        if not self.source.rounds:
            return found
        shape = tuple(n if n == first else rounded(n) for n, first in zip(found.shape[1:], self.shape[1:], strict=True))
        return lengthened(found, shape, self.source.fills.get(self.key, 0), self.key)

    def unfillable(self) -> Column:
        """The column, of which no batch may be shorter than others."""
        self.source.fills[self.key] = None
        return self

    def then(self, step: Step) -> Column:
        """The column with something done to it; `step` can be pickled."""
        return Column(self.source, self.key, self.length, (*self.steps, step))

    def looked_at(self) -> np.ndarray:
        """Numbers of rows that lie evenly in the data, few enough to be read before anything is trained."""
        if isinstance(self.source.source, FirstRows):
            return np.arange(min(rows_of(self.source.source.rows), self.length))
        count = min(LOOKED_AT, self.length)
        return np.arange(count) * self.length // count


class Known(Column):
    """A part of every row that is in memory: rows have their number in its place."""

    def __init__(self, numbers: Column, values: np.ndarray, steps: tuple[Step, ...] = ()) -> None:
        """numbers: the part with the rows' numbers. values: [all rows, ...]."""
        self.values, self.numbers = values, numbers
        super().__init__(numbers.source, numbers.key, numbers.length, steps)

    def __getitem__(self, rows: Any) -> np.ndarray:
        found = self.values[rows]
        for step in self.steps:
            found = step(found)
        return found

    def finished(self, batch: Batch) -> np.ndarray:
        return self[self.numbers.finished(batch)]

    def then(self, step: Step) -> Known:
        return Known(self.numbers, self.values, (*self.steps, step))

    def looked_at(self) -> np.ndarray:
        return np.arange(self.length)


def is_read_by_row(array: Any) -> TypeGuard[Column]:
    """A part of rows that are read one by one, so that not all of it is at hand."""
    return isinstance(array, Column) and not isinstance(array, Known)


def one_hot(numbers: np.ndarray, classes: int) -> np.ndarray:
    """Class numbers [rows] as float32 [rows, classes]."""
    return (np.reshape(numbers, (-1, 1)) == np.arange(classes)).astype(np.float32)


class OneHot:
    """An array of class numbers [rows] as one-hot rows, made when they are read."""

    def __init__(self, numbers: np.ndarray, classes: int) -> None:
        self.numbers, self.shape, self.dtype, self.ndim = numbers, (len(numbers), classes), np.dtype(np.float32), 2

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return one_hot(self.numbers[rows], self.shape[1])


def columns_of(source: Items | FirstRows, length: int, fills: Fills, rounds: bool) -> dict[Any, Column]:
    """A column for each part of the rows, by its name in a dict or its place in a tuple."""
    last = Last(source, fills, rounds)
    first = last.read(np.zeros(1, np.int64))
    return {key: Column(last, key, length) for key in (first if isinstance(first, Mapping) else range(len(first)))}
