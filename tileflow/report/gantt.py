"""Who works when: the schedule of an update as bars of IPUs over cycles, as text, and what keeps IPUs from working."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..program.schedule import (
    Atomic,
    Fold,
    Refresh,
    Repeat,
    Run,
    Step,
    Steps,
    Stream,
    Wave,
    busy,
    elapsed,
    exchanged,
    from_data,
    key,
    rounds,
    visits,
)
from . import format as f
from .hosting import Host
from .json import Report

MARKS = {"forward": "F", "recompute": "r", "backward": "B", "fold": "+", "update": "u", "exchange": "x",
         "replicas": "a", "stream": "s", "host": "h", "more": "~"}
"""What an IPU does, and its letter; other roles have their initial. replicas: what it does together with its like of other replicas. stream: tensors
pass to or from streaming memory. host: tiles wait for a stream of the host. more: turns of a long pipeline that are not
drawn one by one."""
TURNS = 64
"""Of a Repeat that are drawn."""
MOST = 20_000
"""Bars, after which Repeats are drawn as one bar each."""


@dataclass(frozen=True)
class Bar:
    """What an IPU does for some cycles. micro_batch: of the update; None: of no one. first, last: the steps that it does; -1: none."""

    ipu: int
    kind: str
    part: str
    micro_batch: int | None
    start: int
    cycles: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class Stretch:
    """What an IPU does of a part without a break: steps `first` to `last`."""

    ipu: int
    kind: str
    cycles: int
    first: int
    last: int


class Chart:
    """The bars of an update's schedule, the IPUs and the cycles of all, what is waited for the host included.

    bars: those of an IPU follow one another. beside: streams of the host that pass through I/O tiles while the others
    compute.
    """

    def __init__(self, report: Report, turns: int = TURNS) -> None:
        """turns: of a Repeat that are drawn."""
        self.pieces = _pieces(report)
        self.cycles = {part: sum(piece.cycles for piece in found) for part, found in self.pieces.items()}
        self.cycles |= {s["stream"]: s["cycles"] for s in report["streaming"]}
        self.crossing = {c["part"]: c["cycles"] for c in report["crossing"]}
        self.waits = f.waits(report)
        self.together = {(c["part"], c["when"]): f"{c['kind']} over {c['replicas']} replicas" for c in report["collectives"]}
        self.ipus = [i["number"] for i in report["ipus"]] or sorted({s.get("ipu", 0) for s in report["steps"]}) or [0]
        self.clock = self.drawn = 0
        self.turns = turns
        steps = from_data(report["schedule"])
        self.host = Host(report, steps)
        self.beside: list[Bar] = []
        self.bars = list(self._steps(steps, 0, None))
        if left := self.host.left:
            self.bars.append(Bar(self.ipus[0], "host", "what I/O tiles hand on", None, self.clock, left))
            self.clock += left

    def _steps(self, steps: Steps, micro: int, counts: str | None) -> Iterator[Bar]:
        for together in rounds(steps):
            step = together[0]
            if isinstance(step, Run | Fold | Stream | Wave):
                yield from self._round(together, micro, counts)
            elif isinstance(step, Repeat):
                yield from self._repeat(step, micro)
                micro += step.times * step.by if step.counts == "micro-batch" else 0
            elif isinstance(step, Atomic):
                yield from self._steps(step.steps, micro, counts)

    def _repeat(self, repeat: Repeat, micro: int) -> Iterator[Bar]:
        for turn in range(repeat.times):
            if turn == self.turns or self.drawn > MOST:
                rest = (repeat.times - turn) * self._turn(repeat) + self.host.waits_in(repeat, repeat.times - turn)
                yield from (Bar(i, "more", f"{repeat.times - turn} turns more", None, self.clock, rest) for i in self.ipus)
                self.clock += rest
                return
            yield from self._steps(repeat.steps, micro + turn * repeat.by, repeat.counts)

    def _turn(self, repeat: Repeat) -> int:
        """Cycles of one turn, with what replicas do together in it."""
        together = sum(v.times * self.waits.get((v.step.part, when), 0) for v in visits(repeat.steps) if v.alone for when in ("before", "after"))
        return elapsed(repeat.steps, self.cycles, self.crossing) + together

    def _round(self, steps: Sequence[Step], micro: int, counts: str | None) -> Iterator[Bar]:
        yield from self._streams(steps, micro, counts, True)
        yield from self._replicas(steps, "before")
        at: dict[int, int] = {}
        for step in steps:
            for leaf in step.runs if isinstance(step, Wave) else (step,):
                assert isinstance(leaf, Run | Fold | Stream)
                if isinstance(leaf, Stream):
                    begun, cycles = at.setdefault(leaf.ipu, self.clock), self.cycles.get(key(leaf), 0)
                    at[leaf.ipu] = begun + cycles
                    if cycles:
                        yield Bar(leaf.ipu, "stream", key(leaf), micro if counts == "micro-batch" else None, begun, cycles)
                    continue
                for piece in self.pieces.get(leaf.part, ()):
                    begun = at.setdefault(leaf.ipu, self.clock)
                    yield Bar(piece.ipu, piece.kind, leaf.part, micro + leaf.ahead if counts == "micro-batch" else None, begun, piece.cycles,
                              piece.first, piece.last)
                    self.drawn += 1
                    at[leaf.ipu] = begun + piece.cycles
        self.clock += max(busy(tuple(steps), self.cycles).values(), default=0)
        crossing = exchanged(tuple(steps), self.crossing)
        if crossing:
            yield from (Bar(i, "exchange", "between IPUs", None, self.clock, crossing) for i in self.ipus)
            self.clock += crossing
        yield from self._replicas(steps, "after")
        yield from self._streams(steps, micro, counts, False)

    def _streams(self, steps: Sequence[Step], micro: int, counts: str | None, to_chip: bool) -> Iterator[Bar]:
        """What comes from the host before these steps, or goes there after them: the tiles wait, but for what passes
        beside."""
        for leaf in [leaf for step in steps
                     for leaf in (step.runs if isinstance(step, Wave) else (step,)) if isinstance(leaf, Run)]:
            for name, cycles, waited in self.host.streams(leaf.part, to_chip):
                last = self.beside[-1].start + self.beside[-1].cycles if self.beside else 0
                begun = self.clock if waited else max(self.clock, last)
                found = Bar(leaf.ipu, "host", name, micro + leaf.ahead if counts == "micro-batch" else None, begun,
                            cycles)
                self.drawn += 1
                if waited:
                    self.clock += cycles
                    yield found
                else:
                    self.beside.append(found)

    def _replicas(self, steps: Sequence[Step], when: str) -> Iterator[Bar]:
        """What replicas do together before or after these steps."""
        for part in [leaf.part for step in steps if isinstance(step, Run | Fold) for leaf in (step,)]:
            cycles = self.waits.get((part, when), 0)
            if cycles:
                yield from (Bar(i, "replicas", self.together[part, when], None, self.clock, cycles) for i in self.ipus)
                self.clock += cycles


def _pieces(report: Report) -> dict[str, list[Stretch]]:
    """Of each part: what IPUs do one after the other."""
    found: dict[str, list[Stretch]] = {}
    for s in report["steps"]:
        part = found.setdefault(s["part"], [])
        kind = "fold" if s["part"].startswith("fold") else "update" if s["part"] in ("update", "prologue") else s["role"]
        before = part[-1] if part else None
        if before is not None and (before.ipu, before.kind, before.last) == (s["ipu"], kind, s["index"] - 1):
            part[-1] = replace(before, cycles=before.cycles + s["cycles"], last=s["index"])
        elif s["cycles"]:
            part.append(Stretch(s["ipu"], kind, s["cycles"], s["index"], s["index"]))
    return found


def to_text(report: Report, width: int = 96) -> str:
    """The chart for a terminal, a row an IPU; a cell shows what takes most of it."""
    chart = Chart(report)
    total = max(1, chart.clock)
    lines = []
    for ipu in report["ipus"]:
        cells: list[dict[str, float]] = [{} for _ in range(width)]
        for b in chart.bars:
            if b.ipu == ipu["number"]:
                _fill(cells, b, total)
        row = "".join(_mark(cell, total / width) for cell in cells)
        lines.append(f"  IPU {ipu['number']:<3}│{row}│ {f.percent(ipu['utilisation'])}")
    said = ", ".join(f"{mark_of(kind)} {kind}" for kind in kinds(chart))
    rows = [f"  IPU {i['number']}: {f.count(i['worst'])} bytes on the fullest tile, {f.count(i['always_live'])} always; "
            f"{f.count(i['stashed'])} wait in stashes; {f.count(i['sent'])} go to other IPUs {f.one(report)}" +
            (f"; {f.count(i['streamed'])} pass to and from streaming memory" if i["streamed"] else "") for i in report["ipus"]]
    title = f"IPUs over the {f.count(chart.clock)} cycles of {f.one(report)} ({said}, . idle; working at the right)"
    return "\n".join([title, "", *lines, "", *rows, "", *(f"  {s}" for s in advice(report))])


def _fill(cells: list[dict[str, float]], b: Bar, total: int) -> None:
    """Add a bar's cycles to the cells that it covers."""
    width = len(cells)
    first, last = b.start * width // total, min(width - 1, max(b.start, b.start + b.cycles - 1) * width // total)
    for i in range(first, last + 1):
        covered = min(b.start + b.cycles, (i + 1) * total / width) - max(b.start, i * total / width)
        cells[i][b.kind] = cells[i].get(b.kind, 0.0) + max(0.0, covered)


def _mark(cell: dict[str, float], whole: float) -> str:
    idle = whole - sum(cell.values())
    kind, most = max(cell.items(), key=lambda item: item[1], default=("", 0.0))
    return mark_of(kind) if most > idle else "."


def mark_of(kind: str) -> str:
    """The letter of what an IPU does."""
    return MARKS.get(kind) or kind[:1] or "?"


def kinds(chart: Chart) -> list[str]:
    """What the IPUs of a chart do, those with a letter of their own first."""
    return sorted({b.kind for b in chart.bars}, key=lambda kind: ([*MARKS, kind].index(kind), kind))


def advice(report: Report) -> list[str]:
    """Sentences: what the IPUs' waiting costs."""
    chart = Chart(report)
    repeats = [s for s in _inner(from_data(report["schedule"])) if isinstance(s, Repeat) and s.counts == "micro-batch"]
    mean = sum(i["utilisation"] for i in report["ipus"]) / max(1, len(report["ipus"]))
    busiest = max(report["ipus"], key=lambda i: (i["busy"], -i["number"]))
    works = f"IPU {busiest['number']} works {'most, ' if len(report['ipus']) > 1 else ''}{f.percent(busiest['utilisation'])}"
    found = [f"The IPUs work {f.percent(mean)} of the time on average; {works}." if len(report["ipus"]) > 1 else f"{works} of the time."]
    full = next((r for r in repeats if r.times >= 1 and r.by == 1 and any(isinstance(s, Wave) for s in r.steps)), None)
    if len(repeats) > 1 and full is not None:
        turn = _turn(full, chart)
        ends = sum(r.times * _turn(r, chart) for r in repeats if r is not full)
        count = sum(r.times * r.by for r in repeats)
        extra = ends - (count - full.times) * turn
        share = extra / max(1, chart.clock)
        found.append(f"Filling and draining the pipeline costs {f.count(extra)} cycles, {f.percent(share)} of all.")
    least = min(report["ipus"], key=lambda i: i["busy"])
    if busiest["busy"] > 1.25 * least["busy"]:
        times = f.digits(busiest["busy"] / max(1, least["busy"]), 2)
        found.append(f"IPU {busiest['number']} works {times} times as long as IPU {least['number']}, which waits.")
    return found


def _turn(repeat: Repeat, chart: Chart) -> int:
    """Cycles of one turn."""
    total = 0
    for steps in rounds(repeat.steps):
        total += max(busy(steps, chart.cycles).values(), default=0) + exchanged(steps, chart.crossing)
    return total


def _inner(steps: Steps) -> Iterator[Step]:
    """The steps of an update, those of all or none included."""
    for step in steps:
        yield step
        if isinstance(step, Atomic | Refresh):
            yield from _inner(step.steps)
