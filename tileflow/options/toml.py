"""Writing options as TOML; `tomllib` reads it back to the same values."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dumps(tables: Mapping[str, Mapping[str, Any]], comment: str = "") -> str:
    """Tables of plain values (text, numbers, truth values, lists, tables) as a TOML document; empty tables are left out."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    for title, table in tables.items():
        if table:
            lines += ["", f"[{_key(title)}]"] + [f"{_key(name)} = {value(item)}" for name, item in table.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def value(item: Any) -> str:
    """One value; ValueError for what TOML does not have (None)."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item)
    if isinstance(item, str):
        return "".join(c if c.isprintable() or "\ud800" <= c <= "\udfff" else f"\\U{ord(c):08x}" for c in json.dumps(item, ensure_ascii=False))
    if isinstance(item, Mapping):
        inner = ", ".join(f"{_key(k)} = {value(v)}" for k, v in item.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(map(value, item))}]"
    raise ValueError(f"TOML has no {type(item).__name__}")


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else value(name)
