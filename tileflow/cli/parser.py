"""The parser of the whole command line: one room per command adds its own arguments."""
from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from ..errors import OptionError
from ..options import Options, declarations, near_names
from ..uses import COMMANDS as VERBS
from ..uses import check_use
from ..version import VERSION
from . import compile, doctor, infer, inspect, report, train, tune

COMMANDS = {"train": train, "infer": infer, "inspect": inspect, "compile": compile, "tune": tune, "report": report, "doctor": doctor}
"""Rooms by command: HELP is its sentence, EPILOG what stands below its help, `add` makes its arguments, `run` does it."""
DEBUG = "--debug"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are OptionErrors, so that every error looks the same."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise OptionError(_unknown(unknown[0].split("=")[0], chosen))
    return chosen


def _unknown(word: str, chosen: argparse.Namespace) -> str:
    """The sentence on an argument that the command does not have."""
    name = word.removeprefix("--").replace("-", "_")
    name = name if name in declarations() else name.removeprefix("no_")
    if word.startswith("--") and name in declarations() and chosen.command in VERBS:
        check_use(chosen.command, [name], Options(), command=True)          # it is another command's
    near = [flag for n in near_names(name) if (flag := declarations()[n].flag) in chosen.flags] if word.startswith("--") else []
    if word.startswith("--") and not near:
        near = difflib.get_close_matches(word.replace("_", "-"), chosen.flags, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"see tileflow {chosen.command} --help."
    return f"Unknown argument {word!r}; {hint}"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(prog="tileflow", description="Train and run the ONNX file you already have, on a plain CPU.", allow_abbrev=False)
    parser.add_argument(DEBUG, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"tileflow {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, room in COMMANDS.items():
        sub = commands.add_parser(name, help=room.HELP, description=f"{room.HELP[0].upper()}{room.HELP[1:]}.", epilog=room.EPILOG,
                                  allow_abbrev=False, argument_default=argparse.SUPPRESS)
        sub.set_defaults(run=room.run)
        sub.add_argument(DEBUG, action="store_true", help="after a mistake of tileflow's own show its traceback, to report it")
        room.add(sub)
        sub.set_defaults(flags=[flag for action in sub._actions for flag in action.option_strings])
    return parser
