"""What leaves the chip between the phases of a program: which tensors, for which steps, and how many bytes pass."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from ...program.schedule import LIVE_PHASES, Atomic, Fold, Refresh, Repeat, Run, Steps, Stream, Wave, key


class Away:
    """The streams of a schedule, seen from the steps of the program.

    A tensor that a part has touched leaves after it, and is back for the next part that touches it, where both have streams and their numbers are
    more than `LIVE_PHASES` apart. It is still there while it leaves, and already while it comes: beside a run, during all of it.

    streams: in the order of the schedule. bytes: of each, by its `schedule.key`, once the stays of all tensors were asked for.
    """

    def __init__(self, steps: Steps, span: Mapping[str, tuple[int, int]]) -> None:
        """`span`: the first and the last step of each part."""
        self.streams: list[Stream] = []
        self.bytes: dict[str, int] = {}
        self._stored: dict[str, Stream] = {}
        self._loaded: dict[str, Stream] = {}
        self._until: dict[str, int] = {}
        self._since: dict[str, int] = {}
        for stream, beside in _streams(steps):
            self.streams.append(stream)
            spans = [span[p] for p in (stream.part, *beside) if p in span]
            if spans and stream.load:
                self._loaded[stream.part] = stream
                self._since[stream.part] = min(first for first, _ in spans)
            elif spans:
                self._stored[stream.part] = stream
                self._until[stream.part] = max(last for _, last in spans)

    def stays(self, parts: Sequence[str], birth: int, death: int, nbytes: int) -> list[tuple[int, int]]:
        """The first and last steps in which a tensor is on the chip; what passes is counted. It is written once and read as often as it is needed.

        Args:
            parts: those that touch it, in their order. birth, death: the steps between which it is needed. nbytes: its size.
        """
        found, start, written = [], birth, False
        for last, following in itertools.pairwise(parts):
            store, load = self._stored.get(last), self._loaded.get(following)
            if store is None or load is None or load.phase - store.phase <= LIVE_PHASES or self._since[following] <= self._until[last]:
                continue
            found.append((start, self._until[last]))
            start = self._since[following]
            for stream in (load,) if written else (store, load):
                self.bytes[key(stream)] = self.bytes.get(key(stream), 0) + nbytes
            written = True
        return [*found, (start, max(start, death))]


def _streams(steps: Steps) -> Iterator[tuple[Stream, list[str]]]:
    """Every stream, with the parts that run meanwhile."""
    for step in steps:
        if isinstance(step, Stream):
            yield step, []
        elif isinstance(step, Wave):
            runs = [run.part for run in step.runs if isinstance(run, Run | Fold)]
            yield from ((run, runs) for run in step.runs if isinstance(run, Stream))
        elif isinstance(step, Repeat | Atomic | Refresh):
            yield from _streams(step.steps)
