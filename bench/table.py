"""`python -m bench table results.json … --readme README.md`: the README's performance tables, written from results files.

The text between two marks is replaced; nobody edits it by hand. Training steps of PyTorch's own modules have a table
and marks of their own (`steps_table`); a table of which nothing was measured stays. A row that misses its bound stays as it
is, with what limits it (notes.toml).
"""
from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import steps_table
from .cases import Limit, cases
from .report import Result, load, place
from .verdict import Verdict, verdicts

BEGIN, END = "<!-- performance: written by `python -m bench table` -->", "<!-- end of performance -->"
NOTES = Path(__file__).parent / "notes.toml"


def notes() -> dict[str, str]:
    """What limits a row that misses its bound, by row (or `row.path` for one path only)."""
    return tomllib.loads(NOTES.read_text())


def errors(results: Sequence[Result]) -> str:
    """The largest errors of both sides over a row's shapes."""
    pairs = [(r.error_ours, r.error_peer) for r in results if r.error_ours is not None and r.error_peer is not None]
    if not pairs:
        return ""
    return " / ".join(f"{max(p[i] for p in pairs):.0e}".replace("e-0", "e-") for i in (0, 1))


def share(results: Sequence[Result]) -> str:
    """The best fraction of the peak that a shape of the row reaches on one thread, if it was measured."""
    results = [r for r in results if r.threads == 1] or results
    flops = [r.fraction_of_peak for r in results if r.fraction_of_peak is not None]
    bytes_ = [r.fraction_of_bandwidth for r in results if r.fraction_of_bandwidth is not None]
    if flops:
        return f"{100 * max(flops):.0f} % of FMA peak"
    return f"{100 * max(bytes_):.0f} % of copy" if bytes_ else ""


def verdict_line(v: Verdict, results: Sequence[Result], why: Mapping[str, str]) -> str:
    """A row of the table."""
    mine = [r for r in results if r.row == v.row.id and r.path == v.path and r.peer == v.row.peer]
    one, two = (v.by_threads.get(n, math.nan) for n in cases().threads)
    means = " / ".join("-" if math.isnan(x) else f"{x:.2f}" for x in (one, two))
    assert v.worst.ratio is not None
    if v.bound is None:
        promise = "-"
    elif not v.failings:
        promise = f"{v.bound:g}: kept"
    else:
        promise = f"**{v.bound:g}: {'; '.join(v.failings)}**. {why.get(f'{v.row.id}.{v.path}', why.get(v.row.id, ''))}".strip()
    cells = (v.row.what, v.row.peer, v.path, f"{v.ratio:.2f}", means, f"{v.worst.ratio:.2f}, {v.worst.shape}", errors(mine), share(mine), promise)
    return f"| {' | '.join(cells)} |"


def limit_lines(results: Sequence[Result]) -> list[str]:
    """Rows of the table of limits: seconds to the first step, memory."""
    lines = []
    for limit in cases().limits:
        value = limit_value(limit, results)
        if value is not None:
            most = limit.most if limit.most is not None else limit.share
            assert most is not None
            shown = f"{value:.2f}" if limit.most is None else f"{value:.1f} s" if most >= 1 else f"{1e6 * value:.2f} us"
            bound = f"{most:g}" if limit.most is None or most >= 1 else f"{1e6 * most:g} us"
            lines.append(f"| {limit.what} | {shown} | {bound}: {'kept' if value <= most else '**missed**'} |")
    return lines


def limit_value(limit: Limit, results: Sequence[Result]) -> float | None:
    """Seconds, or our memory over the peer's (the worst measured), or None where it was not measured."""
    if limit.share is None:
        return next((r.ours_s for r in results if r.row == limit.id), None)
    row = limit.id.removesuffix("-memory")
    found = [r.extra["memory_ours"] / r.extra["memory_peer"] for r in results if r.row == row and {"memory_ours", "memory_peer"} <= r.extra.keys()]
    return max(found, default=None)


def table(machine: Mapping[str, Any], results: Sequence[Result], why: Mapping[str, str]) -> str:
    """The Markdown between the marks."""
    versions = machine["versions"]
    peers = ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime") if versions.get(name))
    heads = ("what", "against", "path", "ratio", "at 1 / 2 threads", "worst shape", "errors ours / peer", "at best", "promised")
    lines = [f"Measured on {place(machine)}, against "
             f"{peers}. A ratio is the peer's time over ours, the geometric mean over the row's shapes (`bench/cases.toml`) at 1 and at 2 threads; "
             "errors are the largest of both sides against float64.", "",
             f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(verdict_line(v, results, why) for v in verdicts(results))]
    limits = limit_lines(results)
    if limits:
        lines += ["", "| what | figure | at most |", "|---|---|---|", *limits]
    return "\n".join(lines)


def write(readme: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what stands between two marks.

    Raises:
        SystemExit: the file has no such marks.
    """
    head, began, rest = readme.read_text().partition(begin)
    _, ended, tail = rest.partition(end)
    if not began or not ended:
        raise SystemExit(f"{readme} has no place for the table: it must hold the lines\n{begin}\n{end}")
    readme.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def main(arguments: Sequence[str]) -> None:
    """Print the tables, or write them into a file."""
    parser = argparse.ArgumentParser(prog="python -m bench table",
                                     description="The README's performance tables from results files of one machine.")
    parser.add_argument("results", nargs="+",
                        help="files that `python -m bench … --json` wrote; of two with the same measurement the later counts")
    parser.add_argument("--readme", type=Path, help="write them between the marks of this file instead of printing them")
    chosen = parser.parse_args(arguments)
    found: dict[Any, Result] = {}
    for path in chosen.results:
        machine, results = load(path)
        found |= {(r.row, r.shape, r.case, r.peer, r.threads, r.path): r for r in results}
    steps = [r for r in found.values() if steps_table.serves(r)]
    others = [r for r in found.values() if not steps_table.serves(r)]
    made = []
    if others or not steps:
        made.append((table(machine, others, notes()), BEGIN, END))
    if steps:
        made.append(("\n".join(steps_table.lines(machine, steps)), steps_table.BEGIN, steps_table.END))
    for text, begin, end in made:
        if chosen.readme is None:
            print(text)
        else:
            write(chosen.readme, text, begin, end)
