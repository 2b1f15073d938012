"""What the environment asks of a process: its log, a trace of what it does, and a report of every program that it
compiles."""
from __future__ import annotations

import os
import warnings
from pathlib import Path

from .. import report as reports
from ..compiler import Compilation
from ..exploration.planning import analyzed
from ..options.options import Options
from ..runtime.programs import listeners
from ..system import logs, spans
from ..system.errors import OutOfTileMemoryError, TileflowError
from ..tiles.machine import TileProgram
from .simulation import DEFAULT_MACHINE

AUTO_REPORT = "TILEFLOW_AUTO_REPORT"
"""The environment variable that names a folder for reports of all programs."""


def heed() -> None:
    """Do what the environment asks; what it asks wrongly is said."""
    wrong = logs.from_environment()
    if wrong is not None:
        warnings.warn(wrong, stacklevel=2)
    spans.from_environment()
    folder = os.environ.get(AUTO_REPORT)
    if folder:
        report_every_program(folder)


_folders: list[Path] = []


def report_every_program(folder: str | os.PathLike[str]) -> None:
    """From now on every program that is compiled has its report in this folder."""
    _folders[:] = [Path(folder)]
    if _told not in listeners:
        listeners.append(_told)


def _told(compilation: Compilation, options: Options, training: bool) -> None:
    for folder in _folders:
        write_report(compilation, options, folder, "training" if training else "inference")


def cycles(compilation: Compilation, options: Options) -> int:
    """Cycles of an update, or of a micro-batch of inference, on the options' chip, or on a GC200.

    Raises:
        TileflowError: the chip cannot run it.
    """
    return analyzed(compilation, _with_machine(options)).cycles_per_update


def _with_machine(options: Options) -> Options:
    return options if options.machine is not None else options.clone(machine=DEFAULT_MACHINE)


def write_report(compilation: Compilation, options: Options, folder: Path, name: str) -> Path | None:
    """The report of a compiled program on the options' chip, or on a GC200, in a new folder of `folder` with this name
    (name-2, name-3, …).

    What the chip cannot run ends nothing: a warning says why there is no report, and one of a program that does not fit
    says so.

    Returns:
        the folder; None where there is no report.
    """
    try:
        tiled = analyzed(compilation, _with_machine(options))
        made = reports.build(tiled, model=name, out_of_memory=_does_not_fit(tiled), notes=compilation.notes)
        return reports.write(made, _new(folder, name))
    except TileflowError as error:
        warnings.warn(f"There is no report of the {name} program: {error}", stacklevel=2)
        return None


def _does_not_fit(tiled: TileProgram) -> OutOfTileMemoryError | None:
    if tiled.fits:
        return None
    most = [(c.layer, c.nbytes, dict(c.categories)) for c in tiled.contributors()[:5]]
    return OutOfTileMemoryError(tiled.worst_tile, int(tiled.peak[tiled.worst_tile]), tiled.chip.usable_bytes, most, [])


def _new(folder: Path, name: str) -> Path:
    """A folder that is not there yet."""
    found, number = folder / name, 2
    while found.exists():
        found, number = folder / f"{name}-{number}", number + 1
    return found
