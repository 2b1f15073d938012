"""Inline SVG charts from figures: bars, areas, points. Colours and fonts are classes, so that the page's style decides."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from . import format as f

WIDTH = 1120
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 14, 34


@dataclass(frozen=True)
class PlotArea:
    """The plot area of a chart and its two axes, which begin at (x0, y0)."""

    width: float = WIDTH
    height: float = 260
    x0: float = 0
    x1: float = 1
    y0: float = 0
    y1: float = 1

    def x(self, v: float) -> float:
        """A value on the horizontal axis in pixels."""
        return LEFT + (v - self.x0) / ((self.x1 - self.x0) or 1) * (self.width - LEFT - RIGHT)

    def y(self, v: float) -> float:
        """A value on the vertical axis in pixels."""
        return self.height - BOTTOM - (v - self.y0) / ((self.y1 - self.y0) or 1) * (self.height - TOP - BOTTOM)

    def svg(self, body: Sequence[str], label: str) -> str:
        """The whole chart."""
        return (f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>')

    def axes(self, x_text: Callable[[float], str], y_text: Callable[[float], str], x_title: str, binary_x: bool = False,
             binary_y: bool = False) -> list[str]:
        """Grid lines with figures, and the horizontal axis' title."""
        parts = []
        for v in ticks(self.y0, self.y1, 4, binary_y):
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT:g}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}"/>')
            parts.append(text(LEFT - 8, self.y(v) + 4, y_text(v), "tick end"))
        for v in ticks(self.x0, self.x1, 8, binary_x):
            parts.append(text(self.x(v), self.height - BOTTOM + 16, x_text(v), "tick mid"))
        parts.append(text(self.width - RIGHT, self.height - 4, x_title, "axis end"))
        return parts

    def bound(self, v: float, label: str) -> str:
        """A dashed horizontal line with a label."""
        y = self.y(v)
        at = f'x1="{LEFT}" x2="{self.width - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"'
        return (f'<line class="under" {at}/><line class="bound" {at}/>'
                + text(self.width - RIGHT - 4, y - 5, label, "bound-text end"))

    def bound_x(self, v: float, label: str) -> str:
        """A dashed vertical line with a label."""
        x = self.x(v)
        side, anchor = (-5, "end") if x > self.width / 2 else (5, "start")
        return (f'<line class="bound" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{self.height - BOTTOM:g}"/>'
                + text(x + side, TOP + 11, label, f"bound-text {anchor}"))


def ticks(low: float, high: float, about: int, binary: bool = False) -> list[float]:
    """Round figures within low..high; powers of two times a kibibyte where `binary`."""
    span = (high - low) or 1
    raw = span / about
    if binary:
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def text(x: float, y: float, words: str, cls: str) -> str:
    """A text; the class ends in start, mid or end."""
    return f'<text class="{cls}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, cls: str, tip: str = "") -> str:
    """A rectangle with a tooltip."""
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<rect class="{cls}" x="{x:.2f}" y="{y:.2f}" width="{max(0, width):.2f}" height="{max(0, height):.2f}">{inner}</rect>'


def line(frame: PlotArea, xs: Sequence[float], ys: Sequence[float], cls: str, tip: str = "") -> str:
    """A line through points, broken where a value is no number."""
    parts, inside = [], False
    for x, y in zip(xs, ys, strict=True):
        finite = math.isfinite(y)
        if finite:
            parts.append(f"{'L' if inside else 'M'}{frame.x(x):.1f} {frame.y(y):.1f}")
        inside = finite
    return f'<path class="{cls}" d="{"".join(parts)}"><title>{escape(tip)}</title></path>'


def columns(frame: PlotArea, stacks: Sequence[Sequence[tuple[str, float]]], tips: Sequence[str],
            xs: Sequence[tuple[float, float]]) -> list[str]:
    """Stacked columns: per column (class, value) pieces from the bottom up, a tooltip, and where it begins and ends."""
    parts = []
    for pieces, tip, (lo, hi) in zip(stacks, tips, xs, strict=True):
        level, inner = frame.y0, []
        left, width = frame.x(lo), frame.x(hi) - frame.x(lo)
        gap = 0.0 if width < 4 else min(2.0, width * 0.15)
        for cls, value in pieces:
            if value > 0:
                inner.append(rect(left, frame.y(level + value), width - gap + (0.3 if not gap else 0), frame.y(level) - frame.y(level + value), cls))
                level += value
        parts.append(f"<g><title>{escape(tip)}</title>{''.join(inner)}</g>")
    return parts


def legend(items: Sequence[tuple[str, str]]) -> str:
    """Coloured squares with words."""
    return '<div class="legend">' + "".join(f'<span><i class="{cls}"></i>{escape(word)}</span>' for cls, word in items) + "</div>"


def size(v: float) -> str:
    """Bytes on an axis, without needless decimals."""
    return f.size(v).replace(".0 ", " ")
