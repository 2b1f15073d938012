"""Parquet and Arrow files (extra `tables`: pyarrow): columns of numbers, texts and lists of numbers as arrays, and
columns of image files."""
from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...feed.unpacked import Content, Unpacked
from ...memory import budget
from ...system.errors import DataError, OutOfMemoryError
from ...system.reading import open_regular, parsed
from ...system.text import one_line
from .images import PARTS
from .limits import SHOWN

REMEDY = "use .npy files, which are read from disk as needed, or fewer rows"


ARROW_ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_PART = re.compile(rf"({'|'.join(sorted(PARTS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)
FEW_ROWS = 64
"""Images that are unpacked together."""


def table_files(path: Path, form: str) -> dict[str, tuple[Path, ...]]:
    """The files of a table by the part of the data that they are, `train` and, where there are such, `test`: one file,
    or those of a folder in the order of their names. A name says which part by what it begins with
    (test-00000-of-00002.parquet); hidden files are left out."""
    if not path.is_dir():
        return {"train": (path,)}
    endings = [ending for ending, kind in ARROW_ENDINGS.items() if kind == form]
    found = sorted(f for f in path.iterdir() if f.suffix.lower() in endings and not f.name.startswith("."))
    if not found:
        raise DataError(f"Folder {path} holds no file whose name ends in {' or '.join(endings)}.")
    parts: dict[str, tuple[Path, ...]] = {}
    for file in found:
        match = _PART.match(file.name)
        part = PARTS[match[1].lower()] if match else "train"
        parts[part] = (*parts.get(part, ()), file)
    return parts if "train" in parts else {"train": tuple(found)}


def read_tables(files: Sequence[Path], form: str, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The columns of several files, one below the other; see `read_columns`.

    Raises:
        DataError: their columns are not the same.
    """
    tables = [read_columns(file, form, names) for file in files]
    if len(tables) == 1:
        return tables[0]
    budget.require(sum(column.nbytes for table in tables for column in table.values()), f"Table {files[0].parent}",
                   REMEDY)
    for file, table in zip(files, tables, strict=True):
        if (have := _columns_of(table)) != (wanted := _columns_of(tables[0])):
            name = next(iter(dict(have.items() ^ wanted.items())))
            raise DataError(f"Table {file} has other columns than {files[0].name}: {one_line(name, SHOWN)!r} is not "
                            "the same; the files of a folder are one table.")
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _columns_of(table: dict[str, np.ndarray]) -> dict[str, tuple[bool, tuple[int, ...]]]:
    """By column whether it holds texts, and the shape of a row."""
    return {name: (column.dtype.kind == "U", column.shape[1:]) for name, column in table.items()}


def read_columns(path: Path, form: str, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The columns of a file by name (None: all): numbers [rows] or [rows, ...], texts as str; missing numbers are NaN,
    missing texts empty.

    Raises:
        DataError: pyarrow is missing, the file is damaged, or a column is of something else, or of lists of different
        lengths.
        OutOfMemoryError: there is no room for what the file says that it holds.
    """
    arrow = _arrow()
    found: dict[str, np.ndarray] = {}
    with _told(path, arrow), open_regular(path) as file:
        table = _parquet(path, file, names) if form == "parquet" else _ipc(path, file, arrow, names)
        if len(set(table.column_names)) != len(table.column_names):
            raise DataError(f"Table {path} has two columns of one name; rename one.")
        for name, column in zip(table.column_names, table.columns, strict=True):
            found[name] = _array(path, name, column, arrow)
    return found


class ImageColumn(NamedTuple):
    """The column of a file that holds image files, as data sets of Hugging Face's have them. columns: all others.
    classes: by column, the names of its numbers, where the file says them."""

    name: str
    columns: tuple[str, ...]
    classes: dict[str, tuple[str, ...]]


def image_column(path: Path, form: str, wanted: Sequence[str] = ()) -> ImageColumn | None:
    """The first column, or the first of those that are `wanted`, of bytes or of pairs (bytes, path); None where there
    is none.

    Raises:
        DataError: pyarrow is missing, or the file is damaged.
    """
    arrow = _arrow()
    with _told(path, arrow), open_regular(path) as file:
        if form == "parquet":
            from pyarrow import parquet
            schema = parquet.ParquetFile(file).schema_arrow
        else:
            schema = _opened(file, arrow).schema
        name = next((f.name for f in schema if _is_bytes(f.type, arrow) and (not wanted or f.name in wanted)), None)
        if name is None:
            return None
        others = tuple(n for n in schema.names if n != name)
        return ImageColumn(name, others, {n: words for n in others if (words := _class_names(schema, n))})


def unpacked_images(files: Sequence[Path], form: str, name: str) -> Sequence[str | Content]:
    """The image files of a column of these tables, in a temporary file: they are called by their paths, and where these
    are missing by their rows. A column that has paths alone: these, which are relative to the table's folder.

    Raises:
        DataError: the file is damaged, or a row has no image.
        OutOfMemoryError: there is no room for a part of the file that is read at once.
    """
    found = Unpacked(content for path in files for content in _images(path, form, name))
    if len(found) and not found.ends[-1]:
        return tuple(os.path.join(files[0].parent, called) for called in found.names)
    if len(empty := np.flatnonzero(found.ends[1:] == found.ends[:-1])):
        raise DataError(f"Table {files[0] if len(files) == 1 else files[0].parent}: the column "
                        f"{one_line(name, SHOWN)!r} holds no image in row {empty[0]}; leave such rows out.")
    return found


def _images(path: Path, form: str, name: str) -> Iterator[tuple[Any, str]]:
    """The image files of one table, and what they are called."""
    arrow = _arrow()
    with _told(path, arrow), open_regular(path) as file:
        yield from _contents(path, name, _parts(path, file, form, name, arrow))


def _contents(path: Path, name: str, parts: Iterator[Any]) -> Iterator[tuple[Any, str]]:
    row, what = 0, f"Table {path}: the column {one_line(name, SHOWN)!r}"
    for part in parts:
        inner = {field.name: column for field, column in zip(part.type, part.flatten(), strict=True)} \
            if part.type.num_fields else {"bytes": part}
        files, names = inner["bytes"], inner.get("path")
        for i in range(len(files)):
            called = None if names is None else names[i].as_py()
            if not called and not files[i].is_valid:
                raise DataError(f"{what} holds no image in row {row}; leave such rows out.")
            content = files[i].as_buffer() if files[i].is_valid else b""
            yield content, called or f"in row {row} of {path}"
            row += 1


def _parts(path: Path, file: Any, form: str, name: str, arrow: Any) -> Iterator[Any]:
    """A column piece by piece."""
    if form == "parquet":
        from pyarrow import parquet
        source = parquet.ParquetFile(file)
        sizes = [sum(group.column(i).total_uncompressed_size for i in range(group.num_columns)
                     if group.column(i).path_in_schema.partition(".")[0] == name)
                 for group in map(source.metadata.row_group, range(source.num_row_groups))]
        budget.require(2 * max(sizes, default=0), f"A part of table {path}", "write it with smaller row groups")
        for batch in source.iter_batches(FEW_ROWS, columns=[name], use_threads=False):
            yield batch.column(0)
    else:
        for batch in _batches(_opened(file, arrow)):
            budget.require(2 * batch.nbytes, f"A part of table {path}", "write it with smaller batches")
            yield batch.column(batch.schema.get_field_index(name))


def _is_bytes(kind: Any, arrow: Any) -> bool:
    """Image files: bytes, alone or with their path."""
    if arrow.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_bytes(kind.field(place).type, arrow)
    return bool(arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind))


def _class_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """What Hugging Face's metadata call the numbers of a column, from 0 on; None where they say nothing of the kind."""
    found: Any = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        found = parsed(json.loads, found.decode())
    except ValueError:
        return None
    for key in ("info", "features", column, "names"):
        found = found.get(key) if isinstance(found, dict) else None
    good = isinstance(found, list) and all(isinstance(x, str) and x for x in found) and len({*found}) == len(found) > 0
    return tuple(found) if good else None


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


def _parquet(path: Path, file: Any, names: Collection[str] | None) -> Any:
    from pyarrow import parquet
    schema = parquet.ParquetFile(file).schema_arrow
    texts = [f.name for f in schema if str(f.type) in ("string", "large_string")]
    source = parquet.ParquetFile(file, read_dictionary=texts)              # a text that is repeated is there once
    groups = [source.metadata.row_group(i) for i in range(source.num_row_groups)]
    values = sum(max(group.column(i).num_values, group.num_rows) for group in groups for i in range(group.num_columns)
                 if names is None or group.column(i).path_in_schema.partition(".")[0] in names)
    budget.require(2 * 8 * values, f"Table {path}", REMEDY)
    return source.read(None if names is None else [*names], use_threads=False)


def _opened(file: Any, arrow: Any) -> Any:
    """A file of Arrow's, or a stream."""
    try:
        return arrow.ipc.open_file(file)
    except arrow.ArrowInvalid:
        file.seek(0)
        return arrow.ipc.open_stream(file)


def _batches(source: Any) -> Iterator[Any]:
    if hasattr(source, "num_record_batches"):
        return (source.get_batch(i) for i in range(source.num_record_batches))
    return iter(source)


def _ipc(path: Path, file: Any, arrow: Any, names: Collection[str] | None) -> Any:
    """The batches of a file, or of a stream, whose sizes are looked at as they come."""
    source = _opened(file, arrow)
    kept, nbytes, schema = [], 0, source.schema
    places = [i for i, name in enumerate(schema.names) if names is None or name in names]
    for batch in _batches(source):
        chosen = batch.select(places)
        nbytes += chosen.nbytes
        budget.require(2 * nbytes, f"Table {path}", REMEDY)
        kept.append(chosen)
    return arrow.Table.from_batches(kept, arrow.schema([schema.field(i) for i in places]))


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
