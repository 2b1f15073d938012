"""Options files to checked options: TOML, JSON, and lines of calls as of a script. Parsed, never executed.

All of them take PopTorch's names as well as tileflow's (`reference/table.py`).
"""
from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..system.errors import OptionError
from ..system.reading import parsed, read_text
from ..system.text import one_line
from .declaration import GROUPS, MODEL_TABLE, Declarations
from .reference import lines, table
from .reference.values import Made, Word, WrittenCall

READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
LINES = (".conf", ".txt")
"""How files of lines end."""
SHOWN = 100
ENDINGS = f"{', '.join(READERS)} (tables) or {' or '.join(LINES)} (lines such as deviceIterations(4))"


def read(path: str | os.PathLike[str], declared: Declarations) -> dict[str, Any]:
    """The options that a file sets, flat and checked by name; OptionError where it cannot be used."""
    where = Path(path)
    ending = where.suffix.lower()
    if ending not in READERS and ending not in LINES:
        raise OptionError(f"Options file {where} must end in {ENDINGS}.")
    try:
        text = read_text(where)
        content = parsed(READERS[ending], text) if ending in READERS else None
    except OSError as error:
        raise OptionError(f"Options file {where} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise OptionError(f"Options file {where} is not valid {'UTF-8' if ending in LINES else ending[1:].upper()}: {error}.") from None
    if ending in LINES:
        try:
            return from_lines(text, declared)
        except OptionError as error:
            raise OptionError(f"Options file {where}, {error}") from None
    if not isinstance(content, dict):
        raise OptionError(f"Options file {where} must hold a table of options, not a {type(content).__name__}.")
    try:
        return _flatten(content, declared)
    except OptionError as error:
        raise OptionError(f"Options file {where}: {error}") from None


def from_lines(text: str, declared: Declarations) -> dict[str, Any]:
    """The options that lines of calls set, checked by name.

    Raises:
        OptionError: a line is no call of literal values, is unknown or wrong, or sets what one before it did; the sentence begins with its number.
    """
    found: dict[str, Any] = {}
    first: dict[str, int] = {}
    for line in lines.parse(text):
        try:
            for name, value in _called(line.call, declared).items():
                declaration = declared.find(name)
                before = found.get(declaration.name)
                if isinstance(before, Mapping) and isinstance(value, Mapping) and not before.keys() & value.keys():
                    found[declaration.name] = declaration.check({**before, **value})          # what is said of several groups, a line each
                    continue
                if declaration.name in found:
                    raise OptionError(f"Option {declaration.name} is set twice, first on line {first[declaration.name]}.")
                found[declaration.name], first[declaration.name] = declaration.check(value), line.number
        except OptionError as error:
            raise OptionError(f"line {line.number}: {error}") from None
    return found


def _called(call: WrittenCall, declared: Declarations) -> dict[str, Any]:
    """The options that a call sets by PopTorch's name, or by the option's own: `epochs(3)`."""
    found = table.taken(call)
    if found is not None:
        return found
    if declared.now(call.name) not in declared:
        near = table.near(call.name) or declared.near(call.name)
        raise OptionError(f"There is no option {one_line(call.name, SHOWN)!r}" + (f"; did you mean {' or '.join(near)}?" if near else
                                                                  "; docs/poptorch.md and docs/options.md list them."))
    if len(call.args) != 1 or call.kwargs or isinstance(call.args[0], (Word, Made)):
        raise OptionError(f"{call.name} takes one number, text, list or table: {declared.find(call.name).expected}.")
    return {call.name: call.args[0]}


def _flatten(content: Mapping[str, Any], declared: Declarations) -> dict[str, Any]:
    """Group tables and top-level options to one table."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == MODEL_TABLE and isinstance(value, Mapping):
            continue
        if (foreign := _foreign(key, value, declared)) is not None:
            inner: Mapping[str, Any] = foreign
        else:
            inner = value if key in GROUPS and isinstance(value, Mapping) else {key: value}
        for name, item in inner.items():
            declaration = declared.find(name)
            if inner is value and declaration.group != key:
                raise OptionError(f"Option {name} belongs to [{declaration.group}], not to [{key}].")
            if declaration.name in flat:
                raise OptionError(f"Option {declaration.name} is set twice.")
            flat[declaration.name] = declaration.check(item)
    return flat


def _foreign(name: str, value: Any, declared: Declarations) -> dict[str, Any] | None:
    """What PopTorch's name sets, as its own JSON has it: {"Training.gradientAccumulation": 8}, a list for several arguments; None for other names."""
    if name in GROUPS or declared.now(name) in declared:
        return None
    return table.taken(WrittenCall(name, tuple(value) if isinstance(value, list) else (value,)))
