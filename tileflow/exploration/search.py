"""The one search over simulated machines: settings of a model are tried, each compiled and planned once, and what comes
of one is a point.

`tune`, `levers` and `explore` are searches: they differ in which settings they try next, and in when they stop.
"""
from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..compiler import Compilation
from ..options.options import Options, declarations
from ..system.errors import TileflowError
from ..system.text import one_line
from ..tiles.machine import Analyses
from ..tiles.system.ipus import counts
from ..tiles.tiled import Changes, TileProgram
from .planning import analyzed, any_number, bytes_per_ipu
from .point import FAILED, FITS, OUT_OF_MEMORY, Point

P = TypeVar("P")
Progress = Callable[[int, int, str], None]
"""Called with settings tried, how many there are (at most), and a word on the best so far."""
Maker = Callable[[Options], Compilation]
"""Compiles the same model with other options."""


@dataclass
class Search(Generic[P]):
    """Points by setting, in the order in which they were tried; each setting is tried once.

    most: settings that are tried, at most. progress: is told of each.
    """

    most: int = field(default=0, kw_only=True)
    progress: Progress | None = field(default=None, kw_only=True)
    points: dict[Any, P] = field(default_factory=dict, init=False)

    @property
    def left(self) -> int:
        """Settings that may still be tried."""
        return self.most - len(self.points)

    def once(self, setting: Hashable, tried: Callable[[], P]) -> P:
        """The point of a setting, which is tried unless it was."""
        if setting not in self.points:
            self.points[setting] = tried()
        return self.points[setting]

    def tell(self, best: str) -> None:
        """Say how far it is, with a word on the best so far."""
        if self.progress is not None:
            self.progress(len(self.points), self.most, best)


@dataclass(frozen=True)
class Outcome:
    """What came of a setting: the planned program, or why there is none."""

    tiled: TileProgram | None = None
    error: Exception | None = None

    @property
    def reason(self) -> str:
        """Why it does not fit: which tile needs how much, and what most of it is; or what failed, where a mistake of
        tileflow's own is called one. Empty where it fits."""
        if self.tiled is None:
            known = isinstance(self.error, TileflowError)
            return str(self.error) if known else f"internal error {one_line(repr(self.error))}: please report it."
        if self.tiled.fits:
            return ""
        said = self.tiled.infeasible[-1]
        for most in self.tiled.contributors()[:1]:
            kinds = ", ".join(f"{kind} {n:,}" for kind, n in most.categories.items())
            said += f" Most of it: {one_line(most.layer)} {most.nbytes:,} ({kinds})."
        return said


class Planner:
    """One model with these settings or those. Settings that differ in options of the machine alone share a program;
    besides the program that was there at the beginning only the last one is held.

    make: compiles the model. options, compilation: a program that is there already, and the options it was made with.
    """

    def __init__(self, make: Maker, options: Options | None = None, compilation: Compilation | None = None) -> None:
        self.make, self.options = make, options or Options()
        self._given: dict[Hashable, Compilation | Exception] = {}
        if compilation is not None:
            self._given[program_key(self.options)] = compilation
        self._made = self._given
        self._analyses: Analyses | None = None

    def changed(self, changes: Changes) -> Outcome:
        """What comes of the options of the beginning with some of them changed."""
        try:
            return self.tried(self.options.clone(**changes))
        except TileflowError as error:
            return Outcome(error=error)

    def tried(self, options: Options) -> Outcome:
        """What comes of these options. A program that cannot be compiled fails all settings that share it."""
        program = self.program(options)
        if isinstance(program, Exception):
            return Outcome(error=program)
        if self._analyses is None or self._analyses.program is not program.program:
            self._analyses = Analyses(program.program)
        return planned(program, options, self._analyses)

    def program(self, options: Options) -> Compilation | Exception:
        """The model compiled with these options, or why it cannot be."""
        key = program_key(options)
        if key not in self._made:
            self._made = {**self._given, key: self._compiled(options)}
        return self._made[key]

    def _compiled(self, options: Options) -> Compilation | Exception:
        try:
            return self.make(options)
        except Exception as error:
            return error


def planned(program: Compilation, options: Options, analyses: Analyses) -> Outcome:
    """What comes of a compiled program with these options of the machine; analyses: those of the program so far."""
    try:
        return Outcome(analyzed(program, options, analyses))
    except Exception as error:
        return Outcome(error=error)


def point_of(outcome: Outcome) -> Point:
    """The figures of an outcome; whose setting it is, is still to be said."""
    tiled = outcome.tiled
    if tiled is None:
        return Point({}, False, FAILED, outcome.reason)
    joules = tiled.energy.per_sample or (None, None)
    return Point({}, tiled.program.training, FITS if tiled.fits else OUT_OF_MEMORY, outcome.reason,
                 samples_per_second=float(tiled.samples_per_second), bytes=int(tiled.peak[tiled.worst_tile]),
                 bytes_per_tile=int(tiled.chip.usable_bytes), cycles=int(tiled.cycles_per_update),
                 cycles_per_sample=tiled.cycles_per_sample, tflops=float(tiled.tflops),
                 peak_fraction=float(tiled.peak_fraction),
                 ipus=counts(tiled.ipus, tiled.options.replicas)["all"], joules_least=joules[0], joules_most=joules[1],
                 samples_per_second_per_mm2=tiled.samples_per_second_per_mm2,
                 samples_per_second_per_cost=tiled.samples_per_second_per_cost)


def program_key(options: Options) -> tuple[Any, ...]:
    """What the compiled program follows from. A micro-batch that nobody gave may be the model's own; automatic stages
    keep a bound of the machine's."""
    told = tuple(repr(getattr(options, name)) for name, d in declarations().items() if not d.machine_alone)
    bound = bytes_per_ipu(options) if options.strategy != "none" else 0
    return told, options.given("micro_batch_size"), bound, any_number(options)
