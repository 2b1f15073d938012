"""An exploration as a picture: samples per second over bytes on the fullest tile (logarithmic), with the front; one SVG that needs nothing else."""
from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..report import format as f
from ..report.svg import BOTTOM, LEFT, RIGHT, TOP, PlotArea, size, text, ticks
from ..system.text import one_line
from .point import FAILED, Point, Points
from .text import label, named, title, varying, word

WIDTH, HEIGHT, HEAD = 1120, 560, 46
LEGEND = 250
"""Pixels for the legend on the right."""
LABELS = 24
"""Points of the front with their values beside them."""
LETTER = 6.5
"""Pixels of a letter, about."""
LONGEST = 60
"""Characters of a label; the whole text is in the point's tooltip."""
COLOURS = ("#2563eb", "#d97706", "#059669", "#c026d3", "#dc2626", "#0891b2", "#65a30d", "#7c3aed", "#db2777", "#475569")
SHAPES = ("circle", "square", "diamond", "triangle", "down", "cross")
STYLE = """
svg { font: 13px system-ui, sans-serif; } .back { fill: #fff; } text { fill: #334155; } .soft { fill: #64748b; }
.title { font-size: 16px; font-weight: 600; fill: #0f172a; } .mid { text-anchor: middle; } .end { text-anchor: end; } .small { font-size: 11.5px; }
.grid { stroke: #e2e8f0; } .bound { stroke: #dc2626; stroke-dasharray: 5 4; } .bound-text { fill: #b91c1c; font-size: 11.5px; }
.front { fill: none; stroke: #0f172a; stroke-width: 1.5; } .no { opacity: .45; }
"""


def render(found: Points) -> str:
    """The picture. Filled points fit, hollow ones do not; what failed has no place in it and is counted below the title."""
    drawn = [p for p in found.points if p.bytes is not None]
    names = [n for n in varying(found) if any(p.values.get(n) != drawn[0].values.get(n) for p in drawn)] or ["machine"]
    coloured, shaped = _told_apart(names)
    body = [f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>', text(LEFT, 24, _title(found), "title"),
            text(LEFT, 42, _subtitle(found), "soft")]
    if drawn:
        frame = _frame(drawn)
        body += [f'<g transform="translate(0 {HEAD})">', *_axes(frame), *_bounds(frame, drawn)]
        body += [_staircase(frame, [p for p in found.front if p.training is training]) for training in (False, True)]
        best = {id(p) for p in found.front}
        for p in sorted(drawn, key=lambda p: (p.fits, id(p) in best)):
            body.append(_mark(frame, p, names, _colour(found, coloured, p), _shape(found, shaped, p), id(p) in best))
        body += [*_labels(frame, found, names), "</g>"]
    body += _legend(found, coloured, shaped, names)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_safe(_title(found))}">'
            f"<style>{STYLE}</style>{''.join(body)}</svg>\n")


def _safe(words: str) -> str:
    return escape(one_line(words))


def _title(found: Points) -> str:
    return one_line(f"{found.model or 'model'}: samples per second against memory per tile", 110)


def _subtitle(found: Points) -> str:
    failed = sum(p.state == FAILED for p in found.points)
    parts = [f"{f.count(len(found.points))} settings" + ("" if found.complete else f" of {f.count(found.settings)}, then interrupted")]
    fixed = [named(n, v[0]) for n, v in found.axes.items() if len(v) == 1 and v[0] is not None]
    return one_line(", ".join([*parts, *fixed, *([f"{f.count(failed)} failed (see the table)"] if failed else [])]), 150)


def _told_apart(names: Sequence[str]) -> tuple[str | None, str | None]:
    """The axes that colours and shapes stand for."""
    order = sorted(names, key=lambda n: (n not in ("machine", "precision", "training"), names.index(n)))
    return order[0] if order else None, order[1] if len(order) > 1 else None


def _number(found: Points, name: str | None, p: Point) -> int:
    if name is None or p.values.get(name) not in found.axes[name]:
        return 0
    return found.axes[name].index(p.values[name])


def _colour(found: Points, name: str | None, p: Point) -> str:
    return COLOURS[_number(found, name, p) % len(COLOURS)]


def _shape(found: Points, name: str | None, p: Point) -> str:
    return SHAPES[_number(found, name, p) % len(SHAPES)]


def _frame(drawn: Sequence[Point]) -> PlotArea:
    xs = [_x(p) for p in drawn] + [math.log2(p.bytes_per_tile) for p in drawn if p.bytes_per_tile]
    most = max((p.samples_per_second or 0) for p in drawn)
    return PlotArea(WIDTH - LEGEND, HEIGHT - HEAD, x0=min(xs) - 0.25, x1=max(xs) + 0.25, y0=0, y1=1.08 * most or 1)


def _x(p: Point) -> float:
    return math.log2(max(1, p.bytes or 1))


def _axes(frame: PlotArea) -> list[str]:
    """Grid lines with figures: powers of two of bytes, round numbers of samples."""
    parts, right, bottom = [], frame.width - RIGHT, frame.height - BOTTOM
    for v in ticks(frame.y0, frame.y1, 6):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right:g}" y1="{frame.y(v):.1f}" y2="{frame.y(v):.1f}"/>')
        parts.append(text(LEFT - 8, frame.y(v) + 4, f.short(v), "soft end"))
    first, last = math.ceil(frame.x0), math.floor(frame.x1)
    step = max(1, math.ceil((last - first) / 10))
    for v in range(first, last + 1, step):
        parts.append(f'<line class="grid" x1="{frame.x(v):.1f}" x2="{frame.x(v):.1f}" y1="{TOP}" y2="{bottom:g}"/>')
        parts.append(text(frame.x(v), bottom + 16, size(2.0 ** v), "soft mid"))
    parts.append(text(right, frame.height - 3, "bytes on the fullest tile", "soft end"))
    parts.append(text(LEFT, TOP - 2, "samples/s", "soft end"))
    return parts


def _bounds(frame: PlotArea, drawn: Sequence[Point]) -> list[str]:
    """What tiles hold: a line for each size of tile."""
    parts = []
    for i, bound in enumerate(sorted({p.bytes_per_tile for p in drawn if p.bytes_per_tile})):
        x = frame.x(math.log2(bound))
        parts.append(f'<line class="bound" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{frame.height - BOTTOM:g}"/>')
        parts.append(text(x - 5, frame.height - BOTTOM - 6 - 14 * i, f"a tile has {size(bound)}", "bound-text end"))
    return parts


def _staircase(frame: PlotArea, best: Sequence[Point]) -> str:
    """The front: with less memory than a point needs one has the speed of the one before."""
    corners: list[str] = []
    for i, p in enumerate(best):
        if i:
            before = best[i - 1]
            corners.append(f"{frame.x(_x(p)):.1f},{frame.y(before.samples_per_second or 0):.1f}")
        corners.append(f"{frame.x(_x(p)):.1f},{frame.y(p.samples_per_second or 0):.1f}")
    return f'<polyline class="front" points="{" ".join(corners)}"/>' if corners else ""


def _mark(frame: PlotArea, p: Point, names: list[str], colour: str, shape: str, best: bool) -> str:
    x, y, r = frame.x(_x(p)), frame.y(p.samples_per_second or 0), 6.5 if best else 5.0
    fits = "" if p.fits else f"; does not fit: {p.reason}"
    tip = f"{label(p, names)}: {f.count(p.samples_per_second or 0)} samples/s, {f.count(p.bytes or 0)} bytes on the fullest tile{fits}"
    paint = f'fill="{colour}" stroke="{"#0f172a" if best else colour}"' if p.fits else f'class="no" fill="#fff" stroke="{colour}" stroke-width="2"'
    return f"<g {paint}>{_outline(shape, x, y, r)}<title>{_safe(tip)}</title></g>"


def _outline(shape: str, x: float, y: float, r: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'
    if shape == "square":
        return f'<rect x="{x - 0.9 * r:.1f}" y="{y - 0.9 * r:.1f}" width="{1.8 * r:.1f}" height="{1.8 * r:.1f}"/>'
    turned = {"diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)), "triangle": ((0, -1.2), (1.1, 0.85), (-1.1, 0.85)),
              "down": ((0, 1.2), (1.1, -0.85), (-1.1, -0.85)),
              "cross": ((-1, -.4), (-.4, -.4), (-.4, -1), (.4, -1), (.4, -.4), (1, -.4), (1, .4), (.4, .4), (.4, 1), (-.4, 1), (-.4, .4), (-1, .4))}
    corners = " ".join(f"{x + a * r:.1f},{y + b * r:.1f}" for a, b in turned[shape])
    return f'<polygon points="{corners}"/>'


def _labels(frame: PlotArea, found: Points, names: list[str]) -> list[str]:
    """The values of the front's points, but for what all of them have; some of them where there are many."""
    best = found.front
    names = [n for n in names if any(p.values.get(n) != best[0].values.get(n) for p in best)] or names
    shown = best if len(best) <= LABELS else [best[round(i * (len(best) - 1) / (LABELS - 1))] for i in range(LABELS)]
    parts = []
    for p in shown:
        x, y = frame.x(_x(p)), frame.y(p.samples_per_second or 0)
        words = f.clip(one_line(label(p, names)), LONGEST)
        side, anchor = (-8, "end") if x - LEFT > LETTER * len(words) else (10, "start")          # left of a front there is nothing
        parts.append(text(x + side, y - 8, words, f"small {anchor}"))
    return parts


def _legend(found: Points, coloured: str | None, shaped: str | None, names: Sequence[str]) -> list[str]:
    """What colours and shapes stand for."""
    x, y = WIDTH - LEGEND + 14.0, HEAD + 26.0
    parts: list[str] = []

    def line(words: str, mark: str = "", cls: str = "") -> None:
        nonlocal y
        parts.extend([mark, text(x + (18 if mark else 0), y, f.clip(one_line(words), 34), cls)])
        y += 20
    for name, marks in ((coloured, [("circle", c) for c in COLOURS]), (shaped, [(s, "#475569") for s in SHAPES])):
        if name is None:
            continue
        line(title(name), cls="title")
        for i, value in enumerate(found.axes[name][:len(marks)]):
            shape, colour = marks[i]
            line(word(value), f'<g fill="{colour}">{_outline(shape, x + 6, y - 4, 5.5)}</g>')
        if len(found.axes[name]) > len(marks):
            line("others: marks come again, see tooltips")
        y += 8
    line("filled: fits; hollow: does not", cls="soft")
    line("line: nothing is faster with less", cls="soft")
    rest = [title(n) for n in names if n not in (coloured, shaped)]
    for i, axis in enumerate(rest):
        line(f"{'in tooltips: ' if i == 0 else ''}{axis}", cls="soft")
    return parts
