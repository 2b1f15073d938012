"""DataLoader: rows in batches of a call, in an order that follows from the seed, prepared ahead by a thread and by worker processes."""
from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...feed.ahead import ahead
from ...feed.items import (
    Batch,
    Collate,
    Items,
    RowStream,
    Whole,
    collate,
    is_by_number,
    is_one_by_one,
    joined,
    part,
    rows_of,
)
from ...feed.workers import Abandoned, Workers
from ...memory import budget
from ...options.options import Options
from ...system.errors import DataError, OptionError
from ...system.text import one_line
from .dataset import Dataset, permutation
from .sources import open_data

MODES = ("sync", "async", "async_rebatched")
Augment = Callable[[Batch, int, int], Batch]
IN_FLIGHT = 2
"""Requests that each worker has at a time."""


class DataLoader:
    """Yields batches of `combined_batch_size` rows: micro-batch x replicas (groups of those that get the same rows) x gradient accumulation x
    device iterations.

    A batch is a tuple of arrays, (*inputs, label), fresh and contiguous; a dict of arrays where a data set gives dicts. The order of an epoch is a
    function of (seed, epoch) alone, whoever reads the rows, so a run can be resumed anywhere in it. Each `iter()` reads the epoch set by `set_epoch`
    (0 at first) and moves on to the next one.
    """

    def __init__(self, options: Options, dataset: Any, batch_size: int | None = None, shuffle: bool | None = None,
                 drop_last: bool | None = None, seed: int | None = None, pad_last: bool = False, *, num_workers: int | None = None,
                 persistent_workers: bool | None = None, mode: str | None = None, rebatched_worker_size: int | None = None,
                 sampler: Iterable[int] | None = None, batch_sampler: Iterable[Sequence[int]] | None = None,
                 collate_fn: Collate | None = None, worker_init_fn: Callable[[int], None] | None = None,
                 timeout: float | None = None,
                 augment: Augment | None = None) -> None:
        """Args:
            options: frozen from here on; the other arguments default to them.
            dataset: one of
                - a Dataset, or arrays and files that `train` takes (their training part is read);
                - rows by number: an object with `len` that gives row i as data[i], such as PyTorch's data sets; a row is an array or number,
                  a tuple of such, or a dict;
                - rows one after the other: an iterable, a generator, a function that makes one for each epoch;
                - whole batches of any size: PyTorch's DataLoader, whose rows are put together anew.
            batch_size: rows of a micro-batch.
            drop_last: leave out the rows that do not fill a batch; else the last batch is shorter, with a warning where only the options say so.
            pad_last: read every row, with the last batch filled up by copies of its last row; drop_last and max_batches do not count.
            num_workers: processes that read rows; 0: this one does.
            persistent_workers: keep them between epochs (by default).
            mode: sync prepares a batch when it is asked for; async keeps `options.prefetch` batches ready (by default, where prefetch is not 0);
                async_rebatched lets all workers read pieces of the same batch, of rebatched_worker_size rows.
            rebatched_worker_size: rows that a worker reads at once; by default a batch divided by the workers.
            sampler: row numbers of an epoch in their order, in place of shuffle; told the epoch by `set_epoch`, where it has that.
            batch_sampler: lists of row numbers, a micro-batch each, in place of batch_size, shuffle and sampler.
            collate_fn: makes a batch of a list of rows.
            worker_init_fn: called with a worker's number in its process before it reads.
            augment: what is done to a batch, its epoch and the number of its first row there; of a Dataset.
            timeout: seconds for which a worker's answer is waited for; 0: any time.

        Raises:
            DataError: there are fewer rows than one batch and drop_last is on, or the data cannot be read in that way.
            OptionError: arguments that exclude each other.
        """
        self.options = options.freeze()
        self.batch_size = options.micro_batch_size if batch_size is None else batch_size
        self.pad_last = pad_last
        self.drop_last = (options.drop_last if drop_last is None else drop_last) and not pad_last
        self.seed = options.seed if seed is None else seed
        self.num_workers = options.num_workers if num_workers is None else num_workers
        self.persistent_workers = options.persistent_workers if persistent_workers is None else persistent_workers
        self.mode = mode if mode is not None else options.data_loader_mode or ("async" if options.prefetch else "sync")
        self.rebatched_worker_size = options.rebatched_worker_size if rebatched_worker_size is None else rebatched_worker_size
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.worker_init_fn, self.augment = worker_init_fn, augment
        self.timeout = options.worker_timeout if timeout is None else timeout
        self.epoch, self.offset = 0, 0
        self._workers: Workers | None = None
        self.stop: Callable[[], bool] | None = None
        """Asked while a batch is waited for (but in the mode sync): once true, the epoch ends."""
        self.turn = 0, 1
        """Which batches are read where several processes share them: the first of them, of how many processes; see
        `places`."""
        self._check_arguments(batch_size, shuffle)
        self.dataset, self._reader = self._opened(dataset, collate_fn)
        self.shuffle = (options.shuffle if shuffle is None else shuffle) and not self.is_stream and sampler is None and batch_sampler is None
        if self.is_stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise OptionError("Rows that come one after the other have an order of their own: leave shuffle, sampler and batch_sampler out.")
        if self.is_stream and self.num_workers > 1:
            warnings.warn(f"Data {one_line(self.name)} come one after the other, so one worker process reads them, not {self.num_workers}: each "
                          "would give all of them.", stacklevel=2)
            self.num_workers = 1
        self._check_remainder(asked=drop_last is not None)
        self._check_memory()

    @property
    def combined_batch_size(self) -> int:
        """Rows per batch."""
        return self.batch_size * self._micro_batches

    @property
    def _micro_batches(self) -> int:
        """Micro-batches with rows of their own in a batch."""
        o = self.options
        return o.input_groups * o.gradient_accumulation * o.device_iterations

    @property
    def is_stream(self) -> bool:
        """Rows come one after the other."""
        return isinstance(self._reader, RowStream)

    @property
    def name(self) -> str:
        """What messages call the data."""
        return self.dataset.name if isinstance(self.dataset, Dataset) else type(self.dataset).__name__

    @property
    def rows(self) -> int | None:
        """Rows of an epoch, remainder included; None where nobody knows before it ends."""
        try:
            if self.batch_sampler is not None:
                return len(self.batch_sampler) * self.batch_size                   # type: ignore[arg-type]
            counted = self.dataset if isinstance(self.dataset, Dataset) else self._reader
            counted = counted if self.sampler is None else self.sampler
            if isinstance(counted, Dataset) and counted.is_open:
                return None
            return len(counted)                                                    # type: ignore[arg-type]
        except (TypeError, NotImplementedError, AttributeError):
            return None

    @property
    def left_out(self) -> int:
        """Rows of each epoch that fill no batch and are not read."""
        return (self.rows or 0) % self.combined_batch_size if self.drop_last else 0

    def __len__(self) -> int:
        """Batches in a whole epoch (TypeError where the data have no length)."""
        if self.rows is None:
            raise TypeError(f"Data {self.name} have no length: how many batches there are shows at their end.")
        return self._batches(0)

    def set_epoch(self, epoch: int, offset: int = 0) -> None:
        """Let the next `iter()` read `epoch`, from its row number `offset` on."""
        assert min(epoch, offset) >= 0, (epoch, offset)
        self.epoch, self.offset = epoch, offset

    def order(self, epoch: int) -> np.ndarray:
        """The row numbers of an epoch in the order they are read."""
        chosen = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if chosen is None:
            n = len(self._reader)                                                  # type: ignore[arg-type]
            return permutation(n, self.seed, epoch) if self.shuffle else np.arange(n)
        if hasattr(chosen, "set_epoch"):
            chosen.set_epoch(epoch)
        if self.batch_sampler is None:
            return np.fromiter(chosen, np.int64)                                   # type: ignore[arg-type]
        batches = [np.asarray(b, np.int64) for b in self.batch_sampler]
        wrong = next((b for b in batches[:-1] if len(b) != self.batch_size), None)
        if wrong is not None:
            raise DataError(f"The batch_sampler gives batches of {self.batch_size} rows and of {len(wrong)}; all but the last must be alike, for "
                            "they are the micro-batches of a call.")
        return np.concatenate(batches) if batches else np.zeros(0, np.int64)

    def __iter__(self) -> Iterator[Batch]:
        epoch, offset = self.epoch, self.offset
        self.epoch, self.offset = epoch + 1, 0
        workers = self._started()
        if workers is not None:
            workers.want()

        def batches() -> Iterator[Batch]:
            read = self._stream(offset, workers) if self.is_stream else self._read(epoch, offset, workers)
            return read if self.augment is None else self._augmented(read, self.augment, epoch, offset)

        give_up = None if workers is None else workers.abandon
        made = batches() if self.mode == "sync" else ahead(batches, max(self.options.prefetch, 1), give_up, self.stop)
        return made if workers is None or self.persistent_workers is not False else self._ending(made)

    def places(self) -> Iterator[tuple[int, Batch]]:
        """The batches of this process's `turn`, each with its number among all. Of rows that come one after the other
        all are read."""
        first, step = self.turn
        for i, batch in enumerate(self):
            if not self.is_stream:
                yield first + i * step, batch
            elif i % step == first:
                yield i, batch

    def terminate(self) -> None:
        """End the worker processes; the next `iter()` starts others. They end by themselves with the loader and with this process."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def __repr__(self) -> str:
        rows, size = self.rows, self.combined_batch_size
        if rows is None:
            return f"DataLoader({self.name}, batches of {size:,} rows)"
        rest = rows % size
        said = "" if not rest else f"; the last {rest:,} rows of an epoch " + ("are left out" if self.drop_last else "are a shorter batch")
        return f"DataLoader({self.name}, {rows:,} rows in {self._batches(0):,} batches of {size:,}{said})"

    # ---- what is read, and by whom

    def _check_arguments(self, batch_size: int | None, shuffle: bool | None) -> None:
        if self.batch_sampler is not None and (batch_size not in (None, 1) or shuffle or self.sampler is not None):
            raise OptionError("`batch_sampler` option is mutually exclusive with batch_size, shuffle and sampler: it says itself which rows are a "
                              "micro-batch.")
        if self.batch_sampler is not None:
            first = next(iter(self.batch_sampler), None)
            if not first:
                raise DataError("The batch_sampler gives no batches.")
            self.batch_size = len(first)
        if self.sampler is not None and shuffle:
            raise OptionError("sampler and shuffle exclude each other: the sampler says in which order rows are read.")
        if self.batch_size < 1:
            raise DataError(f"batch_size must be at least 1, not {self.batch_size}.")
        if self.num_workers < 0:
            raise OptionError(f"num_workers must be at least 0, not {self.num_workers}.")
        if not 0 <= self.timeout < math.inf:
            raise OptionError(f"timeout must be a number of seconds, or 0 for any time, not {self.timeout}.")
        if self.timeout and self.num_workers == 0:
            raise OptionError("A timeout is about worker processes: set num_workers.")
        if self.mode not in MODES:
            raise OptionError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}.")
        size = self.rebatched_worker_size
        if self.mode != "async_rebatched" and size is not None:
            raise OptionError(f"rebatched_worker_size has no effect with the mode {self.mode}; it is for async_rebatched.")
        if self.mode == "async_rebatched" and self.num_workers == 0:
            raise OptionError("The mode async_rebatched is about worker processes that read pieces of a batch: set num_workers.")
        if size is not None and not 1 <= size <= self.combined_batch_size:
            raise OptionError(f"The rebatched_worker_size ({size}) must be <= to the combined batch size ({self.combined_batch_size}), and at least "
                              "1.")

    def _opened(self, dataset: Any, collate_fn: Collate | None) -> tuple[Any, Any]:
        """The data set, and what reads it."""
        if isinstance(dataset, AsynchronousDataAccessor):
            raise OptionError("An AsynchronousDataAccessor reads in a process of its own: give the DataLoader the data set itself, and num_workers.")
        if not isinstance(dataset, Dataset):
            if isinstance(dataset, DataLoader):
                raise DataError("The data are a tileflow.DataLoader already: give the data set itself.")
            if is_by_number(dataset):
                return dataset, Items(dataset, collate_fn or collate)
            if is_one_by_one(dataset):
                return dataset, RowStream(dataset, collate_fn or collate)
            dataset = open_data(dataset, self.options).train
        if collate_fn is not None:
            raise OptionError("collate_fn has no effect on arrays and files, whose rows are arrays already.")
        return dataset, dataset.reader()

    def _started(self) -> Workers | None:
        if self.num_workers == 0 or self._holds():
            self.terminate()
            return None
        if self._workers is None or not self._workers.are_open:
            if isinstance(self.dataset, Dataset):
                what = f"A copy of data {self.name} for each of {self.num_workers} worker processes"
                budget.require(self.num_workers * self.dataset.held_bytes, what,
                               "leave num_workers at 0: arrays need no help")
            self._workers = Workers(self._reader, self.num_workers, one_line(self.name), self.worker_init_fn, self.timeout)
        return self._workers

    @staticmethod
    def _augmented(batches: Iterator[Batch], augment: Augment, epoch: int, place: int) -> Iterator[Batch]:
        for batch in batches:
            yield augment(batch, epoch, place)
            place += len(batch[0])

    def _holds(self, rows: np.ndarray | None = None) -> bool:
        """These rows (None: all) were read before and are kept, so that nobody need be asked for them."""
        return hasattr(self._reader, "holds") and self._reader.holds(rows)

    def _ending(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The workers end with the epoch."""
        try:
            yield from batches
        finally:
            if hasattr(batches, "close"):
                batches.close()
            self.terminate()

    # ---- batches

    def _batches(self, offset: int) -> int:
        rows = max((self.rows or 0) - offset, 0)
        whole, rest = divmod(rows, self.combined_batch_size)
        count = whole + (rest > 0 and not self.drop_last)
        if self.options.max_batches is None or self.pad_last:
            return count
        done = offset // self.combined_batch_size
        return min(count, max(self.options.max_batches - done, 0))

    def _requests(self, epoch: int, offset: int) -> Iterator[tuple[int, np.ndarray]]:
        """The place in the epoch and the rows of each batch."""
        size, order = self.combined_batch_size, self.order(epoch)
        first, step = self.turn
        for place in range(offset + first * size, offset + self._batches(offset) * size, step * size):
            rows = order[place:place + size]
            yield place, np.pad(rows, (0, size - len(rows)),
                                mode="edge") if self.pad_last and len(rows) < size else rows

    def _read(self, epoch: int, offset: int, workers: Workers | None) -> Iterator[Batch]:
        requests = self._requests(epoch, offset)
        if workers is None:
            for _, rows in requests:
                yield self._made(self._reader.read(rows))
            return
        piece = self.combined_batch_size
        if self.mode == "async_rebatched":
            piece = self.rebatched_worker_size or -(-piece // workers.count)
        pieces = ((rows[at:at + piece], at + piece >= len(rows), place + at) for place, rows in requests
                  for at in range(0, len(rows), piece))
        yield from self._assembled(pieces, epoch, workers)

    def _assembled(self, pieces: Iterator[tuple[np.ndarray, bool, int]], epoch: int, workers: Workers) -> Iterator[Batch]:
        """Batches of pieces, which workers read in turn. A piece: its rows, whether a batch ends with it, its place in the epoch."""
        asked: deque[tuple[int | None, int, np.ndarray, bool]] = deque()
        parts: list[Batch] = []
        turns = itertools.cycle(range(workers.count))
        try:
            while True:
                while len(asked) < IN_FLIGHT * workers.count and (piece := next(pieces, None)) is not None:
                    rows, last, place = piece
                    if self._holds(rows):
                        asked.append((None, 0, rows, last))
                        continue
                    worker = next(turns)
                    asked.append((worker, workers.ask(worker, rows, _seed(self.seed, epoch, place)), rows, last))
                if not asked:
                    return
                turn, ticket, rows, last = asked.popleft()
                if turn is None:
                    parts.append(self._reader.read(rows))
                else:
                    parts.append(workers.answer(turn, ticket))
                    if hasattr(self._reader, "keep"):
                        self._reader.keep(rows, parts[-1])
                if last:
                    yield self._made(joined(parts, getattr(self._reader, "fills", None)))
                    parts = []
        except Abandoned:
            return

    def _stream(self, offset: int, workers: Workers | None) -> Iterator[Batch]:
        """Rows one after the other, from the first after `offset` on."""
        size, left = self.combined_batch_size, self.options.max_batches
        if left is not None and not self.pad_last:
            left = max(left - offset // size, 0)
        requests = ["begin", *([("skip", offset)] if offset else [])]
        for seen, batch in enumerate(self._answers(requests, size, workers)):
            if left is not None and seen >= left:
                return
            rows = 0 if batch is None else rows_of(batch)
            if rows < size and rows and self.drop_last:
                warnings.warn(f"The last {rows:,} rows of data {one_line(self.name)} do not fill a batch of {size:,} and are left out (drop_last).",
                              stacklevel=2)
            if rows < size and (rows == 0 or self.drop_last):
                if seen == 0 and offset == 0:
                    raise DataError(f"Data {self.name} gave {rows:,} rows, fewer than one batch of {size:,}.")
                return
            if rows < size and self.pad_last:
                batch = part(batch, np.minimum(np.arange(size), rows - 1))
            yield self._made(batch)
            if rows < size:
                return

    def _answers(self, first: list[Any], size: int, workers: Workers | None) -> Iterator[Batch]:
        """What a stream answers to the first requests (but for them, nothing is yielded) and then to `size`, again and again."""
        if workers is None:
            for request in first:
                self._reader.read(request)
            while True:
                yield self._reader.read(size)
        try:
            for request in first:
                workers.answer(0, workers.ask(0, request))
            asked = deque(workers.ask(0, size) for _ in range(IN_FLIGHT))
            while True:
                asked.append(workers.ask(0, size))
                yield workers.answer(0, asked.popleft())
        except Abandoned:
            return

    def _made(self, batch: Batch) -> Batch:
        """A batch as the data set's fields have it, where rows come from somebody's own data set."""
        return self.dataset.fitted(batch) if isinstance(self.dataset, Dataset) and self.dataset.source is not None else batch

    # ---- checks

    def _check_memory(self) -> None:
        """What is prepared ahead, what is at work, and the rows before they are converted."""
        if not isinstance(self.dataset, Dataset):
            return
        batches = self.options.prefetch + 2 + IN_FLIGHT * self.num_workers
        row = sum(math.prod(field.sample) * field.dtype.itemsize for field in self.dataset.tensors)
        what = f"Holding {batches} batches of {self.combined_batch_size:,} rows of data {self.dataset.name}"
        budget.require(batches * self.combined_batch_size * row, what,
                       "lower micro_batch_size, device_iterations, prefetch or num_workers")

    def _check_remainder(self, asked: bool) -> None:
        rows, size, o = self.rows, self.combined_batch_size, self.options
        if rows is None:
            return
        if rows == 0:
            raise DataError(f"Data {self.name} have no rows.")
        if self.drop_last and rows < size:
            replicas = f" x replicas {o.input_groups}" if o.input_groups > 1 else ""
            raise DataError(
                f"Data {self.name} have {rows:,} rows, fewer than one batch of {size:,} ({self.batch_size}{replicas} x gradient_accumulation "
                f"{o.gradient_accumulation} x device_iterations {o.device_iterations}); lower one of them.")
        if not (asked or self.drop_last or self.pad_last) and rows % size:
            warnings.warn(f"The last batch of data {one_line(self.name)} has {rows % size} rows instead of {size}: {rows:,} rows do not "
                          f"divide into batches of {size}.", stacklevel=3)


class AsynchronousDataAccessor:
    """Any iterable, read ahead by a process of its own: what it gives, with its arrays (PyTorch's tensors, too) as NumPy's.

        for x, labels in tileflow.AsynchronousDataAccessor(loader_of_any_kind):
            model(x, labels)

    Arrays are fresh with each step: nobody overwrites what was given before.
    """

    def __init__(self, dataset: Iterable[Any], buffer_size: int = 3, load_indefinitely: bool = True, early_preload: bool = False) -> None:
        """Args:
            dataset: an iterable that can be pickled; it is gone through in the other process.
            buffer_size: items that are kept ready.
            load_indefinitely: begin with the next epoch while the caller still works on the last items of this one.
            early_preload: begin before the first `iter()`.

        Raises:
            DataError: the iterable cannot be sent to another process.
            OptionError: it is a DataLoader of ours, which has workers of its own.
        """
        if isinstance(dataset, (DataLoader, AsynchronousDataAccessor)):
            raise OptionError("The DataLoader already reads ahead by itself. Either use it as it is, or give the accessor the data set.")
        if not hasattr(dataset, "__iter__"):
            raise DataError(f"An AsynchronousDataAccessor takes an iterable, not {type(dataset).__name__}.")
        if buffer_size < 1:
            raise OptionError(f"buffer_size must be at least 1, not {buffer_size}.")
        self.dataset, self.buffer_size, self.load_indefinitely = dataset, buffer_size, load_indefinitely
        self._workers = self._started()
        self._asked: deque[int] = deque()
        self._fresh = False
        """What was asked for begins with an epoch's first item, none of which was taken."""
        if early_preload:
            self._begin()

    def __len__(self) -> int:
        """Items of an epoch (TypeError where the data have no length)."""
        return len(self.dataset)                                                   # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._begin()
        self._workers.want()
        seen = 0
        while True:
            self._fresh = False
            self._asked.append(self._workers.ask(0, "next"))
            found = self._workers.answer(0, self._asked.popleft())
            if found is None:
                break
            seen += 1
            item = found[0]
            yield item[0] if len(item) == 1 and isinstance(item, tuple) else item
        if seen == 0:
            raise DataError("The Dataset is empty")
        if self.load_indefinitely:
            self._begin()

    def terminate(self) -> None:
        """End the process; the next `iter()` starts another."""
        self._workers.close()
        self._fresh = False

    def _started(self) -> Workers:
        return Workers(Whole(self.dataset), 1, type(self.dataset).__name__)

    def _begin(self) -> None:
        """An epoch from its start; answers to what was asked for before are thrown away."""
        if not self._workers.are_open:
            self._workers = self._started()
        self._workers.ask(0, "begin")
        self._asked = deque(self._workers.ask(0, "next") for _ in range(self.buffer_size))
        self._fresh = True


def _seed(*numbers: int) -> int:
    """A seed of 32 bits that follows from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
