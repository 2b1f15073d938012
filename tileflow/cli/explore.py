"""`tileflow explore`."""
from __future__ import annotations

import argparse
import sys
from typing import Any

from ..options.declaration import Declaration
from ..options.kinds import Flag
from ..options.options import Options, declarations
from ..options.uses import AXES, check_use
from ..system.errors import OptionError
from ..system.exit_codes import INTERNAL_ERROR, OK, USER_ERROR
from ..system.terminal import say
from ..system.text import shown
from . import suggest
from .arguments import BOTH, Several, add_model, add_options, model_path, options_of

FOLDER = "explored"
HELP = "compile an ONNX model for several machines and settings, without running it, and compare throughput and memory"
EPILOG = (f"Flags of several values compare every combination. The table goes to the terminal, and with a picture to --out, by default {FOLDER}/. "
          "example: tileflow explore model.onnx --training --machines gc200,bow,mine.toml --micro-batch-size 1,2,4,8 --precision 16.16,32.32")


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--training", action=Several, default=False, help=f"compile it for training; --training={BOTH}: and for inference")
    parser.add_argument("--ipus", metavar="N,N", default=None,
                        help="stages of equal length, each on an IPU of its own, in a pipeline unless --strategy says otherwise")
    parser.add_argument("--processes", type=int, metavar="N", default=1,
                        help="analyse settings side by side in so many processes")
    add_options(parser, "explore", several=AXES)


def run(chosen: argparse.Namespace) -> int:
    """`tileflow explore`."""
    axes = _axes(chosen)
    options, path = options_of(chosen), model_path(chosen.model)
    out = options.out or FOLDER
    from .. import api
    from ..exploration import ExplorationInterrupted
    from ..runtime.progress import ExploreBar
    bar = ExploreBar(sys.stderr.isatty() if options.progress is None else options.progress)
    try:
        found = api.explore(path, options, out=out, processes=chosen.processes, progress=bar, **axes)
    except ExplorationInterrupted as stop:
        bar.close()
        say(stop.exploration.to_text())
        raise
    finally:
        bar.close()
    say(found.to_text())
    say(f"\nThe table and the picture are in {out}: explore.csv, explore.json, explore.svg.")
    if found.best is not None:
        words = suggest.flags(found.best.options, suggest.names_of_compile(found.best.training))
        if words is not None:
            training = ["--training"] if found.best.training else []
            say(f"Try next:\n  {suggest.command('compile', chosen.model, *training, *words, '--report', 'report')}")
    if any(p.reason.startswith("internal error") for p in found.points):
        return INTERNAL_ERROR
    return OK if any(p.state != "failed" for p in found.points) else USER_ERROR


def _axes(chosen: argparse.Namespace) -> dict[str, Any]:
    """The values of the axes that were given, taken out of what was chosen."""
    found: dict[str, Any] = {"training": chosen.training}
    if chosen.ipus is not None:
        found["ipus"] = _numbers("--ipus", chosen.ipus)
    for name in (n for n in AXES if n in declarations()):
        text = getattr(chosen, name, None)
        if text is None:
            continue
        check_use("explore", [name], Options(), training=bool(chosen.training), command=True)
        delattr(chosen, name)
        found[name] = _values(declarations()[name], text) if isinstance(text, str) else text
    return found


def _values(declaration: Declaration, text: str) -> Any:
    """The values in a word; OptionError where one is none."""
    if isinstance(declaration.kind, Flag) or "=" in text:          # a proportion by name is one value
        return declaration.parse(text)
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        flag = "--machines" if declaration.name == "machine" else declaration.flag
        raise OptionError(f"{flag} {text!r} has an empty value between its commas.")
    return words if declaration.name in ("machine", "precision") else [declaration.parse(word) for word in words]


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise OptionError(f"{flag} must be whole numbers of at least 1, joined by commas, not {shown(text)}.") from None
