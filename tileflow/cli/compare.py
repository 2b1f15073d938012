"""`tileflow compare`."""
from __future__ import annotations

import argparse
from pathlib import Path

from ..options.options import declarations
from ..system.environment import check_environment
from ..system.errors import OptionError
from ..system.exit_codes import OK
from ..system.terminal import say
from ..system.text import one_line
from .arguments import add_model, model_path

HELP = "run a model here and in other runtimes, and say where they part"
EPILOG = "example: tileflow compare model.onnx --with onnxruntime,openvino --data x.npz"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--with", dest="peers", metavar="NAME,NAME", default="onnxruntime",
                        help="onnxruntime, openvino, or onnx, the format's own "
                        "evaluator (default: onnxruntime)")
    parser.add_argument("--data", metavar="PATH", default=None, help="what to feed; by default random numbers")
    parser.add_argument("--rows", metavar="N", default="8",
                        help="rows that are fed, where the file leaves that open (default: 8)")
    parser.add_argument("--dims", metavar="NAME=N,NAME=N", default="", help="sizes of the model's symbolic dimensions")
    parser.add_argument("--tolerance", metavar="X", default="1e-4",
                        help="a larger error, as a share of a value's largest magnitude, is a departure "
                        "(default: 1e-4)")
    parser.add_argument("--out", metavar="DIR", default="compare",
                        help="where models go that show a departure (default: compare)")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow compare`."""
    check_environment()
    path = model_path(chosen.model)
    from ..api.comparing import compare
    peers = [name.strip() for name in chosen.peers.split(",")]
    dims = declarations()["dims"].parse(chosen.dims) if chosen.dims else {}
    found = compare(path, peers=peers, data=chosen.data, rows=declarations()["micro_batch_size"].parse(chosen.rows),
                    dims=dims,
                    tolerance=_number(chosen.tolerance))
    shapes = ", ".join(f"{one_line(n)} {list(a.shape)}" for n, a in found.inputs.items())
    fed = "random numbers" if chosen.data is None else "rows of the data"
    say(f"{path.name} on {shapes}, {fed}; errors beside float64, as shares of the largest magnitude:")
    columns = list(found.errors)
    outputs = list(dict.fromkeys(n for errors in found.errors.values() for n in errors))
    width = max([6, *(len(one_line(n)) for n in outputs)])
    say("  ".join(["output".ljust(width), *(c.rjust(11) for c in columns)]))
    for name in outputs:
        say("  ".join([one_line(name).ljust(width), *(f"{found.errors[c].get(name, float('nan')):.1e}".rjust(11)
                                                      for c in columns)]))
    for name, errors in found.errors.items():
        if (departure := found.departures.get(name)) is not None:
            where = departure.save(Path(chosen.out), name)
            what = "this node alone" if departure.nodes == 1 else f"{departure.nodes} nodes"
            say(f"{name} departs at {one_line(departure.node)}, in {one_line(departure.value)}: by "
                f"{departure.error:.1e}, and what it reads by {departure.before:.1e}. {where} shows it, with {what} "
                f"and the inputs in {where.with_suffix('.npz').name}.")
        elif any(not e <= found.tolerance for e in errors.values()):
            say(f"{name} departs, but at no node when all values are looked at: what it fuses then stays apart.")
    return OK


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"--tolerance must be a number, not {one_line(text)!r}.") from None
