"""`python -m bench hardware`: the tile machine against the published figures of bench/published.py; docs/validation.md.

    python -m bench hardware                                # each: prediction, interval, figure, where the time goes
    python -m bench hardware --seen --only ResNet           # of those that are not held out
    python -m bench hardware --write docs/validation.md     # the page
"""
from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tileflow.tiles.hardware.chip import CHIPS, RANGES

from . import published
from .hardware import Prediction, predictions


def mean(predictions: Iterable[Prediction]) -> float:
    """The geometric mean of the ratios."""
    logs = [math.log(p.ratio) for p in predictions]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(predictions: Sequence[Prediction]) -> list[tuple[str, int, int, float]]:
    """(what, lines, of them inside, geometric mean of ratios): all, those seen while working, those held out,
    families."""
    groups = {"all lines": list(predictions), "seen while working": [p for p in predictions if not p.held_out],
              "held out": [p for p in predictions if p.held_out]}
    for p in predictions:
        groups.setdefault(p.family, []).append(p)
    return [(name, len(found), sum(p.hit for p in found), mean(found)) for name, found in groups.items() if found]


def row(p: Prediction) -> str:
    """A line of the page's table."""
    slow, fast = p.interval
    notes = ", ".join(note for note, said in (("soft", p.soft), ("held out", p.held_out)) if said)
    return (f"| {p.case}{f' ({notes})' if notes else ''} | {figure(p.predicted)} | {figure(p.published)} {p.unit} | "
            f"{p.ratio:.2f} | {slow:.2f} to {fast:.2f} | {p.verdict} |")


def figure(value: float) -> str:
    """Three digits at least, whole from 1,000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def page(predictions: Sequence[Prediction]) -> str:
    """docs/validation.md."""
    counts = [f"| {name} | {count} | {hits} ({hits / count:.0%}) | {ratio:.2f} |"
              for name, count, hits, ratio in summary(predictions)]
    ranges = [f"| `{name}` | {_values(name)} | {r.low:.2f} to {r.high:.2f} | {r.reason} |"
              for name, r in RANGES.items()]
    parts = [published.HEAD, _table(("", "lines", "inside", "geometric mean of ratios"), counts), published.READING,
             "## Lines"]
    for family in dict.fromkeys(p.family for p in predictions):
        found = [p for p in predictions if p.family == family]
        parts += [f"### {family}\n\n{published.FAMILIES[family]}",
                  _table(("line", "predicted", "published", "ratio", "interval", ""), map(row, found)),
                  *(f"**{p.case}** is limited by {p.limited}." for p in found if p.limited)]
    parts += ["## Ranges\n\n" + published.RANGES_SAY,
              _table(("constant", "on the " + " / ".join(CHIPS), "shares of it", "reason"), ranges),
              "## Sources and configurations\n\n" + "\n".join(_said(predictions)), published.MISSING]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |".replace("|  |", "| |"), "|---" * len(head) + "|", *rows])


def _values(name: str) -> str:
    values = list(dict.fromkeys(getattr(c, name) for c in CHIPS.values()))
    return " / ".join(f"{v / 1e9:g}e9" if v >= 1e9 else f"{v:g}" for v in values)


def _said(predictions: Sequence[Prediction]) -> list[str]:
    """Each source once, with the configurations of its lines."""
    by_source: dict[str, dict[str, list[str]]] = {}
    for p in predictions:
        said = "; ".join(f"{name} {value}" for name, value in p.configuration.items())
        by_source.setdefault(p.source, {}).setdefault(said, []).append(p.case)
    return [f"- {source}\n" + "\n".join(f"  - {', '.join(cases)}: {said}." for said, cases in table.items())
            for source, table in by_source.items()]


def run(threads: int | None = None, runs: int = 1) -> Iterator[Prediction]:
    """All lines. Nothing is timed: neither argument changes them."""
    return predictions(published.LINES)


def main(arguments: Sequence[str]) -> None:
    """`python -m bench hardware`: all lines as text, or as the page."""
    parser = argparse.ArgumentParser(prog="python -m bench hardware",
                                     description="Predictions of the tile machine against published figures.")
    parser.add_argument("--write", metavar="FILE", help="write the page there")
    parser.add_argument("--seen", action="store_true", help="without the lines that are held out")
    parser.add_argument("--only", default="", metavar="TEXT", help="only lines with this in their name")
    chosen = parser.parse_args(arguments)
    found = []
    lines = (line for line in published.LINES if chosen.only in line.case and not (chosen.seen and line.held_out))
    for prediction in predictions(lines):
        found.append(prediction)
        print(prediction.to_text(), flush=True)
    for name, count, hits, ratio in summary(found):
        print(f"{name}: {hits} of {count} inside, geometric mean {ratio:.2f}")
    if chosen.write:
        Path(chosen.write).write_text(page(found), encoding="utf-8")
