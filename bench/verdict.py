"""What results say about the rows of cases.toml: geometric means, the worst shape, whether the bound is reached."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .cases import Row, cases
from .report import Result


def geometric_mean(ratios: Iterable[float]) -> float:
    """NaN for none."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


@dataclass(frozen=True)
class Verdict:
    """A row on one path: the mean of its ratios, over all and by number of threads; the worst; what is missing."""

    row: Row
    path: str
    ratio: float
    by_threads: dict[int, float]
    worst: Result
    measured: int
    wanted: int

    @property
    def bound(self) -> float | None:
        return self.row.bound(self.path)

    @property
    def failings(self) -> list[str]:
        """Why the promise does not hold; empty where it does or there is none."""
        assert self.worst.ratio is not None
        if self.bound is None:
            return []
        found = [f"mean {self.ratio:.2f} below {self.bound:g}"] if self.ratio < self.bound else []
        if self.worst.ratio < cases().floor:
            found.append(f"{self.worst.shape} ({self.worst.threads} thr.) {self.worst.ratio:.2f} below {cases().floor:g}")
        if self.measured < self.wanted:
            found.append(f"{self.wanted - self.measured} of {self.wanted} figures missing")
        return found


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """For every row and path that has ratios, in the order of cases.toml."""
    found = []
    for row in cases().rows:
        mine = [r for r in results if r.row == row.id and r.peer == row.peer]
        for path in dict.fromkeys(r.path for r in mine):
            with_ratio = [r for r in mine if r.path == path and r.ratio is not None]
            if not with_ratio:
                continue
            threads = sorted({r.threads for r in with_ratio})
            means = {n: geometric_mean(r.ratio for r in with_ratio if r.threads == n and r.ratio is not None) for n in threads}
            found.append(Verdict(row, path, geometric_mean(r.ratio for r in with_ratio if r.ratio is not None), means,
                                 min(with_ratio, key=lambda r: r.ratio or math.inf), len(with_ratio), len(row.shapes) * len(cases().threads)))
    return found


def summary(results: Sequence[Result]) -> str:
    """A line for each row."""
    lines = []
    for v in verdicts(results):
        by_threads = ", ".join(f"{mean:.2f} at {n}" for n, mean in v.by_threads.items())
        promise = "nothing promised" if v.bound is None else (f"{v.bound:g} promised: " + ("; ".join(v.failings) or "kept"))
        lines.append(f"{v.row.id:<16} {v.path:<7} {v.ratio:6.2f} ({by_threads}), worst {v.worst.ratio:.2f} {v.worst.shape}; {promise}")
    return "\n".join(lines)
