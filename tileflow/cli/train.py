"""`tileflow train`."""
from __future__ import annotations

import argparse
import warnings

from ..system.environment import check_environment
from ..system.errors import OptionError, TileflowWarning
from ..system.exit_codes import OK
from ..system.terminal import say
from . import suggest
from .arguments import add_model, add_options, model_path, options_of

HELP = "train an ONNX model and write the trained file"
EPILOG = "example: tileflow train digits_cnn.onnx --data digits --epochs 5"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser, optional=True, executable=True)
    add_options(parser, "train")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow train`; to resume a run its folder is enough."""
    check_environment()
    options = options_of(chosen)
    if chosen.model is None and str(options.resume).endswith(".onnx"):
        chosen.model, options.resume = options.resume, True          # --resume took the word after it
    if chosen.model is None and options.resume is False:
        raise OptionError("The following arguments are required: MODEL; see tileflow train --help.")
    path = None if chosen.model is None else model_path(chosen.model)
    from .. import api
    from ..runtime.callbacks.progress import ProgressBar
    printer = ProgressBar(options.progress)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TileflowWarning)          # the printer prints them
            result = api.train(path, options, callbacks=[printer])
    finally:
        printer.close()
    if options.fast_dev_run:
        return OK
    best = result.best
    kept = "" if best is None or best.model is None else f"; {best.model.name} is the model after epoch {best.epoch}"
    say(f"Trained model, metrics and checkpoint are in {result.folder}{kept}; a browser shows the run in report.html. "
        "Try next:")
    model = chosen.model or str(result.model_path)
    has_data = result.options.data is not None
    for line, what in (*([(suggest.infer(result.folder, result.options), "its predictions and accuracy")] if has_data else []),
                       (suggest.resume(result.folder, 2 * max(1, result.options.epochs)), "go on from here"),
                       (suggest.command("inspect", model, *(suggest.flags(result.options, ["dims"]) or [])), "what is in the file")):
        say(f"  {line}    # {what}")
    return OK
