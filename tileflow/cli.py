"""The command line: `tileflow train | infer | inspect | compile | tune | report | doctor`. Flags of options come from their declarations."""
from __future__ import annotations

import argparse
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import ModelError, OptionError, TileflowError
from .options import GROUPS, Declaration, Flag, Options, declarations, read_options_file

if TYPE_CHECKING:
    import numpy as np

OK, USER_ERROR, INTERRUPTED = 0, 2, 130
PACKAGED_MODELS = ("digits_cnn.onnx",)
INFER_GROUPS = ("batching", "data", "run")
INSPECT_OPTIONS = {"dims": "sizes of the model's symbolic dimensions, to show the shapes that follow",
                   "micro_batch_size": "the batch to show shapes for (default: the file's, or 1 where it leaves it open)"}
PREDICTIONS = "predictions.npz"
TUNED = "tuned.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 after an error a user can mend, 130 after Ctrl-C."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            chosen = _parse(sys.argv[1:] if arguments is None else arguments)
            return int(chosen.run(chosen))
        except TileflowError as error:
            return _fail(str(error), error)
        except MemoryError as error:
            return _fail("There is not enough memory for this run; lower micro_batch_size or gradient_accumulation.", error)
        except KeyboardInterrupt as stop:
            print(f"\ntileflow: {str(stop) or 'Interrupted.'}", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())          # the reader went away; so may the rest
            return OK


def _fail(sentence: str, error: BaseException) -> int:
    notes = getattr(error, "__notes__", [])
    print("\n".join([f"tileflow: error: {sentence}", *notes]), file=sys.stderr)
    return USER_ERROR


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    print(f"tileflow: warning: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are OptionErrors, so that every error looks the same."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        word = unknown[0].split("=")[0]
        flags = [f"--{d.name.replace('_', '-')}" for d in declarations().values()]
        near = difflib.get_close_matches(word.replace("_", "-"), flags, n=3) if word.startswith("--") else []
        hint = f"did you mean {' or '.join(near)}?" if near else f"see tileflow {chosen.command} --help."
        raise OptionError(f"Unknown argument {word!r}; {hint}")
    return chosen


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(prog="tileflow", description="Train and run the ONNX file you already have, on a plain CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tileflow {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str, **more: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False,
                                  argument_default=argparse.SUPPRESS, **more)
        sub.set_defaults(run=run)
        return sub

    train = command("train", run_train, "train an ONNX model and write the trained file",
                    epilog="example: tileflow train digits_cnn.onnx --data digits --epochs 5")
    _add_model(train)
    _add_options(train, tuple(GROUPS))
    infer = command("infer", run_infer, "run an ONNX model on data and write its outputs as an .npz file",
                    epilog=f"Without --out the outputs go to {PREDICTIONS}.")
    _add_model(infer)
    _add_options(infer, INFER_GROUPS)
    inspect = command("inspect", run_inspect, "say what is in an ONNX file and whether tileflow can run it")
    _add_model(inspect)
    inspect.add_argument("--training", action="store_true", default=False, help="look at it as a model to train")
    inspect.add_argument("--verbose", action="store_true", default=False, help="list the nodes as well")
    for name, help_text in INSPECT_OPTIONS.items():
        inspect.add_argument(declarations()[name].flag, metavar=declarations()[name].kind.metavar, help=help_text)
    compile_ = command("compile", run_compile, "compile an ONNX model without running it and print the program, or its costs on a --machine",
                       epilog="example: tileflow compile digits_cnn.onnx --training --machine gc200 --report out")
    _add_model(compile_)
    _add_simulation(compile_)
    compile_.add_argument("--tile-exact", action="store_true", default=False,
                          help="run the partition tile by tile on random data and compare every operator with the fast path")
    compile_.add_argument("--stop-after", metavar="STEP", default=None, help="stop after this step of the compilation")
    _add_options(compile_, tuple(GROUPS))
    tune = command("tune", run_tune, "find the available-memory proportions that make an ONNX model fastest on a --machine",
                   epilog=f"The settings go to --out, by default {TUNED}; train and compile take them with --options.")
    _add_model(tune)
    _add_simulation(tune)
    tune.add_argument("--evaluations", metavar="N", type=int, default=96, help="programs to analyse after the sweep, at most (default: 96)")
    _add_options(tune, tuple(GROUPS))
    report = command("report", run_report, "print a report that compile or tune wrote")
    report.add_argument("folder", metavar="DIR", help="a folder with a report.json, or the file")
    report.add_argument("--render", action="store_true", default=False, help="make page.html and trace.json anew")
    report.add_argument("--verbose", action="store_true", default=False, help="list every operator")
    command("doctor", run_doctor, "check this installation and say how to mend what is wrong")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"an ONNX file, or one that comes with tileflow: {', '.join(PACKAGED_MODELS)}")


def _add_simulation(parser: argparse.ArgumentParser) -> None:
    """Flags of the commands that use the tile machine."""
    parser.add_argument("--training", action="store_true", default=False, help="compile it for training")
    parser.add_argument("--report", metavar="DIR", default=None, help="write report.json, page.html and trace.json to this folder")
    parser.add_argument("--verbose", action="store_true", default=False, help="list every operator")


def _add_options(parser: argparse.ArgumentParser, groups: Sequence[str]) -> None:
    """One flag per option of these groups, and --options for a file of them."""
    parser.add_argument("--options", dest="options_file", metavar="FILE", help="a TOML or JSON file of options; flags override it")
    sections = {group: parser.add_argument_group(GROUPS[group]) for group in groups}
    for declaration in declarations().values():
        if declaration.group in sections:
            _add_flag(sections[declaration.group], declaration)


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


def options_of(chosen: argparse.Namespace) -> Options:
    """The options of a parsed command line: the file's, overridden by the flags."""
    values = read_options_file(chosen.options_file) if hasattr(chosen, "options_file") else {}
    for name, declaration in declarations().items():
        if hasattr(chosen, name):
            given = getattr(chosen, name)
            values[name] = declaration.parse(given) if isinstance(given, str) else given
    return Options(**values)


def model_path(text: str) -> Path:
    """The model's path; the name of a packaged model counts where there is no such file."""
    path = Path(text)
    if not path.exists() and text in PACKAGED_MODELS:
        return Path(__file__).parent / "data" / text
    if not path.exists():
        raise ModelError(f"There is no model file {text}; give an .onnx file, or one that comes with tileflow: "
                         f"{', '.join(PACKAGED_MODELS)}.")
    return path


def run_train(chosen: argparse.Namespace) -> int:
    """`tileflow train`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from . import api
    from .progress import TrainPrinter
    printer = TrainPrinter(options.progress)
    try:
        result = api.train(path, options, reporter=printer)
    finally:
        printer.close()
    data, more = options.data or "DATA", 2 * max(1, options.epochs)
    print(f"Trained model, metrics and checkpoint are in {result.folder}. Try next:\n"
          f"  tileflow infer {result.folder}/model.onnx --data {data}        its predictions and accuracy\n"
          f"  tileflow train {chosen.model} --data {data} --out {result.folder} --epochs {more} --resume        go on from here\n"
          f"  tileflow inspect {chosen.model}        what is in the file")
    return OK


def run_infer(chosen: argparse.Namespace) -> int:
    """`tileflow infer`."""
    options, path = options_of(chosen), model_path(chosen.model)
    out = Path(options.out or PREDICTIONS)
    if out.suffix != ".npz":
        raise OptionError(f"Option out must end in .npz, not {str(out)!r}: infer writes the outputs as one .npz file.")
    from . import api
    from .errors import DataError
    from .files import atomic_write_bytes
    from .progress import CompileBar
    from .runtime.data import open_data
    if options.data is None:
        raise DataError("There is no data to run on; give --data with a path, or the name digits.")
    data = open_data(options.data, options)
    bar = CompileBar(sys.stderr.isatty() if options.progress is None else options.progress)
    try:
        outputs = api.infer(path, options, data=data, progress=bar)
    finally:
        bar.close()
    atomic_write_bytes(out, npz_bytes(outputs))
    for name, array in outputs.items():
        print(f"{name}: {array.dtype}{list(array.shape)}")
    labels = (data.test or data.train).labels
    right = accuracy(next(iter(outputs.values())), labels) if labels is not None else None
    if right is not None:
        print(f"accuracy {right:.2%} of {len(labels):,} rows" if labels is not None else "")
    print(f"Outputs are in {out}.")
    return OK


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The share of rows whose largest score [rows, classes, ...] is at the label; None where scores and labels are not of that kind."""
    import numpy as np
    whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and bool(np.all(labels == np.trunc(labels))))
    if not whole or scores.ndim < 2 or scores.shape[1] < 2:
        return None
    if labels.ndim == scores.ndim and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (scores.shape[0], *scores.shape[2:]):
        return None
    return float(np.mean(scores.argmax(axis=1) == labels))


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """An `.npz` file of these arrays; any name will do."""
    import io
    import zipfile

    from numpy.lib import format as npy_format
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy_format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def run_inspect(chosen: argparse.Namespace) -> int:
    """`tileflow inspect`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from .importers.onnx import inspect_model, load_model
    batch = options.micro_batch_size if hasattr(chosen, "micro_batch_size") else None
    report = inspect_model(load_model(path), dims=options.dims, batch=batch, training=chosen.training)
    print(report.text(chosen.verbose))
    return OK


def run_compile(chosen: argparse.Namespace) -> int:
    """`tileflow compile`."""
    options, path = options_of(chosen), model_path(chosen.model)
    from . import api
    if options.machine is None or chosen.stop_after is not None:
        print(api.compile(path, options, training=chosen.training, stop_after=chosen.stop_after, report=chosen.report).to_text())
        return OK
    result: Any = api.compile(path, options, training=chosen.training, report=chosen.report, allow_out_of_memory=True)
    print(result.to_text(chosen.verbose))
    _say_where(result.folder)
    result.require_fit()
    return _tile_exact(result, options) if chosen.tile_exact else OK


def _tile_exact(result: Any, options: Options) -> int:
    """Run the partition tile by tile and print how it compares."""
    found = result.tile_exact(options.seed)
    print(f"\n{found.to_text()}")
    return OK if found.ok else USER_ERROR


def run_tune(chosen: argparse.Namespace) -> int:
    """`tileflow tune`."""
    options, path = options_of(chosen), model_path(chosen.model)
    out = Path(options.out or TUNED)
    if out.suffix != ".toml":
        raise OptionError(f"Option out must end in .toml, not {str(out)!r}: tune writes the settings as a file of options.")
    from . import api
    from .progress import TuneBar
    bar = TuneBar(sys.stderr.isatty() if options.progress is None else options.progress)
    try:
        found = api.tune_available_memory(path, options, training=chosen.training, report=chosen.report, evaluations=chosen.evaluations,
                                          progress=bar)
    finally:
        bar.close()
    found.save(out)
    print(found.compilation.to_text(chosen.verbose))
    _say_where(found.compilation.folder)
    flags = " --training" if chosen.training else ""
    print(f"The settings are in {out}. Try next:\n  tileflow compile {chosen.model}{flags} --options {out}")
    return OK


def run_report(chosen: argparse.Namespace) -> int:
    """`tileflow report`."""
    from . import report
    found = report.load(chosen.folder)
    print(report.text.render(found, chosen.verbose))
    if chosen.render:
        folder = Path(chosen.folder)
        _say_where(report.write(found, folder if folder.is_dir() else folder.parent))
    return OK


def _say_where(folder: Path | None) -> None:
    if folder is not None:
        print(f"\nThe report is in {folder}: open page.html in a browser and trace.json at https://ui.perfetto.dev.")


def run_doctor(_chosen: argparse.Namespace) -> int:
    """`tileflow doctor`."""
    from .doctor import examine
    examination = examine()
    print(examination.text())
    return USER_ERROR if examination.broken else OK
