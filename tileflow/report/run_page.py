"""report.html: the page of a training run, which stands alone: nothing is loaded, nothing runs, and names only ever
become texts."""
from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..system.text import one_line
from .curves import Line, curves, history_lines
from .png import picture, png

FILE = "report.html"
MOST = 5_000_000
"""Bytes of a page at most."""
LONGEST = 300
"""Characters of a name or a setting."""
PICTURE = 256
"""Pixels of a picture's side at most."""
SETTINGS = 400


@dataclass(frozen=True)
class Example:
    """A row of the test data with its loss; label, predicted: in words. input: numbers, drawn where they are an
    image's."""

    number: int
    loss: float
    label: str
    predicted: str
    input: np.ndarray | None = None


@dataclass
class RunPage:
    """What the page tells. history: figures by name, a number per epoch (NaN: none). losses, rates: over updates.
    confusion: [labels, predicted]. facts: in words."""

    title: str
    said: str
    history: Mapping[str, Sequence[float]]
    losses: Line
    rates: Line
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    confusion: np.ndarray | None = None
    classes: Sequence[str] = ()
    worst: Sequence[Example] = ()


def render(page: RunPage) -> str:
    """The page, in less than `MOST` bytes: pictures are left out where they were too many."""
    sections = [_figures(page), _curves(page), _matrix(page), _settings(page)]
    style = "\n" + "".join((Path(__file__).with_name(name)).read_text(encoding="utf-8")
                           for name in ("statistics.css", "run.css"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = _text(page.title)
    head = ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
            f'content="{policy}">'
            '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
            'content="light dark">'
            f'<title>{title}</title><style>{style}</style></head>\n<body><main>\n<header><div><h1>{title}</h1><div '
            'class="soft">'
            f"{_text(page.said)}</div></div></header>\n")
    tail = "\n</main></body></html>\n"
    room = MOST - sum(len(s.encode()) for s in (head, *sections, tail))
    sections.insert(3, _worst(page, room))
    return head + "\n".join(s for s in sections if s) + tail


def _text(value: Any) -> str:
    """A value as text that is nothing else, and not longer than a reader reads."""
    return escape(one_line(value, LONGEST))


def _section(title: str, body: str, intro: str = "") -> str:
    said = f'<p class="soft">{escape(intro)}</p>' if intro else ""
    return f"<section><h2>{escape(title)}</h2>{said}{body}</section>" if body else ""


def _number(x: float) -> str:
    return "" if not math.isfinite(x) else f"{x:.6g}"


def _figures(page: RunPage) -> str:
    names = [n for n, column in page.history.items() if any(math.isfinite(x) for x in column)][:24]
    cards = "".join(f'<div class="kpi"><b>{_text(value)}</b><span>{_text(name)}</span></div>'
                    for name, value in page.facts.items())
    head = "".join(f"<th>{_text(n.replace('_', ' '))}</th>" for n in names)
    shown = list(zip(*(page.history[n] for n in names), strict=True))
    more = f"The last 200 of {len(shown)} epochs." if len(shown) > 200 else ""
    rows = "".join(f"<tr>{''.join(f'<td>{_number(x)}</td>' for x in row)}</tr>" for row in shown[-200:])
    table = ("" if not names else
             f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>')
    return f'<div class="kpis">{cards}</div>' + _section("Epochs", table, more)


def _curves(page: RunPage) -> str:
    metrics = [n for n in page.history if n.startswith("test_") and n not in ("test_loss", "test_accuracy")]
    return "".join((
        _section("Loss", curves("Loss over epochs", history_lines(page.history, ["loss", "test_loss"]), "epoch")),
        _section("Accuracy and metrics",
                 curves("Metrics over epochs", history_lines(page.history, ["accuracy", "test_accuracy", *metrics[:6]]),
                                                "epoch")),
        _section("Loss of each update", curves("Loss over updates", [page.losses], "update")),
        _section("Learning rate", curves("Learning rate over updates", [page.rates], "update"))))


def _matrix(page: RunPage) -> str:
    found = page.confusion
    if found is None:
        return ""
    names = [_text(page.classes[i]) if i < len(page.classes) else str(i) for i in range(len(found))]
    head = "".join(f"<th>{n}</th>" for n in names)
    rows = []
    for name, row in zip(names, found, strict=True):
        total = max(1, int(row.sum()))
        cells = "".join(f'<td class="s{round(10 * int(n) / total)}">{int(n) or ""}</td>' for n in row)
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    return _section("Which class is taken for which",
                    f'<div class="scroll"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>'
                    f"{''.join(rows)}</tbody></table></div>",
                    "Rows are labels, columns what the model chose, on the test data.")


def _worst(page: RunPage, room: int) -> str:
    """The examples, as long as there is room."""
    cells: list[str] = []
    for example in page.worst:
        pixels = None if example.input is None else picture(example.input)
        image = ""
        if pixels is not None:
            step = math.ceil(max(pixels.shape[:2]) / PICTURE)
            data = base64.b64encode(png(np.ascontiguousarray(pixels[::step, ::step]))).decode()
            image = f'<img alt="row {example.number}" src="data:image/png;base64,{data}">'
        words = "".join(f"<br>{what} {_text(value)}" for what, value in (("label", example.label),
                                                                         ("chosen", example.predicted)) if value)
        cell = f"<div>{image}row {example.number}<br>loss {_number(example.loss)}{words}</div>"
        room -= len(cell.encode())
        if room < 100_000:
            break
        cells.append(cell)
    body = f'<div class="worst">{"".join(cells)}</div>' if cells else ""
    return _section("The rows with the greatest loss", body, "Of the test data, as the model is fed them.")


def _settings(page: RunPage) -> str:
    rows = "".join(f'<tr><td class="l">{_text(name)}</td><td class="value">{_text(value)}</td></tr>'
                   for name, value in list(page.settings.items())[:SETTINGS])
    return _section("Settings", f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else "",
                    "What was minimised and on which data, and what is not the default.")
