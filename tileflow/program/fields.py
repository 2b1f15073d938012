"""Typed fields as plain data: what the declaration of an operator, or of another dataclass, says that it holds, written
as JSON has it and read against that declaration.

Numbers, texts, truth values, literals, tuples and dataclasses of these; of anything else (`others`) somebody says how
it is written and read. A field that is None, and None by default, is left out.
"""
from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ..system.text import one_line

REACH = 1 << 63
"""Whole numbers lie between minus this and this."""
_UNREAL = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
"""Floats that JSON has no number for, by what is written in their place."""
Others = Mapping[Any, Callable[[Any, str], Any]]
"""By type: what writes, or reads, a value of it; the text is its place."""
NO_OTHERS: Others = types.MappingProxyType({})


class Fault(ValueError):
    """What is wrong with a Program, and where: the end of a sentence. remedy: what helps, where it is not to write the
    program again."""

    def __init__(self, at: str, what: str, remedy: str = "") -> None:
        super().__init__(f"{at} {what}")
        self.remedy = remedy


def shown(value: Any) -> str:
    """A value in a sentence."""
    return one_line(repr(value)[:400], 80)


@functools.cache
def declared(kind: type) -> dict[str, tuple[Any, bool]]:
    """By field of a dataclass: its type, and whether it may be left out, being None then."""
    hints = typing.get_type_hints(kind)
    return {f.name: (hints[f.name], f.default is None) for f in dataclasses.fields(kind)}


def written(value: Any, kind: Any, at: str, others: Others = NO_OTHERS) -> Any:
    """The plain data of a value of that type; Fault where it is none."""
    if kind in others and type(value) is kind:
        return others[kind](value, at)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _first(written, value, arguments, at, others)
    if origin is tuple and type(value) is tuple:
        return [written(v, k, f"{at}[{i}]", others) for i, (v, k) in enumerate(_members(value, arguments, at))]
    if dataclasses.is_dataclass(kind) and type(value) is kind:
        found = {}
        for name, (k, optional) in declared(type(value)).items():
            if not optional or getattr(value, name) is not None:
                found[name] = written(getattr(value, name), k, f"{at}.{name}", others)
        return found
    value = int(value) if kind is int and type(value) is bool else value          # layers say True where ONNX has 1
    if not _is_plain(value, kind, origin, arguments):
        raise Fault(at, f"holds {shown(value)}, which a file cannot")
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(data: Any, kind: Any, at: str, others: Others = NO_OTHERS) -> Any:
    """The value of that type that `written` made the data of; Fault where it is none."""
    if kind in others:
        return others[kind](data, at)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _first(read, data, arguments, at, others)
    if origin is tuple and type(data) is list:
        return tuple(read(v, k, f"{at}[{i}]", others) for i, (v, k) in enumerate(_members(data, arguments, at)))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and type(data) is dict:
        return kind(**_fields(data, kind, at, others))
    value = _UNREAL.get(data, data) if kind is float and type(data) is str else data
    if not _is_plain(value, kind, origin, arguments):
        raise Fault(at, f"is {shown(data)} and not what belongs there")
    return value


def _fields(data: Mapping[str, Any], kind: Any, at: str, others: Others) -> dict[str, Any]:
    """The fields of a dataclass by name; Fault where one is missing, unknown or wrong."""
    fields = declared(kind)
    for name in data.keys() - fields.keys():
        raise Fault(at, f"has no {shown(name)}")
    found = {}
    for name, (k, optional) in fields.items():
        if name in data:
            found[name] = read(data[name], k, f"{at}.{name}", others)
        elif not optional:
            raise Fault(at, f"lacks {name}")
    return found


def _first(act: Callable[..., Any], value: Any, kinds: tuple[Any, ...], at: str, others: Others) -> Any:
    """What the first of several types makes of a value; None is tried first, for of it no other has anything to say."""
    if type(None) in kinds and value is None:
        return None
    kinds = tuple(k for k in kinds if k is not type(None))
    for kind in kinds[:-1]:
        try:
            return act(value, kind, at, others)
        except Fault:
            continue
    return act(value, kinds[-1], at, others)


def _members(values: Any, kinds: tuple[Any, ...], at: str) -> list[tuple[Any, Any]]:
    """The members of a tuple, each with its type."""
    if kinds[-1:] == (...,):
        return [(v, kinds[0]) for v in values]
    if len(values) != len(kinds):
        raise Fault(at, f"has {len(values)} members and not {len(kinds)}")
    return list(zip(values, kinds, strict=True))


def _is_plain(value: Any, kind: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    """A number, text or truth value of a type. Whole numbers are numbers; a truth value is none."""
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in arguments)
    if type(value) is int and kind in (int, float):
        return -REACH <= value < REACH
    if type(value) is str and kind is str:
        return value.isascii() or all(not 0xD800 <= ord(c) < 0xE000 for c in value)
    return type(value) is kind and kind in (bool, float)
