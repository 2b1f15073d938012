"""When the host's streams pass in a schedule, and for which of them the tiles wait."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..program.schedule import Repeat, Run, Steps, times, visits
from .json import Report


class Host:
    """The host's streams in the order of a schedule. left: cycles that tiles wait for them and that no stream has been
    given yet."""

    def __init__(self, report: Report, steps: Steps) -> None:
        self.left = report["host"].get("waits", 0)
        runs = [visit.step.part for visit in visits(steps) if isinstance(visit.step, Run)]
        self.runs = {part: n for part, n in times(steps).items() if part in runs}
        self.ran = dict.fromkeys(self.runs, 0)
        self.of: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
        for stream in report["host"]["streams"]:
            if stream["cycles"] and stream["repeats"]:
                self.of.setdefault((self._part(stream), stream["to_chip"]), []).append(stream)

    def _part(self, stream: Mapping[str, Any]) -> str:
        """Reports of before say no part: the first that runs as often, of outputs the last."""
        if stream.get("part"):
            return str(stream["part"])
        found = [part for part, n in self.runs.items() if n == stream["repeats"]] or [*self.runs]
        return found[0 if stream["to_chip"] else -1]

    def streams(self, part: str, to_chip: bool) -> Iterator[tuple[str, int, bool]]:
        """What comes before a run of a part, or (which ends the run) goes after it: name, cycles, and whether the tiles
        wait for it."""
        run = self.ran[part]
        for stream in self.of.get((part, to_chip), ()):
            of_all, of_waited = self._which(stream, part)
            if run in of_all:
                waited = run in of_waited and stream["cycles"] <= self.left
                self.left -= stream["cycles"] if waited else 0
                yield f"{stream['name']} {'in' if to_chip else 'out'}", stream["cycles"], waited
        if not to_chip:
            self.ran[part] = run + 1

    def _which(self, stream: Mapping[str, Any], part: str) -> tuple[range, range]:
        """The runs of a part that have a stream, and those that wait for it: of what does not come with each, inputs
        come with the first, outputs go after the last."""
        runs, all_ = self.runs.get(part, 0), stream["repeats"]
        waited = math.floor(all_ * (1 - stream.get("overlaps", 0)) + 1e-9)
        return (range(all_), range(waited)) if stream["to_chip"] else (range(runs - all_, runs),
                                                                       range(runs - waited, runs))

    def waits_in(self, repeat: Repeat, turns: int) -> int:
        """What tiles wait in so many turns, which are not drawn one by one."""
        before = self.left
        for visit in (visit for visit in visits(repeat.steps) if visit.step.part in self.ran):
            part, first = visit.step.part, self.ran[visit.step.part]
            self.ran[part] = first + visit.times * turns
            for stream in (s for to_chip in (True, False) for s in self.of.get((part, to_chip), ())):
                _, waited = self._which(stream, part)
                many = max(0, min(self.ran[part], waited.stop) - max(first, waited.start))
                self.left -= min(self.left, many * stream["cycles"])
        return int(before - self.left)
