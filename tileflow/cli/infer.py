"""`tileflow infer`: outputs into a file, what the labels say of them onto the terminal."""
from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..system.environment import check_environment
from ..system.errors import DataError, OptionError, TileflowError
from ..system.exit_codes import OK
from ..system.terminal import say
from ..system.text import one_line
from .arguments import add_model, add_options, model_path, options_of

if TYPE_CHECKING:
    import numpy as np

    from ..options.options import Options
    from ..runtime.data import Dataset
    from ..runtime.executable_file import Opened
    from ..runtime.model_file import ModelFile
    from ..runtime.preprocessing import Preprocessing

PREDICTIONS = "predictions.npz"
CLASSES, ROWS = "predicted_class", "row"
"""What the names of classes and of rows are called beside the outputs."""
LONGEST = 60
"""Characters of an array's name in a file, each of up to 4 bytes: names of files have up to 255."""

HELP = "run an ONNX model on data and write its outputs as an .npz file"
EPILOG = f"Without --out the outputs go to {PREDICTIONS}."


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser, executable=True)
    add_options(parser, "infer")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow infer`."""
    check_environment()
    options, path = options_of(chosen), model_path(chosen.model)
    out = Path(options.out or PREDICTIONS)
    if out.suffix != ".npz":
        raise OptionError(f"Option out must end in .npz, not {str(out)!r}: infer writes the outputs as one .npz file.")
    from .. import api
    from ..collective import current
    from ..runtime.data import check_given, open_data
    from ..runtime.labels import numbered_as
    from ..runtime.progress import CompileBar
    from ..system.files import atomic_write_bytes
    if options.data is None:
        raise DataError("There is no data to run on; give --data with a path, or the name digits.")
    model, known, first_name, options = _read(path, options)
    data = open_data(options.data, options, known.roles)
    check_given(options.data, data, options)
    asked = [n for n in ("metrics", "loss", "ignore_index", "class_axis") if options.given(n, files=False)]
    if asked and (data.test or data.train).label is None:
        raise DataError(f"Option {asked[0]} is about labels, and data {data.train.name} have none; name them with --label, or leave it out.")
    bar = CompileBar(sys.stderr.isatty() if options.progress is None else options.progress)
    try:
        outputs = api.infer(model, options, data=data, progress=bar, say=lambda sentence: say(sentence, sys.stderr))
    finally:
        bar.close()
    measured = data.test or data.train
    first = outputs.get(first_name)
    outputs |= _in_words(outputs, first, known.classes, measured)
    members = member_names(outputs)
    if (group := current()) is None or group.is_first:
        atomic_write_bytes(out, npz_bytes({members[name]: array for name, array in outputs.items()}))
    for name, array in outputs.items():
        renamed = "" if members[name] == name else f" (in {out} called {members[name]}, as its own name is no plain file name)"
        say(f"{one_line(name)}: {array.dtype}{list(array.shape)}{renamed}")
    if first is not None and not asked and _say_agreement(measured, first):
        say(f"Outputs are in {out}.")
        return OK
    measured = numbered_as(measured, known.classes)
    labels = measured.labels
    if measured.classes != known.classes and measured.classes is not None:
        labels = None
        say("There is no accuracy: the labels are texts, and " + ("the file does not say which class has which number."
                                                                  if known.classes is None else "some are no classes that the model was trained on."))
    if labels is not None and first is not None:
        _say_measures(model, options, measured, first)
    say(f"Outputs are in {out}.")
    return OK


def _read(path: str | Path, options: Options) -> tuple[ModelFile | Opened, Preprocessing, str, Options]:
    """An ONNX file or an executable, what it says of the data that it was trained on, its first output, and the options
    that hold."""
    from ..runtime.model_file import ModelFile, is_executable
    from ..runtime.preprocessing import Preprocessing
    if not is_executable(path):
        file = ModelFile(path)
        return file, Preprocessing.of_file(file), file.outputs[0], options
    from ..api.executables import named
    from ..runtime.executable_source import StoredFile
    opened, chosen = named(path, options)
    if opened.header.file is None:
        return opened, Preprocessing(), opened.header.outputs[0], chosen
    kept = StoredFile(opened).model
    return opened, Preprocessing.of_file(kept), kept.outputs[0].name, chosen


def _in_words(outputs: Mapping[str, np.ndarray], scores: np.ndarray | None, classes: tuple[str, ...] | None,
              data: Dataset) -> dict[str, np.ndarray]:
    """What stands beside a model's outputs: the names of the rows, and of the classes with the largest scores, where
    these are known and no output is called so."""
    import numpy as np
    found = {}
    if data.row_names:
        found[ROWS] = np.array(data.row_names if data.rows is None else [data.row_names[i] for i in data.rows])
    if classes is not None and scores is not None and scores.ndim == 2 and scores.shape[1] == len(classes):
        found[CLASSES] = np.array(classes)[scores.argmax(axis=1)]
    return {name: array for name, array in found.items() if name not in outputs}


def _say_agreement(data: Dataset, output: np.ndarray) -> bool:
    """Say how many labels the model predicts, or why not, where labels are what it gives; whether they are."""
    from .. import api
    try:
        share = api.agreement(data, output)
    except DataError as error:
        say(f"There is no accuracy: {error}")
        return True
    if share is not None:
        say(f"accuracy {share:.2%} of {len(data):,} rows")
    return share is not None


def _say_measures(model: ModelFile | Opened, options: Options, data: Dataset, output: np.ndarray) -> None:
    """A line for each metric that the labels give, or why there is none."""
    from .. import api
    try:
        found = api.measure(model, options, data, output)
    except TileflowError as error:
        if options.metrics or options.loss != "auto":
            raise
        say(f"Nothing is measured. {error}")
        return
    for name, value in found.items():
        if value is not None:
            say(f"{name} {value:{'.2%' if name == 'accuracy' else '.6g'}} of {len(data):,} rows")


def member_names(names: Iterable[str]) -> dict[str, str]:
    """What arrays of these names are called in an `.npz` file: as they are where unpacking puts the member into the folder, whatever does it and on
    any system; else with `_` in place of what is no letter, digit, dot, plus or minus. No two are alike."""
    found = {name: name for name in names if _is_plain(name)}
    taken, times = set(found), Counter[str]()
    for name in names:
        if name in found:
            continue
        stem = own = re.sub(r"[^\w.+-]", "_", name)[:LONGEST].lstrip(".") or "output"
        while own in taken:
            times[stem] += 1
            own = f"{stem}-{times[stem] + 1}"
        taken.add(own)
        found[name] = own
    return found


def _is_plain(name: str) -> bool:
    """It is a path downwards, of printable characters, that no system reads otherwise."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not re.match("[A-Za-z]:", name) and not {"", ".", ".."}.intersection(parts) \
        and len(name) <= LONGEST


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """An `.npz` file of these arrays."""
    import io
    import zipfile

    import numpy as np
    from numpy.lib import format as npy_format
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy_format.write_array(file, array.astype(np.str_) if array.dtype == object else array, allow_pickle=False)
    return buffer.getvalue()
