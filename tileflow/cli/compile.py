"""`tileflow compile`."""
from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from ..options.options import Options
from ..system.errors import OptionError, OutOfTileMemoryError
from ..system.exit_codes import OK, USER_ERROR
from ..system.terminal import say
from . import suggest
from .arguments import add_model, add_options, add_simulation, model_path, options_of, say_where

HELP = "compile an ONNX model without running it and print the program, or its costs on a --machine"
EPILOG = "example: tileflow compile digits_cnn.onnx --training --machine gc200 --report out"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_simulation(parser)
    parser.add_argument("--tile-exact", action="store_true", default=False,
                        help="run the partition tile by tile on random data and compare every operator with the fast path")
    parser.add_argument("--levers", action="store_true", default=False,
                        help="try changes of options that make a program that fits faster or smaller, each planned again and priced: takes as "
                             "long as ten to twenty compilations")
    parser.add_argument("--compare-precisions", action="store_true", default=False,
                        help="a table of what each precision, with each type of accumulators and moments, takes on the machine")
    parser.add_argument("--export", metavar="FILE", default=None,
                        help="write the program with weights, optimizer and options as an executable, which train, "
                             "infer and tileflow.load_executable take in place of the model; "
                             "with --training for training")
    parser.add_argument("--stop-after", metavar="STEP", default=None, help="stop after this step of the compilation")
    add_options(parser, "compile")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow compile`."""
    options, path = options_of(chosen), model_path(chosen.model)
    _check_flags(chosen, options)
    if chosen.export is not None:
        return _export(chosen, options, path)
    from .. import api
    if chosen.compare_precisions:
        from ..api.choices import compare, to_text
        say(to_text(compare(path, options, training=chosen.training)))
        return OK
    if options.machine is None or chosen.stop_after is not None:
        say(api.compile(path, options, training=chosen.training, stop_after=chosen.stop_after, report=chosen.report).to_text())
        return OK
    try:
        result: Any = api.compile(path, options, training=chosen.training, report=chosen.report, levers=chosen.levers)
    except OutOfTileMemoryError as error:
        _say(error.compilation, chosen)
        suggest.say_fitting(error, chosen.model, chosen.training, options)
        raise
    _say(result, chosen)
    if chosen.levers:
        suggest.say_faster(result.tiled, chosen.model, chosen.training, options)
    return _tile_exact(result, options) if chosen.tile_exact else OK


def _say(result: Any, chosen: argparse.Namespace) -> None:
    say(result.to_text(chosen.verbose))
    say_where(result.folder)


def _export(chosen: argparse.Namespace, options: Options, path: Any) -> int:
    """Write an executable, and say what is next."""
    from ..api.executables import export
    from ..runtime.progress import CompileBar
    bar = CompileBar(sys.stderr.isatty())
    try:
        export(path, chosen.export, options, chosen.training, bar)
    finally:
        bar.close()
    verb = "train" if chosen.training else "infer"
    say(f"The executable is {chosen.export}. Try next:\n  tileflow {verb} {shlex.quote(chosen.export)} --data DATA")
    return OK


def _check_flags(chosen: argparse.Namespace, options: Options) -> None:
    """Refuse flags of this command that would have no effect; OptionError."""
    for flag, given in (("--report", chosen.report), ("--stop-after", chosen.stop_after),
                        ("--machine", options.given("machine", files=False)),
                        ("--compare-precisions", chosen.compare_precisions)):
        if given and chosen.export is not None:
            raise OptionError(f"--export writes a program for this computer, of which {flag} says nothing; leave one "
                              "of them out.")
    for flag, given in (("--tile-exact", chosen.tile_exact), ("--verbose", chosen.verbose), ("--levers", chosen.levers),
                        ("--compare-precisions", chosen.compare_precisions)):
        if given and options.machine is None:
            raise OptionError(f"{flag} is about the tile machine; name one, for example --machine gc200, or leave it out.")
        if given and chosen.stop_after is not None:
            raise OptionError(f"--stop-after {chosen.stop_after} ends the compilation before the tile machine, so {flag} has no effect; "
                              "leave one of them out.")
    for flag, given in (("--tile-exact", chosen.tile_exact), ("--report", chosen.report), ("--verbose", chosen.verbose), ("--levers", chosen.levers)):
        if given and chosen.compare_precisions:
            raise OptionError(f"--compare-precisions prints a table of several programs, so {flag} has no effect; leave one of them out.")
    if options.given("seed", files=False) and not chosen.tile_exact and chosen.export is None:
        raise OptionError("Option seed (--seed) is for the data of --tile-exact and for --export; add one of them, or "
                          "leave it out.")


def _tile_exact(result: Any, options: Options) -> int:
    """Run the partition tile by tile and print how it compares."""
    found = result.tile_exact(options.seed)
    say(f"\n{found.to_text()}")
    return OK if found.ok else USER_ERROR
