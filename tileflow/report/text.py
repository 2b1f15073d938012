"""A report as text for a terminal."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import format as f
from . import gantt, gaps
from .json import PHASES, Report

BAR = 28
OPERATORS = 20


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns in line: the first `left` flush left, the others flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
    return "\n".join("  " + line(row) for row in (header, ["-" * w for w in widths], *rows))


def bar(share: float, width: int = BAR) -> str:
    """A bar of `width` characters, filled to `share`."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(width)


def render(report: Report, every_operator: bool = False) -> str:
    """The whole report; `every_operator` lists all operators instead of the slowest."""
    parts = [_head(report), _totals(report), _phases(report), _memory(report), _operators(report, every_operator)]
    if report["ipus"]:
        parts.insert(3, gantt.to_text(report))
    if report["infeasible"]:
        parts.append(_notes(report["infeasible"], every_operator))
    if report["frontier"]:
        parts.append(frontier(report))
    if report["levers"] and report["memory"]["fits"]:
        parts.append(levers(report))
    return "\n\n".join(parts)


def _head(report: Report) -> str:
    return "\n".join([f.title(report), f.chip_line(report), f.options_line(report), *report["notes"]])


def _totals(report: Report) -> str:
    t = report["totals"]
    unit = f.unit(report)
    rows = [(f"cycles per {unit}", f.count(t["cycles"])), (f"seconds per {unit}", f.seconds(t["seconds"])),
            ("samples/s", f.count(t["samples_per_second"])), f.flops(t["tflops"])[::-1],
            ("of peak", f.percent(t["peak_fraction"]))]
    lines = [f"  {name:<24} {value:>16}" for name, value in rows]
    return "\n".join([*lines, *(f"  {s}" for s in (*f.limits(report), *f.together(report), *f.energy(report),
                                                   *f.efficiency(report)))])


def _phases(report: Report) -> str:
    total = f.all_phases(report)
    lines = [f"  {name:<10} {bar(n / total)} {f.percent(n / total):>7} {f.count(n):>16}"
             for name, n in f.shares(report).items()]
    return "\n".join(["Cycles by phase", *lines, *(f"  {s}" for s in f.apart(report))])


def _memory(report: Report) -> str:
    m = report["memory"]
    worst, bound = m["worst_tile"], m["bytes_per_tile"]
    verdict = "fits" if m["fits"] else "OUT OF TILE MEMORY"
    where = f"{worst} of IPU {f.fullest_ipu(report)}" if report["ipus"] else f"{worst}"
    head = (f"Bytes per tile: {verdict}. Worst tile {where}: {f.count(m['worst'])} of {f.count(bound)} ({f.percent(m['worst'] / bound)}); "
            f"mean {f.count(m['mean'])} ({f.percent(m['mean'] / bound)})")
    rows = []
    for name, tiles in m["categories"].items():
        rows.append((name, f.GROUPS.get(name, ""), f.count(tiles[worst]), f.count(sum(tiles) / len(tiles)), f.count(max(tiles))))
    bins = [b for b in f.histogram(m["peak"], max(bound, m["worst"]), 12)]
    most = max(1, max(n for *_, n in bins))
    lines = [f"  {f.size(lo):>10} to {f.size(hi):<10} {bar(n / most)} {f.count(n):>6} tiles" for lo, hi, n in bins if n]
    head += "".join(f"\n{sentence}" for sentence in gaps.sentences(report))
    return f"{head}\n\n{table(('category', 'kind', 'worst tile', 'mean', 'largest'), rows, 2)}\n\n" + "\n".join(lines)


def _operators(report: Report, every: bool) -> str:
    steps = sorted(report["steps"], key=lambda s: -s["cycles_per_update"])
    shown = steps if every else steps[:OPERATORS]
    total = f.all_phases(report)
    rows = [_row(s, total) for s in shown]
    header = ("operator", "role", "partition", "vertex", "tiles", "times", "cycles", "share", *PHASES, "temp bytes", "limit")
    more = f"\n  and {len(steps) - len(shown):,} operators more in the report" if len(shown) < len(steps) else ""
    which = "Operators" if len(shown) == len(steps) else f"The {len(shown)} operators with most cycles"
    return f"{which}, cycles per {f.unit(report)}\n\n{table(header, rows, 4)}{more}"


def _row(s: dict[str, Any], total: int) -> tuple[str, ...]:
    phases = [f.count(s["phases"][p] * s["repeats"]) for p in PHASES]
    temp = f.count(s["temp_bytes"]) + ("" if s["fits"] else " !")
    return (f.clip(s["name"], 44), s["role"], f.partition(s), s["vertex"], f.count(s["tiles"]), f.count(s["repeats"]),
            f.count(s["cycles_per_update"]), f.percent(s["cycles_per_update"] / total), *phases, temp, s["limit"])


def _notes(sentences: Sequence[str], every: bool) -> str:
    shown = sentences if every else sentences[:5]
    more = f"\n  and {len(sentences) - len(shown)} more in the report" if len(shown) < len(sentences) else ""
    return "What does not fit (operators marked ! take the plan with least memory):\n" + "\n".join(f"  {s}" for s in shown) + more


def levers(report: Report) -> str:
    """What makes a program that fits faster or smaller."""
    now, worst = report["totals"]["samples_per_second"], max(1, report["memory"]["worst"])
    rows = [(x["name"], f.count(x["samples_per_second"]), f"{x['samples_per_second'] / max(1e-9, now):.2f} ×", f.count(x["bytes"]),
             f"{x['bytes'] / worst:.2f} ×", f.count(x["ipus"])) for x in report["levers"]]
    return ("Levers: changes that make it faster or smaller, each planned again\n\n"
            + table(("change", "samples/s", "of now", "worst tile", "of now", "IPUs"), rows))


def frontier(report: Report, width: int = 64, height: int = 14) -> str:
    """The points of a search as a plot of cycles (up) against bytes on the worst tile (right), and the ones worth having as a table."""
    bound = report["memory"]["bytes_per_tile"]
    points = near(report["frontier"], bound)
    xs, ys = [p["bytes"] for p in points], [p["cycles"] for p in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    if x0 <= bound <= x1:
        for row in grid:
            row[_place(bound, x0, x1, width)] = "┆"
    for p in sorted(points, key=lambda p: (p["best"], p["fits"])):
        mark = "●" if p["best"] else "○" if p["fits"] else "×"
        grid[height - 1 - _place(p["cycles"], y0, y1, height)][_place(p["bytes"], x0, x1, width)] = mark
    lines = [f"  {f.short(y1) if i == 0 else f.short(y0) if i == height - 1 else '':>9} │{''.join(row)}" for i, row in enumerate(grid)]
    lines.append(f"  {'':>9} └{'─' * width}")
    lines.append(f"  {'':>11}{f.size(x0)}{f.size(x1):>{max(1, width - len(f.size(x0)))}}")
    rows = [(p["label"], f.count(p["bytes"]), f.percent(p["bytes"] / bound), f.count(p["cycles"]), "yes" if p["fits"] else "no",
             "← taken" if p["best"] else "") for p in pareto(report["frontier"])]
    head = "Cycles against bytes on the worst tile  (○ fits, × does not, ● taken, ┆ tile memory)"
    return head + "\n\n" + "\n".join(lines) + "\n\n" + table(("frontier", "worst tile", "of tile", "cycles", "fits", ""), rows)


def near(points: Sequence[dict[str, Any]], bound: int) -> list[dict[str, Any]]:
    """The points worth drawing: without those so far from fitting or from fast that the others would melt into one."""
    least = min(p["cycles"] for p in points)
    kept = [p for p in points if p["best"] or (p["bytes"] <= 1.5 * bound and p["cycles"] <= 4 * least)]
    return kept if len(kept) > 1 else list(points)


def _place(v: float, low: float, high: float, cells: int) -> int:
    return round((v - low) / (high - low) * (cells - 1)) if high > low else 0


def pareto(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that no other beats in both bytes and cycles, from little memory to few cycles."""
    kept: list[dict[str, Any]] = []
    for p in sorted(points, key=lambda p: (p["bytes"], p["cycles"], not p["best"])):
        if not kept or p["cycles"] < kept[-1]["cycles"]:
            kept.append(p)
    return kept
