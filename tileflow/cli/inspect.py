"""`tileflow inspect`."""
from __future__ import annotations

import argparse

from ..options import declarations
from ..terminal import say
from .arguments import add_model, model_path, options_of
from .exit import OK

HELP = "say what is in an ONNX file and whether tileflow can run it"
EPILOG = None
OPTIONS = {"dims": "sizes of the model's symbolic dimensions, to show the shapes that follow",
           "micro_batch_size": "the batch to show shapes for (default: the file's, or 1 where it leaves it open)"}


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--training", action="store_true", default=False, help="look at it as a model to train")
    parser.add_argument("--verbose", action="store_true", default=False, help="list the nodes as well")
    for name, help_text in OPTIONS.items():
        parser.add_argument(declarations()[name].flag, metavar=declarations()[name].kind.metavar, help=help_text)


def run(chosen: argparse.Namespace) -> int:
    """`tileflow inspect`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from ..importers.onnx import inspect_model, load_model
    batch = options.micro_batch_size if hasattr(chosen, "micro_batch_size") else None
    report = inspect_model(load_model(path), dims=options.dims, batch=batch, training=chosen.training)
    say(report.text(chosen.verbose))
    return OK
