"""What the commands share: the model, the flags of options, and what they come to."""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..options.declaration import Declaration
from ..options.kinds import Flag
from ..options.options import GROUPS, Options, declarations, with_defaults
from ..options.uses import check_use, used_by
from ..system.errors import OptionError
from ..system.packaged import PACKAGED_MODELS, model_path
from ..system.terminal import say

__all__ = ["add_model", "add_options", "add_simulation", "model_path", "options_of", "say_where"]

OPTIONS_FLAG = "--options"
"""The flag of a file of options: a command that has it has a flag for each option that it uses."""
BOTH = "both"


def add_model(parser: argparse.ArgumentParser, optional: bool = False, executable: bool = False) -> None:
    """Let a command take a model: the positional argument MODEL, which is None where it is left out and may be;
    `executable`: also one that is compiled."""
    also = ", an executable (tileflow compile --export)" if executable else ""
    more: dict[str, Any] = {"nargs": "?", "default": None} if optional else {}
    parser.add_argument("model", metavar="MODEL", **more,
                        help=f"an ONNX file{also}, or one that comes with tileflow: {', '.join(PACKAGED_MODELS)}")


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Flags of the commands that use the tile machine."""
    parser.add_argument("--training", action="store_true", default=False, help="compile it for training")
    parser.add_argument("--report", metavar="DIR", default=None, help="write report.json, page.html and trace.json to this folder")
    parser.add_argument("--verbose", action="store_true", default=False, help="list every operator")


class Several(argparse.Action):
    """A flag that is yes or, as --flag=both, both; with --no- before it no."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: Any = None, help: str | None = None) -> None:
        no = [f"--no-{flag[2:]}" for flag in option_strings] if default is argparse.SUPPRESS else []
        super().__init__([*option_strings, *no], dest, nargs="?", metavar=BOTH, default=default, help=help)

    def __call__(self, parser: argparse.ArgumentParser, chosen: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        assert flag is not None
        if values is not None and (values != BOTH or flag.startswith("--no-")):
            raise OptionError(f"{flag} is given alone{'' if flag.startswith('--no-') else f' or as {flag}={BOTH}'}, not with {values!r}; "
                              "a model goes before it.")
        setattr(chosen, self.dest, not flag.startswith("--no-") if values is None else [False, True])


def add_options(parser: argparse.ArgumentParser, command: str, several: Sequence[str] = ()) -> None:
    """One flag per option that the command uses, and --options for a file of them. several: options of which there may be more values than one,
    joined by commas; their values are for the command to take apart."""
    parser.add_argument(OPTIONS_FLAG, dest="options_file", metavar="FILE",
                        help="a file of options (.toml, .json, or .conf with PopTorch's lines); flags override it")
    used = used_by(command)
    sections = {group: parser.add_argument_group(its.title) for group, its in GROUPS.items()
                if any(d.group == group for d in used)}
    for declaration in used:
        if declaration.name in several:
            _add_several(sections[declaration.group], declaration)
        else:
            _add_flag(sections[declaration.group], declaration)


def _add_several(section: Any, declaration: Declaration) -> None:
    """The flag of an option with several values; machines are many by name, too."""
    help_text = declaration.help.replace("%", "%%")
    if isinstance(declaration.kind, Flag):
        both = f"{declaration.flag}={BOTH}: with it and without"
        section.add_argument(declaration.flag, action=Several, help=f"{help_text}; {both}", default=argparse.SUPPRESS)
        return
    words = declarations()["machine_precision"].kind.words          # type: ignore[attr-defined]
    names = [declaration.flag, "--machines"] if declaration.name == "machine" else [declaration.flag]
    more = f"; {', '.join(sorted(words))} are those of --machine-precision" if declaration.name == "precision" else ""
    metavar = f"{declaration.kind.metavar},..."
    section.add_argument(*names, dest=declaration.name, metavar=metavar, help=f"{help_text}{more}; one or several, joined by commas")


def _add_flag(section: Any, declaration: Declaration) -> None:
    help_text = declaration.help.replace("%", "%%")
    if declaration.default not in (None, (), False) and declaration.default != {}:
        shown = declaration.default
        help_text += f" (default: {','.join(map(str, shown)) if isinstance(shown, tuple) else shown})"
    if isinstance(declaration.kind, Flag):
        section.add_argument(declaration.flag, action=argparse.BooleanOptionalAction, help=help_text, default=argparse.SUPPRESS)
    elif declaration.default is False:          # a path that may be left out
        section.add_argument(declaration.flag, nargs="?", const=True, metavar=declaration.kind.metavar, help=help_text)
    else:
        section.add_argument(declaration.flag, metavar=declaration.kind.metavar, help=help_text)
    for old in declaration.old_flags:
        taking: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if isinstance(declaration.kind, Flag) else {}
        section.add_argument(old, dest=declaration.name, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **taking)


def options_of(chosen: argparse.Namespace) -> Options:
    """The options of a parsed command line: the flags, what the file says besides, and what the environment's file says besides both.

    Raises:
        OptionError: a value is wrong, or a flag has no effect on the command.
    """
    flags: dict[str, Any] = {}
    for name, declaration in declarations().items():
        if hasattr(chosen, name):
            given = getattr(chosen, name)
            flags[name] = declaration.parse(given) if isinstance(given, str) else given
    options = with_defaults(Options.load(chosen.options_file, **flags) if hasattr(chosen, "options_file") else Options(**flags))
    check_use(chosen.command, flags, options, training=getattr(chosen, "training", True), command=True)
    return options


def say_where(folder: Path | None) -> None:
    """Say on the terminal where a report was written, if it was, and how its files are opened."""
    if folder is not None:
        say(f"\nThe report is in {folder}: open page.html in a browser and trace.json at https://ui.perfetto.dev.")
