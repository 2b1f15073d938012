"""Tables of Parquet and Arrow as arrays. They are gone through some rows at a time, once for what must be known of all
rows, once more for the numbers, so that a table may be larger than memory."""
from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...memory import budget
from ...system.errors import DataError
from .arrow import UNEVEN, Part, Texts, column_kinds, table_parts, what_of
from .classes import Numbered, class_numbers
from .filled import CHANGED, FilledArray, require_room
from .table import Table, Wanted, are_whole, check_is_category, check_named, check_words

FLOAT, WHOLE = np.dtype(np.float64), np.dtype(np.int64)
WORD = 256
"""Bytes that a text takes in a table of different ones, but for its letters."""


class ArrowTable:
    """The files of a table. `notes`: sentences about how it was read, for the user."""

    def __init__(self, path: Path, files: Sequence[Path], form: str, names: Collection[str] | None = None) -> None:
        """path: what messages call the table. names: the columns that may be read; None: all.

        Raises:
            DataError: pyarrow is missing, a file is damaged, a column holds something else than numbers, texts and
            lists of numbers, or files have other columns than the first.
        """
        self.path, self.files, self.form = path, files, form
        self.kinds = column_kinds(files, form, names)
        self.notes: tuple[str, ...] = ()
        self._arrays: dict[str, np.ndarray] | None = None

    @property
    def has_lists(self) -> bool:
        """Columns hold lists, so that it is arrays by name."""
        return any(kind.lists for kind in self.kinds.values())

    def arrays(self) -> dict[str, Callable[[], np.ndarray | Numbered]]:
        """Readers of the columns by name. Each raises what `table` does, but for what that says of categories."""
        return {name: partial(self._array, name) for name in self.kinds}

    def _array(self, name: str) -> np.ndarray | Numbered:
        """A column as an array of its own type; of texts their numbers."""
        if self.kinds[name].texts:
            column = _Labels(self._what(name))
            return column.numbered(self._filled({name: column})[name])
        if self._arrays is None:                                  # all together: files of many columns are read once
            self._arrays = self._filled({n: _Array(self._what(n)) for n, kind in self.kinds.items() if not kind.texts})
        return self._arrays[name]

    def table(self, wanted: Wanted, texts: Sequence[str], known: Mapping[str, tuple[str, ...]]) -> Table:
        """What is taken of the columns. texts, known: as `read_table` takes them.

        Raises:
            DataError: there are no rows, a column is wanted of texts that nobody says are categories, or that are too
            many for these, lists have different lengths, or the disk has no room.
            OutOfMemoryError: there is no room for a part of the table, or for the different texts of a column.
        """
        names, path = tuple(self.kinds), self.path
        label, inputs, at = wanted.label(names), [names[i] for i in wanted.inputs(names)], wanted.weights(names)
        check_named(path, names, texts)
        columns: dict[str, _Numbers] = {}
        for name in (names[i] for i in sorted(wanted.numbers(names))):
            if self.kinds[name].texts:
                check_is_category(path, name, texts, known)
                columns[name] = _Category(path, name, known.get(name))
            else:
                columns[name] = _Numbers(self._what(name))
        target: _Labels | _NumberLabels | None = None
        if label is not None:
            target = (_Labels if self.kinds[names[label]].texts else _NumberLabels)(self._what(names[label]))
            columns[names[label]] = target
        rows = self._look(columns)
        if rows < 1:
            raise DataError(f"Table {path} has no rows.")

        def block(part: Part) -> np.ndarray:
            found = {name: columns[name].numbers(part.columns[name]) for name in {*inputs}}
            return np.stack([found[name] for name in inputs], 1) if inputs else np.empty((part.rows, 0))
        outputs = {"x": _Output(f"Table {path}", (rows, len(inputs)), FLOAT, block)}
        if target is not None and label is not None:
            outputs["y"] = _Output.of(names[label], target, rows)
        if at is not None:
            outputs["w"] = _Output(self._what(names[at]), (rows,), FLOAT,
                                   lambda part: columns[names[at]].numbers(part.columns[names[at]]))
        made = self._fill([*columns], outputs)
        categories = {name: column for name, column in columns.items() if isinstance(column, _Category)}
        return Table(names, made["x"], label,
                     target.numbered(made["y"]) if isinstance(target, _Labels) else made.get("y"), made.get("w"),
                     categories={name: column.words for name, column in categories.items()},
                     strange={name: column.strange for name, column in categories.items() if column.strange})

    def _what(self, name: str) -> str:
        return what_of(self.path, name)

    def _filled(self, columns: Mapping[str, _Numbers]) -> dict[str, np.ndarray]:
        """Columns as arrays of their own types."""
        rows = self._look(columns)
        return self._fill([*columns], {name: _Output.of(name, column, rows) for name, column in columns.items()})

    def _look(self, columns: Mapping[str, _Numbers]) -> int:
        """Go through the columns for the first time; how many rows they have."""
        rows = 0
        for part in table_parts(self.files, self.form, [name for name, column in columns.items() if column.looks]):
            rows += part.rows
            for name, found in part.columns.items():
                columns[name].look(found)
        return rows

    def _fill(self, names: Collection[str], outputs: Mapping[str, _Output]) -> dict[str, np.ndarray]:
        """Go through the columns `names` for the second time, and make arrays of them: in memory, where there is room
        for as much again."""
        nbytes = sum(math.prod(output.shape) * output.dtype.itemsize for output in outputs.values())
        in_memory = budget.fits(2 * nbytes)
        if not in_memory:
            require_room(nbytes, f"Table {self.path}")
            self.notes = (f"Table {self.path} does not fit into memory, so that its numbers are in temporary files in "
                          f"{tempfile.gettempdir()}.",)
        with ExitStack() as stack:
            made = {key: stack.enter_context(FilledArray(output.shape, output.dtype, output.what, in_memory))
                    for key, output in outputs.items()}
            for part in table_parts(self.files, self.form, names):
                for key, output in outputs.items():
                    made[key].append(output.made(part))
            return {key: array.finished() for key, array in made.items()}


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
        """Find out what must be known of all rows, of some of them."""

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


class _Array(_Numbers):
    """A column of its own type, in a table with lists."""

    looks = True

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.seen = False

    def look(self, rows: np.ndarray | Texts) -> None:
        assert isinstance(rows, np.ndarray)
        if not self.seen:
            self.seen, self.dtype, self.shape = True, rows.dtype, rows.shape[1:]
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
        """All that was made of them."""
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


class _Output(NamedTuple):
    """An array that is made of parts of a table. what: the beginning of a sentence about it."""

    what: str
    shape: tuple[int, ...]
    dtype: np.dtype
    made: Callable[[Part], np.ndarray]

    @classmethod
    def of(cls, name: str, column: _Numbers, rows: int) -> _Output:
        return cls(column.what, (rows, *column.shape), column.dtype, lambda part: column.made(part.columns[name]))
