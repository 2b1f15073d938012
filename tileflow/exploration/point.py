"""Points of an exploration, and which of them nothing beats."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..options.options import Options

FITS, OUT_OF_MEMORY, FAILED = "fits", "out of memory", "failed"


@dataclass(frozen=True)
class Point:
    """One setting and what it costs; of a setting that failed there are no figures.

    values: of the axes, None where an axis has no effect on it. state: "fits", "out of memory" (the figures are there all the same) or "failed";
    reason: why it does not fit, or what failed.
    samples_per_second: what the tiles wait for the host's streams is counted. bytes: on the fullest tile; bytes_per_tile: what a tile has.
    cycles: of one weight update (inference: of one micro-batch); cycles_per_sample: those divided by the update's rows, of all replicas.
    tflops: useful 1e12 FLOP/s; peak_fraction: of what the IPUs' matrix units could do. ipus: of all replicas.
    """

    values: Mapping[str, Any]
    training: bool
    state: str
    reason: str = ""
    samples_per_second: float | None = None
    bytes: int | None = None
    bytes_per_tile: int | None = None
    cycles: int | None = None
    cycles_per_sample: float | None = None
    tflops: float | None = None
    peak_fraction: float | None = None
    ipus: int | None = None
    options: Options = field(default_factory=Options, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        return self.state == FITS

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what options hold besides the axes' values is left out."""
        return {"values": dict(self.values), "training": self.training, "state": self.state, "reason": self.reason,
                **{name: getattr(self, name) for name in FIGURES}}


FIGURES = ("samples_per_second", "bytes", "bytes_per_tile", "cycles", "cycles_per_sample", "tflops", "peak_fraction", "ipus")


def front(points: Sequence[Point]) -> list[Point]:
    """The points that fit and that no other that fits beats in both samples per second and bytes on the fullest tile: for inference, then for
    training, each from little memory to much; of equals the first."""
    found: list[Point] = []
    for training in (False, True):
        kept: list[Point] = []
        for p in sorted((p for p in points if p.fits and p.training is training), key=lambda p: (p.bytes, -(p.samples_per_second or 0))):
            if not kept or (p.samples_per_second or 0) > (kept[-1].samples_per_second or 0):
                kept.append(p)
        found += kept
    return found


@dataclass
class Points:
    """The points of an exploration in the order of its axes, and how many settings there are (more than points where it was interrupted)."""

    model: str
    axes: dict[str, list[Any]]
    """The values of each axis, as tables show them."""
    points: list[Point]
    settings: int

    @property
    def complete(self) -> bool:
        """Whether every setting was tried."""
        return len(self.points) == self.settings

    @property
    def front(self) -> list[Point]:
        """See `front`."""
        return front(self.points)

    @property
    def best(self) -> Point | None:
        """The fastest point that fits, one of training where any is; None where none fits."""
        return self.front[-1] if self.front else None
