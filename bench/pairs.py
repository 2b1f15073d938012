"""Measuring the rows of cases.toml: both sides in processes of their own, in turns, medians."""
from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cases import Row
from .kinds import problem
from .report import Result
from .side import Missing, Side

TURN = 0.01
"""Seconds that a turn lasts at least: short work is repeated within it."""
LONG = 0.4
"""Seconds of a turn above which fewer turns are enough."""
LONG_RUNS = 5
BANDWIDTH_FROM = 32 << 20
"""Bytes above which work is taken to come from memory, not from a cache."""


@dataclass(frozen=True)
class Settings:
    """What the command line says about a measurement."""

    threads: tuple[int, ...]
    runs: int = 9
    against: tuple[str, ...] = ("torch", "onnxruntime", "ours")
    path: str | None = None
    only: str = ""                        # measure only shapes whose name contains this


class Sides:
    """Our side and a row's peer, for one number of threads; the peer may be missing."""

    def __init__(self, peer: str, threads: int, settings: Settings, peaks: Peaks) -> None:
        self.peer_name, self.threads, self.peaks = peer, threads, peaks
        self.ours = Side("ours", threads, settings.path)
        self.path = str(self.ours.facts["path"])
        self.peer: Side | None = None
        if peer.split()[0] in settings.against:
            try:
                self.peer = Side(peer, threads)
            except Missing as missing:
                print(f"{missing}. Our side is measured alone.", file=sys.stderr)

    def close(self) -> None:
        for side in (self.ours, self.peer):
            if side is not None:
                side.close()


class Peaks:
    """The machine's own peaks, measured once per number of threads and path."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], dict[str, float]] = {}

    def of(self, sides: Sides) -> dict[str, float]:
        at = (sides.threads, sides.path)
        if at not in self.found:
            self.found[at] = sides.ours.ask(do="peak")["peaks"]
        return self.found[at]


def turns(first: float, runs: int) -> tuple[int, int]:
    """Repetitions within a turn, and turns, for work that took `first` seconds."""
    return max(1, math.ceil(TURN / max(first, 1e-7))), runs if first < LONG else min(runs, LONG_RUNS)


def alternate(sides: Sequence[Side], runs: int) -> list[list[float]]:
    """Seconds of one repetition for each side, taken in turns."""
    first = [min(once, side.seconds(3)) if once < LONG else once for side, once in [(side, side.seconds(1)) for side in sides]]
    plans = [turns(seconds, runs) for seconds in first]
    count = min(n for _, n in plans)
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(count):
        for found, side, (repeat, _) in zip(times, sides, plans, strict=True):
            found.append(side.seconds(repeat))
    return times


def measure(row: Row, case: str, settings: Settings, peaks: Peaks) -> Iterator[Result]:
    """The results of a row's shapes that belong to a case, for all numbers of threads."""
    subjects = [(shape, problem(row.kind, shape)) for shape in row.shapes]
    wanted = [shape for shape, subject in subjects if settings.only in subject.name and subject.case in ("", case)]
    for threads in settings.threads:
        if not wanted:
            continue
        sides = Sides(row.peer, threads, settings, peaks)
        try:
            for shape in wanted:
                yield measure_shape(row, case, shape, sides, settings)
        finally:
            sides.close()


def measure_shape(row: Row, case: str, shape: Mapping[str, Any], sides: Sides, settings: Settings) -> Result:
    """One comparison."""
    subject = problem(row.kind, shape)
    result = Result(case, row.peer, sides.threads, sides.path, None, None, None, row=row.id, shape=subject.name)
    taking, times_of = [], {}
    for side in (sides.ours, sides.peer):
        if side is None:
            continue
        answer = side.ask(do="prepare", kind=row.kind, shape=dict(shape))
        if "unsupported" in answer:
            result.note = f"{side.name}: {answer['unsupported']}"
            if side is sides.ours:
                return result
        else:
            taking.append(side)
    if taking:
        times_of = dict(zip(taking, alternate(taking, settings.runs), strict=True))
    for side, times in times_of.items():
        seconds, error = statistics.median(times), side.ask(do="error")["error"]
        if side is sides.ours:
            result.ours_s, result.error_ours = seconds, error
        else:
            result.peer_s, result.error_peer = seconds, error
        result.extra["runs"] = len(times)
        for what in subject.questions:
            result.extra[f"{what}_{'ours' if side is sides.ours else 'peer'}"] = side.ask(do="ask", what=what)["answer"]
    if result.ours_s is not None:
        if result.peer_s is not None:
            result.ratio = result.peer_s / result.ours_s
        if subject.rows:
            result.extra["rows_per_s"] = subject.rows / result.ours_s
        fraction(result, subject, sides)
    return result


def fraction(result: Result, subject: Any, sides: Sides) -> None:
    """How much of the machine's measured peak our side reaches."""
    assert result.ours_s is not None
    work, traffic = subject.flops() * subject.micro_batches, subject.nbytes() * subject.micro_batches
    if subject.bound_by == "flops" and work:
        peak = sides.peaks.of(sides).get(f"flops {subject.dtype}")
        result.fraction_of_peak = work / result.ours_s / peak if peak else None
    elif traffic >= BANDWIDTH_FROM:
        result.fraction_of_bandwidth = traffic / result.ours_s / sides.peaks.of(sides)["copy"]
