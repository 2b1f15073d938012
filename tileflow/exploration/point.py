"""Points of an exploration, and which of them nothing beats."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..options.options import Options
from ..system.errors import OptionError

FITS, OUT_OF_MEMORY, FAILED = "fits", "out of memory", "failed"


@dataclass(frozen=True)
class Point:
    """One setting and what it costs; of a setting that failed there are no figures.

    values: of the axes, None where an axis has no effect on it. state: "fits", "out of memory" (the figures are there all the same) or "failed";
    reason: why it does not fit, or what failed.
    samples_per_second: what the tiles wait for the host's streams is counted. bytes: on the fullest tile; bytes_per_tile: what a tile has.
    cycles: of one weight update (inference: of one micro-batch); cycles_per_sample: those divided by the update's rows, of all replicas.
    tflops: useful 1e12 FLOP/s; peak_fraction: of what the IPUs' matrix units could do. ipus: of all replicas.
    joules_least, joules_most: between which the energy of a sample lies; None where nothing bounds it.
    samples_per_second_per_mm2, samples_per_second_per_cost: over the silicon, and the cost, of all IPUs; None where the
    chip does not say it.
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
    joules_least: float | None = None
    joules_most: float | None = None
    samples_per_second_per_mm2: float | None = None
    samples_per_second_per_cost: float | None = None
    options: Options = field(default_factory=Options, repr=False, compare=False)

    @property
    def fits(self) -> bool:
        return self.state == FITS

    def number(self, name: str) -> float:
        """A figure, or the value of an axis; OptionError where that is no number."""
        found = self.values[name] if name in self.values else getattr(self, name) if name in FIGURES else None
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise OptionError(f"{name!r} is no number of these settings; the figures are {', '.join(FIGURES)}, the "
                              f"axes {', '.join(self.values)}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what options hold besides the axes' values is left out."""
        return {"values": dict(self.values), "training": self.training, "state": self.state, "reason": self.reason,
                **{name: getattr(self, name) for name in FIGURES}}


FIGURES = ("samples_per_second", "bytes", "bytes_per_tile", "cycles", "cycles_per_sample", "tflops", "peak_fraction",
           "ipus", "joules_least", "joules_most", "samples_per_second_per_mm2", "samples_per_second_per_cost")
WHERE_SAID = FIGURES[-2:]
"""Of a table only where some chip says what they are over."""


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


def thriftiest(points: Sequence[Point]) -> list[Point]:
    """The points that fit and than which none that fits certainly takes less energy for a sample: ranges that overlap
    say nothing of which is better. Points whose energy is not known are left out."""
    known = [(p, p.joules_least, p.joules_most)
             for p in points if p.fits and p.joules_least is not None and p.joules_most is not None]
    most = min((most for *_, most in known), default=0.0)
    return [p for p, least, _ in known if least <= most]


Names = str | Sequence[str]


def pareto(points: Sequence[Point], maximize: Names = (), minimize: Names = ()) -> list[Point]:
    """The points that fit and that no other that fits beats: none is as good in all that is named and better in one. Of
    equals the first; in the order of the points.

    Args:
        maximize, minimize: names of figures, or of axes whose values are numbers.

    Raises:
        OptionError: nothing is named, or a point that fits has no number of that name.
    """
    wanted = [(name, sign) for names, sign in ((maximize, -1.0), (minimize, 1.0))
              for name in ([names] if isinstance(names, str) else names)]
    if not wanted:
        raise OptionError("A Pareto front needs figures: name those to maximize and those to minimize.")
    fitting = [p for p in points if p.fits]
    rows = [tuple(sign * p.number(name) for name, sign in wanted) for p in fitting]
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: rows[i]):             # who beats another comes before it
        if not any(all(a <= b for a, b in zip(rows[k], rows[i], strict=True)) for k in kept):
            kept.append(i)
    return [fitting[i] for i in sorted(kept)]


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

    def pareto(self, maximize: Names = (), minimize: Names = ()) -> list[Point]:
        """See `pareto`: `found.pareto(maximize="samples_per_second", minimize=("bytes_per_tile", "ipus"))`."""
        return pareto(self.points, maximize, minimize)

    @property
    def thriftiest(self) -> list[Point]:
        """See `thriftiest`."""
        return thriftiest(self.points)

    @property
    def figures(self) -> list[str]:
        """The names of those that the points have."""
        return [n for n in FIGURES if n not in WHERE_SAID or any(getattr(p, n) is not None for p in self.points)]

    def columns(self) -> dict[str, list[Any]]:
        """The table by columns, as `pandas.DataFrame` takes it: the axes, the state, the figures, the reason; None
        where there is nothing. What is an axis is no figure once more."""
        found = {name: [p.values.get(name) for p in self.points] for name in self.axes}
        return {**found, **{name: [getattr(p, name) for p in self.points]
                            for name in ("state", *self.figures, "reason") if name not in found}}

    @property
    def best(self) -> Point | None:
        """The fastest point that fits, one of training where any is; None where none fits."""
        return self.front[-1] if self.front else None
