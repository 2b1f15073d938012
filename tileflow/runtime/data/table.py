"""CSV and TSV files of numbers, with or without a header line; the labels may be words."""
from __future__ import annotations

import csv
import math
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from ...memory import budget
from ...system.errors import DataError
from ...system.reading import open_regular, open_text
from ...system.text import one_line
from .classes import Numbered
from .limits import SHOWN

DELIMITERS = ",;\t"
COPIES = 2
"""Arrays of all values that there are at once: NumPy's and the columns chosen."""
LONGEST_LINE = 1 << 24
"""Characters of a header."""
FEWER = "use .parquet or .npy files, which may be larger than memory, or fewer rows"
ANY = "*"
"""Among names of columns: every one of texts."""
MOST_WORDS = 10_000
MOST_LETTERS = 1 << 18
"""Different texts of a column, and the letters of all of them, that are categories: a file is to hold them."""
NUMBER = 40
"""Bytes of a number in a list."""


class Wanted(NamedTuple):
    """What is taken of a table: the places of the column with the labels, of the inputs' and of the one with the rows'
    weights, by what the columns are called."""

    label: Callable[[tuple[str, ...]], int | None]
    inputs: Callable[[tuple[str, ...]], list[int]]
    weights: Callable[[tuple[str, ...]], int | None]

    def numbers(self, columns: tuple[str, ...]) -> set[int]:
        """The places of what must be numbers, or texts that are numbered."""
        return {*self.inputs(columns), self.weights(columns)} - {None, self.label(columns)}    # type: ignore[return-value]


@dataclass(frozen=True)
class Table:
    """What is taken of a table's columns, whose names are `columns` ("0", "1", ... without a header).

    inputs: float64 [rows, columns that are inputs]. weights: float64 [rows].
    label: the place of the column with the labels. target: these, [rows]: int64 where all are whole numbers, else
    float64; words as str, or `Numbered`.
    counted: the header is 0,1,2 and so on.
    categories: of columns of texts, by their names, the texts in their order: inputs have 1 for the first, 0 for one
    that is not among them.
    strange: how many cells of such a column are not among them.
    """

    columns: tuple[str, ...]
    inputs: np.ndarray
    label: int | None
    target: np.ndarray | Numbered | None
    weights: np.ndarray | None = None
    counted: bool = False
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strange: Mapping[str, int] = field(default_factory=dict)


def read_table(path: Path, wanted: Wanted, texts: Sequence[str] = (),
               known: Mapping[str, tuple[str, ...]] | None = None) -> Table:
    """Read a table of text.

    A first line with any cell that is not a number is the header, unless that cell is a label like those below it; so is 0,1,2 and so on, which
    pandas writes over columns without names (of three or more: 0,1 may be a row). The delimiter is the one
    of `,` `;` and tab that is most frequent in the first line. Labels are words where none of them is a number or empty.

    Cells of columns that nobody wants may hold anything; they are NaN where one does. texts: columns of texts that are
    categories ("*": all whose first cell is no number). known: the categories of such columns, where they were found
    before.

    Raises:
        DataError: the file cannot be read, or another cell is not a number (with its row and column).
    """
    try:
        cells_in_all = _count_cells(path)
        budget.require(COPIES * 8 * cells_in_all, f"Table {path}", FEWER)
        with open_text(path, "utf-8-sig", newline="") as file:
            first = file.readline(LONGEST_LINE)
            if len(first) == LONGEST_LINE:
                raise DataError(f"Table {path} has a first line of more than {LONGEST_LINE:,} characters; it is no table, or has no rows.")
            delimiter = max(DELIMITERS, key=first.count)
            cells = next(csv.reader([first], delimiter=delimiter), [])
            counted = len(cells) > 2 and [cell.strip() for cell in cells] == [str(i) for i in range(len(cells))]
            header = counted or (not all(_is_number(cell) for cell in cells)
                                 and not _begins_with_words(cells, file.readline(), delimiter, wanted.label))
            columns = tuple(cell.strip() for cell in cells) if header else tuple(str(i) for i in range(len(cells)))
            values = _fast(file, delimiter, header)
        label, numbers = wanted.label(columns), wanted.numbers(columns)
        words = None
        found = _texts(path, delimiter, columns, header, numbers, texts, known or {}) if texts or known else {}
        if values is None or values.shape[1] != len(columns) or found:
            budget.require(NUMBER * cells_in_all, f"Table {path}, read cell by cell,", FEWER)
            words = None if label is None else _words(_lines(path, delimiter, len(columns), header), label)
            read = sorted((numbers | ({label} if words is None and label is not None else set())) - {*found})
            rows = len(words) if words is not None else next((len(c.numbers) for c in found.values()), None)
            values = _of_columns(path, delimiter, columns, header, read, rows)
            for place, column in found.items():
                values[:, place] = column.numbers
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"Table {path} cannot be read: {error}.") from None
    if len(set(columns)) != len(columns):
        twice = Counter(columns).most_common(1)[0][0]
        raise DataError(f"Table {path} has two columns {twice!r}; rename one.")
    return _taken(columns, values, wanted, words, {columns[i]: c for i, c in found.items()}, counted)


def are_whole(numbers: np.ndarray) -> bool:
    """Labels of numbers that are taken for int64."""
    return bool(np.all(np.isfinite(numbers))) and np.array_equal(numbers, np.trunc(numbers))


def _taken(columns: tuple[str, ...], values: np.ndarray, wanted: Wanted, words: np.ndarray | None,
           found: Mapping[str, _Category], counted: bool = False) -> Table:
    """The table of values [rows, columns]; words: the labels, where they are such."""
    label, weights = wanted.label(columns), wanted.weights(columns)
    target = words
    if words is None and label is not None:
        target = values[:, label]
        target = target.astype(np.int64) if are_whole(target) else target
    return Table(columns, values[:, wanted.inputs(columns)], label, target,
                 None if weights is None else values[:, weights], counted, {name: c.words for name, c in found.items()},
                 {name: c.strange for name, c in found.items() if c.strange})


class _Category(NamedTuple):
    """A column of texts. numbers: of each row, 0 for the `strange` cells that are not among the words."""

    words: tuple[str, ...]
    numbers: np.ndarray
    strange: int


def _texts(path: Path, delimiter: str, columns: tuple[str, ...], header: bool, wanted: set[int], texts: Sequence[str],
           known: Mapping[str, tuple[str, ...]]) -> dict[int, _Category]:
    """The columns among `wanted` that are of texts, by their places.

    Raises:
        DataError: a column that was named is not there, or one has too many different texts for categories.
    """
    check_named(path, columns, texts)
    places = [i for i in sorted(wanted) if columns[i] in texts or columns[i] in known]
    seen: dict[int, dict[str, int]] = {}
    cells_of: dict[int, array[int]] = {}
    for _, cells in _lines(path, delimiter, len(columns), header):
        if not seen:
            more = [i for i in sorted(wanted) if ANY in texts and i not in places and not _is_number(cells[i])]
            seen, cells_of = {i: {} for i in (*places, *more)}, {i: array("q") for i in (*places, *more)}
            if not seen:
                return {}
        for i, words in seen.items():
            cells_of[i].append(words.setdefault(cells[i].strip(), len(words)))
    return {i: _category(path, columns[i], words, np.frombuffer(cells_of[i], np.int64), known)
            for i, words in seen.items()}


def check_named(path: Path, columns: tuple[str, ...], texts: Sequence[str]) -> None:
    """DataError where a column that is named for categories is not there."""
    lost = [name for name in texts if name not in columns and name != ANY]
    if lost:
        raise DataError(f"Table {path} has no column {lost[0]!r}, which the option categories names; its columns are "
                        f"{one_line(', '.join(columns), 1000)}.")


def _category(path: Path, name: str, words: Iterable[str], places: np.ndarray,
              known: Mapping[str, tuple[str, ...]]) -> _Category:
    """A column of texts: which of the different `words` each row has (DataError where these are too many for
    categories)."""
    order = known[name] if name in known else tuple(sorted(word for word in words if word))
    check_words(path, name, order)
    number = {word: n for n, word in enumerate(order, 1)}
    numbers = np.array([number.get(word, 0) for word in words], np.float64)[places]
    return _Category(order, numbers, int(np.count_nonzero(numbers == 0)))


def check_is_category(path: Path, name: str, texts: Sequence[str], known: Mapping[str, tuple[str, ...]]) -> None:
    """DataError where a column of texts is wanted, and nobody says that these are categories."""
    if name not in texts and ANY not in texts and name not in known:
        raise DataError(f"Table {path}: the column {name!r} holds texts, which are no numbers: name it with the option "
                        "categories where they are categories, or leave it out with the option inputs.")


def check_words(path: Path, name: str, words: Collection[str], have: str = "has") -> None:
    """DataError where a column has too many texts for categories; have: what the sentence says of their number."""
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_LETTERS:
        raise DataError(f"Table {path}: the column {name!r} {have} {len(words):,} different texts of "
                        f"{sum(map(len, words)):,} letters, too many for categories; leave it out with the option "
                        "inputs.")


def _of_columns(path: Path, delimiter: str, columns: tuple[str, ...], header: bool, wanted: list[int],
                rows: int | None) -> np.ndarray:
    """The numbers of some columns, NaN in the others; `rows`: how many there are, where somebody has gone through
    them."""
    found = np.full((rows or 0, len(columns)), math.nan)
    if rows and wanted:
        with open_text(path, "utf-8-sig", newline="") as file:
            values = _fast(file, delimiter, header, wanted)
        if values is None or values.shape != (rows, len(wanted)):
            rows = None
        else:
            found[:, wanted] = values
    return found if rows else _careful(path, delimiter, columns, header, {*wanted})


class ListedFiles(NamedTuple):
    """A table's column of file names, and its labels in words. label: which column they are. weights: of the rows."""

    columns: tuple[str, ...]
    files: tuple[str, ...]
    label: int | None
    labels: tuple[str, ...] | None
    weights: np.ndarray | None


def listed_files(path: Path, is_file: Callable[[str], bool], label_of: Callable[[tuple[str, ...]], int | None],
                 weights_of: Callable[[tuple[str, ...]], int | None], wanted: Sequence[str] = ()) -> ListedFiles | None:
    """A table as a list of files: the first column, or the one that is `wanted`, whose first cell below a header is the
    name of one; None where there is none.

    Raises:
        DataError: the table cannot be read, or a row has no file.
    """
    try:
        with open_text(path, "utf-8-sig", newline="") as file:
            head = [file.readline(LONGEST_LINE) for _ in range(2)]
        delimiter = max(DELIMITERS, key=head[0].count)
        first, second = (next(csv.reader([line], delimiter=delimiter), []) for line in head)
        header = not any(map(is_file, first))
        sample = second if header else first
        columns = tuple(cell.strip() for cell in first) if header else tuple(str(i) for i in range(len(first)))
        places = [i for i, cell in enumerate(sample[:len(columns)])
                  if is_file(cell.strip()) and (not wanted or columns[i] in wanted)]
        if not places:
            return None
        place = places[0]
        label = label_of(columns) if len(columns) > 1 else None
        if label == place:
            label = next((i for i in reversed(range(len(columns))) if i not in (place, weights_of(columns))), None)
        at = weights_of(columns)
        files, labels, weights = [], [], array("d")
        for line, cells in _lines(path, delimiter, len(columns), header):
            if not is_file(name := cells[place].strip()):
                raise DataError(f"Table {path}, line {line}, column {columns[place]}: {one_line(name, SHOWN)!r} is not "
                                "the name of such a file as "
                                "the first row has.")
            if label is not None and not cells[label].strip():
                raise DataError(f"Table {path}, line {line}, column {columns[label]}: there is no label.")
            files.append(name)
            labels.append("" if label is None else cells[label].strip())
            if at is not None:
                if not _is_number(cells[at]):
                    raise DataError(f"Table {path}, line {line}, column {columns[at]}: {one_line(cells[at], SHOWN)!r} "
                                    "is not a number, as the weight of a row is.")
                weights.append(float(cells[at]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"Table {path} cannot be read: {error}.") from None
    return ListedFiles(columns, tuple(files), label, None if label is None else tuple(labels),
                       None if at is None else np.array(weights))


def has_names(columns: tuple[str, ...]) -> bool:
    """The columns are those of a table with a header."""
    return any(not name.isdecimal() for name in columns)


def _count_cells(path: Path) -> int:
    """At most how many cells a file has, counted without keeping it."""
    with open_regular(path) as file:
        if 4 * COPIES * os.fstat(file.fileno()).st_size < budget.SMALL:          # a cell has two bytes at least
            return 0
        return sum(part.count(b"\n") + max(part.count(d.encode()) for d in DELIMITERS) for part in iter(lambda: file.read(1 << 20), b""))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _begins_with_words(cells: list[str], second: str, delimiter: str, label_of: Callable[[tuple[str, ...]], int | None]) -> bool:
    """A table without a header, whose labels are words: the first line's only cell that is no number is one, and so is the one below it.

    A line of column numbers (0, 1, 2 ...) beside a name is a header.
    """
    strange = [i for i, cell in enumerate(cells) if not _is_number(cell)]
    below = next(csv.reader([second], delimiter=delimiter), [])
    if len(strange) != 1 or len(below) != len(cells) or [i for i, cell in enumerate(below) if not _is_number(cell)] != strange:
        return False
    if len(cells) > 1 and [float(cell) for cell in cells if _is_number(cell)] == [i for i in range(len(cells)) if i not in strange]:
        return False
    try:
        return label_of(tuple(str(i) for i in range(len(cells)))) == strange[0]
    except DataError:
        return False


def _lines(path: Path, delimiter: str, columns: int, header: bool) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers; DataError for one of another length."""
    with open_text(path, "utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        if header:
            next(reader)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != columns:
                raise DataError(f"Table {path}, line {reader.line_num}, has {len(cells)} cells; there are {columns} columns.")
            yield reader.line_num, cells


def _words(lines: Iterator[tuple[int, list[str]]], label: int) -> np.ndarray | None:
    """The labels as words; None where one of them is a number or empty."""
    found = []
    for _, cells in lines:
        word = cells[label].strip()
        if not word or _is_number(word):
            return None
        found.append(word)
    return np.array(found) if found else None


def _fast(file: TextIO, delimiter: str, header: bool, columns: list[int] | None = None) -> np.ndarray | None:
    """NumPy's parser, of some columns; None where the table is not a plain one."""
    file.seek(0)
    if header:
        file.readline()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)          # no rows: said by the caller
        try:
            return np.loadtxt(file, delimiter=delimiter, comments=None, quotechar='"', ndmin=2, usecols=columns)
        except ValueError:
            return None


def _careful(path: Path, delimiter: str, columns: tuple[str, ...], header: bool, wanted: set[int]) -> np.ndarray:
    """Cell by cell, to say which one is wrong; NaN in the columns of words and those that nobody wants."""
    order, rows = sorted(wanted), []
    for line, cells in _lines(path, delimiter, len(columns), header):
        try:
            rows.append(np.array([float(cells[i]) for i in order]))
        except ValueError:
            wrong = next(i for i in order if not _is_number(cells[i]))
            raise DataError(f"Table {path}, line {line}, column {columns[wrong]}: {one_line(cells[wrong], SHOWN)!r} is "
                            "not a number; replace it or "
                            "leave its row out; where the column holds texts that are categories, name it with the "
                            "option categories.") from None
    if not rows:
        raise DataError(f"Table {path} has no rows.")
    found = np.full((len(rows), len(columns)), math.nan)
    found[:, order] = rows
    return found
