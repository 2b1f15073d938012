"""An exploration as a table for a terminal."""
from __future__ import annotations

from typing import Any

from ..report import format as f
from ..report.text import table
from .point import FAILED, WHERE_SAID, Point, Points

ROWS = 200
"""Lines of a table; the files have all points."""
REASONS = 12
TITLES = {"training": "training", "machine": "machine", "replication_factor": "replicas", "ipus": "IPUs", "micro_batch_size": "micro-batch",
          "gradient_accumulation": "accumulation", "precision": "precision",
          "available_memory_proportion": "proportion", "recompute": "recompute", "optimizer_off_chip": "optimizer off chip"}
"""What tables call the axes."""
ONES = {"ipus": "IPU", "replication_factor": "replica"}
"""Axes that count things, and what one of them is called."""


def title(name: str) -> str:
    """What tables call an axis: an option's own word, or a chip's constant in plain words."""
    return TITLES.get(name, name.replace("_", " "))


def word(value: Any) -> str:
    """A value of an axis as tables show it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f.count(value) if isinstance(value, int) else str(value)


def label(point: Point, names: list[str]) -> str:
    """A point by its values of the axes that are named: `gc200, micro-batch 4, precision 16.16`."""
    shown = [(name, point.values.get(name)) for name in names]
    return ", ".join(named(name, value) for name, value in shown if value is not None)


def named(name: str, value: Any) -> str:
    """A value with the axis that it is of."""
    if name == "training":
        return "training" if value else "inference"
    if isinstance(value, bool):
        return title(name) if value else f"no {title(name)}"
    if name in ONES:
        return f"{value} {ONES[name] if value == 1 else title(name)}"
    return word(value) if name == "machine" else f"{title(name)} {word(value)}"


def varying(found: Points) -> list[str]:
    """The axes with several values; the machine where there is none."""
    return [name for name, values in found.axes.items() if len(values) > 1] or ["machine"]


def render(found: Points) -> str:
    """The table, why points do not fit or failed, and which is the fastest."""
    names = varying(found)
    fixed = [named(name, values[0]) for name, values in found.axes.items() if name not in names and values[0] is not None]
    head = ", ".join([found.model or "model", *fixed])
    done = "" if found.complete else f"\nInterrupted: {len(found.points)} of {found.settings} settings were tried."
    rows = _table(found, names) if any(p.state != FAILED for p in found.points) else ""
    return "\n\n".join(part for part in (head + done, rows, _reasons(found, names), _fastest(found, names)) if part)


def _table(found: Points, names: list[str]) -> str:
    best = {id(p) for p in found.front}
    tried = [p for p in found.points if p.state != FAILED]
    shown = tried[:ROWS]
    said = [name for name in WHERE_SAID if name in found.figures]
    rows = [[_mark(p, id(p) in best), *(word(p.values.get(name)) for name in names), *_figures(p),
             *("-" if (rate := getattr(p, name)) is None else f"{rate:.4g}" for name in said)] for p in shown]
    header = ["", *(title(name) for name in names), "samples/s", "cycles per sample", "worst tile", "of tile",
              "TFLOP/s", "of peak",
              *(name.replace("samples_per_second_per_", "samples/s per ").replace("mm2", "mm²") for name in said)]
    more = f"\n  and {len(tried) - ROWS:,} points more in the files" if len(tried) > ROWS else ""
    marks = {row[0] for row in rows}
    legend = "; ".join(text for mark, text in (("*", "* nothing that fits is faster with less memory"), ("!", "! out of tile memory"))
                       if mark in marks)
    return table(header, rows, 1 + len(names)) + more + (f"\n  {legend}" if legend else "")


def _mark(p: Point, best: bool) -> str:
    return "*" if best else "" if p.fits else "!"


def _figures(p: Point) -> list[str]:
    if p.samples_per_second is None or p.bytes is None or p.bytes_per_tile is None:
        return ["-"] * 6
    return [f.count(p.samples_per_second), f.count(p.cycles_per_sample or 0), f.count(p.bytes), f.percent(p.bytes / p.bytes_per_tile),
            f"{p.tflops:.4g}", f.percent(p.peak_fraction or 0)]


def _reasons(found: Points, names: list[str]) -> str:
    """Why points do not fit or failed; a reason that several have once."""
    by_reason: dict[str, list[Point]] = {}
    for p in found.points:
        if not p.fits:
            by_reason.setdefault(p.reason, []).append(p)
    lines = [f"  {label(points[0], names)}{f' and {len(points) - 1} more' if len(points) > 1 else ''}: {reason}"
             for reason, points in by_reason.items()]
    if not lines:
        return ""
    more = [f"  and {len(lines) - REASONS} reasons more in the files"] if len(lines) > REASONS else []
    return "\n".join(["What does not fit or failed:", *lines[:REASONS], *more])


def _fastest(found: Points, names: list[str]) -> str:
    lines = []
    for training in (False, True):
        best = [p for p in found.front if p.training is training][-1:]
        lines += [f"Fastest that fits: {label(p, names)}: {f.count(p.samples_per_second or 0)} samples/s with {f.size(p.bytes or 0)} on the fullest "
                  "tile." for p in best]
    return "\n".join(lines) or "No setting fits."
