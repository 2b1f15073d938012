"""CSV and TSV files of numbers, with or without a header line."""
from __future__ import annotations

import csv
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from ... import memory
from ...errors import DataError
from ...reading import open_regular, open_text

DELIMITERS = ",;\t"
COPIES = 2
"""Arrays of all values that there are at once: NumPy's and the columns chosen."""
NUMBER = 40
"""Bytes of a number in a list."""


@dataclass(frozen=True)
class Table:
    """Column names ("0", "1", ... without a header) and float64 values [rows, columns]."""

    columns: tuple[str, ...]
    values: np.ndarray


def read_table(path: Path) -> Table:
    """Read a table. A first line with any cell that is not a number is the header; the delimiter is the one of `,` `;` and
    tab that is most frequent in the first line. Raises DataError naming row and column of a cell that is not a number."""
    try:
        cells_in_all = _count_cells(path)
        memory.require(COPIES * 8 * cells_in_all, f"Table {path}", "use .npy files, which are read from disk as needed, or fewer rows")
        with open_text(path, "utf-8-sig", newline="") as file:
            first = file.readline()
            delimiter = max(DELIMITERS, key=first.count)
            cells = next(csv.reader([first], delimiter=delimiter), [])
            header = not all(_is_number(cell) for cell in cells)
            if not header:
                file.seek(0)
            values = _fast(file, delimiter)
        columns = tuple(cell.strip() for cell in cells) if header else tuple(str(i) for i in range(len(cells)))
        if values is None or values.shape[1] != len(columns):
            memory.require(NUMBER * cells_in_all, f"Table {path}, read cell by cell,", "use .npy files, or fewer rows")
            values = _careful(path, delimiter, columns, header)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"Table {path} cannot be read: {error}.") from None
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise DataError(f"Table {path} has two columns {twice!r}; rename one.")
    return Table(columns, values)


def _count_cells(path: Path) -> int:
    """At most how many cells a file has, counted without keeping it."""
    with open_regular(path) as file:
        if 4 * COPIES * os.fstat(file.fileno()).st_size < memory.SMALL:          # a cell has two bytes at least
            return 0
        return sum(part.count(b"\n") + max(part.count(d.encode()) for d in DELIMITERS) for part in iter(lambda: file.read(1 << 20), b""))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _fast(file: TextIO, delimiter: str) -> np.ndarray | None:
    """NumPy's parser; None where the table is not a plain one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)          # no rows: said by the caller
        try:
            return np.loadtxt(file, delimiter=delimiter, comments=None, quotechar='"', ndmin=2)
        except ValueError:
            return None


def _careful(path: Path, delimiter: str, columns: tuple[str, ...], header: bool) -> np.ndarray:
    """Cell by cell, to say which one is wrong."""
    rows: list[list[float]] = []
    with open_text(path, "utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        if header:
            next(reader)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise DataError(f"Table {path}, line {reader.line_num}, has {len(cells)} cells; there are {len(columns)} columns.")
            rows.append([_number(path, reader.line_num, name, cell) for name, cell in zip(columns, cells, strict=True)])
    if not rows:
        raise DataError(f"Table {path} has no rows.")
    return np.array(rows)


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"Table {path}, line {line}, column {column}: {cell!r} is not a number; "
                        "replace it or leave its row out.") from None
