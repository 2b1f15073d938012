"""`tileflow train`."""
from __future__ import annotations

import argparse

from ..environment import check_environment
from ..terminal import say
from .arguments import add_model, add_options, model_path, options_of
from .exit import OK

HELP = "train an ONNX model and write the trained file"
EPILOG = "example: tileflow train digits_cnn.onnx --data digits --epochs 5"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_options(parser, "train")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow train`."""
    check_environment()
    options, path = options_of(chosen), model_path(chosen.model)
    from .. import api
    from ..progress import TrainPrinter
    printer = TrainPrinter(options.progress)
    try:
        result = api.train(path, options, reporter=printer)
    finally:
        printer.close()
    data, more = options.data or "DATA", 2 * max(1, options.epochs)
    say(f"Trained model, metrics and checkpoint are in {result.folder}. Try next:\n"
          f"  tileflow infer {result.folder}/model.onnx --data {data}        its predictions and accuracy\n"
          f"  tileflow train {chosen.model} --data {data} --out {result.folder} --epochs {more} --resume        go on from here\n"
          f"  tileflow inspect {chosen.model}        what is in the file")
    return OK
