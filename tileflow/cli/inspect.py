"""`tileflow inspect`."""
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..options.options import declarations
from ..system.errors import OptionError, TileflowError
from ..system.exit_codes import OK, USER_ERROR
from ..system.terminal import say
from ..system.text import one_line
from .arguments import add_model, model_path, options_of

if TYPE_CHECKING:
    from ..graph import Graph

HELP = ("say what is in an ONNX file or an executable, whether tileflow can run it, "
        "and with --training what training will do with it")
EPILOG = "With --training the exit code is 2 where something is unsupported."
OPTIONS = {"dims": "sizes of the model's symbolic dimensions, to show the shapes that follow",
           "micro_batch_size": "the batch to show shapes for (default: the file's, or 1 where it leaves it open)"}
PATTERNS = ("frozen", "trainable", "tie", "untie")
"""Options that say what is trained."""
LONGEST = 2000
"""Characters of a sentence that lists nodes and weights."""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser, executable=True)
    parser.add_argument("--training", action="store_true", default=False, help="look at it as a model to train")
    parser.add_argument("--verbose", action="store_true", default=False, help="list the nodes as well, and constants that are single numbers")
    for name in (*OPTIONS, *PATTERNS):
        parser.add_argument(declarations()[name].flag, metavar=declarations()[name].kind.metavar, help=OPTIONS.get(name, declarations()[name].help))


def run(chosen: argparse.Namespace) -> int:
    """`tileflow inspect`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from ..runtime.model_file import is_executable
    if is_executable(path):
        given = [name for name in (*OPTIONS, *PATTERNS) if options.given(name, files=False)]
        if given or chosen.training:
            raise OptionError(f"{path} is an executable, compiled already: "
                              f"{declarations()[given[0]].flag if given else '--training'} has no effect on it.")
        from ..api.executables import described
        say(described(path))
        return OK
    from ..importers.onnx import inspect_model, load_model
    batch = options.micro_batch_size if options.given("micro_batch_size") else None
    from ..runtime.preprocessing import Preprocessing
    model = load_model(path)
    report = inspect_model(model, dims=options.dims, batch=batch, training=chosen.training, freeze=options.frozen_patterns,
                           trainable=options.trainable, tie=options.tie, untie=options.untie)
    say(report.text(chosen.verbose))
    if known := Preprocessing.of_file(model).to_text():
        say(known)
    if not chosen.training:
        return OK
    if report.open_sizes and not report.unsupported:
        say("\ntrain takes these sizes from its data. Whether a gradient reaches every parameter is looked at once they are given here.")
        return OK
    obstacle = None if report.unsupported else "see the note above."
    if report.graph is not None:
        found = _losses(report.graph)
        say("\nNodes that end gradients\n" + "\n".join(f"  {one_line(text, LONGEST)}" for text in found or ["none"]))
        obstacle = _obstacle(report.graph)
    if obstacle is not None:
        say(f"\nIt cannot be trained like this: {obstacle}")
    return USER_ERROR if report.unsupported or obstacle is not None else OK


def _losses(graph: Graph) -> list[str]:
    """What does not train, or not in full, because gradients of the model's first output end on their way, and where."""
    from ..passes.autograd import losses
    trained = [s for s in graph.parameters if s.trainable]
    return losses(graph, graph.outputs[0], [s.input for s in trained], [s.name for s in trained])


def _obstacle(graph: Graph) -> str | None:
    """Why no loss of the model's first output trains it; None where one does."""
    from ..passes.autograd import gradients, reached
    result, trained = graph.outputs[0], [s for s in graph.parameters if s.trainable]
    if not result.type.is_float:
        return f"its first output, which a loss reads, is {result!r}; a model to train gives numbers with a gradient."
    found = [s.input for s, depends in zip(trained, reached(graph, result, [s.input for s in trained]), strict=True) if depends]
    if not found:
        return f"its first output, {result!r}, depends on no parameter that is trained; see the options frozen and trainable."
    try:
        gradients(graph, result, found)
    except TileflowError as error:
        return str(error)
    return None
