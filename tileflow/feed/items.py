"""Data sets of somebody's own: objects that give a row at a time, by number or one after the other, and how rows become arrays."""
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..system.errors import DataError

Row = Any
"""What a data set gives for a row: an array or a number, a tuple of such (inputs, then the label), or a dict of such by name."""
Batch = Any
"""Arrays [rows, ...] in a tuple, or in a dict where rows are dicts."""
T = TypeVar("T")
Collate = Callable[[list[Row]], Batch]
Fills = dict[Any, float | None]
"""By a part's name or place: what it is filled up with where it is shorter than others, 0 where nothing is said; None: nothing would do."""


def erring(read: Callable[..., T]) -> Callable[..., T]:
    """A method that runs somebody's own code, in which a SystemExit or a StopIteration is an error: here they would end the process, or the epoch,
    as if all were well."""
    @functools.wraps(read)
    def within(*args: Any) -> T:
        try:
            return read(*args)
        except (SystemExit, StopIteration) as error:
            raise DataError(f"The data set raised {error!r} where it was to give rows; raise an error that says what is wrong, or let the data end "
                            "where they end (a length, or the end of an iterator).") from error
    return within


def is_by_number(data: Any) -> bool:
    """A data set of rows by number, as PyTorch's are: it has a length and gives row i as data[i]."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _is_array(data) and not _is_plain(data) and not _is_in_order(data)


def is_one_by_one(data: Any) -> bool:
    """Rows that come one after the other: an iterable, a generator, or a function that gives one for each epoch."""
    if _is_array(data) or _is_plain(data) or isinstance(data, type):
        return False
    return _is_in_order(data) or ((hasattr(data, "__iter__") or callable(data)) and not is_by_number(data))


def is_loader(data: Any) -> bool:
    """An object that gives whole batches, as torch.utils.data.DataLoader does."""
    return all(hasattr(data, name) for name in ("dataset", "batch_size", "sampler", "__iter__"))


def _is_plain(data: Any) -> bool:
    return isinstance(data, (str, bytes, Mapping, tuple)) or (isinstance(data, list) and not _is_rows(data))


def _is_rows(data: list[Any]) -> bool:
    """A list of rows that are dicts, which no array is."""
    return bool(data) and isinstance(data[0], Mapping)


def _is_array(data: Any) -> bool:
    return hasattr(data, "__array__") or (hasattr(data, "shape") and hasattr(data, "dtype"))


def _is_in_order(data: Any) -> bool:
    """PyTorch's IterableDataset has the method of numbered rows, which raises."""
    return any(c.__name__ == "IterableDataset" for c in type(data).__mro__) or is_loader(data)


def collate(rows: list[Row]) -> Batch:
    """The rows' parts, each stacked to an array [rows, ...]: a dict for dicts, else a tuple.

    Raises:
        DataError: rows have other parts than the first, parts of other shapes, or what is no array.
    """
    first = rows[0]
    if isinstance(first, Mapping):
        return {name: stacked([_part(row, name) for row in rows], f"{name!r}") for name in first}
    if isinstance(first, (tuple, list)):
        wrong = next((row for row in rows if not isinstance(row, (tuple, list)) or len(row) != len(first)), None)
        if wrong is not None:
            raise DataError(f"The data set gives rows of {len(first)} parts and others ({type(wrong).__name__}); all rows must have the same.")
        return tuple(stacked([row[i] for row in rows], f"number {i}") for i in range(len(first)))
    return (stacked(rows, "number 0"),)


def heaped(elements: list[Row]) -> Batch:
    """Elements, each a whole micro-batch, as [elements, ...], where shorter ones are filled up: one alone is as it was."""
    return joined([_led(_arrays(element)) for element in elements], {})


def _led(element: Batch) -> Batch:
    if isinstance(element, Mapping):
        return {name: a[None] for name, a in element.items()}
    return tuple(a[None] for a in element)


class Collated:
    """A collate_fn whose batches are arrays of ours, with as many rows as it was given."""

    def __init__(self, make: Collate) -> None:
        self.make = make

    def __call__(self, rows: list[Row]) -> Batch:
        """Raises DataError where it makes something else."""
        batch = _arrays(self.make(rows))
        shapes = [a.shape for a in (batch.values() if isinstance(batch, Mapping) else batch)]
        if not shapes or any(shape[:1] != (len(rows),) for shape in shapes):
            raise DataError(f"The collate_fn made parts of shapes {', '.join(str(list(s)) for s in shapes) or 'no kind'} of {len(rows)} rows; give "
                            "one array, or a tuple or a dict of arrays, each with the rows as its first axis (pad_sequence: batch_first=True).")
        return batch


def _part(row: Row, name: Any) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        raise DataError(f"A row of the data set has no {name!r}, which the first has.")
    return row[name]


def array_of(part: Any) -> np.ndarray:
    """A part of a row, of a batch or of data as an array; tensors of PyTorch leave their gradients behind.

    Raises:
        DataError: elements are masked, of which an array has whatever was there.
    """
    if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
        first = np.unravel_index(int(np.argmax(np.ma.getmaskarray(part))), part.shape)
        raise DataError(f"A masked array has masked elements, the first at {list(map(int, first))}; fill them (array.filled(0)), or leave their rows "
                        "out.")
    return np.asarray(part.detach() if hasattr(part, "detach") else part)


def stacked(parts: Sequence[Any], what: str) -> np.ndarray:
    """Parts of rows as one array.

    Raises:
        DataError: shapes differ, or what is given is no array of numbers.
    """
    arrays = [array_of(p) for p in parts]
    first = arrays[0]
    for i, a in enumerate(arrays):
        if a.shape != first.shape:
            raise DataError(f"Part {what} of the data set's rows has shape {list(a.shape)} in one row and {list(first.shape)} in another (rows {i} "
                            "and 0 of a batch); rows of a batch must be alike: pad them in the data set, or give a collate_fn that does; where "
                            "each is a micro-batch of its own, as a graph is, set whole_elements.")
    if first.dtype.kind == "O":
        raise DataError(f"Part {what} of the data set's rows is {type(parts[0]).__name__}, which is no array of numbers; give a collate_fn, or "
                        "arrays.")
    return np.stack(arrays)


def unchanged(row: Row) -> Row:
    """What is done to rows that are arrays already."""
    return row


SKIPPED = 1024
"""Rows that are read at a time to be passed over."""


class Items:
    """Rows by number."""

    def __init__(self, data: Any, make: Collate = collate) -> None:
        self.data, self.make = data, make
        self.prepare: Callable[[Row], Row] = unchanged
        self.fills: Fills | None = None
        """How batches of different lengths are joined; None: they are not."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def may_vary(self) -> bool:
        """Batches are made by somebody's own function, and may be of another length each."""
        return self.make is not collate

    def holds(self, rows: np.ndarray | None = None) -> bool:
        """All of these rows (None: all that there are) were read before and are kept."""
        return False

    def keep(self, rows: np.ndarray, batch: Batch) -> None:
        """Somebody else has read these rows."""

    @erring
    def read(self, rows: np.ndarray) -> Batch:
        """A batch of these rows."""
        if hasattr(self.data, "__getitems__"):                       # PyTorch's name for many rows at once
            return self.make([self.prepare(row) for row in self.data.__getitems__(rows.tolist())])
        return self.make([self.prepare(self.data[i]) for i in rows.tolist()])


class Chosen:
    """Some of the rows by number."""

    def __init__(self, source: Items, rows: np.ndarray) -> None:
        self.source, self.rows, self.fills = source, rows, source.fills

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> Batch:
        return self.source.read(self.rows[rows])

    def holds(self, rows: np.ndarray | None = None) -> bool:
        return self.source.holds(self.rows if rows is None else self.rows[rows])

    def keep(self, rows: np.ndarray, batch: Batch) -> None:
        self.source.keep(self.rows[rows], batch)


class RowStream:
    """Rows one after the other, an epoch after another."""

    def __init__(self, data: Any, make: Collate = collate) -> None:
        """`data`: iterables of rows; loaders of whole batches; generators, which have one epoch; functions that give any of these."""
        self.data, self.make = data, make
        self.prepare: Callable[[Row], Row] = unchanged
        self.fills: Fills | None = None
        """How batches of different lengths are joined; None: they are not."""
        self._batched = is_loader(data)
        self._rows: Iterator[Row] | None = None
        self._left: list[Batch] = []
        self._began = self._peeked = False

    def __len__(self) -> int:
        """Rows of an epoch (TypeError where nobody knows)."""
        if not self._batched:
            return len(self.data)
        rows, size = len(self.data.dataset), self.data.batch_size
        return len(self.data) * size if size is not None and getattr(self.data, "drop_last", False) else rows

    @property
    def may_vary(self) -> bool:
        """Batches are made by somebody's own function, and may be of another length each."""
        return self._batched or self.make is not collate

    def begin(self) -> None:
        """An epoch from its first row.

        Raises:
            DataError: a generator, which can be gone through once, begins again.
        """
        if self._peeked:
            self._peeked = False
            return
        made = self.data if hasattr(self.data, "__iter__") else self.data()
        rows = iter(made)
        if rows is made and self._began and made is self.data:
            raise DataError("The data are a generator, which can be gone through once, and are read a second time; give a function that makes one, "
                            "or an object with __iter__.")
        self._rows, self._left, self._began = rows, [], True

    @erring
    def peek(self, count: int) -> Batch:
        """The first rows of an epoch, which then is about to begin with them; None where there are none."""
        self.begin()
        if self._batched:
            batch = next(self._rows or iter(()), None)
            self._left = [] if batch is None else [_of_rows(batch)]
            self._peeked = True
            return self._left[0] if self._left else None
        rows = list(itertools.islice(self._rows or (), count))
        self._rows, self._peeked = itertools.chain(rows, self._rows or ()), True
        return self.make([*map(self.prepare, rows)]) if rows else None

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process begins anew there."""
        if hasattr(self.data, "__next__"):
            raise TypeError("a generator cannot be sent to another process; give a function that makes one, or an object with __iter__")
        return {**self.__dict__, "_rows": None, "_left": [], "_began": False, "_peeked": False}

    @erring
    def read(self, request: Any) -> Batch:
        """What `request` asks for: "begin" an epoch; ("skip", rows); a whole number of rows to take, fewer at the end, None after it."""
        if request == "begin":
            self.begin()
            return None
        if isinstance(request, tuple):
            _, count = request
            while count > 0 and (found := self.read(min(count, SKIPPED))) is not None:
                count -= rows_of(found)
            return None
        assert self._rows is not None, "begin first"
        return self._recut(request) if self._batched else self._taken(request)

    def _taken(self, count: int) -> Batch:
        rows = list(itertools.islice(self._rows or (), count))
        return self.make([*map(self.prepare, rows)]) if rows else None

    def _recut(self, count: int) -> Batch:
        """Batches of any size as batches of `count` rows."""
        while sum(map(rows_of, self._left)) < count:
            batch = next(self._rows or iter(()), None)
            if batch is None:
                break
            self._left.append(_of_rows(batch))
        taken: list[Batch] = []
        while self._left and count > 0:                     # what is left stays as it came, so that no row's length depends on where others were cut
            batch, rows = self._left[0], rows_of(self._left[0])
            self._left[:1] = [part(batch, slice(count, None))] if rows > count else []
            taken.append(part(batch, slice(0, count)))
            count -= min(rows, count)
        return joined(taken, self.fills) if taken else None


class Whole:
    """What an iterable gives, as it is: an item at a time."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data
        self._items: Iterator[Any] | None = None

    @erring
    def read(self, request: Any) -> Any:
        """"begin": from the start; else the next item with its arrays as NumPy's, in a tuple of one; None at the end."""
        if request == "begin" or self._items is None:
            self._items = None
            self._items = iter(self.data)
            if request == "begin":
                return None
        for item in self._items:
            return (_arrays(item),)
        return None


def _arrays(batch: Any) -> Batch:
    """A batch of somebody's own as arrays of ours."""
    try:
        if isinstance(batch, Mapping):
            return {name: array_of(a) for name, a in batch.items()}
        return tuple(array_of(a) for a in batch) if isinstance(batch, (tuple, list)) else (array_of(batch),)
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"A part of a batch of the data cannot be made an array ({str(error).split('.')[0]}); batches are arrays, in a tuple or a "
                        "dict.") from None


def _of_rows(batch: Any) -> Batch:
    """A batch of somebody's loader as arrays of ours (DataError where they have different numbers of rows)."""
    made = _arrays(batch)
    shapes = [a.shape for a in (made.values() if isinstance(made, Mapping) else made)]
    if any(shape[:1] != shapes[0][:1] or not shape for shape in shapes):
        raise DataError(f"A batch of the data has parts of shapes {', '.join(str(list(s)) for s in shapes)}; the first axis of each are the rows, of "
                        "which all have the same number (pad_sequence: batch_first=True).")
    return made


def rows_of(batch: Batch) -> int:
    """Rows of a batch (DataError where it has none)."""
    for a in batch.values() if isinstance(batch, Mapping) else batch:
        if np.ndim(a):
            return len(a)
    raise DataError("A batch of the data has no array with rows.")


def part(batch: Batch, rows: Any) -> Batch:
    """Some rows of a batch."""
    return {name: a[rows] for name, a in batch.items()} if isinstance(batch, Mapping) else tuple(a[rows] for a in batch)


def joined(batches: Sequence[Batch], fills: Fills | None = None) -> Batch:
    """Batches one after the other, as one; parts that are shorter than others are filled up.

    Raises:
        DataError: they have other parts than the first, or of other shapes and nobody says what to fill up with.
    """
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    keys = list(first) if isinstance(first, Mapping) else list(range(len(first)))
    if any(isinstance(b, Mapping) != isinstance(first, Mapping) or len(b) != len(first) or (isinstance(b, Mapping) and set(b) != set(first))
           for b in batches):
        raise DataError("The batches of the data have different parts; all must have the same.")
    made = {key: _concatenated([b[key] for b in batches], key, fills) for key in keys}
    return made if isinstance(first, Mapping) else tuple(made.values())


def _concatenated(parts: Sequence[np.ndarray], key: Any, fills: Fills | None) -> np.ndarray:
    shapes = list(dict.fromkeys(a.shape[1:] for a in parts))
    if len(shapes) > 1:
        if fills is None or len({len(shape) for shape in shapes}) > 1:
            raise DataError(f"Part {key!r} of the data has shape {list(shapes[0])} behind the rows in one batch and {list(shapes[1])} in another, so "
                            "that they are not put together; pad them to one length.")
        longest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        parts = [lengthened(a, longest, fills.get(key, 0), key) for a in parts]
    return np.concatenate(parts)


def lengthened(array: np.ndarray, shape: tuple[int, ...], fill: float | None, key: Any) -> np.ndarray:
    """[rows, ...] as [rows, *shape], filled up at the ends of its axes.

    Raises:
        DataError: nothing would do for that.
    """
    if array.shape[1:] == shape:
        return array
    if fill is None:
        raise DataError(f"The labels of the data, part {key!r}, are of {list(array.shape[1:])} per row in one batch and longer in another, and what "
                        "they are filled up with must not count: set ignore_index (cross_entropy, nll), with class numbers as labels, or pad them "
                        "to one length.")
    return np.pad(array, [(0, 0), *((0, new - old) for old, new in zip(array.shape[1:], shape, strict=True))], constant_values=fill)

