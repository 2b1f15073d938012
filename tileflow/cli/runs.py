"""`tileflow runs`."""
from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..system.errors import CheckpointError
from ..system.exit_codes import OK
from ..system.terminal import say
from ..system.text import one_line

if TYPE_CHECKING:
    from ..runtime.runs import DoneRun

HELP = "list the runs in a folder, or compare some of them"
EPILOG = "examples: tileflow runs; tileflow runs runs/a runs/b"
LONGEST = 40
"""Characters of a name or a setting."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="DIR", nargs="*", default=["runs"],
                        help="a folder of runs (by default runs), or the folders of two or more runs to compare")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow runs`."""
    from ..runtime.runs import differing, find_runs, read_run
    folders = [Path(name) for name in chosen.folders]
    if len(folders) == 1:
        found = find_runs(folders[0]) or _own(folders[0])
        if not found:
            raise CheckpointError(f"There are no runs in {one_line(folders[0])}; tileflow train makes some.")
        _list(found)
        return OK
    found = [read_run(folder) for folder in folders]
    _list(found)
    rows = [[one_line(name), *(_short(value) for value in values)] for name, values in differing(found).items()]
    say("\nThey differ in no setting." if not rows else "\nWhat differs:")
    _table([["", *(_short(r.folder.name) for r in found)], *rows] if rows else [])
    return OK


def _own(folder: Path) -> list[DoneRun]:
    """The folder itself, where it is one run's."""
    from ..runtime.runs import read_run
    try:
        return [read_run(folder)]
    except CheckpointError:
        return []


def _list(runs: Sequence[DoneRun]) -> None:
    """A line for each run."""
    def number(x: float, form: str) -> str:
        return format(x, form) if math.isfinite(x) else ""
    head = ["run", "epochs", "updates", "loss", "best loss", "test loss", "best", "accuracy", "test accuracy",
            "seconds", ""]
    _table([head, *([_short(r.folder.name or r.folder), str(len(r.epochs)), f"{r.updates:,}",
                     number(r.last("loss"), ".4f"),
                     number(r.best("loss"), ".4f"), number(r.last("test_loss"), ".4f"),
                     number(r.best("test_loss"), ".4f"),
                     number(r.last("accuracy"), ".2%"),
                     number(r.last("test_accuracy"), ".2%"), number(r.seconds, ".1f"),
                     f"ended early: {_short(r.ended)}" if r.ended else ""]
                    for r in runs)])


def _short(value: object) -> str:
    return one_line(str(value), LONGEST)


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what is in them; those of numbers to the right. Columns without anything are left out."""
    if not rows:
        return
    shown = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in shown}
    for row in rows:
        say("  ".join(row[i].ljust(widths[i]) if i == 0 or i == len(row) - 1 else row[i].rjust(widths[i])
                      for i in shown).rstrip())
