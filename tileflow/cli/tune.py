"""`tileflow tune`."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..system.errors import OptionError, OutOfTileMemoryError
from ..system.exit_codes import OK
from ..system.terminal import say
from . import suggest
from .arguments import add_model, add_options, add_simulation, model_path, options_of, say_where

TUNED = "tuned.toml"

HELP = "find the available-memory proportions that make an ONNX model fastest on a --machine"
EPILOG = f"The settings go to --out, by default {TUNED}; train and compile take them with --options."


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_simulation(parser)
    parser.add_argument("--evaluations", metavar="N", type=int, default=96, help="programs to analyse after the sweep, at most (default: 96)")
    add_options(parser, "tune")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow tune`."""
    options, path = options_of(chosen), model_path(chosen.model)
    out = Path(options.out or TUNED)
    if out.suffix != ".toml":
        raise OptionError(f"Option out must end in .toml, not {str(out)!r}: tune writes the settings as a file of options.")
    from .. import api
    from ..runtime.progress import TuneBar
    bar = TuneBar(sys.stderr.isatty() if options.progress is None else options.progress)
    try:
        found = api.tune_available_memory(path, options, training=chosen.training, report=chosen.report, evaluations=chosen.evaluations,
                                          progress=bar)
    except OutOfTileMemoryError as error:
        suggest.say_fitting(error, chosen.model, chosen.training, options)
        raise
    finally:
        bar.close()
    found.save(out)
    say(found.compilation.to_text(chosen.verbose))
    if each := found.to_text():
        say(f"\n{each}")
    say_where(found.compilation.folder)
    line = suggest.command("compile", chosen.model, *(["--training"] if chosen.training else []), "--options", str(out))
    say(f"The settings are in {out}. Try next:\n  {line}")
    return OK
