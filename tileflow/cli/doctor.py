"""`tileflow doctor`."""
from __future__ import annotations

import argparse

from ..system.exit_codes import OK, USER_ERROR
from ..system.terminal import say

HELP = "check this installation and say how to mend what is wrong"
EPILOG = None


def add(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


def run(_chosen: argparse.Namespace) -> int:
    """`tileflow doctor`."""
    from .examination import examine
    examination = examine()
    say(examination.text())
    return USER_ERROR if examination.broken else OK
