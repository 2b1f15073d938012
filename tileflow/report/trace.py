"""trace.json: one weight update on the simulated machine in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

One process per IPU, one row each for compute, sync, exchange and host I/O (for which the tiles wait; what passes
through I/O tiles meanwhile has a row of its own), and a counter of the bytes on the worst tile. Its bars are those of
the page (`gantt.Chart`). Times are microseconds on the chip, to whole nanoseconds: Perfetto rounds to these, and drops
a slice that then begins before its neighbour ends. IPUs that a schedule does not tell apart do the same in step, so
their rows are alike; of replicas one is drawn.
"""
from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import format as f
from .gantt import Bar, Chart
from .json import Report

FILE = "trace.json"
ROWS = {"compute": 1, "sync": 2, "exchange": 3, "host I/O": 4, "through I/O tiles": 5}
ORDER = (("sync", "sync"), ("exchange", "exchange"), ("transform", "compute"), ("compute", "compute"), ("reduce", "compute"))
"""Phases of a step in the order of a superstep, and the row each is drawn in."""
MOST_EVENTS = 40_000
"""Above this operators are not drawn, but what an IPU does of a part as one bar."""
TURNS = 4096
"""Micro-batches that are drawn."""

Event = dict[str, Any]


def build(report: Report) -> dict[str, Any]:
    """The trace of one weight update as a Chrome trace object."""
    chart, events = Chart(report, TURNS), list[Event]()
    for ipu in range(report["chip"]["ipus"]):
        own = chart.ipus[ipu % len(chart.ipus)]
        beside = [bar for bar in chart.beside if bar.ipu == own]
        events += _names(report, ipu, bool(beside))
        drawing = _Drawing(report, ipu)
        for bar in chart.bars:
            events += drawing.bar(bar) if bar.ipu == own else ()
        events += [drawing.event("through I/O tiles", _name(bar), bar.start, bar.cycles, {"cycles": bar.cycles})
                   for bar in beside]
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"model": report["model"], "machine": f.chip_line(report), "made_by": report["made_by"]}}


def to_text(report: Report) -> str:
    """The file's text, one event a line."""
    trace = build(report)
    lines = ",\n".join(json.dumps(e, separators=(",", ":"), allow_nan=False, ensure_ascii=False) for e in trace.pop("traceEvents"))
    rest = json.dumps(trace, ensure_ascii=False)[1:]
    return f'{{"traceEvents":[\n{lines}\n],{rest}\n'


def _names(report: Report, ipu: int, beside: bool) -> Iterator[Event]:
    name = f"IPU {ipu} ({report['chip']['name']})"
    yield {"ph": "M", "pid": ipu, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": ipu, "name": "process_sort_index", "args": {"sort_index": ipu}}
    for row, tid in [*ROWS.items()][:len(ROWS) if beside else -1]:
        yield {"ph": "M", "pid": ipu, "tid": tid, "name": "thread_name", "args": {"name": row}}
        yield {"ph": "M", "pid": ipu, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _name(bar: Bar) -> str:
    return bar.part if bar.micro_batch is None else f"{bar.part}, micro-batch {bar.micro_batch}"


class _Drawing:
    """The events of one IPU's bars."""

    def __init__(self, report: Report, ipu: int) -> None:
        self.steps, self.ipu = report["steps"], ipu
        self.room = MOST_EVENTS // report["chip"]["ipus"]
        self.nanoseconds = 1e9 / report["chip"]["clock_hz"]
        memory = next((i["memory"] for i in report["ipus"] if i["number"] == ipu and i["memory"]), None)
        self.bytes = [] if memory is None else [sum(held) for held in zip(*memory["steps"]["categories"].values(), strict=True)]

    def time(self, cycle: int) -> int:
        """The nanosecond of a cycle."""
        return round(cycle * self.nanoseconds)

    def event(self, row: str, name: str, begins: int, cycles: int, args: dict[str, Any]) -> Event:
        start, end = self.time(begins), self.time(begins + cycles)
        return {"ph": "X", "pid": self.ipu, "tid": ROWS[row], "name": name, "cat": row, "ts": start / 1000, "dur": (end - start) / 1000, "args": args}

    def bar(self, bar: Bar) -> Iterator[Event]:
        """What an IPU does: the supersteps of operators, while there is room; what crosses the links, or passes to
        streaming memory or the host."""
        if bar.first >= 0 and self.room > 0:
            cycle = bar.start
            for s in self.steps[bar.first:bar.last + 1]:
                for event in self.step(s, cycle):
                    self.room -= 1
                    yield event
                cycle += s["cycles"]
        else:
            computes = bar.first >= 0 or bar.kind == "more"
            row = "host I/O" if bar.kind == "host" else "compute" if computes else "exchange"
            between = {"exchange": "between IPUs", "replicas": "between replicas"}
            name = between[bar.kind] if bar.kind in between else _name(bar)
            yield self.event(row, name, bar.start, bar.cycles, {"cycles": bar.cycles})

    def step(self, s: dict[str, Any], cycle: int) -> Iterator[Event]:
        """The supersteps of one operator."""
        yield {"ph": "C", "pid": self.ipu, "name": "bytes on the worst tile", "ts": self.time(cycle) / 1000,
               "args": {"bytes": self.bytes[s["index"]] if self.bytes else s["tile_bytes"]}}
        others = [(phase, "compute") for phase in s["phases"] if phase not in dict(ORDER)]
        for phase, row in (*ORDER, *others):
            cycles = s["phases"][phase]
            if cycles:
                yield self.event(row, s["name"], cycle, cycles,
                                 {"phase": phase, "cycles": cycles, "partition": f.partition(s), "tiles": s["tiles"],
                                                                 "vertex": s["vertex"], "role": s["role"],
                                                                 "limit": s["limit"]})
                cycle += cycles
