"""What stands out in a report: tables of the most of something, each row with the place in the page that shows it, and the levers that were tried."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import format as f
from . import gaps
from .json import Report

ROWS = 10
Section = dict[str, Any]
"""title, text, columns, rows; a row has its cells, a `goto` (a tab of the page and what to show there; None: nothing) and a `share` (0 to 1)."""


def sections(report: Report) -> list[Section]:
    """All of them, what helps first; those of which the report says nothing are left out."""
    found = [_limits(report), _operators(report), _layers(report), _code(report), _tiles(report), _largest(report), _always(report), _peak(report),
             _gaps(report)]
    tried, shown = _levers(report), [section for section in found if section["rows"]]
    return [tried, *shown] if tried["rows"] else [*shown, tried]


def section(title: str, text: str, columns: Sequence[str], rows: Sequence[Section]) -> Section:
    """A table with a title and a sentence."""
    return {"title": title, "text": text, "columns": list(columns), "rows": list(rows)}


def row(cells: Sequence[Any], share: float, goto: Sequence[Any] | None = None) -> Section:
    """A row. share: of what the table divides, drawn as a bar."""
    return {"cells": [str(c) for c in cells], "share": round(share, 4), "goto": None if goto is None else list(goto)}


def _limits(report: Report) -> Section:
    """What the time is spent on, as the summary has it, and of how many operators that is most."""
    total, found = f.all_phases(report), f.shares(report)
    count: dict[str, int] = {}
    for s in report["steps"]:
        count[s["limit"]] = count.get(s["limit"], 0) + bool(s["cycles_per_update"])
    rows = [row((name, f.PHASE_WORDS.get(name, ""), f.count(count.get(name, 0)), f.count(n), f.percent(n / total)),
                n / total, None if name == "host" else ("operators", {"text": name}))
            for name, n in sorted(found.items(), key=lambda item: (-item[1], item[0])) if n]
    besides = [f"{f.count(n)} operators could be faster: {f.LIMIT_WORDS[name]}." for name, n in sorted(count.items())
               if n and name not in found and name in f.LIMIT_WORDS]
    said = " ".join(["The cycles of all operators by what they are spent on, and the operators that spend most of "
                     "theirs on it.", *besides, *f.limits(report)])
    return section("What limits", said, ("limit", "what it means", "operators", "cycles", "share"), rows)


def _operators(report: Report) -> Section:
    total = f.all_phases(report)
    most = sorted(report["steps"], key=lambda s: (-s["cycles_per_update"], s["index"]))[:ROWS]
    rows = [row((s["name"], s["role"], s["limit"], f.count(s["cycles_per_update"]), f.percent(s["cycles_per_update"] / total)),
                s["cycles_per_update"] / total, ("operators", {"step": s["index"]})) for s in most if s["cycles_per_update"]]
    return section("Slowest operators", "Cycles of an update.", ("operator", "role", "limit", "cycles", "share"), rows)


def _layers(report: Report) -> Section:
    """Cycles of an update by the layer that operators came from, all passes together."""
    total = f.all_phases(report)
    cycles: dict[str, dict[str, int]] = {}
    for s in report["steps"]:
        of_role = cycles.setdefault(s["sources"][0] if s["sources"] else s["op"], {})
        of_role[s["role"]] = of_role.get(s["role"], 0) + s["cycles_per_update"]
    most = sorted(cycles.items(), key=lambda item: (-sum(item[1].values()), item[0]))[:ROWS]
    rows = [row((name, ", ".join(f"{role} {f.short(n)}" for role, n in of_role.items() if n), f.count(sum(of_role.values())),
                 f.percent(sum(of_role.values()) / total)), sum(of_role.values()) / total, ("operators", {"text": name}))
            for name, of_role in most if sum(of_role.values())]
    return section("Slowest layers", "Cycles of an update, of all operators that came from a layer or node of the model.",
                   ("layer", "of these", "cycles", "share"), rows)


def _code(report: Report) -> Section:
    """Operators with most code. Operators that do the same work by the same plan share theirs."""
    bound = max(1, report["memory"]["bytes_per_tile"])
    first: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for s in report["steps"]:
        first.setdefault((s["op"], s["vertex"], f.partition(s), s["start_tile"], s["code_bytes"], s["flops"]), s)
    most = sorted(first.values(), key=lambda s: (-s["code_bytes"], s["index"]))[:ROWS]
    rows = [row((s["name"], s["role"], s["vertex"], f.count(s["code_bytes"]), f.percent(s["code_bytes"] / bound)), s["code_bytes"] / bound,
                ("operators", {"step": s["index"]})) for s in most if s["code_bytes"]]
    return section("Most code", "Bytes on a tile; operators that do the same by the same plan share them and are here once.",
                   ("operator", "role", "vertex", "bytes", "of the tile"), rows)


def _tiles(report: Report) -> Section:
    """The fullest tiles of all IPUs."""
    bound = max(1, report["memory"]["bytes_per_tile"])
    several = [(i["number"], i["memory"]) for i in report["ipus"] if i["memory"]] or [(None, report["memory"])]
    found = [(memory["peak"][t], ipu, t, memory) for ipu, memory in several for t in range(len(memory["peak"]))]
    found.sort(key=lambda item: (-item[0], item[1] or 0, item[2]))
    rows = []
    for peak, ipu, t, memory in found[:ROWS]:
        step = memory["peak_step"][t]
        when = report["steps"][step]["name"] if 0 <= step < len(report["steps"]) else "always"
        most = max(memory["categories"], key=lambda name, t=t, memory=memory: memory["categories"][name][t])  # type: ignore[misc]
        rows.append(row((t if ipu is None else f"IPU {ipu}, {t}", when, f"{most} {f.size(memory['categories'][most][t])}", f.size(peak),
                         f.percent(peak / bound)), peak / bound, ("memory", {"tile": t, "ipu": -1 if ipu is None else ipu})))
    m = report["memory"]
    said = (f"The fullest tile needs {f.count(m['worst'])} of {f.count(m['bytes_per_tile'])} bytes, the mean tile {f.count(m['mean'])}"
            f"{': memory is uneven, so one tile decides whether the program fits' if m['worst'] > 1.5 * max(1, m['mean']) else ''}.")
    return section("Fullest tiles", said, ("tile", "when", "most of it", "bytes", "of the tile"), rows)


def _largest(report: Report) -> Section:
    return _variables(report, "Largest variables", "On all tiles together.", report["variables"])


def _always(report: Report) -> Section:
    always = [v for v in report["variables"] if v["birth"] is None]
    return _variables(report, "Largest always live", "Memory that nothing else may use at any time.", always)


def _variables(report: Report, title: str, said: str, variables: Sequence[Mapping[str, Any]]) -> Section:
    number = {id(v): i for i, v in enumerate(report["variables"])}
    total = max(1, report["chip"]["ipus"] * report["chip"]["tiles"] * report["memory"]["bytes_per_tile"])
    most = sorted(variables, key=lambda v: (-v["bytes"], number[id(v)]))[:ROWS]
    rows = [row((v["name"], v["kind"], f"{f.shape(v['shape'])} {v['dtype']}", f.count(v["tiles"]), f.size(v["bytes"]), f.percent(v["bytes"] / total)),
                v["bytes"] / total, ("variables", {"variable": number[id(v)]})) for v in most if v["bytes"]]
    return section(title, said, ("variable", "kind", "shape", "tiles", "bytes", "of all memory"), rows)


def _peak(report: Report) -> Section:
    """What the fullest tile holds, by category."""
    m = report["memory"]
    worst, bound = m["worst_tile"], max(1, m["bytes_per_tile"])
    held = sorted(((values[worst], name) for name, values in m["categories"].items()), key=lambda item: (-item[0], item[1]))
    rows = [row((name, f.GROUPS.get(name, ""), f.count(n), f.percent(n / bound)), n / bound, ("memory", {"tile": worst, "ipu": -1}))
            for n, name in held if n]
    return section("What the fullest tile holds", f"Tile {worst}, when it is fullest.", ("category", "", "bytes", "of the tile"), rows)


def _levers(report: Report) -> Section:
    """Only what was run and priced."""
    bound, now = max(1, report["memory"]["bytes_per_tile"]), max(1e-9, report["totals"]["samples_per_second"])
    rows = [row((lever["name"], "fits" if lever["fits"] else "does not fit", f.count(lever["samples_per_second"]),
                 f"{lever['samples_per_second'] / now:.2f} ×", f.count(lever["bytes"]), f.percent(lever["bytes"] / bound), f.count(lever["ipus"])),
                lever["bytes"] / bound) for lever in report["levers"]]
    fits, tried = report["memory"]["fits"], report["levers_sought"]
    if rows:
        said = "Each of these was planned again as a whole, as compile would do it. " + (
            "With all of them it fits; those that are fastest for the IPUs that they take stand first." if fits else
            "Those with which it fits stand first, the cheapest of them before the others.")
    elif tried:
        said = f"Changes of options were tried, and none {'makes the program faster or smaller' if fits else 'takes fewer bytes'}."
    else:
        said = "Nothing was. compile --levers tries changes of options that make a program that fits faster or smaller, and prices each."
    return section("What was tried", said, ("change", "", "samples/s", "of now", "bytes", "of the tile", "IPUs"), rows)


def _gaps(report: Report) -> Section:
    """What no variable may use between others, on the tiles that were laid out."""
    bound = max(1, report["memory"]["bytes_per_tile"])
    rows = []
    for laid in report["layouts"]:
        peak, lost = gaps.peak(report, laid), gaps.gaps(report, laid)
        where = laid["tile"] if not report["ipus"] else f"IPU {laid['ipu']}, {laid['tile']}"
        rows.append(row((where, f.count(peak), f.count(laid["extent"]), f.count(lost), f.percent(lost / bound)), laid["extent"] / bound,
                        ("memory", {"tile": laid["tile"], "ipu": laid["ipu"] if report["ipus"] else -1})))
    said = ["Tensors keep their addresses for as long as they live, so bytes between them may be of no use to others.", *gaps.sentences(report)]
    return section("Gaps between variables", " ".join(said), ("tile", "bytes", "with gaps", "gaps", "of the tile"), rows)
