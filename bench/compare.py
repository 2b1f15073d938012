"""`python -m bench compare a.json b.json`: what changed between two results files.

Times of two runs do not compare: clocks drift, and other work comes and goes. What compares is the ratio to the peer, measured in
turns; where there is no peer, the times are shown as they are.
"""
from __future__ import annotations

from collections.abc import Sequence

from .report import Result, duration, load
from .verdict import geometric_mean, verdicts

Key = tuple[str, str, str, int, str]
NOTICED = 0.05
"""Changes of a ratio below this share are noise."""


def key(r: Result) -> Key:
    """What makes two results the same measurement."""
    return r.row or r.case, r.shape or r.case, r.peer, r.threads, r.path


def compare(before: Sequence[Result], after: Sequence[Result]) -> str:
    """A line for each shape that moved, largest losses first, then the rows' means."""
    old, new = {key(r): r for r in before}, {key(r): r for r in after}
    both = [k for k in new if k in old]
    moved = []
    for k in both:
        a, b = old[k], new[k]
        if a.ratio is not None and b.ratio is not None:
            moved.append((b.ratio / a.ratio, k, f"ratio {a.ratio:.2f} -> {b.ratio:.2f}"))
        elif a.ours_s is not None and b.ours_s is not None:
            moved.append((a.ours_s / b.ours_s, k, f"{duration(a.ours_s)} -> {duration(b.ours_s)}, no peer"))
    lines = [f"{factor:6.2f}x  {k[0]:<16} {k[1]:<46} {k[3]} thr. {k[4]:<7} {what}"
             for factor, k, what in sorted(moved) if abs(factor - 1) >= NOTICED]
    head = f"{len(both)} results in both, {len(lines)} moved by {100 * NOTICED:.0f} % or more"
    for name, only in (("first", old.keys() - new.keys()), ("second", new.keys() - old.keys())):
        if only:
            head += f"; {len(only)} only in the {name}"
    shared = set(both)
    means = [{(v.row.id, v.path): v for v in verdicts([r for r in results if key(r) in shared])} for results in (before, after)]
    rows = [f"{id:<16} {path:<7} {means[0][id, path].ratio:.2f} -> {v.ratio:.2f}" for (id, path), v in means[1].items() if (id, path) in means[0]]
    every = geometric_mean(factor for factor, _, _ in moved)
    return "\n".join([head, *lines, *rows, f"all: {every:.2f}x" if moved else "nothing compares"])


def main(arguments: Sequence[str]) -> None:
    """Print the comparison of two files."""
    if len(arguments) != 2:
        raise SystemExit("python -m bench compare takes two results files: before.json after.json")
    print(compare(*(load(path)[1] for path in arguments)))
