"""Labels as class numbers: strings by their sorted order, one-hot vectors by the place of the one."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...feed.items import array_of
from ...system.errors import DataError

NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
CHUNK = 1 << 16
"""Rows looked at together."""


@dataclass(frozen=True)
class Numbered:
    """Strings that were numbered where they were read. numbers: int64 [rows]. classes: what `class_numbers` says of
    them. dtype: of an array that would hold the strings."""

    numbers: np.ndarray
    classes: tuple[str, ...] | None
    dtype: np.dtype


def class_numbers(names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """The number of each of the different labels, int64, and the names of the classes: `names` in their order, or None
    where all of these are whole numbers that are written as strings."""
    if all(map(NUMBER.fullmatch, names)):
        return np.array([int(name) for name in names], np.int64), None
    return np.arange(len(names), dtype=np.int64), tuple(names)


def numbered(labels: Any, what: str) -> tuple[Any, tuple[str, ...] | None]:
    """String labels as class numbers and the names of the classes, in sorted order (by code points); other labels as they are, also whole numbers
    that are written as strings, of which 10 would come before 2.

    Raises:
        DataError: bytes that are no text.
    """
    if isinstance(labels, Numbered):
        return labels.numbers, labels.classes
    array = array_of(labels)
    if array.dtype.kind == "O" and array.size and all(isinstance(x, str) for x in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind == "T":
        array = array.astype(np.str_)
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{what} are bytes that are no UTF-8 text: {error.reason}.") from None
    if array.dtype.kind != "U":
        return labels, None
    names, places = np.unique(array, return_inverse=True)
    numbers, classes = class_numbers(names.tolist())
    return numbers[places].reshape(array.shape), classes


def renumbered(numbers: np.ndarray, classes: tuple[str, ...], wanted: tuple[str, ...], what: str) -> np.ndarray:
    """Class numbers among `classes` as numbers among `wanted`; DataError for a class in use that is not there."""
    place = {name: i for i, name in enumerate(wanted)}
    table = np.array([place.get(name, -1) for name in classes], np.int64)
    strange = [classes[i] for i in np.unique(numbers) if table[i] < 0]
    if strange:
        raise DataError(f"{what} hold labels that the training data do not have: {_some(strange)}; those have {_some(wanted)}.")
    return table[numbers]


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (" ..." if len(names) > 5 else "")


def from_one_hot(array: np.ndarray, axis: int) -> np.ndarray:
    """The place of the one along `axis` of each row, int64."""
    parts = [np.argmax(array[i:i + CHUNK], axis=axis + 1) for i in range(0, len(array), CHUNK)]
    return np.concatenate(parts).astype(np.int64)
