"""DataLoader: the dataset's rows in batches, prepared ahead by a thread."""
from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from ... import memory
from ...errors import DataError
from ...options import Options
from ...text import one_line
from .dataset import Dataset, permutation
from .sources import open_data

Batch = tuple[np.ndarray, ...]
T = TypeVar("T")


class DataLoader:
    """Yields tuples (*inputs, label) of `combined_batch_size` rows: micro-batch x replicas (groups of those that get the same rows) x gradient
    accumulation x device iterations.

    The order of an epoch is a function of (seed, epoch) alone, so a run can be resumed anywhere in it. Each `iter()` reads
    the epoch set by `set_epoch` (0 at first) and moves on to the next one. The arrays are fresh and contiguous.
    """

    def __init__(self, options: Options, dataset: Any, batch_size: int | None = None, shuffle: bool | None = None,
                 drop_last: bool | None = None, seed: int | None = None, pad_last: bool = False) -> None:
        """Args:
            options: frozen from here on; the other arguments default to them.
            dataset: a Dataset, or anything that `open_data` takes (its training part is read).
            batch_size: rows of a micro-batch.
            drop_last: leave out the rows that do not fill a batch; else the last batch is shorter, with a warning where only the options say so.
            pad_last: read every row, with the last batch filled up by copies of its last row; drop_last and max_batches do not count.

        Raises DataError where there are fewer rows than one batch and drop_last is on.
        """
        self.options = options.freeze()
        self.dataset = dataset if isinstance(dataset, Dataset) else open_data(dataset, options).train
        self.batch_size = options.micro_batch_size if batch_size is None else batch_size
        self.shuffle = options.shuffle if shuffle is None else shuffle
        self.pad_last = pad_last
        self.drop_last = (options.drop_last if drop_last is None else drop_last) and not pad_last
        self.seed = options.seed if seed is None else seed
        self.epoch, self.offset = 0, 0
        if self.batch_size < 1:
            raise DataError(f"batch_size must be at least 1, not {self.batch_size}.")
        self._check_remainder(asked=drop_last is not None)
        self._check_memory()

    @property
    def combined_batch_size(self) -> int:
        """Rows per batch."""
        o = self.options
        return self.batch_size * o.input_groups * o.gradient_accumulation * o.device_iterations

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._batches(0)

    def set_epoch(self, epoch: int, offset: int = 0) -> None:
        """Let the next `iter()` read `epoch`, from its row number `offset` on."""
        assert min(epoch, offset) >= 0, (epoch, offset)
        self.epoch, self.offset = epoch, offset

    def order(self, epoch: int) -> np.ndarray:
        """The row numbers of an epoch in the order they are read."""
        n = len(self.dataset)
        return permutation(n, self.seed, epoch) if self.shuffle else np.arange(n)

    def __iter__(self) -> Iterator[Batch]:
        epoch, offset = self.epoch, self.offset
        self.epoch, self.offset = epoch + 1, 0

        def batches() -> Iterator[Batch]:
            return self._read(epoch, offset)
        return ahead(batches, self.options.prefetch) if self.options.prefetch else batches()

    def _batches(self, offset: int) -> int:
        rows = max(len(self.dataset) - offset, 0)
        whole, rest = divmod(rows, self.combined_batch_size)
        count = whole + (rest > 0 and not self.drop_last)
        if self.options.max_batches is None or self.pad_last:
            return count
        done = offset // self.combined_batch_size
        return min(count, max(self.options.max_batches - done, 0))

    def _read(self, epoch: int, offset: int) -> Iterator[Batch]:
        size = self.combined_batch_size
        order = self.order(epoch)
        for i in range(self._batches(offset)):
            rows = order[offset + i * size:offset + (i + 1) * size]
            if self.pad_last and len(rows) < size:
                rows = np.pad(rows, (0, size - len(rows)), mode="edge")
            yield self.dataset.gather(rows)

    def _check_memory(self) -> None:
        """What is prepared ahead, what is at work, and the rows before they are converted."""
        batches = self.options.prefetch + 2
        row = sum(math.prod(field.sample) * field.dtype.itemsize for field in self.dataset.tensors)
        what = f"Holding {batches} batches of {self.combined_batch_size:,} rows of data {self.dataset.name}"
        memory.require(batches * self.combined_batch_size * row, what, "lower micro_batch_size, device_iterations or prefetch")

    def _check_remainder(self, asked: bool) -> None:
        rows, size = len(self.dataset), self.combined_batch_size
        if self.drop_last and rows < size:
            raise DataError(
                f"Data {self.dataset.name} have {rows:,} rows, fewer than one batch of {size:,} ({self.batch_size} x gradient_accumulation "
                f"{self.options.gradient_accumulation} x device_iterations {self.options.device_iterations}); lower one of them.")
        if not (asked or self.drop_last or self.pad_last) and rows % size:
            warnings.warn(f"The last batch of data {one_line(self.dataset.name)} has {rows % size} rows instead of {size}: {rows:,} rows do not "
                          f"divide into batches of {size}.", stacklevel=3)


def ahead(make: Callable[[], Iterator[T]], depth: int) -> Iterator[T]:
    """The items of `make()`, up to `depth` of them made ahead in a thread. Its exceptions are raised here; the thread ends
    with the iteration, also when that is closed early."""
    ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    free = threading.Semaphore(depth)
    stop = threading.Event()

    def work() -> None:
        try:
            items = make()
            while True:
                free.acquire()
                if stop.is_set():
                    return
                ready.put(("item", next(items)))
        except StopIteration:
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    thread = threading.Thread(target=work, name="tileflow-data", daemon=True)
    thread.start()
    try:
        while True:
            kind, what = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise what
            free.release()
            yield what
    finally:
        stop.set()
        free.release()
        thread.join()
