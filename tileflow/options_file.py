"""Options files: TOML or JSON to checked options. Parsed, never executed."""
from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .declaration import GROUPS, MODEL_TABLE, Declarations
from .errors import OptionError
from .reading import read_text

READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def read(path: str | os.PathLike[str], declared: Declarations) -> dict[str, Any]:
    """The options that a file sets, flat and checked by name; OptionError where it cannot be used."""
    where = Path(path)
    if where.suffix.lower() not in READERS:
        raise OptionError(f"Options file {where} must end in .toml or .json.")
    try:
        content = READERS[where.suffix.lower()](read_text(where))
    except OSError as error:
        raise OptionError(f"Options file {where} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"Options file {where} is not valid {where.suffix[1:].upper()}: {error}.") from None
    if not isinstance(content, dict):
        raise OptionError(f"Options file {where} must hold a table of options, not a {type(content).__name__}.")
    try:
        return _flatten(content, declared)
    except OptionError as error:
        raise OptionError(f"Options file {where}: {error}") from None


def _flatten(content: Mapping[str, Any], declared: Declarations) -> dict[str, Any]:
    """Group tables and top-level options to one table."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == MODEL_TABLE and isinstance(value, Mapping):
            continue
        inner = value if key in GROUPS and isinstance(value, Mapping) else {key: value}
        for name, item in inner.items():
            declaration = declared.find(name)
            if inner is value and declaration.group != key:
                raise OptionError(f"Option {name} belongs to [{declaration.group}], not to [{key}].")
            if declaration.name in flat:
                raise OptionError(f"Option {declaration.name} is set twice.")
            flat[declaration.name] = declaration.check(item)
    return flat
