"""The report's charts."""
from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from . import format as f
from . import svg
from .json import PHASES, Report
from .svg import WIDTH, Frame, rect, text
from .text import near, pareto

TILE_COLUMNS = 368
"""Columns of the memory chart; a column of several tiles shows the fullest of them."""
STEP_COLUMNS = 520
BARS = 14
NAME_WIDTH = 330
"""Pixels for operator names left of their bars."""


def memory_class(category: str) -> str:
    """The colour class of a memory category (exchange is also a phase, in another colour)."""
    return "xbuf" if category == "exchange" else category


def total_phases(report: Report) -> str:
    """One bar: the program's cycles by phase."""
    phases, total = report["totals"]["phases"], f.all_phases(report)
    shares = [(p, phases[p] / total, f"{p}: {f.count(phases[p])} cycles, {f.percent(phases[p] / total)}") for p in PHASES]
    frame = Frame(height=34)
    return frame.svg(svg.stacked_row(shares, 4, 26, 0, WIDTH), "cycles by phase")


def operator_phases(report: Report) -> str:
    """The operators with most cycles, one bar each, split by phase."""
    steps = sorted(report["steps"], key=lambda s: -s["cycles_per_update"])[:BARS]
    if not steps:
        return ""
    most, total = max(1, steps[0]["cycles_per_update"]), max(1, report["totals"]["cycles"])
    right = WIDTH - 150
    parts = []
    for i, s in enumerate(steps):
        y, cycles = 8 + 25 * i, s["cycles_per_update"]
        role = "" if s["role"] == "forward" else f" ({s['role']})"
        parts.append(text(NAME_WIDTH - 10, y + 13, f.clip(s["name"], 48 - len(role)) + role, "name end"))
        shares = [(p, s["phases"][p] * s["repeats"] / most, f"{s['name']} {p}: {f.count(s['phases'][p] * s['repeats'])} cycles") for p in PHASES]
        parts += svg.stacked_row(shares, y, 18, NAME_WIDTH, right)
        end = NAME_WIDTH + cycles / most * (right - NAME_WIDTH)
        parts.append(text(end + 8, y + 13, f"{f.short(cycles)}  {f.percent(cycles / total)}", "tick start"))
    return Frame(height=10 + 25 * len(steps)).svg(parts, "cycles of the slowest operators by phase")


def memory_top(bound: int, values: Sequence[float]) -> float:
    """Where an axis of bytes ends: above the bound, unless all values are so far below it that nothing could be seen."""
    most = max(values, default=0)
    return 1.25 * most if 0 < most < 0.4 * bound else 1.08 * max(bound, most)


def _bound(frame: Frame, bound: int) -> str:
    """The bound as a line, or as words at the top where it lies above the chart."""
    if bound <= frame.y1:
        return frame.bound(bound, f"tile memory {f.count(bound)}")
    return text(frame.width - svg.RIGHT - 4, svg.TOP + 6, f"tile memory {f.count(bound)} lies above", "bound-text end")


def memory_tiles(report: Report) -> str:
    """Bytes over tiles, stacked by category, with the bound."""
    m = report["memory"]
    tiles, bound = len(m["peak"]), m["bytes_per_tile"]
    groups = buckets(tiles, TILE_COLUMNS)
    shown = [max(g, key=lambda t: (m["peak"][t], -t)) for g in groups]
    stacks = [[(memory_class(c), values[t]) for c, values in m["categories"].items()] for t in shown]
    tips = [f"tile {t}: {f.count(m['peak'][t])} bytes" for t in shown]
    frame = Frame(x1=max(1, tiles), y1=memory_top(bound, [*m["peak"], *(sum(v for _, v in s) for s in stacks)]))
    xs = [(g[0], g[-1] + 1.0) for g in groups]
    body = frame.axes(f.count, svg.size, "tile", binary_y=True) + svg.columns(frame, stacks, tips, xs)
    body.append(_bound(frame, bound))
    return frame.svg(body, "bytes per tile by category")


def memory_histogram(report: Report) -> str:
    """How many tiles hold how much."""
    m = report["memory"]
    bound = m["bytes_per_tile"]
    top = memory_top(bound, m["peak"])
    if bound <= top:                                   # the bound lies between two bins
        top = math.ceil(24 * top / bound) * bound / 24
    bins = f.histogram(m["peak"], top, round(24 * top / bound) if bound <= top else 26)
    frame = Frame(width=560, height=250, x1=top, y1=max(1, max(n for *_, n in bins)) * 1.1)
    body = frame.axes(svg.size, f.count, "bytes", binary_x=True)
    body += svg.columns(frame, [[("bar", n)] for *_, n in bins], [f"{f.count(n)} tiles with {f.size(lo)} to {f.size(hi)}" for lo, hi, n in bins],
                        [(lo, hi) for lo, hi, _ in bins])
    if bound <= top:
        body.append(frame.bound_x(bound, "tile memory"))
    return frame.svg(body, "how many tiles hold how many bytes")


def liveness(report: Report) -> str:
    """Bytes on the worst tile over the steps, with the parts of the program marked."""
    steps, m = report["steps"], report["memory"]
    bound, floor = m["bytes_per_tile"], m["always_live"][m["worst_tile"]]
    groups = buckets(len(steps), STEP_COLUMNS)
    shown = [max((steps[i] for i in g), key=lambda s: s["tile_bytes"]) for g in groups]
    stacks = [[("weights", min(floor, s["tile_bytes"])), *_live_pieces(s, floor)] for s in shown]
    frame = Frame(x1=len(steps), y1=memory_top(bound, [s["tile_bytes"] for s in shown]))
    tips = [f"{s['index']} {s['name']} ({s['role']}): {f.count(s['tile_bytes'])} bytes, temporaries {f.count(s['temp_bytes'])}" for s in shown]
    body = _zones(frame, steps) + frame.axes(f.count, svg.size, "step of the schedule", binary_y=True)
    body += svg.columns(frame, stacks, tips, [(g[0], g[-1] + 1.0) for g in groups])
    body.append(_bound(frame, bound))
    words = [("weights", "always live"), ("activations", "live at this step"), ("temporaries", "temporaries of the operator")]
    return frame.svg(body, "bytes on the worst tile over the schedule") + svg.legend(words)


def _live_pieces(s: dict[str, Any], floor: int) -> list[tuple[str, float]]:
    rest = max(0, s["tile_bytes"] - floor)
    temporaries = min(rest, s["temp_bytes"])
    return [("activations", rest - temporaries), ("temporaries", temporaries)]


def _zones(frame: Frame, steps: Sequence[dict[str, Any]]) -> list[str]:
    """Shading and names of the program's parts."""
    starts = [i for i, s in enumerate(steps) if i == 0 or s["part"] != steps[i - 1]["part"]]
    parts = []
    for k, (lo, hi) in enumerate(zip(starts, [*starts[1:], len(steps)], strict=True)):
        if k % 2:
            parts.append(rect(frame.x(lo), frame.y(frame.y1), frame.x(hi) - frame.x(lo), frame.y(0) - frame.y(frame.y1), "zone"))
        if frame.x(hi) - frame.x(lo) > 46:
            parts.append(text((frame.x(lo) + frame.x(hi)) / 2, frame.y(frame.y1) - 3, steps[lo]["part"], "tick mid"))
    return parts


def frontier(report: Report) -> str:
    """Cycles against bytes on the worst tile: every point of a search and the frontier."""
    bound, tried = report["memory"]["bytes_per_tile"], len(report["frontier"])
    points = near(report["frontier"], bound)
    xs, ys = [p["bytes"] for p in points], [p["cycles"] for p in points]
    x_pad, y_pad = (max(xs) - min(xs) or max(xs) or 1) * 0.06, (max(ys) - min(ys) or max(ys) or 1) * 0.08
    frame = Frame(height=340, x0=max(0, min(xs) - x_pad), x1=max(xs) + x_pad, y0=max(0, min(ys) - y_pad), y1=max(ys) + y_pad)
    body = frame.axes(svg.size, f.short, "bytes on the worst tile", binary_x=True)
    if frame.x0 <= bound <= frame.x1:
        body.append(frame.bound_x(bound, "tile memory"))
    far = f", {tried - len(points)} of them too far off to be drawn" if tried > len(points) else ""
    best = pareto(points)
    line = " ".join(f"{frame.x(p['bytes']):.1f},{frame.y(p['cycles']):.1f}" for p in _staircase(best))
    body.append(f'<polyline class="front" points="{line}"/>')
    for p in sorted(points, key=lambda p: (p["best"], p["fits"])):
        body.append(_point(frame, p))
    return frame.svg(body, "cycles against bytes on the worst tile") + (
        f'<p class="soft" style="margin:10px 0 0">{tried} programs analysed{far}; filled: the one taken; dashed: does not fit.</p>')


def _point(frame: Frame, p: dict[str, Any]) -> str:
    x, y = frame.x(p["bytes"]), frame.y(p["cycles"])
    cls, radius = ("best", 6.5) if p["best"] else ("" if p["fits"] else "no", 4.5)
    tip = f"{p['label']}: {f.count(p['cycles'])} cycles, {f.count(p['bytes'])} bytes{'' if p['fits'] else ', does not fit'}"
    side, anchor = (-10, "end") if x > frame.width / 2 else (10, "start")
    words = text(x + side, y - 10, f"taken: {f.short(p['cycles'])} cycles", f"best-text {anchor}") if p["best"] else ""
    return f'<circle class="{cls}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(tip)}</title></circle>{words}'


def _staircase(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The frontier's corners: less memory than a point's needs the cycles of the one before."""
    corners = []
    for before, after in zip([None, *points[:-1]], points, strict=True):
        if before is not None:
            corners.append({"bytes": after["bytes"], "cycles": before["cycles"]})
        corners.append(after)
    return corners


def buckets(n: int, most: int) -> list[range]:
    """0..n-1 in at most `most` runs of nearly equal length."""
    k = min(n, most)
    return [range(i * n // k, (i + 1) * n // k) for i in range(k)]



