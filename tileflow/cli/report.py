"""`tileflow report`."""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..system.exit_codes import OK
from ..system.terminal import say
from ..system.text import one_line
from .arguments import say_where

if TYPE_CHECKING:
    from ..report import Report

HELP = "print a report that compile or tune wrote, or what differs between two"
EPILOG = None


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a folder with a report.json, or the file")
    parser.add_argument("other", metavar="OTHER", nargs="?", default=None, help="a second one: print what differs, most first")
    parser.add_argument("--render", action="store_true", default=False,
                        help="make page.html and trace.json anew; of two reports compare.html, a page with both, in the folder of the second")
    parser.add_argument("--verbose", action="store_true", default=False, help="list every operator; of two reports all that differs")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow report`."""
    from .. import report
    found = report.load(chosen.folder)
    if chosen.other is not None:
        return _compare(chosen, found)
    say(report.text.render(found, chosen.verbose))
    if found["out_of_memory"]:
        say(f"\n{found['out_of_memory']['message']}")
    if chosen.render:
        say_where(report.write(found, _folder(chosen.folder)))
    return OK


def _compare(chosen: argparse.Namespace, found: Report) -> int:
    from .. import report
    other, names = report.load(chosen.other), _names(chosen.folder, chosen.other)
    say(report.compare.render(report.compare.compare(found, other, names), chosen.verbose))
    if chosen.render:
        say(f"\nBoth reports are in {report.write_both(found, other, names, _folder(chosen.other))}: open it in a browser.")
    return OK


def _folder(given: str) -> Path:
    path = Path(given)
    return path if path.is_dir() else path.parent


def _names(a: str, b: str) -> tuple[str, str]:
    """What two reports are called: by their folders' names, where these differ."""
    names = one_line(_folder(a).resolve().name), one_line(_folder(b).resolve().name)
    return names if names[0] != names[1] else (one_line(a), one_line(b))
