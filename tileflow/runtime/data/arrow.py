"""Parquet and Arrow files (extra `tables`: pyarrow): columns of numbers, texts and lists of numbers, some rows at a
time, and columns of image files."""
from __future__ import annotations

import json
import math
import mmap
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

PART = 1 << 22, 1 << 28
"""Bytes of the rows that are read together: at least, and at most."""
PART_SHARE = 64
"""A part of the memory that can be had."""
MOST_ROWS = 1 << 16
"""So many of them at most."""
PAGE = 3 << 19
"""Bytes that a page of Parquet takes while it is read, packed and not, of which writers make a megabyte."""

UNEVEN = "holds lists of different lengths; pad them to one."
"""The end of a sentence about a column."""
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


def _unlike(path: Path, first: Path, differing: Collection[tuple[str, Any]]) -> DataError:
    name = min(name for name, _ in differing)
    return DataError(f"Table {path} has other columns than {first.name}: {one_line(name, SHOWN)!r} is not the same; "
                     "the files of a folder are one table.")


def _check_names(path: Path, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise DataError(f"Table {path} has two columns of one name; rename one.")


class Kind(NamedTuple):
    """What a column holds: texts, or numbers in so many lists one within the other."""

    texts: bool
    lists: int


class Texts(NamedTuple):
    """Rows of a column of texts: the different ones, and which of them each row has. A missing one is empty."""

    words: list[str]
    places: np.ndarray


class Part(NamedTuple):
    """Some rows of a table, by column."""

    rows: int
    columns: dict[str, np.ndarray | Texts]


def column_kinds(files: Sequence[Path], form: str, names: Collection[str] | None = None) -> dict[str, Kind]:
    """What the columns (None: all) of these files, which are one table, hold.

    Raises:
        DataError: pyarrow is missing, a file is damaged, a column is of something else, or the files have others than
        the first.
    """
    arrow = _arrow()
    found: dict[str, Kind] = {}
    for path in files:
        with _told(path, arrow), open_regular(path) as file:
            schema = _schema(file, form, arrow)
            _check_names(path, schema.names)
            kinds = {field.name: _kind(what_of(path, field.name), field.type, arrow) for field in schema
                     if names is None or field.name in names}
        found = found or kinds
        if kinds != found:
            raise _unlike(path, files[0], kinds.items() ^ found.items())
    return found


def table_parts(files: Sequence[Path], form: str, names: Collection[str]) -> Iterator[Part]:
    """Columns of a table, some rows at a time, in as much memory as these take: numbers [rows] or [rows, ...], where
    missing ones are NaN, and texts. Of no columns the rows are counted.

    Raises:
        DataError: the file is damaged, or a column is of lists of different lengths.
        OutOfMemoryError: there is no room for what must be read at once.
    """
    arrow, names = _arrow(), dict.fromkeys(names)
    for path in files:
        with _told(path, arrow), open_regular(path) as file:
            batches = (_parquet_parts if form == "parquet" else _ipc_parts)(path, file, names, arrow)
            for rows, batch in batches:
                if not rows:
                    continue
                yield Part(rows, {name: _part(path, name, batch.column(name), arrow) for name in names})


def _parquet_parts(path: Path, file: Any, names: Collection[str], arrow: Any) -> Iterator[tuple[int, Any]]:
    from pyarrow import parquet
    texts = [f.name for f in _schema(file, "parquet", arrow) if f.name in names and _is_text(f.type, arrow)]
    mapped = _mapped(file)
    source = parquet.ParquetFile(arrow.BufferReader(arrow.py_buffer(mapped)), read_dictionary=texts, pre_buffer=False)
    if not names:
        yield source.metadata.num_rows, None
        return
    groups = [source.metadata.row_group(i) for i in range(source.num_row_groups)]
    chunks = [(group.num_rows, [chunk for chunk in map(group.column, range(group.num_columns))
                                if chunk.path_in_schema.partition(".")[0] in names])
              for group in groups if group.num_rows > 0]
    row = max((sum(max(8 * c.num_values, c.total_uncompressed_size) for c in of) // rows for rows, of in chunks),
              default=0)
    budget.require(max((sum(map(_held, of)) for _, of in chunks), default=0), f"A part of table {path}",
                   "write it with smaller row groups")
    for batch in source.iter_batches(_rows(row), columns=[*names], use_threads=False):
        yield batch.num_rows, batch
        _let_go(mapped)


def _held(chunk: Any) -> int:
    """Bytes that a column of a row group takes while it is read: its dictionary, where it has one, and a page."""
    dictionary = 0
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        packed = max(0, chunk.data_page_offset - chunk.dictionary_page_offset)
        dictionary = packed * chunk.total_uncompressed_size // max(1, chunk.total_compressed_size)
    return int(min(2 * chunk.total_uncompressed_size, PAGE + dictionary))


def _mapped(file: Any) -> mmap.mmap:
    """A file as it lies on the disk: what is not packed takes no memory, however large, and what is, page by page.
    (Arrow's buffered streams keep what they have read of small pages.)"""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _let_go(mapped: mmap.mmap) -> None:
    """What was read of a file counts no longer as this process's memory; the system keeps it while it has room."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _ipc_parts(path: Path, file: Any, names: Collection[str], arrow: Any) -> Iterator[tuple[int, Any]]:
    mapped = _mapped(file)
    lying = arrow.py_buffer(mapped)
    for batch in _batches(_opened(arrow.BufferReader(lying), arrow)):
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
        taken = sum(b.size for b in buffers if not lying.address <= b.address < lying.address + lying.size)
        budget.require(2 * taken, f"A part of table {path}", "write it with smaller batches")
        if not names:
            yield batch.num_rows, batch
            continue
        chosen = batch.select([*names])
        chosen.validate(full=True)                           # places of texts and lists may lead anywhere
        count = _rows(chosen.nbytes // max(1, batch.num_rows))
        for start in range(0, batch.num_rows, count):
            part = chosen.slice(start, count)
            yield part.num_rows, part
            _let_go(mapped)


def _rows(nbytes: int) -> int:
    """How many rows of so many bytes are read together: wide tables take long where they are few."""
    least, most = PART
    room = budget.available()
    size = most if room is None else min(max(least, room // PART_SHARE), most)
    return min(max(1, size // max(1, nbytes)), MOST_ROWS)


def _part(path: Path, name: str, column: Any, arrow: Any) -> np.ndarray | Texts:
    """Some rows of a column."""
    if not _is_text(column.type, arrow):
        return _array(path, name, column, arrow)
    coded = column if arrow.types.is_dictionary(column.type) else column.dictionary_encode()
    used, places = np.unique(_places(coded.indices), return_inverse=True)
    missing = int(used[:1].tolist() == [-1])
    words = coded.dictionary.take(arrow.array(used[missing:])).to_pylist()
    return Texts([*[""] * missing, *((word or "").rstrip("\0") for word in words)], places)       # as NumPy has them


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
        schema = _schema(file, form, arrow)
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
    row, what = 0, what_of(path, name)
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
            column = batch.column(batch.schema.get_field_index(name))
            column.validate(full=True)
            yield column


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


def _schema(file: Any, form: str, arrow: Any) -> Any:
    if form == "parquet":
        from pyarrow import parquet
        return parquet.ParquetFile(file).schema_arrow
    return _opened(file, arrow).schema


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


def _array(path: Path, name: str, column: Any, arrow: Any) -> np.ndarray:
    """Some rows of a column of numbers, or of lists of numbers, as an array."""
    kinds, what = arrow.types, what_of(path, name)
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    shape = [len(column)]
    while _is_list(column.type, arrow):
        if column.null_count:
            raise DataError(f"{what} has rows without a list; leave them out.")
        if not kinds.is_fixed_size_list(column.type) and len(np.unique(column.value_lengths())) > 1:
            raise DataError(f"{what} {UNEVEN}")
        rows, column = len(column), column.flatten()
        shape.append(len(column) // max(1, rows))
    values = column.cast("float64") if kinds.is_decimal(column.type) else column
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    numbers = numbers.astype(np.float64) if numbers.dtype == object else numbers
    assert math.prod(shape) == numbers.size, (shape, numbers.size)
    return numbers.reshape(shape)


def what_of(path: Path, name: str) -> str:
    """A column as the beginning of a sentence."""
    return f"Table {path}: the column {one_line(name, SHOWN)!r}"


def _kind(what: str, kind: Any, arrow: Any) -> Kind:
    """What a column of this type holds; DataError where that cannot be an array."""
    if _is_text(kind, arrow):
        return Kind(True, 0)
    if arrow.types.is_dictionary(kind):
        kind = kind.value_type
    lists = 0
    while _is_list(kind, arrow):
        kind, lists = kind.value_type, lists + 1
    kinds = arrow.types
    if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind)):
        raise DataError(f"{what} is of {one_line(kind, SHOWN)}, which are no numbers, no texts and no lists of "
                        "numbers; leave it out of the file.")
    return Kind(False, lists)


def _is_text(kind: Any, arrow: Any) -> bool:
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _is_list(kind: Any, arrow: Any) -> bool:
    kinds = arrow.types
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _places(indices: Any) -> np.ndarray:
    """Which text of a dictionary each row has, int64; -1 where it has none."""
    found: np.ndarray = indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    return found
