"""What recomputation takes and gives on this computer: bytes of a training step's arena and its time, over those of the step that keeps everything.

Both steps are of one process and take turns. The attention of a transformer must stay fused: the step's kernels are looked at, too.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .kinds.network import Network
from .report import Figures

CASES: tuple[tuple[dict[str, Any], tuple[str, ...], float, float | None], ...] = (
    ({"network": "resnet18", "batch": 16}, ("stem", "pool", "blocks.[0-4]"), 0.45, 1.28),
    ({"network": "bert-mini", "batch": 32, "sequence": 128}, ("layers.[0-2]",), 0.30, None))
"""Network, what is computed again, the share of the arena that is to be saved at least, and how many times as long a step may take at most. A
residual block's time is about the same everywhere in ResNet, but its memory halves from stage to stage, so the later ones are kept."""


@dataclass
class Again(Figures):
    """One network. nbytes and of_all: the arena with and without recomputation; seconds: of a step, likewise; attention: fused kernels in either."""

    case: str
    nbytes: int
    of_all: int
    seconds: float
    of_kept: float
    ratio: float
    attention: tuple[int, int]
    saves: float
    longer: float | None

    def to_text(self) -> str:
        kept = f"; {self.attention[0]} fused attention kernels of {self.attention[1]}" if self.attention[1] else ""
        most = "" if self.longer is None else f" (at most {self.longer - 1:+.0%})"
        return (f"{self.case:<52} {self.nbytes:>13,} of {self.of_all:>13,} bytes, {1 - self.nbytes / self.of_all:.1%} less (at least "
                f"{self.saves:.0%}); {1e3 * self.seconds:.1f} of {1e3 * self.of_kept:.1f} ms, {self.ratio - 1:+.1%}{most}{kept}")


def model(shape: dict[str, Any], threads: int, again: Sequence[str]) -> tuple[Any, tuple[Any, ...]]:
    """A training model of the network, and its rows."""
    problem = Network({**shape, "pass": "training"})
    return problem.training(threads, again), problem.data(problem.rows)


def run(threads: int | None, runs: int) -> list[Again]:
    """All networks; `runs` turns of each step."""
    found = []
    for shape, patterns, saves, longer in CASES:
        pair = [model(shape, threads or 1, again) for again in ((), patterns)]
        for made, rows in pair:
            made.compile(*rows)
            made(*rows)
        taken = [[_seconds(made, rows) for made, rows in pair] for _ in range(runs)]
        kept, again = (statistics.median(turn[side] for turn in taken) for side in (0, 1))
        plans = [made.plan for made, _ in pair]
        fused = tuple(sum("attention" in leaf.name for leaf in plan.leaves()) for plan in reversed(plans))
        ratio = statistics.median(turn[1] / turn[0] for turn in taken)
        found.append(Again(f"recomputed {Network({**shape, 'pass': 'training'}).name}", plans[1].micro.arena_bytes, plans[0].micro.arena_bytes,
                           again, kept, ratio, (fused[0], fused[1]), saves, longer))
    return found


def _seconds(made: Any, rows: tuple[Any, ...]) -> float:
    began = time.perf_counter()
    made(*rows)
    return time.perf_counter() - began
