"""Attributes of users' operators: ints, floats, texts, and lists of them, as fields of a frozen class."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..system.errors import OptionError
from ..system.text import one_line

PLAIN = (int, float, str)
LISTS: dict[Any, Any] = {int: tuple[int, ...], float: tuple[float, ...], str: tuple[str, ...]}
KINDS = "int, float, str, or a tuple or list of one of them"


def annotated(cls: type, where: str) -> dict[str, Any]:
    """The kinds of a class's attributes by name, lists being tuples; the annotations become these.

    Raises:
        OptionError: one has another kind.
    """
    found: dict[str, Any] = {}
    own = dict(vars(cls).get("__annotations__", {}))
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise OptionError(
            f"{where}: an annotation of {cls.__name__} cannot be read ({error}); attributes are {KINDS}."
        ) from None
    for name in own:
        if typing.get_origin(hints[name]) is typing.ClassVar:
            continue
        kind = _kind(hints[name])
        if kind is None:
            raise OptionError(
                f"{where}: the attribute {name} is annotated {one_line(own[name], 80)}; attributes are {KINDS}."
            )
        found[name] = cls.__annotations__[name] = kind
        default = vars(cls).get(name, dataclasses.MISSING)
        if default is not dataclasses.MISSING:
            setattr(cls, name, coerced(default, kind, f"{where}: the default of {name}"))
    return found


def _kind(hint: Any) -> Any:
    if hint in PLAIN:
        return hint
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list, Sequence) and given and given[0] in PLAIN and given[1:] in ((), (...,)):
        return LISTS[given[0]]
    return None


def coerced(value: Any, kind: Any, what: str) -> Any:
    """A value as its kind has it: whole numbers where floats are wanted become these, lists tuples.

    Raises:
        OptionError: it is of another kind.
    """
    if kind in PLAIN:
        fits = {
            int: isinstance(value, numbers.Integral),
            float: isinstance(value, numbers.Real),
            str: isinstance(value, str),
        }[kind]
        if not fits or isinstance(value, np.ndarray):
            raise OptionError(
                f"{what} must be {'an' if kind is int else 'a'} {kind.__name__}, not {one_line(repr(value), 80)}."
            )
        return kind(value)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise OptionError(
            f"{what} must be a list of {typing.get_args(kind)[0].__name__}, not {one_line(repr(value), 80)}."
        )
    return tuple(coerced(v, typing.get_args(kind)[0], f"an element of {what}") for v in value)


@functools.cache
def kinds_of(cls: Any) -> dict[str, Any]:
    """The kinds of an operator's attributes by name."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def settle(op: Any, setattribute: Callable[[Any, str, Any], None]) -> None:
    """Coerce the attributes of a new operator, or raise OptionError for the first that is of another kind."""
    own: Any = type(op)
    for name, kind in kinds_of(own).items():
        setattribute(op, name, coerced(getattr(op, name), kind, f"{op.name}: {name}"))
