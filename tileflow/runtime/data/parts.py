"""Tables of Parquet and Arrow that do not fit into memory: what is taken of them goes into temporary files, some rows at a
time. The numbers are those of tables that are read whole (`table.py`)."""
from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ...memory import budget
from ...system.errors import DataError
from .arrow import UNEVEN, Kind, Part, Texts, column_kinds, table_parts, what_of
from .classes import Numbered, class_numbers
from .mapped import CHANGED, MappedArray
from .table import Table, Wanted, are_whole, check_is_category, check_named, check_words

FLOAT, WHOLE = np.dtype(np.float64), np.dtype(np.int64)
WORD = 256
"""Bytes that a text takes in a table of different ones, but for its letters."""

Read = Callable[[Collection[str]], Iterator[Part]]


def read_by_parts(path: Path, files: Sequence[Path], form: str, wanted: Wanted, texts: Sequence[str],
                  known: Mapping[str, tuple[str, ...]]) -> Table | dict[str, Callable[[], np.ndarray | Numbered]]:
    """What `table_of` makes of the columns of `files`; where some of them hold lists, readers of the columns by name.

    Raises:
        DataError: what a table that is read whole is refused for, or the disk has no room.
        OutOfMemoryError: there is no room for a part of the table, or for the different texts of a column.
    """
    kinds = column_kinds(files, form)

    def read(names: Collection[str]) -> Iterator[Part]:
        return table_parts(files, form, names)
    if any(kind.lists for kind in kinds.values()):
        return {name: partial(_column, path, read, name, kind) for name, kind in kinds.items()}
    return _table(path, read, kinds, wanted, texts, known)


def note(path: Path) -> str:
    """What is said of such a table."""
    return f"Table {path} does not fit into memory and is read from temporary files in {tempfile.gettempdir()}."


class _Numbers:
    """A column of numbers. Each kind of column is gone through twice: at first it has a `look` at all of its rows, then
    it says what they become."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype = FLOAT
    looks = False
    """Anything is found out in the first pass."""

    def __init__(self, what: str) -> None:
        self.what = what

    def look(self, rows: np.ndarray | Texts) -> None:
        pass

    def numbers(self, rows: np.ndarray | Texts) -> np.ndarray:
        """As an input of a table."""
        return np.asarray(rows, np.float64)

    def made(self, rows: np.ndarray | Texts) -> np.ndarray:
        """As an array of its own."""
        return np.asarray(rows, self.dtype)


class _NumberLabels(_Numbers):
    """Labels of numbers, int64 where all of them are whole."""

    looks = True

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.dtype = WHOLE

    def look(self, rows: np.ndarray | Texts) -> None:
        if not are_whole(np.asarray(rows, np.float64)):
            self.dtype = FLOAT

    def made(self, rows: np.ndarray | Texts) -> np.ndarray:
        return self.numbers(rows).astype(self.dtype)


class _Arrays(_Numbers):
    """A column of its own type, in a table with lists."""

    looks = True

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.found: tuple[np.dtype, tuple[int, ...]] | None = None

    def look(self, rows: np.ndarray | Texts) -> None:
        assert isinstance(rows, np.ndarray)
        if self.found is None:
            self.dtype, self.shape = self.found = rows.dtype, rows.shape[1:]
        self.dtype = np.result_type(self.dtype, rows.dtype)         # whole numbers are float64 where one is missing
        if rows.shape[1:] != self.shape:
            raise DataError(f"{self.what} {UNEVEN}")


class _Labels(_Numbers):
    """Labels of texts, int64."""

    dtype = WHOLE
    looks = True

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.words: set[str] = set()
        self.letters = self.longest = 0

    def look(self, rows: np.ndarray | Texts) -> None:
        assert isinstance(rows, Texts)
        new = {*rows.words} - self.words
        self.words |= new
        self.letters += sum(map(len, new))
        self.longest = max(self.longest, *map(len, new), 0)
        budget.require(WORD * len(self.words) + 4 * self.letters, f"{self.what}, whose different texts are classes,",
                       "name another with the option label, or leave it out of the file")

    @cached_property
    def classes(self) -> tuple[dict[str, int], tuple[str, ...] | None]:
        """The number of each text, and the names of the classes."""
        names = sorted(self.words)
        numbers, classes = class_numbers(names)
        return dict(zip(names, numbers.tolist(), strict=True)), classes

    def numbers(self, rows: np.ndarray | Texts) -> np.ndarray:
        assert isinstance(rows, Texts)
        return np.full(len(rows.places), math.nan)

    def made(self, rows: np.ndarray | Texts) -> np.ndarray:
        assert isinstance(rows, Texts)
        numbers = self.classes[0]
        try:
            return np.array([numbers[word] for word in rows.words], np.int64)[rows.places]
        except KeyError:
            raise DataError(f"{self.what} {CHANGED}") from None

    def numbered(self, array: np.ndarray) -> Numbered:
        return Numbered(array, self.classes[1], np.dtype(("U", max(1, self.longest))))


class _Category(_Numbers):
    """Texts that are numbered from 1 on, 0 for others."""

    def __init__(self, path: Path, name: str, known: tuple[str, ...] | None) -> None:
        super().__init__(what_of(path, name))
        self.path, self.name, self.known = path, name, known
        self.looks = known is None
        self.seen: set[str] = set()
        self.strange = 0

    def look(self, rows: np.ndarray | Texts) -> None:
        assert isinstance(rows, Texts)
        self.seen |= {found for word in rows.words if (found := _stripped(word))}
        check_words(self.path, self.name, self.seen, "has at least")

    @cached_property
    def words(self) -> tuple[str, ...]:
        found = tuple(sorted(self.seen)) if self.known is None else self.known
        check_words(self.path, self.name, found)
        return found

    @cached_property
    def number(self) -> dict[str, int]:
        return {word: n for n, word in enumerate(self.words, 1)}

    def numbers(self, rows: np.ndarray | Texts) -> np.ndarray:
        assert isinstance(rows, Texts)
        numbers = np.array([self.number.get(_stripped(word), 0) for word in rows.words], np.float64)[rows.places]
        self.strange += int(np.count_nonzero(numbers == 0))
        return numbers


def _stripped(word: str) -> str:
    """As NumPy strips what stands in an array, which has no zeros at an end."""
    return word.strip().rstrip("\0")


def _column(path: Path, read: Read, name: str, kind: Kind) -> np.ndarray | Numbered:
    """A column as an array of its own type; of texts their numbers."""
    column = (_Labels if kind.texts else _Arrays)(what_of(path, name))
    rows = 0
    for part in read([name]):
        column.look(part.columns[name])
        rows += part.rows
    made = MappedArray((rows, *column.shape), column.dtype, column.what)
    for part in read([name]):
        made.append(column.made(part.columns[name]))
    array = made.finished()
    return column.numbered(array) if isinstance(column, _Labels) else array


def _table(path: Path, read: Read, kinds: Mapping[str, Kind], wanted: Wanted, texts: Sequence[str],
           known: Mapping[str, tuple[str, ...]]) -> Table:
    names = tuple(kinds)
    label, inputs, at = wanted.label(names), [names[i] for i in wanted.inputs(names)], wanted.weights(names)
    taken = {*inputs, *([] if at is None else [names[at]])}
    check_named(path, names, texts)
    columns: dict[str, _Numbers] = {}
    for name in (names[i] for i in sorted(wanted.numbers(names))):
        if kinds[name].texts:
            check_is_category(path, name, texts, known)
            columns[name] = _Category(path, name, known.get(name))
        else:
            columns[name] = _Numbers(what_of(path, name))
    target: _Labels | _NumberLabels | None = None
    if label is not None:
        target = (_Labels if kinds[names[label]].texts else _NumberLabels)(what_of(path, names[label]))
        columns[names[label]] = target

    rows = 0
    for part in read([name for name, column in columns.items() if column.looks]):
        rows += part.rows
        for name, found in part.columns.items():
            columns[name].look(found)
    if not rows:
        raise DataError(f"Table {path} has no rows.")

    x = MappedArray((rows, len(inputs)), FLOAT, f"Table {path}")
    y = None if target is None else MappedArray((rows,), target.dtype, target.what)
    w = None if at is None else MappedArray((rows,), FLOAT, what_of(path, names[at]))
    for part in read(columns):
        numbers = {name: columns[name].numbers(part.columns[name]) for name in taken}
        x.append(np.stack([numbers[name] for name in inputs], 1) if inputs else np.empty((part.rows, 0)))
        if w is not None and at is not None:
            w.append(numbers[names[at]])
        if y is not None and target is not None:
            y.append(target.made(part.columns[names[label]]))                # type: ignore[index]
    labels = None if y is None else y.finished()
    categories = {name: column for name, column in columns.items() if isinstance(column, _Category)}
    return Table(names, x.finished(), label,
                 target.numbered(labels) if labels is not None and isinstance(target, _Labels) else labels,
                 None if w is None else w.finished(), False, {name: c.words for name, c in categories.items()},
                 {name: c.strange for name, c in categories.items() if c.strange})
