"""Curves of figures over epochs or updates as SVG."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..system.text import one_line
from . import palette, svg

CLASSES = ("compute", "reduce", "exchange", "transform", "optimizer", "constants", "temporaries", "buffers")
"""Of lines, in their order."""
LONGEST = 60
"""Characters of a line's name."""
POINTS = 1000
"""Of a line at most; more are drawn as the mean of their neighbours."""


@dataclass(frozen=True)
class Line:
    """Numbers over others. xs, ys: as many."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def thinned(line: Line) -> Line:
    """The line with at most `POINTS` points."""
    step = math.ceil(len(line.xs) / POINTS)
    if step <= 1:
        return line
    starts = range(0, len(line.xs), step)

    def mean(values: Sequence[float]) -> float:
        finite = [v for v in values if math.isfinite(v)]
        return sum(finite) / len(finite) if finite else math.nan
    return Line(line.name, [line.xs[min(i + step, len(line.xs)) - 1] for i in starts],
                [mean(line.ys[i:i + step]) for i in starts])


def curves(title: str, lines: Sequence[Line], x_title: str) -> str:
    """A chart of lines with a legend, for a page with a style; empty where nothing is to be drawn."""
    drawn = _shown(lines)
    if not drawn:
        return ""
    frame, body = _chart(drawn, x_title)
    return frame.svg(body, title) + svg.legend([(cls, one.name)
                                                for cls, one in zip(_classes(len(drawn)), drawn, strict=True)])


def standalone(title: str, lines: Sequence[Line], x_title: str) -> str:
    """A chart of lines as an SVG file that says by itself how it looks."""
    drawn = _shown(lines)
    frame, body = _chart(drawn, x_title) if drawn else (svg.PlotArea(), [])
    x = svg.LEFT + 8.0
    for cls, one in zip(_classes(len(drawn)), drawn, strict=True):
        body += [svg.rect(x, svg.TOP, 11, 11, cls), svg.text(x + 16, svg.TOP + 10, one.name, "start")]
        x += 40 + 7 * len(one.name)
    colours = "".join(f".{cls}{{fill:{palette.colour(cls)};stroke:{palette.colour(cls)}}}"
                      for cls in dict.fromkeys(_classes(len(drawn))))
    style = ("text{font:12px system-ui,sans-serif;fill:#586375}.end{text-anchor:end}.mid{text-anchor:middle}"
             f".grid{{stroke:#e2e6ec}}{colours}"
             "rect,circle{stroke:none}path.line{fill:none;stroke-width:2}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width:g} {frame.height:g}" role="img" '
            f'aria-label="{svg.escape(title)}">'
            f'<style>{style}</style><rect width="{frame.width:g}" height="{frame.height:g}" '
            f'style="fill:#fff"/>{"".join(body)}</svg>\n')


def _shown(lines: Sequence[Line]) -> list[Line]:
    """The lines that have something to show, by names that are no more than texts."""
    return [Line(one_line(one.name, LONGEST), one.xs, one.ys) for one in map(thinned, lines)
            if any(map(math.isfinite, one.ys))]


def _chart(drawn: Sequence[Line], x_title: str) -> tuple[svg.PlotArea, list[str]]:
    """The plot area that holds the lines, and what is in it."""
    ys = [y for one in drawn for y in one.ys if math.isfinite(y)]
    xs = [x for one in drawn for x in one.xs]
    low, high = min(ys), max(ys)
    low = 0.0 if 0 <= low < 0.5 * high else low
    high = high if high > low else low + (abs(low) or 1.0)
    frame = svg.PlotArea(x0=min(xs), x1=max(xs) if max(xs) > min(xs) else min(xs) + 1, y0=low, y1=high)
    body = frame.axes(lambda v: f"{v:g}", lambda v: f"{v:.4g}", x_title)
    for cls, one in zip(_classes(len(drawn)), drawn, strict=True):
        body.append(svg.line(frame, one.xs, one.ys, f"line {cls}", one.name))
        if len(one.xs) <= 60:
            body += [_point(frame, x, y, cls, f"{one.name} {y:.6g} ({x_title} {x:g})")
                     for x, y in zip(one.xs, one.ys, strict=True)
                     if math.isfinite(y)]
    return frame, body


def _classes(count: int) -> list[str]:
    return [CLASSES[i % len(CLASSES)] for i in range(count)]


def _point(frame: svg.PlotArea, x: float, y: float, cls: str, tip: str) -> str:
    return (f'<circle class="point {cls}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3">'
            f'<title>{svg.escape(tip)}</title></circle>')


def history_lines(history: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[Line]:
    """The columns of a history that have numbers, over its epochs."""
    return [Line(name.replace("_", " "), list(history["epoch"]), list(history[name])) for name in names
            if name in history]
