"""page.html: the report as one page that stands alone: inline SVG, no resource from elsewhere."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import charts, gantt
from . import format as f
from .json import PHASES, Report

FILE = "page.html"


def render(report: Report) -> str:
    """The page's text."""
    title = escape(f.title(report))
    css, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    sections = [_error(report), _kpis(report), _ipus(report), _cycles(report), _memory(report), _liveness(report), _frontier(report),
                _operators(report), _machine(report)]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{title}</title><style>\n{css}</style></head>\n<body><main>\n{_header(report)}\n"
            + "\n".join(s for s in sections if s)
            + f"\n<footer>{escape(report['made_by'])}. Cycles and bytes are a model's estimates; what is documented about the chip and what is "
              f"estimated stands under Machine.</footer>\n</main><script>\n{script}</script></body></html>\n")


def _header(report: Report) -> str:
    fits = report["memory"]["fits"]
    badge = "fits in tile memory" if fits else "out of tile memory"
    return (f'<header><div><h1>{escape(f.title(report))}</h1><div class="soft">{escape(f.chip_line(report))}<br>{escape(f.options_line(report))}'
            f'</div></div><div class="badge{"" if fits else " bad"}">{badge}</div></header>')


def section(title: str, intro: str, body: str, cls: str = "") -> str:
    """A card with a heading."""
    return f'<section class="{cls}"><h2>{escape(title)}</h2><p class="soft">{intro}</p>{body}</section>'


def _error(report: Report) -> str:
    error = report["out_of_memory"]
    if error is None:
        return ""
    return f'<section class="error" style="margin:0 0 18px"><h2>Out of tile memory</h2><pre>{escape(error["message"])}</pre></section>'


def _kpis(report: Report) -> str:
    t, m = report["totals"], report["memory"]
    unit = "update" if report["training"] else "micro-batch"
    used = m["worst"] / max(1, m["bytes_per_tile"])
    cells = [
        (f.short(t["cycles"]), f"cycles per {unit}", None), (f.seconds(t["seconds"]), f"per {unit}", None),
        (f.short(t["samples_per_second"]), "samples per second", None), (f"{t['tflops']:.4g}", "TFLOP/s", None),
        (f.percent(t["peak_fraction"]), "of peak", t["peak_fraction"]), (f.percent(used), "of memory, worst tile", used),
    ]
    return '<div class="kpis">' + "".join(_kpi(*c) for c in cells) + "</div>"


def _kpi(value: str, label: str, share: float | None) -> str:
    meter = ""
    if share is not None:
        meter = f'<div class="meter"><i class="{"bad" if share > 1 else ""}" style="width:{100 * min(1.0, share):.1f}%"></i></div>'
    return f'<div class="kpi"><b>{escape(value)}</b><span>{escape(label)}</span>{meter}</div>'


def _ipus(report: Report) -> str:
    if not report["ipus"]:
        return ""
    counts = ("busy", "worst", "always_live", "stashed", "sent", "streamed")
    rows = [(f"IPU {i['number']}", f.percent(i["utilisation"]), *(f.count(i[k]) for k in counts)) for i in report["ipus"]]
    header = ("", "working", "cycles", "bytes, fullest tile", "always live", "stashed, all tiles", "sent an update", "streamed an update")
    return section("IPUs", escape(" ".join(gantt.advice(report))), gantt.picture(report) + _table(rows, header))


def _cycles(report: Report) -> str:
    total = f.all_phases(report)
    words = [(p, f"{p} {f.percent(report['totals']['phases'][p] / total)}: {f.PHASE_WORDS[p]}") for p in PHASES]
    intro = "Supersteps do not overlap: the worst tile of each phase decides, and phases add up. Below: the operators with most cycles."
    intro = " ".join([intro, *f.limits(report), *map(escape, f.together(report))])
    return section("Where the cycles go", intro, charts.total_phases(report) + charts.svg.legend(words) + charts.operator_phases(report))


def _memory(report: Report) -> str:
    m = report["memory"]
    worst, bound = m["worst_tile"], m["bytes_per_tile"]
    intro = (f"Worst tile {worst}: {f.count(m['worst'])} of {f.count(bound)} bytes ({f.percent(m['worst'] / bound)}); mean {f.count(m['mean'])} "
             f"({f.percent(m['mean'] / bound)}).")
    rows = [_category(name, tiles, worst) for name, tiles in m["categories"].items()]
    table = ('<table><thead><tr><th class="l">category</th><th class="l">kind</th><th>worst tile</th><th>mean</th><th>largest</th></tr></thead>'
             f"<tbody>{''.join(rows)}</tbody></table>")
    return section("Bytes per tile", intro, charts.memory_tiles(report)
                   + f'<div class="two" style="margin-top:16px"><div>{table}</div><div>{charts.memory_histogram(report)}</div></div>')


def _category(name: str, tiles: Sequence[int], worst: int) -> str:
    figures = "".join(f"<td>{f.count(v)}</td>" for v in (tiles[worst], sum(tiles) / len(tiles), max(tiles)))
    return (f'<tr><td class="l"><i class="dot {charts.memory_class(name)}"></i>{escape(name)}</td>'
            f'<td class="l soft">{f.GROUPS.get(name, "")}</td>{figures}</tr>')


def _liveness(report: Report) -> str:
    intro = "Bytes on the worst tile while each operator of the schedule runs; what is always live is the dark floor."
    return section("Liveness over the schedule", intro, charts.liveness(report)) if report["steps"] else ""


def _frontier(report: Report) -> str:
    if not report["frontier"]:
        return ""
    intro = "Every program that the search tried. The line joins those that no other beats in both cycles and bytes."
    return section("Cycles against memory", intro, charts.frontier(report))


COLUMNS = ("operator", "role", "partition", "vertex", "limit", "tiles", "times", "cycles", "share", "phases", "temp bytes", "tile bytes", *PHASES)
ROWS = 2000
"""Operators listed at most: browsers grow slow above that."""
WORDS = 5
"""The first columns that hold words."""


def _operators(report: Report) -> str:
    total = max(1, report["totals"]["cycles"])
    steps = sorted(report["steps"], key=lambda s: -s["cycles_per_update"])
    head = "".join(f'<th{" class=l" if i < WORDS else ""}>{c}</th>' for i, c in enumerate(COLUMNS))
    body = "\n".join(_operator(s, total) for s in steps[:ROWS])
    over = sum(not s["fits"] for s in steps)
    note = f' <span class="flag">{over} marked ! found no plan within the bound and take the one with least memory.</span>' if over else ""
    shown = f"The {ROWS:,} with most cycles of {len(steps):,}; report.json has all. " if len(steps) > ROWS else ""
    intro = f"{shown}Cycles per update, worst tile. Click a column to sort.{note}"
    listed = min(ROWS, len(steps))
    return (f'<section id="operators"><div class="bar-line"><h2>Operators</h2><input type="search" placeholder="Filter {listed:,} operators" '
            f'aria-label="Filter operators"></div><p class="soft">{intro}</p><div class="scroll"><table class="ops"><thead><tr>{head}</tr></thead>'
            f"<tbody>\n{body}\n</tbody></table></div></section>")


def _operator(s: Mapping[str, Any], total: int) -> str:
    name, cycles = escape(s["name"]), s["cycles_per_update"]
    flag = "" if s["fits"] else ' <span class="flag" title="no plan fits the bound">!</span>'
    pieces = "".join(f'<i class="{p}" style="width:{100 * s["phases"][p] / max(1, s["cycles"]):.1f}%"></i>' for p in PHASES)
    role = s["role"] if s["part"] == "micro" or s["part"] == s["role"] else f"{s['role']}, {s['part']}"
    words = [role, f"<code>{escape(f.partition(s))}</code>", escape(s["vertex"]), escape(s["limit"])]
    cells = [f'<td class="l name" title="{name}">{name}</td>', *(f'<td class="l">{w}</td>' for w in words),
             _number(s["tiles"]), _number(s["repeats"]), _number(cycles), _number(cycles / total, f.percent(cycles / total)),
             _number(s["phases"]["compute"] / max(1, s["cycles"]), f'<span class="mini">{pieces}</span>'),
             _number(s["temp_bytes"], f.count(s["temp_bytes"]) + flag), _number(s["tile_bytes"]),
             *(_number(s["phases"][p] * s["repeats"]) for p in PHASES)]
    return f"<tr>{''.join(cells)}</tr>"


def _number(v: float, shown: str | None = None) -> str:
    """A cell that sorts by its value."""
    return f'<td data-v="{v:g}">{f.count(v) if shown is None else shown}</td>'


def _machine(report: Report) -> str:
    chip, options = report["chip"], report["options"]
    constants = _table([(c["name"], _value(c["value"]), c["kind"], c["source"]) for c in chip["constants"]], ("constant", "value", "", "source"))
    chosen = _table([(k, _value(v)) for k, v in options.items()], ("option", "value"))
    guessed = sum(c["kind"] == "estimate" for c in chip["constants"])
    intro = f"{escape(f.chip_line(report))}. {guessed} of {len(chip['constants'])} constants are estimates."
    return section("Machine", intro, f'<div class="two wide"><div>{constants}</div><div>{chosen}</div></div>')


def _value(v: Any) -> str:
    if isinstance(v, Mapping):
        return ", ".join(f"{k}: {_value(x)}" for k, x in v.items()) or "none"
    if isinstance(v, list):
        return ", ".join(map(_value, v)) or "none"
    if isinstance(v, bool) or v is None:
        return {True: "yes", False: "no", None: "unknown"}[v]
    if isinstance(v, (int, float)):
        return f.short(v) if abs(v) >= 1e7 else f"{v:,.6g}" if isinstance(v, float) else f"{v:,}"
    return str(v)


def _table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    head = "".join(f'<th class="l">{escape(h)}</th>' for h in header)
    body = "".join("<tr>" + "".join(f'<td class="l" style="white-space:normal">{escape(c)}</td>' for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
