"""The parser of the whole command line: one room per command adds its own arguments."""
from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from ..options.options import Options, declarations, near_names
from ..options.uses import check_use
from ..options.verbs import COMMANDS as VERBS
from ..system.errors import OptionError
from ..system.version import VERSION
from . import compare, compile, completion, doctor, explore, infer, inspect, launch, report, runs, train, tune
from .arguments import OPTIONS_FLAG

COMMANDS = {"train": train, "launch": launch, "infer": infer, "inspect": inspect, "compare": compare,
            "compile": compile, "tune": tune,
            "explore": explore, "report": report, "runs": runs, "doctor": doctor, "completion": completion}
"""Rooms by command: HELP is its sentence, EPILOG what stands below its help, `add` makes its arguments, `run` does it."""
DEBUG = "--debug"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are OptionErrors, so that every error looks the same."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


class _Help(argparse.Action):
    """--help: the common flags of a command that has one for every option; --help all: all of them."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None, default: Any = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", const="common", metavar="all", default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, _chosen: argparse.Namespace, values: Any, _flag: str | None = None) -> NoReturn:
        hidden = [a for a in parser._actions if a.dest in declarations() and not declarations()[a.dest].common and a.help != argparse.SUPPRESS]
        if OPTIONS_FLAG in parser._option_string_actions and values != "all" and hidden:
            for action in hidden:
                action.help = argparse.SUPPRESS
            parser.epilog = " ".join(filter(None, [f"{len(hidden)} more options: {parser.prog} --help all.", parser.epilog]))
        parser.print_help()
        parser.exit()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line's words, by name; --help prints and exits.

    Raises:
        OptionError: the command has no such option. argparse exits with 2 for what else is wrong.
    """
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
                                  allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
        sub.set_defaults(run=room.run)
        sub.add_argument(DEBUG, action="store_true", help="after a mistake of tileflow's own show its traceback, to report it")
        room.add(sub)
        every = OPTIONS_FLAG in sub._option_string_actions
        sub.add_argument("-h", "--help", action=_Help, help="show the common flags, or all of them" if every else "show this message")
        sub.set_defaults(flags=[flag for action in sub._actions for flag in action.option_strings])
    commands.choices["completion"].set_defaults(parser=parser)          # of which it tells
    return parser
