"""The tile machine behind the verbs: compile with a report, tune."""
from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import report as reports
from ..compiler import Compilation
from ..options.options import Options
from ..report import Report, format
from ..state import build
from ..system.environment import check_environment
from ..system.errors import OptionError, OutOfTileMemoryError
from ..system.text import one_line
from ..tiles.machine import TileProgram
from .levers import find_levers
from .planning import analyzed, check_machine, check_patterns, machine, tile_options, write_plans
from .search import Maker, Planner, Progress
from .tune import EVALUATIONS, PROPORTIONS, TunePoint, tune_available_memory

if TYPE_CHECKING:
    from .. import exact

PLANS = "plans.json"


@dataclass(repr=False)
class TileCompilation(Compilation):
    """A Program and what the tile machine says about it.

    tiled: plans, schedule, bytes per tile and cycles. report: the same as plain data. folder: where the report was
    written.
    """

    tiled: TileProgram = field(kw_only=True)
    report: Report = field(kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        chip, worst = self.report["chip"], int(self.tiled.peak.max(initial=0))
        fits = "fits" if self.fits else "does not fit"
        return f"TileCompilation({len(self.tiled.steps)} operators on {chip['name']}, {fits}, {self.tiled.cycles_per_update:,} cycles, " \
               f"fullest tile {worst:,} of {self.tiled.chip.usable_bytes:,} bytes)"

    @property
    def fits(self) -> bool:
        return self.tiled.fits

    @functools.cached_property
    def error(self) -> OutOfTileMemoryError | None:
        """What `require_fit` raises because the program does not fit. Levers are looked for where nobody has: as long
        as many compilations."""
        if not self.fits:
            self.tiled.levers()
        error = _error(self.tiled)
        if error is not None:
            error.compilation = self
            if self.folder is not None:
                error.add_note(f"The report is in {self.folder}.")
        return error

    def require_fit(self) -> TileCompilation:
        """This, or OutOfTileMemoryError where the program does not fit."""
        if self.error is not None:
            raise self.error
        return self

    def tile_exact(self, seed: int = 0) -> exact.Report:
        """Run the partition itself on random data: every tile computes its parts from only the bytes brought to it;
        each operator is compared with the fast path.

        Raises:
            TileMemoryError: a part does not fit a tile.
            OptionError: replicas share out states.
        """
        if self.tiled.shares.elements:
            raise OptionError("tile_exact runs one replica's program on data of its own, and what replicas share out "
                              "(optimizer_sharded) is not there as a whole; leave it out.")
        check_environment()
        from .. import exact
        return build(lambda: exact.check(self.tiled, seed))          # it makes kernels and runs them in this thread

    def to_text(self, every_operator: bool = False) -> str:
        """The report as text."""
        return reports.text.render(self.report, every_operator)


def compile_tiles(compilation: Compilation, options: Options, *, model: str = "",
                  folder: str | os.PathLike[str] | None = None,
                  allow_out_of_memory: bool = False, made: Maker, levers: bool = False) -> TileCompilation:
    """Analyse a compiled program on the options' chip and write the report.

    made: compiles the model again, to try what would make it fit, which is done unless the program may be too large.
    levers: try that in any case, and of a program that fits what would make it faster or smaller.

    Raises:
        OutOfTileMemoryError: the program does not fit, unless allowed; the report is written first.
    """
    tiled = analyzed(compilation, options)
    _let_find(tiled, compilation, options, made)
    if levers or not (tiled.fits or allow_out_of_memory):
        tiled.levers()
    return _finished(compilation, tiled, model, folder, None, allow_out_of_memory)


def _let_find(tiled: TileProgram, compilation: Compilation, options: Options, made: Maker) -> None:
    """A planned program finds its levers among settings of its model."""
    tiled.find = lambda tiled: find_levers(tiled, Planner(made, options, compilation))


def _finished(compilation: Compilation, tiled: TileProgram, model: str, folder: str | os.PathLike[str] | None,
              points: Any, allow_out_of_memory: bool) -> TileCompilation:
    report = reports.build(tiled, model=model, out_of_memory=_error(tiled), frontier=points, notes=compilation.notes)
    written = None if folder is None else reports.write(report, folder)
    if written is not None:
        write_plans(tiled, written / PLANS)
    result = TileCompilation(compilation.program, compilation.seconds, compilation.notes, tiled=tiled, report=report,
                             folder=written)
    return result if allow_out_of_memory else result.require_fit()


def _error(tiled: TileProgram) -> OutOfTileMemoryError | None:
    """A tile needs more bytes than it has; with levers, where they were looked for."""
    if tiled.fits:
        return None
    tried = tiled.tried or []
    levers = [lever for lever in tried if lever.fits][:3] or tried[:3]
    return OutOfTileMemoryError(tiled.worst_tile, int(tiled.peak[tiled.worst_tile]), tiled.chip.usable_bytes,
                                [(c.layer, c.nbytes, dict(c.categories)) for c in tiled.contributors()[:5]],
                                None if tiled.tried is None else [lever.sentence for lever in levers],
                                [lever.changes for lever in levers if lever.fits])


@dataclass
class TuneResult:
    """What `tune_available_memory` found. `options` has the fastest setting that fits; `save` writes it for
    --options."""

    options: Options
    points: list[TunePoint]
    best: TunePoint
    compilation: TileCompilation

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the options as a TOML file that `train`, `compile` and `tune` accept; OptionError where it cannot be
        written."""
        chosen = self.options.clone(out=None, resume=False, progress=None)
        chip_name = self.compilation.report["chip"]["name"]
        chosen.save(path, one_line(f"Found by tileflow tune for {self.compilation.report['model'] or 'a model'} on "
                                   f"{chip_name}: "
                          f"{self.best.cycles:,} cycles, worst tile {self.best.bytes:,} bytes."))

    def to_text(self) -> str:
        """Of a program in stages: each IPU's proportion, the bytes on its fullest tile and how long it works; empty on
        one IPU."""
        tiled = self.compilation.tiled
        if len(tiled.ipus) < 2:
            return ""
        shares = {**tiled.options.per_ipu}
        rows = [(f"IPU{i.number}", f"{shares.get(f'IPU{i.number}', tiled.options.available_memory_proportion):g}",
                 format.count(i.worst),
                 format.percent(i.worst / tiled.chip.usable_bytes), format.count(i.busy),
                 format.percent(i.busy / max(1, tiled.cycles_per_update)))
                for i in tiled.ipus]
        named = len(tiled.options.per_op)
        more = f"\n  {named} operator{'s' if named > 1 else ''} by name besides" if named else ""
        header = ("IPU", "proportion", "worst tile", "of tile", "cycles at work", "of update")
        return f"Found for each IPU\n\n{reports.text.table(header, rows)}{more}"


def tune(compilation: Compilation, options: Options, *, model: str = "", folder: str | os.PathLike[str] | None = None,
         proportions: Sequence[float] = PROPORTIONS, evaluations: int = EVALUATIONS, progress: Progress | None = None,
         made: Maker) -> TuneResult:
    """Search for the proportions that make a compiled program fastest on the options' chip, and write the report with
    the frontier.

    made: compiles the model again, to try what would make it fit where no proportion does.

    Raises:
        OptionError: evaluations is not a whole number of at least 0.
        OutOfTileMemoryError: no setting fits; the report is written first.
    """
    base = tile_options(options)
    if isinstance(evaluations, bool) or not isinstance(evaluations, int) or evaluations < 0:
        raise OptionError(f"evaluations must be a whole number of at least 0, not {evaluations!r}.")
    check_machine(compilation, options)
    tuning = tune_available_memory(compilation.program, machine(options), base, proportions=proportions,
                                   evaluations=evaluations, progress=progress)
    check_patterns(tuning.tiled, options)
    best, setting = tuning.best, tuning.best.proportions
    chosen = options.clone(available_memory_proportion=setting)
    _let_find(tuning.tiled, compilation, chosen, made)
    if not tuning.tiled.fits:
        tuning.tiled.levers()
    points = [*tuning.points.values()]
    finished = _finished(compilation, tuning.tiled, model, folder, [p.to_dict(p is best) for p in points], True)
    if (error := finished.error) is not None:                             # what was tried besides was tried with these
        error.remedies = [{"available_memory_proportion": setting, **changes} for changes in error.remedies]
    return TuneResult(chosen, points, best, finished.require_fit())
