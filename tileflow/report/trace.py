"""trace.json: one weight update on the simulated machine in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

One process per IPU, one row each for compute, sync, exchange and host I/O, and a counter of the bytes on the worst tile. Times are
microseconds on the chip. IPUs of one replica group do the same in step, so their rows are alike.
"""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import format as f
from .json import Report

FILE = "trace.json"
ROWS = {"compute": 1, "sync": 2, "exchange": 3, "host I/O": 4}
ORDER = (("sync", "sync"), ("exchange", "exchange"), ("transform", "compute"), ("compute", "compute"), ("reduce", "compute"))
"""Phases of a step in the order of a superstep, and the row each is drawn in."""
MOST_EVENTS = 40_000
"""Above this the micro-batches after the first are drawn as one bar each."""

Event = dict[str, Any]


def build(report: Report) -> dict[str, Any]:
    """The trace of one weight update as a Chrome trace object."""
    events: list[Event] = []
    for ipu in range(report["chip"]["ipus"]):
        events += _names(report, ipu)
        events += _update(report, ipu)
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"model": report["model"], "machine": f.chip_line(report), "made_by": report["made_by"]}}


def to_text(report: Report) -> str:
    """The file's text, one event a line."""
    trace = build(report)
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), allow_nan=False, ensure_ascii=False) for e in trace.pop("traceEvents"))
    rest = json.dumps(trace, ensure_ascii=False)[1:]
    return f'{{"traceEvents":[\n{lines}\n],{rest}\n'


def _names(report: Report, ipu: int) -> Iterator[Event]:
    name = f"IPU {ipu} ({report['chip']['name']})"
    yield {"ph": "M", "pid": ipu, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": ipu, "name": "process_sort_index", "args": {"sort_index": ipu}}
    for row, tid in ROWS.items():
        yield {"ph": "M", "pid": ipu, "tid": tid, "name": "thread_name", "args": {"name": row}}
        yield {"ph": "M", "pid": ipu, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _update(report: Report, ipu: int) -> Iterator[Event]:
    """The schedule: prologue, micro-batches with their folds, update."""
    steps = report["steps"]
    micro = [s for s in steps if s["part"] in ("micro", "fold")]
    repeats = max((s["repeats"] for s in micro), default=1)
    detailed = repeats if len(micro) * len(ORDER) * repeats * report["chip"]["ipus"] <= MOST_EVENTS else 1
    clock = _Clock(report, ipu)
    for s in steps:
        if s["part"] == "prologue":
            yield from clock.step(s, s["repeats"])
    for i in range(repeats):
        yield from clock.host(i)
        if i < detailed:
            for s in micro:
                yield from clock.step(s, 1)
        else:
            yield from clock.bar(f"micro-batch {i}", sum(s["cycles"] for s in micro))
    for s in steps:
        if s["part"] == "update":
            yield from clock.step(s, s["repeats"])


class _Clock:
    """The time on one IPU while its schedule is drawn."""

    def __init__(self, report: Report, ipu: int) -> None:
        self.report, self.ipu, self.cycle, self.host_cycle = report, ipu, 0, 0
        self.microseconds = 1e6 / report["chip"]["clock_hz"]

    def event(self, row: str, name: str, cycles: float, args: dict[str, Any]) -> Event:
        return {"ph": "X", "pid": self.ipu, "tid": ROWS[row], "name": name, "ts": round(self.cycle * self.microseconds, 6),
                "dur": round(cycles * self.microseconds, 6), "args": args}

    def step(self, s: dict[str, Any], times: int) -> Iterator[Event]:
        """The supersteps of one operator."""
        yield {"ph": "C", "pid": self.ipu, "name": "bytes on the worst tile", "ts": round(self.cycle * self.microseconds, 6),
               "args": {"bytes": s["tile_bytes"]}}
        for phase, row in ORDER:
            cycles = s["phases"][phase] * times
            if cycles:
                yield self.event(row, s["name"], cycles, {"phase": phase, "cycles": cycles, "partition": f.partition(s), "tiles": s["tiles"],
                                                         "vertex": s["vertex"], "role": s["role"], "limit": s["limit"]})
                self.cycle += cycles

    def bar(self, name: str, cycles: int) -> Iterator[Event]:
        """Many steps as one bar."""
        yield self.event("compute", name, cycles, {"cycles": cycles})
        self.cycle += cycles

    def host(self, micro_batch: int) -> Iterator[Event]:
        """A micro-batch's inputs come in and its outputs go out, one after the other, beside the compute steps."""
        self.host_cycle = max(self.host_cycle, self.cycle)
        for stream in self.report["host"]["streams"]:
            if stream["cycles"]:
                name = f"{stream['name']} {'in' if stream['to_chip'] else 'out'}, micro-batch {micro_batch}"
                args = {"cycles": stream["cycles"], "bytes": stream["bytes"]}
                yield {**self.event("host I/O", name, stream["cycles"], args), "ts": round(self.host_cycle * self.microseconds, 6)}
                self.host_cycle += stream["cycles"]
