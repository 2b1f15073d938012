"""How long the last call of a model took, in the reference's counters."""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .spelling import both_spellings

COUNTERS = ("input", "input_complete", "output", "output_complete")
"""What getPerfCounters counts."""


@both_spellings
class CallTimes:
    """What a model says of its last call."""

    _counters: Mapping[str, list[list[float]]] = MappingProxyType({name: [[]] for name in COUNTERS})
    """Of the last call."""

    def _note_call(self, begin: float, given: float, end: float) -> None:
        """A call took its inputs from `begin` until `given`, and had its outputs at `end` (seconds of one clock)."""
        taken = 0.0, given - begin, end - begin, end - begin
        self._counters = {name: [[at]] for name, at in zip(COUNTERS, taken, strict=True)}

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When, in seconds from the begin of the last call, its inputs were taken (input), were there (input_complete),
        and its outputs were ready (output) and given (output_complete): one entry for the call, none before the
        first."""
        return {name: [list(times) for times in found] for name, found in self._counters.items()}

    def _between(self, first: str, last: str) -> tuple[float, float, float]:
        counters = self._counters
        if not counters[first][0]:
            return 0.0, 0.0, 0.0
        took = counters[last][0][0] - counters[first][0][0]
        return took, took, took

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Seconds from taking inputs until they are there, in the last call: smallest, largest, mean."""
        return self._between("input", "input_complete")

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Seconds from there until outputs are ready."""
        return self._between("input_complete", "output")

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Seconds from there until they are given."""
        return self._between("output", "output_complete")

    def getLatency(self) -> tuple[float, float, float]:
        """Seconds of the whole call."""
        return self._between("input", "output_complete")
