"""Gradients and weights in figures: the magnitudes of each tensor beside what float16 holds at a loss scale, as one page that stands alone."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from . import svg

SCALES = range(-24, 25)
"""Powers of two that the page tries as loss scales."""
LEAST, MOST = -25, 15
"""Exponents of what float16 does not round to zero, and of what it holds."""
NORMAL = -14
LOWEST, HIGHEST = -64, 32
"""Exponents that the picture of a tensor shows; what lies beyond stands at its ends."""
ROW, NAMES = 16, 300
SHOWN = 200
"""Tensors drawn at most."""


@dataclass(frozen=True)
class Tensor:
    """A tensor after an update. Gradients are those of the loss itself, the mean over an update's micro-batches.

    norm: the Euclidean norm. largest, smallest: magnitudes, the smallest of what is not zero. zeros, underflow, subnormal, overflow, not_finite:
    numbers of elements; underflow (would be zero), subnormal (would lose digits) and overflow are what float16 would do to a gradient times the
    loss scale, or to a weight. exponents: how many elements have magnitudes 2^e up to 2^(e + 1), by e.
    """

    update: int
    kind: str
    name: str
    elements: int
    norm: float
    largest: float
    smallest: float
    zeros: int
    underflow: int
    subnormal: int
    overflow: int
    not_finite: int
    loss_scale: float
    exponents: Mapping[int, int] = field(default_factory=dict)


def lost(tensors: Sequence[Tensor], power: int) -> tuple[float, float]:
    """The shares of all elements that are not zero that a loss scale of 2^power would let vanish, and overflow, in float16."""
    total = sum(sum(t.exponents.values()) for t in tensors) or 1
    low = sum(n for t in tensors for e, n in t.exponents.items() if e + power < LEAST)
    high = sum(n for t in tensors for e, n in t.exponents.items() if e + power > MOST)
    return low / total, high / total


def best(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """The powers of two, lowest and highest, that lose least; overflow, which costs a whole update, before anything else."""
    found = {k: lost(tensors, k)[::-1] for k in SCALES}
    least = min(found.values())
    good = [k for k in SCALES if found[k] == least]
    return good[0], good[-1]


def render(tensors: Sequence[Tensor], title: str) -> str:
    """The page of one update's tensors."""
    css = Path(__file__).with_name("statistics.css").read_text(encoding="utf-8")
    gradients, weights = ([t for t in tensors if t.kind == kind] for kind in ("gradient", "weight"))
    sections = [_choice(gradients), _strips(gradients, "Gradients", True), _strips(weights, "Weights", False), _table(tensors)]
    update = max((t.update for t in tensors), default=0)
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{escape(title)}</title><style>\n{css}</style></head>\n<body><main>\n<header><div><h1>{escape(title)}</h1>"
            f'<div class="soft">after update {update}</div></div></header>\n' + "\n".join(s for s in sections if s) + "\n</main></body></html>\n")


def _section(title: str, intro: str, body: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="soft">{escape(intro)}</p>{body}</section>'


def _choice(gradients: Sequence[Tensor]) -> str:
    if not gradients:
        return ""
    shares = [lost(gradients, k) for k in SCALES]
    frame = svg.PlotArea(x0=SCALES[0], x1=SCALES[-1] + 1, y1=max(0.01, *(low + high for low, high in shares)))
    body = frame.axes(lambda v: f"2^{v:g}", lambda v: f"{v:.0%}" if frame.y1 > 0.05 else f"{v:.1%}", "loss scale")
    tips = [f"2^{k}: {low:.4%} underflow, {high:.4%} overflow" for k, (low, high) in zip(SCALES, shares, strict=True)]
    body += svg.columns(frame, [[("compute", low), ("reduce", high)] for low, high in shares], tips, [(k, k + 1) for k in SCALES])
    now = gradients[0].loss_scale
    body.append(frame.bound_x(math.log2(now), f"now {now:g}"))
    first, last = best(gradients)
    intro = (f"Share of the gradients' elements that float16 would lose at each loss scale. From 2^{first} to 2^{last} it is least: "
             f"{lost(gradients, first)[0]:.2%} underflow.")
    legend = svg.legend([("compute", "underflow: would be zero"), ("reduce", "overflow: would be infinite")])
    return _section("Which loss scale", intro, frame.svg(body, "Lost elements over the loss scale") + legend)


def _strips(tensors: Sequence[Tensor], title: str, scaled: bool) -> str:
    """A row per tensor: how many of its elements have each exponent."""
    if not tensors:
        return ""
    shift = math.log2(tensors[0].loss_scale) if scaled else 0.0
    shown = tensors[:SHOWN]
    height = ROW * len(shown) + 26
    step = (svg.WIDTH - NAMES - 10) / (HIGHEST - LOWEST + 1)

    def x(e: float) -> float:
        return NAMES + (min(max(e, LOWEST), HIGHEST + 1) - LOWEST) * step
    body = [svg.rect(x(LEAST - shift), 0, x(NORMAL - shift) - x(LEAST - shift), height - 20, "sync", "float16 has fewer digits here"),
            svg.rect(x(NORMAL - shift), 0, x(MOST + 1 - shift) - x(NORMAL - shift), height - 20, "exchange", "float16 holds this")]
    body = [part.replace("<rect ", '<rect fill-opacity="0.25" ') for part in body]
    for i, t in enumerate(shown):
        body.append(svg.text(NAMES - 8, ROW * i + 12, t.name if len(t.name) < 44 else "…" + t.name[-42:], "tick end"))
        most = max(t.exponents.values(), default=1)
        for e, n in t.exponents.items():
            cell = svg.rect(x(e), ROW * i + 2, step, ROW - 4, "compute", f"{t.name}: {n} elements from 2^{e} to 2^{e + 1}")
            body.append(cell.replace("<rect ", f'<rect fill-opacity="{0.15 + 0.85 * n / most:.2f}" '))
    body += [svg.text(x(e), height - 6, f"2^{e}", "tick mid") for e in range(LOWEST, HIGHEST + 1, 16)]
    more = f" The first {SHOWN} of {len(tensors)} tensors." if len(tensors) > SHOWN else ""
    held = "float16 holds at the loss scale now" if scaled else "float16 holds"
    intro = f"Elements by magnitude, each row a tensor; the band is what {held}, its paler part with fewer digits.{more}"
    picture = f'<svg viewBox="0 0 {svg.WIDTH} {height}" role="img" aria-label="{escape(title)} by magnitude">{"".join(body)}</svg>'
    return _section(title, intro, picture)


COLUMNS = ("tensor", "kind", "elements", "norm", "largest", "smallest", "zeros", "underflow", "subnormal", "overflow", "not finite")


def _table(tensors: Sequence[Tensor]) -> str:
    head = "".join(f'<th{" class=l" if i < 2 else ""}>{name}</th>' for i, name in enumerate(COLUMNS))
    rows = []
    for t in tensors:
        counts = [f"{n / max(1, t.elements):.2%}" for n in (t.zeros, t.underflow, t.subnormal, t.overflow, t.not_finite)]
        words = "".join(f'<td class="l">{escape(w)}</td>' for w in (t.name, t.kind))
        cells = [f"{t.elements:,}", *(f"{v:.4g}" for v in (t.norm, t.largest, t.smallest)), *counts]
        rows.append(f"<tr>{words}{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    return _section("Figures", "Shares of a tensor's elements; underflow, subnormal and overflow as float16 would have them.",
                    f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>')
