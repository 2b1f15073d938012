"""The fields of report.json as docs/report.md lists them, made from the schema.

    python tests/report_fields.py            # writes the list anew
    python tests/report_fields.py --check    # says whether it is current
"""
from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tileflow.report.schema import resolved, schema

PAGE = Path(__file__).parent.parent / "docs" / "report.md"
BEGIN, END = "<!-- the fields: python tests/report_fields.py -->", "<!-- end of the fields -->"
WORDS = {"object": "table", "array": "list", "boolean": "yes or no", "integer": "whole number", "null": "null", "string": "text", "number": "number"}


def fields() -> str:
    """The list, a table of Markdown."""
    rows = [f"| {at} | {kind} | {words} |" for at, kind, words in _rows(schema(), "")]
    return "\n".join(["| field | kind | what it is |", "|---|---|---|", *rows])


def _rows(rule: Mapping[str, Any], at: str) -> Iterator[tuple[str, str, str]]:
    for name, inner in rule.get("properties", {}).items():
        found = resolved(inner, schema()["$defs"])
        where, kind = f"{at}{name}", _kind(found)
        yield f"`{where}`", kind, found["description"]
        for below, mark in _below(found):
            yield from _rows(below, f"{where}{mark}.")


def _below(rule: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The rules in a rule that have fields of their own."""
    rule = resolved(rule, schema()["$defs"])
    if "properties" in rule:
        yield rule, ""
    if "items" in rule:
        yield from ((below, "[]" + mark) for below, mark in _below(rule["items"]))
    for one in rule.get("anyOf", ()):
        yield from _below(one)


def _kind(rule: Mapping[str, Any]) -> str:
    rule = resolved(rule, schema()["$defs"])
    if "anyOf" in rule:
        return " or ".join(reversed([_kind(one) for one in rule["anyOf"]]))
    if "type" not in rule:
        return "any"
    if isinstance(rule["type"], list):
        return " or ".join(WORDS[name] for name in rule["type"])
    inner = rule.get("items", rule.get("additionalProperties"))
    if inner is None or "properties" in resolved(inner, schema()["$defs"]):
        return WORDS[rule["type"]]
    return f"{WORDS[rule['type']]} of {_kind(inner)}s"


def page() -> str:
    """The page with the list of today."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{fields()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")
