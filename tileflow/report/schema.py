"""report.json's schema, `report.schema.json` beside this file (JSON Schema, draft 2020-12), and a checker of the part of JSON Schema that it uses."""
from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("report.schema.json")
KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "const", "minimum", "minItems", "$ref"}
"""What the checker checks."""
WORDS = {"$schema", "title", "description", "$defs"}
"""What says nothing about a value."""
TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,),
                                      "number": (int, float), "null": (type(None),)}
NAMES = {"dict": "a table", "list": "a list", "str": "a string", "bool": "a boolean", "int": "an integer", "float": "a number", "NoneType": "null"}
WANTED = {name: NAMES[types[-1].__name__] for name, types in TYPES.items()}

Check = Callable[[Any], "str | None"]
"""Of a value: None, or what is wrong, its place first: `.totals.cycles is a number, not an integer`."""


@functools.cache
def schema() -> dict[str, Any]:
    """The schema as data."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@functools.cache
def checker() -> Check:
    """The whole schema as a check."""
    return compiled(schema(), schema()["$defs"])


def resolved(rule: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule with what it refers to."""
    if "$ref" not in rule:
        return rule
    return {**defs[rule["$ref"].removeprefix("#/$defs/")], **{k: v for k, v in rule.items() if k != "$ref"}}


def compiled(rule: Mapping[str, Any], defs: Mapping[str, Any]) -> Check:
    """A rule as a check; ValueError for a keyword that the checker does not know."""
    rule = resolved(rule, defs)
    unknown = set(rule) - KEYWORDS - WORDS
    if unknown:
        raise ValueError(f"the schema says {min(unknown)}, which is not checked")
    checks: list[Check] = []
    if "type" in rule:
        checks.append(_type(rule["type"]))
    if "anyOf" in rule:
        checks.append(_any([compiled(r, defs) for r in rule["anyOf"]]))
    if "const" in rule:
        checks.append(lambda value: None if value == rule["const"] else f" is {value!r}, not {rule['const']!r}")
    if "minimum" in rule:
        checks.append(lambda value: None if value >= rule["minimum"] else f" is {value}, less than {rule['minimum']}")
    if "minItems" in rule:
        least = rule["minItems"]
        checks.append(lambda value: None if value is None or len(value) >= least else f" has {len(value)} elements, less than {least}")
    if "properties" in rule or "required" in rule or "additionalProperties" in rule:
        checks.append(_table(rule, defs))
    if "items" in rule:
        checks.append(_list(rule["items"], defs))
    return checks[0] if len(checks) == 1 else lambda value: next((wrong for check in checks if (wrong := check(value))), None)


def _type(names: str | list[str]) -> Check:
    wanted = [names] if isinstance(names, str) else names
    types = tuple(t for name in wanted for t in TYPES[name])
    words = " or ".join(WANTED[name] for name in wanted)

    def check(value: Any) -> str | None:
        right = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return None if right else f" is {NAMES[type(value).__name__]}, not {words}"
    return check


def _any(checks: list[Check]) -> Check:
    """What is said of a value that none takes is what the last says: rules have null first."""
    def check(value: Any) -> str | None:
        found = [one(value) for one in checks]
        return None if None in found else found[-1]
    return check


def _table(rule: Mapping[str, Any], defs: Mapping[str, Any]) -> Check:
    required = rule.get("required", [])
    known = {name: compiled(inner, defs) for name, inner in rule.get("properties", {}).items()}
    other = compiled(rule["additionalProperties"], defs) if "additionalProperties" in rule else None

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        for name in required:
            if name not in value:
                return f".{name} is missing"
        for name, inner in value.items():
            one = known.get(name, other)
            wrong = one(inner) if one is not None else None
            if wrong:
                return f".{name}{wrong}"
        return None
    return check


def _list(rule: Mapping[str, Any], defs: Mapping[str, Any]) -> Check:
    whole = resolved(rule, defs) == {"type": "integer"}
    one = compiled(rule, defs)

    def check(value: Any) -> str | None:
        if not isinstance(value, list) or (whole and set(map(type, value)) <= {int}):
            return None
        for i, inner in enumerate(value):
            wrong = one(inner)
            if wrong:
                return f"[{i}]{wrong}"
        return None
    return check
