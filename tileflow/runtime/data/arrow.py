"""Parquet and Arrow files (extra `tables`: pyarrow): columns of numbers, texts and lists of numbers as arrays."""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...memory import budget
from ...system.errors import DataError, OutOfMemoryError
from ...system.reading import open_regular
from ...system.text import one_line
from .limits import SHOWN

REMEDY = "use .npy files, which are read from disk as needed, or fewer rows"


def read_columns(path: Path, form: str) -> dict[str, np.ndarray]:
    """The columns of a file by name: numbers [rows] or [rows, ...], texts as str; missing numbers are NaN, missing
    texts empty.

    Raises:
        DataError: pyarrow is missing, the file is damaged, or a column is of something else, or of lists of different
        lengths.
        OutOfMemoryError: there is no room for what the file says that it holds.
    """
    arrow = _arrow()
    found: dict[str, np.ndarray] = {}
    with _told(path, arrow), open_regular(path) as file:
        table = _parquet(path, file) if form == "parquet" else _ipc(path, file, arrow)
        if len(set(table.column_names)) != len(table.column_names):
            raise DataError(f"Table {path} has two columns of one name; rename one.")
        for name, column in zip(table.column_names, table.columns, strict=True):
            found[name] = _array(path, name, column, arrow)
    return found


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise DataError("Parquet and Arrow files need pyarrow: pip install 'tileflow-engine[tables]'.") from None
    return pyarrow


@contextmanager
def _told(path: Path, arrow: Any) -> Iterator[None]:
    """Whatever is wrong with a file is a DataError that names it."""
    try:
        yield
    except (DataError, OutOfMemoryError):
        raise
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError, arrow.ArrowException) as error:
        raise DataError(f"Table {path} cannot be read: {one_line(error, SHOWN).rstrip('.')}.") from None


def _parquet(path: Path, file: Any) -> Any:
    from pyarrow import parquet
    schema = parquet.ParquetFile(file).schema_arrow
    texts = [f.name for f in schema if str(f.type) in ("string", "large_string")]
    source = parquet.ParquetFile(file, read_dictionary=texts)              # a text that is repeated is there once
    groups = [source.metadata.row_group(i) for i in range(source.num_row_groups)]
    values = sum(max(group.column(i).num_values, group.num_rows) for group in groups for i in range(group.num_columns))
    budget.require(2 * 8 * values, f"Table {path}", REMEDY)
    return source.read(use_threads=False)


def _ipc(path: Path, file: Any, arrow: Any) -> Any:
    """The batches of a file, or of a stream, whose sizes are looked at as they come."""
    try:
        source = arrow.ipc.open_file(file)
        batches = (source.get_batch(i) for i in range(source.num_record_batches))
    except arrow.ArrowInvalid:
        file.seek(0)
        batches = source = arrow.ipc.open_stream(file)
    kept, nbytes = [], 0
    for batch in batches:
        nbytes += batch.nbytes
        budget.require(2 * nbytes, f"Table {path}", REMEDY)
        kept.append(batch)
    return arrow.Table.from_batches(kept, source.schema)


def _array(path: Path, name: str, column: Any, arrow: Any) -> np.ndarray:
    """A column as an array."""
    kinds, what = arrow.types, f"Table {path}: the column {one_line(name, SHOWN)!r}"
    kind = column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        column = column.dictionary_encode()
        kind = column.type
    if kinds.is_dictionary(kind) and (kinds.is_string(kind.value_type) or kinds.is_large_string(kind.value_type)):
        return _texts(what, column.unify_dictionaries())
    if kinds.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    shape = [len(column)]
    while kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        if column.null_count:
            raise DataError(f"{what} has no list in {column.null_count:,} of its rows; leave them out.")
        rows, column = len(column), arrow.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type)
        size, rest = divmod(len(column), max(1, rows))
        if rest:
            raise DataError(f"{what} holds lists of different lengths; pad them to one.")
        shape.append(size)
        kind = column.type
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)):
        raise DataError(f"{what} is of {one_line(kind, SHOWN)}, which are no numbers, no texts and no lists of "
                        "numbers; leave it out of the file.")
    values = column.cast("float64") if kinds.is_decimal(kind) else column
    numbers = np.asarray(values.to_numpy())
    numbers = numbers.astype(np.float64) if numbers.dtype == object else numbers
    assert math.prod(shape) == numbers.size, (shape, numbers.size)
    return numbers.reshape(shape)


def _texts(what: str, column: Any) -> np.ndarray:
    """A column of texts whose chunks share a dictionary; missing ones are empty."""
    if not len(column):
        return np.zeros(0, np.str_)
    words = ["", *(text or "" for text in column.chunk(0).dictionary.to_pylist())]
    budget.require(4 * len(column) * max(map(len, words)), what, REMEDY)
    places = np.concatenate([chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in column.chunks])
    return np.array(words, np.str_)[places.astype(np.int64) + 1]
