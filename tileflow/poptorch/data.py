"""Data loaders under the reference's names: PyTorch's own, whose batches are those of a call of the model, and which
may read ahead in a thread."""
from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..feed.ahead import ahead
from ..options.reference.enums import DataLoaderMode, SharingStrategy
from .errors import Error, InvalidOption, RecoverableError
from .options import Options
from .spelling import both_spellings

AHEAD = 3
"""Batches that are kept ready where nothing says how many."""
SIGNALLED_S = 0.2
"""Seconds in which PyTorch's signal has come that a worker is gone, once its connection is."""


@both_spellings
class DataLoader(torch.utils.data.DataLoader):
    """PyTorch's DataLoader, whose batches hold all rows of a call: batch_size x gradient accumulation x replicas
    (groups of those that get the same rows) x device iterations.

        loader = poptorch.DataLoader(opts, dataset, batch_size=16, shuffle=True, mode=poptorch.DataLoaderMode.Async)
        for x, labels in loader:
            prediction, loss = model(x, labels)
    """

    def __init__(self, options: Options, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
                 num_workers: int = 0,
                 drop_last: bool = True, persistent_workers: bool | None = None,
                 auto_distributed_partitioning: bool = True,
                 mode: DataLoaderMode = DataLoaderMode.Sync, async_options: Mapping[str, Any] | None = None,
                 rebatched_worker_size: int | None = None, batch_sampler: Any = None, **kwargs: Any) -> None:
        """Args:
            options: frozen from here on.
            dataset: any data set of PyTorch's, by number or iterable.
            batch_size: rows of a micro-batch; None: the data set gives whole batches.
            drop_last: leave out rows that do not fill a batch (the other way round than PyTorch's).
            persistent_workers: by default, where there are workers.
            auto_distributed_partitioning: taken; each of several processes is given all rows, and computes its own.
            mode: Sync makes a batch when it is asked for. Async keeps `buffer_size` of async_options (3) ready.
                AsyncRebatched does, and workers load pieces of rebatched_worker_size rows, by default whole batches,
                which are put together here.
            batch_sampler: lists of row numbers, a micro-batch each, in place of batch_size and shuffle.
            kwargs: others of PyTorch's DataLoader.

        Raises:
            InvalidOption: arguments exclude each other, or a value is wrong. Error: a batch_sampler beside batch_size
                or shuffle.
        """
        if not isinstance(options, Options):
            raise InvalidOption(f"A poptorch.DataLoader takes poptorch.Options first, not {type(options).__name__}.")
        if not isinstance(mode, DataLoaderMode):
            raise InvalidOption(f"mode must be a poptorch.DataLoaderMode, not {mode!r}.")
        self._options = options.freeze()
        self._mode = mode
        self._drops = drop_last
        self._given_batches = batch_sampler is not None
        if self._given_batches:
            if batch_size != 1 or shuffle:
                raise Error("`batch_sampler` option is mutually exclusive with batch_size, shuffle.")
            batch_size = getattr(batch_sampler, "batch_size", None)
        values = options.tileflow()
        self._micro_batches = values.input_groups * values.gradient_accumulation * values.device_iterations
        self._combined = None if batch_size is None else batch_size * self._micro_batches
        if not self._given_batches and self._combined is not None and self._combined < 1:
            raise InvalidOption(f"batch_size must be at least 1, not {batch_size}.")
        self._piece = self._pieces(mode, rebatched_worker_size, drop_last)
        self._buffer_size = _buffer_size(async_options)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False                                         # there is no other memory to copy to
        if self._given_batches:
            own: dict[str, Any] = {"batch_sampler": batch_sampler}
        elif self._combined is None:
            own = {"batch_size": None, "shuffle": shuffle or False}
        else:
            own = {"batch_size": self._piece or self._combined, "drop_last": drop_last and self._piece is None}
            if shuffle or not isinstance(dataset, torch.utils.data.IterableDataset):
                own["shuffle"] = shuffle or False
        self._check_rows(dataset, num_workers, drop_last, kwargs)
        super().__init__(dataset, num_workers=num_workers,
                         persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
                         **own, **kwargs)

    def _pieces(self, mode: DataLoaderMode, size: int | None, drop_last: bool) -> int | None:
        """Rows that are loaded at once, where that is not a batch."""
        if mode != DataLoaderMode.AsyncRebatched:
            if size is not None:
                raise InvalidOption("rebatched_worker_size is for mode=poptorch.DataLoaderMode.AsyncRebatched.")
            return None
        if self._combined is None or self._given_batches:
            raise InvalidOption("AsyncRebatched needs a batch_size.")
        if size is not None and not 1 <= size <= self._combined:
            raise InvalidOption(f"The rebatched_worker_size ({size}) must be <= to the combined batch size "
                                f"({self._combined})")
        return size or self._combined

    def _check_rows(self, dataset: Any, num_workers: int, drop_last: bool, kwargs: Mapping[str, Any]) -> None:
        """Say what may be not meant."""
        if isinstance(dataset, torch.utils.data.IterableDataset):
            if num_workers > 1 and "worker_init_fn" not in kwargs:
                warnings.warn(f"IterableDataset used with num_workers={num_workers} but no worker_init_fn specified: "
                              f"as a result the DataLoader will return {num_workers} times each element in the dataset "
                              "(See torch.utils.data.IterableDataset's documentation for more information)",
                              stacklevel=3)
        elif not drop_last and self._combined is not None and not self._given_batches and len(dataset) % self._combined:
            warnings.warn(f"The number of elements in the dataset ({len(dataset)}) is not divisible by the number of "
                          f"elements processed per step ({self._combined}) and drop_last=False. The last tensor will "
                          f"have a batch size of {len(dataset) % self._combined}. To avoid having to handle this "
                          "special case switch to drop_last=True", stacklevel=3)

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows of a batch; None where the data set gives whole batches."""
        return self._combined

    @property
    def options(self) -> Options:
        """The options it was made with."""
        return self._options

    def terminate(self) -> None:
        """End its worker processes; the next `iter()` starts others."""
        workers = getattr(self, "_iterator", None)
        if workers is not None and hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
        self._iterator = None

    def __len__(self) -> int:
        if self._given_batches or self._piece is not None:
            pieces = self.batch_sampler if self._given_batches else self.dataset
            whole, rest = divmod(len(pieces),                                            # type: ignore[arg-type]
                                 self._micro_batches if self._given_batches else self._combined or 1)
            return whole + (rest > 0 and not self._drops)
        return super().__len__()

    def __iter__(self) -> Any:
        pieces: Any = super().__iter__()
        if self.num_workers:
            pieces = _watched(pieces)
        self._draw_order()
        if self._mode == DataLoaderMode.Sync:
            return self._whole(pieces)
        items = ahead(lambda: iter(self._whole(pieces)), self._buffer_size)
        return _watched(items) if self.num_workers else items

    def _draw_order(self) -> None:
        """Let this thread draw the order of the rows, as it is when nothing reads ahead: another one would draw it at
        any time."""
        if self._mode == DataLoaderMode.Sync or self.num_workers or self.generator is not None:
            return
        if isinstance(self.sampler, torch.utils.data.RandomSampler):
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            self.sampler.generator = torch.Generator().manual_seed(seed)

    def _whole(self, pieces: Any) -> Any:
        """Batches from what is loaded at once."""
        if self._given_batches:
            return _by_count(pieces, self._micro_batches, self._drops)
        if self._piece is not None and self._combined is not None:
            return _by_rows(pieces, self._combined, self._drops)
        return pieces


def _watched(pieces: Iterator[Any]) -> Iterator[Any]:
    """What worker processes load; one that was killed is an error that says how to go on. PyTorch finds out when it
    reads from it, or by a signal, whatever the main thread is doing."""
    try:
        yield from pieces
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, Error) or (isinstance(error, RuntimeError)
                                        and not str(error).startswith("DataLoader worker")):
            raise
        if not isinstance(error, RuntimeError):                   # the signal comes after it, and shall be raised here
            with contextlib.suppress(RuntimeError):
                time.sleep(SIGNALLED_S)
        says = (f"DataLoader worker: {str(error).strip()} Call terminate() of the DataLoader, then read on: other "
                "workers are started.")
        raise RecoverableError(says, "RESTART_WORKERS", type(error).__name__) from error


def _buffer_size(async_options: Mapping[str, Any] | None) -> int:
    options = dict(async_options or {})
    size = options.pop("buffer_size", AHEAD)
    unknown = set(options) - {"miss_sleep_time_in_ms", "load_indefinitely", "early_preload", "sharing_strategy"}
    if unknown:
        raise InvalidOption(f"async_options has no {', '.join(sorted(unknown))}; it takes buffer_size, "
                            "miss_sleep_time_in_ms, load_indefinitely, early_preload and sharing_strategy.")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidOption(f"buffer_size must be a whole number of at least 1, not {size!r}.")
    return size


def _by_count(pieces: Iterable[Any], count: int, drops: bool) -> Iterator[Any]:
    """So many pieces in a row as one."""
    held: list[Any] = []
    for piece in pieces:
        held.append(piece)
        if len(held) == count:
            yield joined(held)
            held = []
    if held and not drops:
        yield joined(held)


def _by_rows(pieces: Iterable[Any], rows: int, drops: bool) -> Iterator[Any]:
    """Batches of so many rows, whatever the pieces have."""
    held: list[Any] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += rows_of(piece)
        while count >= rows:
            whole = held[0] if len(held) == 1 else joined(held)
            yield part(whole, 0, rows)
            count -= rows
            held = [part(whole, rows, rows + count)] if count else []
    if held and not drops:
        yield joined(held)


def joined(batches: Sequence[Any]) -> Any:
    """Batches of one structure, one after the other along their first axis."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat([*batches])
    if isinstance(first, Mapping):
        return {name: joined([b[name] for b in batches]) for name in first}
    if isinstance(first, (list, tuple)):
        columns = [joined(column) for column in zip(*batches, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    raise InvalidOption(f"Batches of {type(first).__name__} cannot be put together; give tensors, or lists, tuples or "
                        "dicts of them.")


def rows_of(batch: Any) -> int:
    """Rows of a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    inner = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(inner, (list, tuple)) or not inner:
        raise InvalidOption(f"A batch of {type(batch).__name__} has no rows; give tensors, or lists, tuples or dicts "
                            "of them.")
    return rows_of(inner[0])


def part(batch: Any, begin: int, end: int) -> Any:
    """Rows of a batch."""
    if isinstance(batch, torch.Tensor):
        return batch[begin:end]
    if isinstance(batch, Mapping):
        return {name: part(b, begin, end) for name, b in batch.items()}
    columns = [part(b, begin, end) for b in batch]
    return type(batch)(*columns) if hasattr(batch, "_fields") else type(batch)(columns)


class AsynchronousDataAccessor:
    """Any iterable, read ahead by a thread: what it gives is fresh with each step, and nobody overwrites it.

        for x, labels in poptorch.AsynchronousDataAccessor(loader):
            model(x, labels)
    """

    def __init__(self, dataset: Any, buffer_size: int = AHEAD, miss_sleep_time_in_ms: float = 0.1,
                 load_indefinitely: bool = True,
                 early_preload: bool = False, sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
                 rebatched_size: int | None = None) -> None:
        """Args:
            dataset: an iterable, such as a data set or a DataLoader of PyTorch's.
            buffer_size: items that are kept ready.
            early_preload: begin with the first epoch at once.
            rebatched_size: put the rows of its items together anew, so many to an item.
            miss_sleep_time_in_ms, load_indefinitely, sharing_strategy: taken; a thread needs none of them.

        Raises:
            InvalidOption: it is no iterable, or a value is wrong. Error: it reads ahead by itself.
        """
        if isinstance(dataset, AsynchronousDataAccessor) or (isinstance(dataset, DataLoader)
                                                             and dataset._mode != DataLoaderMode.Sync):
            raise Error("The DataLoader already uses an AsynchronousDataAccessor internally. Either use the existing "
                        "one or set mode='poptorch.DataLoaderMode.Sync' in the DataLoader.")
        if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
            raise InvalidOption(f"An AsynchronousDataAccessor takes an iterable, not {type(dataset).__name__}.")
        if rebatched_size is not None and rebatched_size <= 1:
            raise InvalidOption("rebatched_size must be None or greater than 1")
        self._buffer_size = _buffer_size({"buffer_size": buffer_size})
        self._dataset, self._rows = dataset, rebatched_size
        self._ready: Iterator[Any] | None = self._begun() if early_preload else None
        self._current: Iterator[Any] | None = None

    def _begun(self) -> Iterator[Any]:
        items = (iter(self._dataset) if hasattr(self._dataset, "__iter__")
                 else (self._dataset[i] for i in range(len(self._dataset))))
        return ahead(lambda: iter(items if self._rows is None else _by_rows(items, self._rows, True)),
                     self._buffer_size)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        self.terminate()
        items, self._ready = self._ready or self._begun(), None
        self._current = self._given(items)
        return self._current

    def _given(self, items: Iterator[Any]) -> Iterator[Any]:
        empty = True
        for item in items:
            empty = False
            yield item
        if empty:
            raise Error("The Dataset is empty")

    def terminate(self) -> None:
        """End the thread; the next `iter()` starts another."""
        current, self._current = self._current, None
        if current is not None:
            current.close()                                                      # type: ignore[attr-defined]
