"""The tile machine behind the verbs: options to chip and TileOptions, compile with a report, tune."""
from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import report as reports
from ..compiler import Compilation
from ..graph.work import Contraction
from ..options.options import SHARDED_GROUPS, TENSOR_GROUPS, Options
from ..options.uses import OF_MACHINE_ALONE
from ..program.replicas import Grouping, grouped
from ..report import Report, format
from ..state import build
from ..strategy.rules import ipus_for
from ..system.environment import check_environment
from ..system.errors import OptionError, OutOfTileMemoryError, ReportError, TileflowError
from ..system.files import replace_by
from ..system.reading import read_text
from ..system.text import one_line
from ..tiles.hardware.chip import Chip, chip
from ..tiles.machine import TileProgram, analyze
from ..tiles.plans.plan import TileOptions, step_names
from ..tiles.plans.planner import export_plans, import_plans
from ..tiles.tiled import Changes
from ..tiles.tune import EVALUATIONS, PROPORTIONS, Point, Progress, Tuning, tune_available_memory

if TYPE_CHECKING:
    from .. import exact

DEFAULT_PROPORTION = 0.6
PLANS = "plans.json"


@dataclass(repr=False)
class TileCompilation(Compilation):
    """A Program and what the tile machine says about it.

    tiled: plans, schedule, bytes per tile and cycles. report: the same as plain data. folder: where the report was written.
    error: what `require_fit` raises because the program does not fit.
    """

    tiled: TileProgram = field(kw_only=True)
    report: Report = field(kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)
    error: OutOfTileMemoryError | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        chip, worst = self.report["chip"], int(self.tiled.peak.max(initial=0))
        fits = "fits" if self.fits else "does not fit"
        return f"TileCompilation({len(self.tiled.steps)} operators on {chip['name']}, {fits}, {self.tiled.cycles_per_update:,} cycles, " \
               f"fullest tile {worst:,} of {self.tiled.chip.usable_bytes:,} bytes)"

    @property
    def fits(self) -> bool:
        return self.tiled.fits

    def require_fit(self) -> TileCompilation:
        """This, or OutOfTileMemoryError where the program does not fit."""
        if self.error is not None:
            raise self.error
        return self

    def tile_exact(self, seed: int = 0) -> exact.Report:
        """Run the partition itself on random data: every tile computes its parts from only the bytes brought to it; each operator
        is compared with the fast path.

        Raises:
            TileMemoryError: a part does not fit a tile.
            OptionError: replicas share out states.
        """
        if self.tiled.shares.elements:
            raise OptionError("tile_exact runs one replica's program on data of its own, and what replicas share out (optimizer_sharded) is not "
                              "there as a whole; leave it out.")
        check_environment()
        from .. import exact
        return build(lambda: exact.check(self.tiled, seed))          # it makes kernels and runs them in this thread

    def to_text(self, every_operator: bool = False) -> str:
        """The report as text."""
        return reports.text.render(self.report, every_operator)


def machine(options: Options) -> Chip:
    """The chip that the options name (OptionError where there is none such)."""
    if options.machine is None:
        raise OptionError("The tile machine needs a chip: set machine to gc2, gc200, bow, c600 or a .toml file.")
    given = options.machine
    return Chip.from_dict(given, "machine") if isinstance(given, Mapping) else chip(given)


_IPU = re.compile(r"IPU\d+")
"""How a proportion for all operators of one IPU is named."""


def tile_options(options: Options) -> TileOptions:
    """The options of the machine group as the tile machine takes them."""
    if options.machine_precision != "32.32" and options.precision not in ("32", "64"):
        raise OptionError(f"Option machine_precision {options.machine_precision} takes float16 for every float32 tensor of a program, and precision "
                          f"{options.precision} gives the program 16-bit types of its own, which are what counts; leave one of them out.")
    if options.weights_sharded and not options.optimizer_sharded:
        raise OptionError("Option weights_sharded needs optimizer_sharded: a weight and its optimizer state are updated together, so they are "
                          "shared out alike.")
    _check_io(options)
    given = options.available_memory_proportion
    by_name = dict(given) if isinstance(given, Mapping) else {"*": given}
    default = by_name.pop("*", DEFAULT_PROPORTION)
    per_ipu = {name: by_name.pop(name) for name in [n for n in by_name if _IPU.fullmatch(n)]}
    if options.strategy == "none":
        _check_ipus(per_ipu, (0,))
        default = per_ipu.pop("IPU0", default)
    return TileOptions(available_memory_proportion=default, per_op=by_name, per_ipu=per_ipu, precision=options.machine_precision,
                       program=options.precision, serialized=options.serial_splits,
                       pinned=read_plans(options.tile_plans) if options.tile_plans else {},
                       joint_plans=options.joint_plans, recompute=options.recompute, replicas=options.replication_factor,
                       weights_sharded=options.weights_sharded, optimizer_sharded=options.optimizer_sharded,
                       num_io_tiles=options.num_io_tiles, io_tiles_for=dict(options.io_tiles_for),
                       overlap_inputs=dict(options.overlap_inputs), overlap_outputs=dict(options.overlap_outputs),
                       min_elements_sharded=_by_group(options.min_elements_sharded, SHARDED_GROUPS),
                       same_rows=options.input_group_size, shared_by=_shared_by(options), **_locations(options))


def _shared_by(options: Options) -> dict[str, int]:
    """How many replicas share a parameter, by name pattern."""
    every = {"all": options.replication_factor, "no_grouping": 1}
    return {name: every.get(kind, size) for name, (kind, size, _) in options.groupings.items()}


def _locations(options: Options) -> dict[str, Any]:
    """Which groups of tensors leave the chip: those that are said, in phases all but activations, which leave as the liveness says
    (`tiles.away`)."""
    phased = options.strategy in ("serial_phased", "parallel_phased")
    by_default = {group: phased and group != "activations" for group in TENSOR_GROUPS}
    found: dict[str, Any] = {}
    for group in TENSOR_GROUPS:
        said = getattr(options, f"{group}_off_chip")
        found[f"{group}_off_chip"] = by_default[group] if said is None else said
    return {**found, "min_elements_off_chip": _by_group(options.min_elements_off_chip, TENSOR_GROUPS)}


def _check_io(options: Options) -> None:
    """OptionError where something is to pass through I/O tiles and cannot."""
    named = [name for name in ("overlap_inputs", "overlap_outputs") if {*getattr(options, name).values()} - {"no_overlap"}]
    if not options.num_io_tiles and (named or options.io_tiles_for):
        raise OptionError(f"Option {[*named, 'io_tiles_for'][0]}: No IO tiles allocated. You must allocate at least 32 IO tiles using num_io_tiles.")
    if named and options.strategy == "pipelined":
        raise OptionError(f"Option {named[0]}: Overlapped IO is not supported with the strategy pipelined. If you are using only one IPU, please "
                          "leave the strategy out or switch to sharded.")
    for group in options.io_tiles_for:
        if not _locations(options)[f"{group}_off_chip"]:
            raise OptionError(f"Option io_tiles_for: {group} are kept on the tiles, so there is nothing to load or store; add {group}_off_chip.")
    chip_tiles = machine(options).tiles if options.machine is not None else 0
    if options.num_io_tiles and options.num_io_tiles >= chip_tiles:
        raise OptionError(f"Option num_io_tiles: {options.num_io_tiles} tiles are to be set aside for I/O, and the chip has {chip_tiles}.")


def _by_group(given: int | Mapping[str, int], groups: Iterable[str]) -> dict[str, int]:
    """Numbers by group of tensors; where a table says nothing of a group, the reference's own holds."""
    return dict(given) if isinstance(given, Mapping) else dict.fromkeys(groups, given)


def _check_ipus(named: Iterable[str], ipus: Sequence[int]) -> None:
    """OptionError where a proportion is for an IPU that a replica has not."""
    have = sorted({*ipus})
    for name in named:
        if int(name.removeprefix("IPU")) not in have:
            where = "one IPU, IPU0" if have == [0] else f"the IPUs {', '.join(f'IPU{i}' for i in have)}"
            raise OptionError(f"available_memory_proportion names {name}, but the program runs on {where}; leave the others out.")


def _check_machine(compilation: Compilation, options: Options) -> None:
    """OptionError where the program and its replicas want IPUs that cannot be had, or a proportion is for an IPU that they do not have."""
    staging = compilation.program.staging
    ipus = (0,) if staging is None else staging.ipus
    ipus_for(ipus, options.replication_factor, options.auto_round_num_ipus)
    if options.replica_grouping and (options.weights_sharded or options.optimizer_sharded):
        raise OptionError("Option replica_grouping: weights that not all replicas share cannot be shared out over all of them (weights_sharded, "
                          "optimizer_sharded); leave one of the two out.")
    grouped(compilation.program.micro.parameters, Grouping.named(options.groupings), options.replication_factor)
    given = options.available_memory_proportion
    _check_ipus([name for name in given if _IPU.fullmatch(name)] if isinstance(given, Mapping) else [], ipus)


def read_plans(path: str | os.PathLike[str]) -> Mapping[str, Mapping[str, Any]]:
    """Pinned plans by name pattern from a JSON file; OptionError where it cannot be read or holds something else."""
    try:
        content = json.loads(read_text(path))
    except OSError as error:
        raise OptionError(f"Plans file {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"Plans file {path} is not valid JSON: {error}.") from None
    try:
        return import_plans(content)
    except OptionError as error:
        raise OptionError(f"Plans file {path}: {error}") from None


def write_plans(tiled: TileProgram, path: str | os.PathLike[str]) -> None:
    """Write the plan of every contraction, to be pinned with the option tile_plans; ReportError where it cannot be written."""
    names = step_names([s.node for s in tiled.steps])
    plans = {glob.escape(names[s.node]): s.plan for s in tiled.steps if isinstance(s.work, Contraction) and s.work.points}
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(plan)}" for name, plan in export_plans(plans).items())
    try:
        replace_by(path, [f"{{\n{text}\n}}\n".encode()])
    except OSError as error:
        raise ReportError(f"Cannot write the plans to {path} ({error.strerror or error}).") from None


Maker = Callable[[Options], Compilation]
"""Compiles the same model with other options."""


def compile_tiles(compilation: Compilation, options: Options, *, model: str = "", folder: str | os.PathLike[str] | None = None,
                  allow_out_of_memory: bool = False, made: Maker | None = None, levers: bool = False) -> TileCompilation:
    """Analyse a compiled program on the options' chip and write the report.

    made: compiles the model again, to try what would make it fit. levers: of a program that fits, try what would make it faster or smaller.

    Raises:
        OutOfTileMemoryError: the program does not fit, unless allowed; the report is written first.
    """
    tiled = analyzed(compilation, options)
    tiled.again = _Again(compilation, options, made)
    if levers:
        tiled.levers()
    return _finished(compilation, tiled, model, folder, None, allow_out_of_memory)


def analyzed(compilation: Compilation, options: Options) -> TileProgram:
    """A compiled program on the options' chip; OptionError where a name in the options fits nothing."""
    _check_machine(compilation, options)
    tiled = analyze(compilation.program, machine(options), tile_options(options))
    _check_patterns(tiled, options)
    return tiled


@dataclass
class _Again:
    """The same model on the same chip with some options changed; None where that cannot be done."""

    compilation: Compilation
    options: Options
    made: Maker | None

    def __call__(self, changes: Changes) -> TileProgram | None:
        try:
            wanted = self.options.clone(**changes)
            if all(name in OF_MACHINE_ALONE for name in changes):
                return analyzed(self.compilation, wanted)
            return None if self.made is None else analyzed(self.made(wanted), wanted)
        except TileflowError:                                             # such stages, or such a micro-batch, there cannot be
            return None


def _check_patterns(tiled: TileProgram, options: Options) -> None:
    """Refuse names that fit nothing: a proportion by a pattern of no operator, a file of plans of which none is used; OptionError."""
    own = step_names([s.node for s in tiled.steps])
    sources = dict.fromkeys(name for s in tiled.steps for name in s.node.origin.sources)
    named = options.available_memory_proportion if options.given("available_memory_proportion", files=False) else {}
    for pattern in named if isinstance(named, Mapping) else ():
        if pattern in tiled.options.per_op and not fnmatch.filter(sources, pattern):
            raise OptionError(f"available_memory_proportion: {pattern!r} matches no operator; the operators are {', '.join(sources) or 'none'}.")
    for option, to_chip, what in (("overlap_inputs", True, "a tensor input to"), ("overlap_outputs", False, "an output of")):
        names = [t.name for t in tiled.transfers if t.to_chip == to_chip]
        for pattern in getattr(tiled.options, option):
            if not fnmatch.filter(names, pattern):
                raise OptionError(f"Option {option}: {pattern!r} is not {what} the model; these are {', '.join(names) or 'none'}.")
    pins = tiled.options.pinned
    if pins and not any(fnmatch.filter([*own.values(), *sources], pattern) for pattern in pins):
        raise OptionError(f"Plans file {options.tile_plans}: none of its plans is for an operator of this program; "
                          f"the operators are {', '.join(sources) or 'none'}.")


def _finished(compilation: Compilation, tiled: TileProgram, model: str, folder: str | os.PathLike[str] | None, points: Any,
              allow_out_of_memory: bool) -> TileCompilation:
    error = _error(tiled)
    report = reports.build(tiled, model=model, out_of_memory=error, frontier=points, notes=compilation.notes)
    written = None if folder is None else reports.write(report, folder)
    if written is not None:
        write_plans(tiled, written / PLANS)
    if error is not None and written is not None:
        error.add_note(f"The report is in {written}.")
    result = TileCompilation(compilation.program, compilation.seconds, compilation.notes, tiled=tiled, report=report, folder=written, error=error)
    return result if allow_out_of_memory else result.require_fit()


def _error(tiled: TileProgram) -> OutOfTileMemoryError | None:
    """What to raise once the report is written."""
    try:
        tiled.require_fit()
    except OutOfTileMemoryError as error:
        return error
    return None


@dataclass
class TuneResult:
    """What `tune_available_memory` found. `options` has the fastest setting that fits; `save` writes it for --options."""

    options: Options
    points: list[Point]
    best: Point
    compilation: TileCompilation

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the options as a TOML file that `train`, `compile` and `tune` accept; OptionError where it cannot be written."""
        chosen = self.options.clone(out=None, resume=False, progress=None)
        chip_name = self.compilation.report["chip"]["name"]
        chosen.save(path, one_line(f"Found by tileflow tune for {self.compilation.report['model'] or 'a model'} on {chip_name}: "
                          f"{self.best.cycles:,} cycles, worst tile {self.best.bytes:,} bytes."))


    def to_text(self) -> str:
        """Of a program in stages: each IPU's proportion, the bytes on its fullest tile and how long it works; empty on one IPU."""
        tiled = self.compilation.tiled
        if len(tiled.ipus) < 2:
            return ""
        shares = {**tiled.options.per_ipu}
        rows = [(f"IPU{i.number}", f"{shares.get(f'IPU{i.number}', tiled.options.available_memory_proportion):g}", format.count(i.worst),
                 format.percent(i.worst / tiled.chip.usable_bytes), format.count(i.busy), format.percent(i.busy / max(1, tiled.cycles_per_update)))
                for i in tiled.ipus]
        named = len(tiled.options.per_op)
        more = f"\n  {named} operator{'s' if named > 1 else ''} by name besides" if named else ""
        header = ("IPU", "proportion", "worst tile", "of tile", "cycles at work", "of update")
        return f"Found for each IPU\n\n{reports.text.table(header, rows)}{more}"


def tune(compilation: Compilation, options: Options, *, model: str = "", folder: str | os.PathLike[str] | None = None,
         proportions: Sequence[float] = PROPORTIONS, evaluations: int = EVALUATIONS, progress: Progress | None = None,
         made: Maker | None = None) -> TuneResult:
    """Search for the proportions that make a compiled program fastest on the options' chip, and write the report with the frontier.

    made: compiles the model again, to try what would make it fit where no proportion does.

    Raises:
        OptionError: evaluations is not a whole number of at least 0.
        OutOfTileMemoryError: no setting fits; the report is written first.
    """
    base = tile_options(options)
    if isinstance(evaluations, bool) or not isinstance(evaluations, int) or evaluations < 0:
        raise OptionError(f"evaluations must be a whole number of at least 0, not {evaluations!r}.")
    _check_machine(compilation, options)
    tuning: Tuning = tune_available_memory(compilation.program, machine(options), base, proportions=proportions, evaluations=evaluations,
                                           progress=progress)
    _check_patterns(tuning.tiled, options)
    chosen = options.clone(available_memory_proportion=tuning.proportions)
    tuning.tiled.again = _Again(compilation, chosen, made)
    finished = _finished(compilation, tuning.tiled, model, folder, tuning.to_dicts(), True)
    if finished.error is not None:                                        # what was tried besides was tried with these
        finished.error.remedies = [{"available_memory_proportion": tuning.proportions, **changes} for changes in finished.error.remedies]
    return TuneResult(chosen, tuning.points, tuning.best, finished.require_fit())
