"""trace.json: one weight update on the simulated machine in Chrome's trace format, which Perfetto (ui.perfetto.dev) opens.

One process per IPU, one row each for compute, sync, exchange and host I/O, and a counter of the bytes on the worst tile. Times are
microseconds on the chip, to whole nanoseconds: Perfetto rounds to these, and drops a slice that then begins before its neighbour ends. IPUs that a
schedule does not tell apart do the same in step, so their rows are alike; of replicas one is drawn.
"""
from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..program.schedule import Atomic, Fold, Repeat, Run, Steps, Stream, Wave, elapsed, exchanged, from_data, key, rounds, visits
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
    """The schedule of one weight update, as this IPU sees it."""
    steps = from_data(report["schedule"])
    drawing = _Drawing(report, steps, ipu)
    if not any(isinstance(step, Repeat) for step in steps):
        yield from drawing.clock.host(0)
    yield from drawing.steps(steps)


def streams(report: Report, most: int = 4000) -> list[tuple[str, int, int]]:
    """What passes between host and chip in an update: name, first cycle and cycles of each transfer, at most so many."""
    found = (e for e in _update(report, 0) if e["ph"] == "X" and e["tid"] == ROWS["host I/O"])
    return [(e["name"], e["args"]["begins"], e["args"]["cycles"]) for e in itertools.islice(found, most)]


class _Drawing:
    """Walks a schedule on one IPU. Where all runs are of one IPU, every IPU of the group does them."""

    def __init__(self, report: Report, steps: Steps, ipu: int) -> None:
        self.clock = _Clock(report, ipu)
        self.own = ipu % (1 + max((v.step.ipu for v in visits(steps)), default=0))
        self.room = MOST_EVENTS // report["chip"]["ipus"]
        self.operators: dict[str, list[dict[str, Any]]] = {}
        for s in report["steps"]:
            self.operators.setdefault(s["part"], []).append(s)
        self.crossing = {c["part"]: c["cycles"] for c in report["crossing"]}
        self.waits = f.waits(report)
        self.cycles = {part: sum(s["cycles"] for s in found) for part, found in self.operators.items()}
        self.cycles |= {s["stream"]: s["cycles"] for s in report["streaming"]}

    def steps(self, steps: Steps) -> Iterator[Event]:
        """What happens one step after the other."""
        for together in rounds(steps):
            step = together[0]
            if isinstance(step, Run | Fold | Stream | Wave):
                yield from self.together(together)
            elif isinstance(step, Repeat):
                yield from self.repeat(step)
            elif isinstance(step, Atomic):
                yield from self.steps(step.steps)

    def together(self, steps: Steps) -> Iterator[Event]:
        """Runs of a wave and their folds: those of this IPU one after the other, until the slowest IPU is done and all that crosses has."""
        runs = [run for step in steps for run in (step.runs if isinstance(step, Wave) else (step,)) if isinstance(run, Run | Fold | Stream)]
        yield from self.replicas(runs, "before")
        end = self.clock.cycle + elapsed(steps, self.cycles)
        for run in runs:
            if isinstance(run, Stream):
                if run.ipu == self.own and self.cycles.get(key(run)):
                    yield from self.clock.between(key(run), self.cycles[key(run)])
            elif run.ipu == self.own or len(runs) == 1:                  # what belongs to all, such as the update, goes from IPU to IPU
                for s in self.operators.get(run.part, ()):
                    if s["ipu"] == self.own:
                        yield from self.clock.step(s)
                    else:
                        self.clock.cycle += s["cycles"]
        self.clock.cycle = end
        crossing = exchanged(steps, self.crossing)
        if crossing:
            yield from self.clock.between("between IPUs", crossing)
        yield from self.replicas(runs, "after")

    def replicas(self, runs: Sequence[Run | Fold | Stream], when: str) -> Iterator[Event]:
        """What the replicas' IPUs of this number do together."""
        for cycles in (self.waits.get((run.part, when), 0) for run in runs if not isinstance(run, Stream)):
            if cycles:
                yield from self.clock.between("between replicas", cycles)

    def repeat(self, repeat: Repeat) -> Iterator[Event]:
        """Each turn; where that would be too many events, the turns after the first as one bar each."""
        parts = [v.step.part for v in visits(repeat.steps)]
        events = len(ORDER) * sum(len(self.operators.get(part, ())) for part in parts)
        detailed = repeat.times if events * repeat.times <= self.room else 1
        cycles = elapsed(repeat.steps, self.cycles, self.crossing)
        for i in range(repeat.times):
            yield from self.clock.host(i)
            if i < detailed:
                yield from self.steps(repeat.steps)
            elif i < MOST_EVENTS:
                yield from self.clock.bar(f"{repeat.counts} {i}", cycles)
            else:
                yield from self.clock.bar(f"{repeat.counts} {i} to {repeat.times - 1}", cycles * (repeat.times - i))
                break


class _Clock:
    """The time on one IPU while its schedule is drawn."""

    def __init__(self, report: Report, ipu: int) -> None:
        self.report, self.ipu, self.cycle, self.host_cycle = report, ipu, 0, 0
        self.nanoseconds = 1e9 / report["chip"]["clock_hz"]
        memory = next((i["memory"] for i in report["ipus"] if i["number"] == ipu and i["memory"]), None)
        self.bytes = [] if memory is None else [sum(held) for held in zip(*memory["steps"]["categories"].values(), strict=True)]

    def time(self, cycle: int) -> int:
        """The nanosecond of a cycle."""
        return round(cycle * self.nanoseconds)

    def event(self, row: str, name: str, begins: int, cycles: int, args: dict[str, Any]) -> Event:
        start, end = self.time(begins), self.time(begins + cycles)
        return {"ph": "X", "pid": self.ipu, "tid": ROWS[row], "name": name, "cat": row, "ts": start / 1000, "dur": (end - start) / 1000, "args": args}

    def step(self, s: dict[str, Any]) -> Iterator[Event]:
        """The supersteps of one operator."""
        yield {"ph": "C", "pid": self.ipu, "name": "bytes on the worst tile", "ts": self.time(self.cycle) / 1000,
               "args": {"bytes": self.bytes[s["index"]] if self.bytes else s["tile_bytes"]}}
        others = [(phase, "compute") for phase in s["phases"] if phase not in dict(ORDER)]
        for phase, row in (*ORDER, *others):
            cycles = s["phases"][phase]
            if cycles:
                yield self.event(row, s["name"], self.cycle, cycles, {"phase": phase, "cycles": cycles, "partition": f.partition(s),
                                                                      "tiles": s["tiles"], "vertex": s["vertex"], "role": s["role"],
                                                                      "limit": s["limit"]})
                self.cycle += cycles

    def between(self, name: str, cycles: int) -> Iterator[Event]:
        """What stages hand to other IPUs, or replicas add up, crosses the links; what leaves the chip passes to streaming memory."""
        yield self.event("exchange", name, self.cycle, cycles, {"cycles": cycles})
        self.cycle += cycles

    def bar(self, name: str, cycles: int) -> Iterator[Event]:
        """Many steps as one bar."""
        yield self.event("compute", name, self.cycle, cycles, {"cycles": cycles})
        self.cycle += cycles

    def host(self, micro_batch: int) -> Iterator[Event]:
        """A micro-batch's inputs come in and its outputs go out, one after the other: on one IPU the tiles wait for what does not overlap, in a
        pipeline each cycle's streams are drawn beside it."""
        self.host_cycle = max(self.host_cycle, self.cycle)
        for stream in self.report["host"]["streams"]:
            if stream["cycles"]:
                name = f"{stream['name']} {'in' if stream['to_chip'] else 'out'}, micro-batch {micro_batch}"
                args = {"cycles": stream["cycles"], "bytes": stream["bytes"], "begins": self.host_cycle}
                yield self.event("host I/O", name, self.host_cycle, stream["cycles"], args)
                self.host_cycle += stream["cycles"]
                if not stream.get("overlaps", 1) and not self.report["ipus"]:
                    self.cycle = self.host_cycle
