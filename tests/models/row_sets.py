"""Data sets as users write them, in a module that worker processes can import."""
from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np


class Squares:
    """Row i: [i, i*i] and the label i % 4."""

    def __init__(self, n: int = 40, seconds: float = 0.0) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        time.sleep(self.seconds)
        return np.array([i, i * i], np.float32), i % 4


class Named(Squares):
    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return {"x": x, "label": y}


class Random(Squares):
    """Rows that a data set draws by itself."""

    def __getitem__(self, i: int) -> Any:
        return np.float32([random.random(), np.random.random()]), i


class Failing(Squares):
    """Row 13 is broken."""

    def __getitem__(self, i: int) -> Any:
        if i == 13:
            raise LookupError("row thirteen is missing")
        return super().__getitem__(i)


class OwnError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")          # cannot be pickled: its arguments are others


class FailingStrangely(Squares):
    def __getitem__(self, i: int) -> Any:
        raise OwnError(1, 2)


class Ragged(Squares):
    def __getitem__(self, i: int) -> Any:
        return np.zeros(i % 3 + 1, np.float32), i


def reads_ahead() -> bool:
    """A worker process or a thread of a loader asks, not somebody who looks at the data first."""
    return multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread()


class Dying(Squares):
    """Row 13 ends the process that reads it."""

    def __getitem__(self, i: int) -> Any:
        if i == 13 and reads_ahead():
            os._exit(7)
        return super().__getitem__(i)


class Leaving(Squares):
    """Row 13 raises what would end a process, or an iteration, as if all were well."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __getitem__(self, i: int) -> Any:
        if i == 13:
            raise self.error
        return super().__getitem__(i)


def leaves_on_read(rows: list[Any]) -> Any:
    """A collate_fn that raises what ends an iteration."""
    raise StopIteration("no more rows")


class DyingOnce(Squares):
    """Row 13 ends the first process that reads it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, i: int) -> Any:
        if i == 13 and reads_ahead() and not os.path.exists(self.path):
            with open(self.path, "x", encoding="utf-8"):
                os._exit(7)
        return super().__getitem__(i)


class Unpicklable(Squares):
    def __init__(self) -> None:
        super().__init__()
        self.key = lambda x: x


class InOrder:
    """The same rows one after the other, without a length."""

    def __init__(self, n: int = 40) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        rows = Squares(self.n)
        return (rows[i] for i in range(self.n))


class AllOf(InOrder):
    """The rows of another data set one after the other."""

    def __init__(self, rows: Squares) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[i] for i in range(self.rows.n))


class InOrderWithLength(InOrder):
    def __len__(self) -> int:
        return self.n


def numbered(i: int) -> None:
    """A worker_init_fn."""
    os.environ["TILEFLOW_TEST_WORKER"] = str(i)


class WhoReads(Squares):
    def __getitem__(self, i: int) -> Any:
        return np.float32([int(os.environ.get("TILEFLOW_TEST_WORKER", -1))]), i


def largest_first(rows: list[Any]) -> Any:
    """A collate_fn."""
    rows = sorted(rows, key=lambda row: -row[1])
    return np.stack([x for x, _ in rows]), np.array([y for _, y in rows])


class Patient(Squares):
    """Writes the number of the process that reads to a file, then takes very long."""

    def __init__(self, path: str, after: int = 0) -> None:
        super().__init__()
        self.path, self.after = path, after

    def __getitem__(self, i: int) -> Any:
        if i >= self.after and reads_ahead():
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
        return super().__getitem__(i)
