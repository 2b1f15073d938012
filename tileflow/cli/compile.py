"""`tileflow compile`."""
from __future__ import annotations

import argparse
from typing import Any

from ..options import Options
from ..terminal import say
from .arguments import add_model, add_options, add_simulation, model_path, options_of, say_where
from .exit import OK, USER_ERROR

HELP = "compile an ONNX model without running it and print the program, or its costs on a --machine"
EPILOG = "example: tileflow compile digits_cnn.onnx --training --machine gc200 --report out"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_simulation(parser)
    parser.add_argument("--tile-exact", action="store_true", default=False,
                        help="run the partition tile by tile on random data and compare every operator with the fast path")
    parser.add_argument("--stop-after", metavar="STEP", default=None, help="stop after this step of the compilation")
    add_options(parser, "compile")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow compile`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from .. import api
    if options.machine is None or chosen.stop_after is not None:
        say(api.compile(path, options, training=chosen.training, stop_after=chosen.stop_after, report=chosen.report).to_text())
        return OK
    result: Any = api.compile(path, options, training=chosen.training, report=chosen.report, allow_out_of_memory=True)
    say(result.to_text(chosen.verbose))
    say_where(result.folder)
    result.require_fit()
    return _tile_exact(result, options) if chosen.tile_exact else OK


def _tile_exact(result: Any, options: Options) -> int:
    """Run the partition tile by tile and print how it compares."""
    found = result.tile_exact(options.seed)
    say(f"\n{found.to_text()}")
    return OK if found.ok else USER_ERROR
