"""Two reports side by side: what differs, most first, as data for the page and as text."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import format as f
from .json import Report
from .text import table

Comparison = dict[str, Any]
SHOWN = 20
_NUMBER = re.compile(r"\.\d+$")


def compare(a: Report, b: Report, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """What differs between two reports.

    names: what to call them. totals: label, both values, both values in words, whether more is worse (1), better (-1) or neither (0). phases,
    categories: name and both values. options: those that differ. operators, variables: name, role or kind, both values (None: it is only in the
    other), the largest difference first.
    """
    return {"title": f"{names[0]} and {names[1]}", "names": list(names), "totals": _totals(a, b), "options": _options(a, b),
            "phases": _both(a["totals"]["phases"], b["totals"]["phases"]), "categories": _both(_worst(a), _worst(b)),
            "operators": _differences(*(_sums((s["name"], s["role"], s["cycles_per_update"]) for s in r["steps"]) for r in (a, b))),
            "variables": _differences(*(_sums((_name(v), v["kind"], v["bytes"]) for v in r["variables"]) for r in (a, b)))}


def _totals(a: Report, b: Report) -> list[list[Any]]:
    found: list[tuple[str, Callable[[Report], Any], Callable[[Any], str], int]] = [
        ("cycles", lambda r: r["totals"]["cycles"], f.count, 1),
        ("cycles per sample", lambda r: r["totals"]["cycles"] / max(1, r["batching"]["samples_per_update"]), f.count, 1),
        ("seconds", lambda r: r["totals"]["seconds"], f.seconds, 1),
        ("samples per second", lambda r: r["totals"]["samples_per_second"], f.count, -1),
        ("TFLOP/s", lambda r: r["totals"]["tflops"], "{:.4g}".format, -1),
        ("of peak", lambda r: r["totals"]["peak_fraction"], f.percent, -1), ("bytes on the fullest tile", lambda r: r["memory"]["worst"], f.count, 1),
        ("bytes on the mean tile", lambda r: r["memory"]["mean"], f.count, 1),
        ("always live, fullest tile", lambda r: max(r["memory"]["always_live"], default=0), f.count, 1),
        ("operators", lambda r: len(r["steps"]), f.count, 0), ("samples of an update", lambda r: r["batching"]["samples_per_update"], f.count, 0),
        ("IPUs", lambda r: r["replicas"]["all"], f.count, 0)]
    return [[label, of(a), of(b), [words(of(a)), words(of(b))], worse] for label, of, words, worse in found]


def _worst(report: Report) -> dict[str, int]:
    m = report["memory"]
    return {name: values[m["worst_tile"]] for name, values in m["categories"].items()}


def _both(a: Mapping[str, int], b: Mapping[str, int]) -> list[list[Any]]:
    return [[name, a.get(name, 0), b.get(name, 0)] for name in dict.fromkeys((*a, *b))]


def _options(a: Report, b: Report) -> list[list[str]]:
    """Options, batching and machine where they are not the same."""
    def flat(r: Report) -> dict[str, Any]:
        staging = r["staging"] or {"strategy": "none", "schedule": ""}
        return {"strategy": f"{staging['strategy']} {staging['schedule']}".strip(), "machine": r["chip"]["name"], "tiles": r["chip"]["tiles"],
                "bytes_per_tile": r["chip"]["bytes_per_tile"], "training": r["training"], "model": r["model"],
                **{k: v for k, v in r["batching"].items() if k != "samples_per_update"}, **r["options"]}
    x, y = flat(a), flat(b)
    return [[name, str(x.get(name, "")), str(y.get(name, ""))] for name in dict.fromkeys((*x, *y)) if x.get(name) != y.get(name)]


def _name(variable: Mapping[str, Any]) -> str:
    """What a variable is matched by. States have names of the model; other tensors are numbered as they are made, so that one operator more would
    rename all: they go by their layer and what made them."""
    return variable["name"] if variable["birth"] is None else f"{variable['layer']}: {_NUMBER.sub('', variable['name'])}"


def _sums(rows: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, kind, n in rows:
        found[name, kind] = found.get((name, kind), 0) + n
    return found


def _differences(a: Mapping[tuple[str, str], int], b: Mapping[tuple[str, str], int]) -> list[list[Any]]:
    rows = [[*key, a.get(key), b.get(key)] for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)]
    return sorted(rows, key=lambda row: (-abs((row[3] or 0) - (row[2] or 0)), row[0], row[1]))


def render(comparison: Comparison, everything: bool = False) -> str:
    """The comparison as text; `everything` lists all that differs instead of what differs most."""
    a, b = comparison["names"]
    head = ("", "A", "B", "change")
    totals = [(label, *words, _share(x, y)) for label, x, y, words, _ in comparison["totals"]]
    parts = [f"A: {a}\nB: {b}", table(head, totals)]
    if comparison["options"]:
        options = [(name, f.clip(x, 40), f.clip(y, 40)) for name, x, y in comparison["options"]]
        parts.append("Options that differ\n" + table(("option", "A", "B"), options, 3))
    parts.append("Cycles by phase\n" + table(head, [(n, f.count(x), f.count(y), _share(x, y)) for n, x, y in comparison["phases"]]))
    parts.append("Bytes on the fullest tile\n" + table(head, [(n, f.count(x), f.count(y), _share(x, y)) for n, x, y in comparison["categories"]]))
    for title, rows in (("Operators that differ, cycles of an update", comparison["operators"]),
                        ("Variables that differ, bytes on all tiles", comparison["variables"])):
        shown = rows if everything else rows[:SHOWN]
        if not rows:
            parts.append(f"{title}: none")
            continue
        more = f"\n  and {len(rows) - len(shown):,} more" if len(shown) < len(rows) else ""
        lines = [(f.clip(name, 48), kind, *("none" if n is None else f.count(n) for n in (x, y)), f"{(y or 0) - (x or 0):+,}")
                 for name, kind, x, y in shown]
        parts.append(f"{title}\n{table(('', '', 'A', 'B', 'B - A'), lines, 2)}{more}")
    return "\n\n".join(parts)


def _share(x: float, y: float) -> str:
    if x == y:
        return "same"
    return f"{100 * (y - x) / x:+.1f} %" if x else "new"
