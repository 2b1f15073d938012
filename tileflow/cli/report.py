"""`tileflow report`."""
from __future__ import annotations

import argparse
from pathlib import Path

from ..terminal import say
from .arguments import say_where
from .exit import OK

HELP = "print a report that compile or tune wrote"
EPILOG = None


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a folder with a report.json, or the file")
    parser.add_argument("--render", action="store_true", default=False, help="make page.html and trace.json anew")
    parser.add_argument("--verbose", action="store_true", default=False, help="list every operator")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow report`."""
    from .. import report
    found = report.load(chosen.folder)
    say(report.text.render(found, chosen.verbose))
    if chosen.render:
        folder = Path(chosen.folder)
        say_where(report.write(found, folder if folder.is_dir() else folder.parent))
    return OK
