"""open_data: from a path, a built-in name or arrays in memory to a training and a test Dataset."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ...feed.images import ENDINGS, is_image
from ...feed.items import (
    Collate,
    Collated,
    Fills,
    Items,
    RowStream,
    array_of,
    collate,
    heaped,
    is_by_number,
    is_loader,
    is_one_by_one,
)
from ...loss import WEIGHTS
from ...memory.tensor import kind_of
from ...options.losses import losses_by_output
from ...options.options import Options
from ...system.errors import DataError, OptionError
from ...system.text import one_line
from .arrow import ARROW_ENDINGS, ImageColumn, image_column, table_files, unpacked_images
from .classes import Numbered
from .columns import UNKNOWN_LENGTH, FirstRows, columns_of
from .dataset import Dataset, Field
from .idx import find_idx, is_idx, read_idx
from .images import (
    PARTS,
    Listing,
    WantedImages,
    dataset_of,
    folder_listings,
    form_of,
    is_folder_of_images,
    pictured,
    pictures_of,
)
from .npy import open_npy, open_npz
from .parts import ArrowTable
from .table import Wanted, has_names, listed_files, read_table

LABEL_NAMES = ("y", "label", "labels", "target", "targets")
BUILT_IN = ("digits",)
_PART_LAST = re.compile(r"(.+)[_-](train|test|val|valid|validation)", re.IGNORECASE)
_PART_FIRST = re.compile(r"(train|test|val|valid|validation)[_-](.+)", re.IGNORECASE)

Arrays = Mapping[str, Callable[[], np.ndarray | Numbered]]


class Roles(NamedTuple):
    """Names of the arrays or columns that are the inputs and the label; what images become, and texts."""

    inputs: tuple[str, ...] = ()
    label: str | None = None
    images: WantedImages = WantedImages()
    categories: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Of columns of texts, by their names, the texts in the order of their numbers, from 1 on."""


def roles_of(opened: Dataset) -> Roles | None:
    """What the arrays or columns are called that inputs and label were taken from, and what images became; None where
    there is nothing to say."""
    form = form_of(opened)
    if form is None and opened.label_name is None:
        return None
    images = WantedImages() if form is None else WantedImages(*astuple(form))
    return Roles(() if opened.nameless else opened.columns or tuple(opened.fields), opened.label_name, images,
                 opened.categories)


class Data(NamedTuple):
    """What a source holds: rows to train with and, where it has a test part or a validation_split is set, rows to measure with."""

    train: Dataset
    test: Dataset | None
    split: bool = False
    """The rows to measure with were taken out of those to train with."""


def open_data(spec: Any, options: Options | None = None, trained: Roles | None = None, collate_fn: Collate | None = None) -> Data:
    """Open data.

    Args:
        spec: one of
            - a Dataset or Data: taken as it is;
            - an array (inputs only), a tuple (input, ..., label), a tuple of two such tuples (train, test), or a dict of
              arrays by name;
            - rows of somebody's own: data[i] by number, as PyTorch's data sets, or one after the other (an iterable, a generator, a function that
              makes one for each epoch, PyTorch's DataLoader); a row is an array, a tuple (input, ..., label) or a dict;
            - a dict of such by the parts that they are, train and test or validation, as Hugging Face's DatasetDict;
            - the built-in name "digits";
            - a path: `.npz`, `.npy` (x.npy with y.npy beside it), `.csv`/`.tsv` (of numbers, or a list of image files),
              `.parquet`, `.arrow` (of numbers and texts, or of image files), an IDX file, or a folder with `.npy` or
              IDX files (MNIST's names), or of images by class.
            Named arrays are sorted into train and test by their names (x_train, y_test, test_images ...); the label is
            the array `options.label`, else one called y, label, labels, target or targets.
        options: data_format, inputs, label and validation_split (with seed) count.
        trained: for what the options leave open: the names of inputs and label when the model was trained. A table without that label
            column has no labels.
        collate_fn: makes a batch of a list of rows, of data that are read a row at a time.

    Raises DataError where something is missing or malformed.
    """
    options = options or Options()
    data = _open(spec, options, trained or Roles(), collate_fn)
    if data.test is None and options.validation_split > 0:
        return Data(*data.train.split(options.validation_split, options.seed), split=True)
    return data


def open_more(spec: Any, options: Options, first: Dataset, trained: Roles, collate_fn: Collate | None = None) -> Data:
    """Open data to measure with, which are taken as those to train with were: the same arrays or columns, in the same order.

    Where a table has no names, or stands beside what is no table, its label is where it is by default.
    """
    options = options.clone(max_batches=None)                # all rows are measured
    data = open_data(spec, options, roles_of(first) or trained, collate_fn)
    part = data.train if data.test is None else data.test
    if first.whole and not part.whole:
        raise OptionError(f"With whole_elements the data to measure with are elements, too, and no arrays or files, such as {part.name}; a single "
                          "element is a list of one.")
    if part.label is None and part.columns and first.label_name is not None and not (has_names(first.columns) and has_names(part.columns)):
        return open_data(spec, options)
    return data


def check_given(spec: Any, data: Data, options: Options, more: bool = False, collate_fn: Collate | None = None) -> None:
    """Refuse options on the data that were given for this very call and have no effect on it; OptionError.

    Args:
        spec: what `open_data` took. data: what it made of it. more: there are test data, which such options may be for. collate_fn: what it took.
    """
    if options.whole_elements and (collate_fn is not None or not data.train.whole or is_loader(spec)):
        raise OptionError(f"Option whole_elements is for data of elements, one after the other or by number, and not for a collate_fn, a loader of "
                          f"batches, arrays or files, such as data {data.train.name}; a single element is a list of one.")
    if collate_fn is not None and is_loader(spec):
        raise OptionError(f"collate_fn has no effect on data {data.train.name}, which give whole batches: give it to that loader.")
    if collate_fn is not None and data.train.source is None and not more:
        raise OptionError("collate_fn has no effect on arrays and files, whose rows are arrays already.")
    def given(name: str) -> bool:
        return options.given(name, files=False) and bool(getattr(options, name))
    built_in = isinstance(spec, str) and spec in BUILT_IN
    if given("validation_split") and data.test is not None and not data.split:
        raise OptionError(f"Option validation_split has no effect, for data {data.train.name} have a test part of {len(data.test):,} rows; "
                          "leave it out.")
    if isinstance(spec, Data) or more:
        return                            # they may have been meant when it was opened, or are for the test data
    if given("data_format") and options.data_format != "auto" and (built_in or not isinstance(spec, (str, os.PathLike))):
        raise OptionError(f"Option data_format has no effect on data {data.train.name}; it is for files and folders.")
    for name in ("inputs", "label"):
        if given(name) and not isinstance(spec, (str, os.PathLike, Mapping)) and (data.train.nameless or data.train.source is None):
            raise OptionError(f"Option {name} has no effect on arrays without names; give a dict of arrays, or leave it out.")


def _open(spec: Any, options: Options, trained: Roles, collate_fn: Collate | None) -> Data:
    if isinstance(spec, Data):
        return spec
    if isinstance(spec, Dataset):
        return Data(spec, None)
    if isinstance(spec, str) and spec in BUILT_IN:
        return _built_in(spec, options)
    if isinstance(spec, (str, os.PathLike)):
        return _open_path(Path(spec), options, trained)
    if isinstance(spec, Mapping):
        if spec and not options.whole_elements and all(map(is_by_number, spec.values())) \
                and any(PARTS.get(str(name).lower()) == "train" for name in spec):
            return _of_parts(spec, options, trained, collate_fn)
        return _named({str(name): _holding(array) for name, array in spec.items()}, "in memory", options, trained)
    if isinstance(spec, tuple):
        return _open_tuple(spec)
    if hasattr(spec, "combined_batch_size"):
        raise DataError("A tileflow.DataLoader is for loops of your own, and a run makes one that it can resume: give the data set itself, and "
                        "settings such as num_workers as options.")
    make = heaped if options.whole_elements else collate if collate_fn is None else Collated(collate_fn)
    if is_by_number(spec) or (isinstance(spec, list) and make is not collate):
        return _of_rows(spec, Items(spec, make), options, trained)
    if is_one_by_one(spec):
        return _of_rows(spec, RowStream(spec, make), options, trained)
    return Data(Dataset.of({"x": spec}), None)


def _of_parts(spec: Mapping[Any, Any], options: Options, trained: Roles, collate_fn: Collate | None) -> Data:
    """Data sets by the parts that they are: the first to train with, and the first to measure with that is called test,
    else validation. What is called otherwise is left out."""
    parts = {str(name).lower(): part for name, part in spec.items()}
    train = next(name for name in parts if PARTS.get(name) == "train")
    test = "test" if "test" in parts else next((name for name in parts if PARTS.get(name) == "test"), None)
    data = _open(parts[train], options, trained, collate_fn).train
    if lost := [name for name in parts if name not in (train, test)]:
        note = f"Data {data.name}: {one_line(', '.join(lost))} {'are' if len(lost) > 1 else 'is'} left out; a part of " \
               "its own to measure with is the argument test_data."
        data = replace(data, notes=(*data.notes, note))
    if test is None:
        return Data(data, None)
    measured = _open(parts[test], options, roles_of(data) or trained, collate_fn).train
    return Data(data, replace(measured, name=f"{measured.name} (test)", notes=()))


def _holding(array: Any) -> Callable[[], np.ndarray]:
    return lambda: array_of(array)


def _of_rows(spec: Any, source: Items | RowStream, options: Options, trained: Roles) -> Data:
    """A data set of somebody's own, a row at a time."""
    name = type(spec).__name__
    try:
        length = len(source)
    except (TypeError, NotImplementedError, AttributeError):
        length = UNKNOWN_LENGTH if options.max_batches is None else options.max_batches * options.combined_batch_size
    if length == 0:
        raise DataError(f"Data {name} have no rows.")
    fills: Fills = {}
    source.fills = fills
    whole = source.make is heaped
    if source.make is collate:
        source.prepare = pictures_of(options, trained.images)
    columns = columns_of(source if isinstance(source, Items) else FirstRows(source, *([1] if whole else [])), length,
                         fills, options.round_lengths and not whole)
    for key, column in columns.items():
        if kind_of(column.dtype) not in "biuf" or column.dtype.itemsize > 8:
            raise DataError(f"Part {key!r} of the rows of data {name} has element type {column.dtype}; numbers or booleans of up to 64 bits are "
                            "needed.")
    fields = {key: Field(c, c.shape[1:], c.dtype) for key, c in columns.items()}
    if all(isinstance(key, str) for key in fields):
        named: dict[str, Field] = fields
        known = {key: key for key in named}
        label, more = _loss_arrays(known, name, options, trained)
        inputs, ordered = _chosen_inputs(known, (label, *more.values()), name, options, trained)
        chosen = {key: named[key] for key in inputs}
        fills.update(dict.fromkeys([key for key in named if key == label or key.lower() in LABEL_NAMES], options.ignore_index))
        classes = None if label is None or named[label].dtype.kind not in "iu" else _names_of(spec, label)
        return Data(Dataset(name, chosen, None if label is None else named[label], source=source, label_name=label, ordered=ordered,
                            whole=whole, more={key: named[base] for key, base in more.items()}, classes=classes,
                            numbers=classes is not None,
                            notes=tuple(pictured(source))), None)
    *first, last = fields.values()
    given = first or [last]
    if first:
        fills[len(first)] = options.ignore_index
    names = ["x"] if len(given) == 1 else [f"x{i}" for i in range(len(given))]
    return Data(Dataset(name, dict(zip(names, given, strict=True)), last if first else None, source=source,
                        nameless=True, whole=whole, notes=tuple(pictured(source))), None)


def _names_of(data: Any, label: str) -> tuple[str, ...] | None:
    """What the numbers of a label are called where data say so as Hugging Face's do, `features[label].names`."""
    features = getattr(data, "features", None)
    names: Any = getattr(features.get(label), "names", None) if isinstance(features, Mapping) else None
    good = isinstance(names, list) and all(isinstance(x, str) and x for x in names) and len({*names}) == len(names) > 0
    return tuple(names) if good else None


def _open_tuple(spec: tuple[Any, ...]) -> Data:
    if not spec:
        raise DataError("The data are an empty tuple; give (inputs, labels).")
    if len(spec) == 2 and all(isinstance(part, tuple) for part in spec):
        return Data(_of_tuple(spec[0]), replace(_of_tuple(spec[1]), name="in memory (test)"))
    return Data(_of_tuple(spec), None)


def _of_tuple(parts: tuple[Any, ...]) -> Dataset:
    inputs = parts[:-1] or parts
    names = ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
    return Dataset.of(dict(zip(names, inputs, strict=True)), parts[-1] if len(parts) > 1 else None, nameless=True)


def _built_in(name: str, options: Options) -> Data:
    with resources.as_file(resources.files("tileflow") / "data" / f"{name}.npz") as path:
        data = _named(open_npz(path), name, options, Roles())
    assert data.test is not None, "built-in data have a test part"
    return Data(replace(data.train, byte_scale=1 / 16), replace(data.test, byte_scale=1 / 16))


def _open_path(path: Path, options: Options, trained: Roles) -> Data:
    if not os.path.exists(path):                          # Path's own raises for names that no file can have
        raise DataError(f"There are no data at {path}; give a file, a folder or a built-in name ({', '.join(BUILT_IN)}).")
    form = options.data_format if options.data_format != "auto" else _format(path)
    if form == "npz":
        return _named(open_npz(path), str(path), options, trained)
    if form == "npy":
        return _named(open_npy(path), str(path), options, trained)
    if form == "idx":
        return _named({name: _reading(file) for name, file in find_idx(path).items()}, str(path), options, trained)
    if form == "images" and path.is_dir():
        listings = folder_listings(path)
        train, test = (None if part not in listings
                       else dataset_of(listings[part], f"{path}{more}", options, trained.images)
                       for part, more in (("train", ""), ("test", " (test)")))
        assert train is not None
        return Data(train, test if test is None else replace(test, notes=()))
    if form in ARROW_ENDINGS.values():
        parts = table_files(path, form)
        opened = _arrow_table(path, parts["train"], options, trained, form)
        if "test" not in parts:
            return opened
        measured = _arrow_table(path, parts["test"], options, roles_of(opened.train) or trained, form).train
        return Data(opened.train, replace(measured, name=f"{measured.name} (test)", notes=()))
    if (found := listed_files(path, is_image, lambda columns: _label_column(columns, options, trained, path),
                              lambda columns: _weights_column(columns, options, trained, path),
                              options.inputs)) is not None:
        base, label = path.parent, None if found.label is None else found.columns[found.label]
        listing = Listing(tuple(os.path.join(base, name) for name in found.files), found.labels,
                          weights=found.weights)
        return Data(dataset_of(listing, str(path), options, trained.images, label), None)
    if form == "images":
        raise DataError(f"Table {path} has no column of image files in its first row; their names end in "
                        f"{', '.join(ENDINGS)}.")
    return _table(path, options, trained, form)


def _arrow_table(path: Path, files: Sequence[Path], options: Options, trained: Roles, form: str) -> Data:
    """Files of one table: numbers and texts, or images."""
    held = image_column(files[0], form, options.inputs)
    return _table(path, options, trained, form, files) if held is None \
        else _image_table(path, files, options, trained, form, held)


def _image_table(path: Path, files: Sequence[Path], options: Options, trained: Roles, form: str,
                 held: ImageColumn) -> Data:
    """A table with a column of image files, one of labels and one of weights; others are left out."""
    at = _label_column(held.columns, options, trained, path), _weights_column(held.columns, options, trained, path)
    label, weights = (None if place is None else held.columns[place] for place in at)
    read = [name for name in (label, weights) if name is not None]
    others = ArrowTable(path, files, form, read).arrays() if read else {}
    labels = None if label is None else others[label]()
    classes = held.classes.get(label) if label is not None else None
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.max(initial=0) >= len(classes or ()):
        classes = None
    weighed = None if weights is None else Field.of(others[weights](), f"Column {weights} of table {path}").array
    found = Listing(unpacked_images(files, form, held.name), labels, (), weighed, classes)
    if not found.paths:
        raise DataError(f"Table {path} has no rows.")
    return Data(dataset_of(found, str(path), options, trained.images, label), None)


def _reading(path: Path) -> Callable[[], np.ndarray]:
    return lambda: read_idx(path)


def _format(path: Path) -> str:
    """The format of a file by its name, of a folder by its files."""
    if path.is_dir():
        if find_idx(path):
            return "idx"
        if any(path.glob("*.npy")):
            return "npy"
        if is_folder_of_images(path):
            return "images"
        if tables := sorted({ARROW_ENDINGS[f.suffix.lower()] for f in path.iterdir()
                             if f.suffix.lower() in ARROW_ENDINGS and not f.name.startswith(".")}):
            return tables[-1]
        raise DataError(f"Folder {path} holds no data that tileflow knows: neither .npy files nor IDX files such as "
                        "train-images-idx3-ubyte, nor images in folders by their class, nor tables (.parquet, .arrow); "
                        "for .npz and .csv give the file itself.")
    suffix = path.suffix.lower()
    known = {".npz": "npz", ".npy": "npy", ".csv": "csv", ".tsv": "csv", **ARROW_ENDINGS}
    if suffix in known:
        return known[suffix]
    if is_idx(path):
        return "idx"
    raise DataError(f"Data file {path} has no known ending (.npz, .npy, .csv, .tsv, .parquet, .arrow or IDX); set the "
                    "option data_format.")


def _table(path: Path, options: Options, trained: Roles, form: str, files: Sequence[Path] = ()) -> Data:
    """A table of numbers and texts; `files`: those that it consists of, where these are Parquet's or Arrow's."""
    def label_of(columns: tuple[str, ...]) -> int | None:
        label = _label_column(columns, options, trained, path)
        among_inputs = columns and label is not None and not options.label and columns[label] in options.inputs
        return None if among_inputs else label

    def inputs_of(columns: tuple[str, ...]) -> list[int]:
        names = options.inputs or (trained.inputs if set(trained.inputs) <= set(columns) else ())
        if names:
            return _columns(columns, names, path)
        label, weights = label_of(columns), _weights_column(columns, options, trained, path)
        return [i for i in range(len(columns)) if i not in (label, weights)]

    wanted = Wanted(label_of, inputs_of, lambda columns: _weights_column(columns, options, trained, path))
    given = wanted, options.categories, trained.categories
    notes: tuple[str, ...] = ()
    if not files:
        table = read_table(path, *given)
    else:
        source = ArrowTable(path, files, form)
        if source.has_lists:
            data = _named(source.arrays(), str(path), options, trained)
            return Data(replace(data.train, notes=(*source.notes, *data.train.notes)), data.test)
        table = source.table(*given)
        notes = source.notes
    label, chosen = table.label, inputs_of(table.columns)
    present = set(table.columns)
    lost = [] if options.inputs or not has_names(table.columns) else [name for name in trained.inputs if name not in present]
    if lost and len(chosen) == len(trained.inputs) > 1:
        notes = (*notes, f"Table {path} has no column {', '.join(lost[:5])}{' ...' if len(lost) > 5 else ''}, as the "
                         "data that the model was trained on had; its columns are taken in order.")
    if table.counted:
        notes = (*notes, f"Table {path}: its first line, 0,1,2 and so on, is taken for the names of the columns, not for a row.")
    if label is not None and not options.label and trained.label is None and has_names(table.columns) and len(table.columns) > 1:
        place = "the last one" if label == len(table.columns) - 1 else "by its name"
        notes = (*notes, f"Table {path}: the label is the column {table.columns[label]!r}, {place}; another is named with the option label.")
    if not chosen:
        raise DataError(f"Table {path} has no column but the label {table.columns[label or 0]}.")
    columns = tuple(table.columns[i] for i in chosen)
    for name, words in table.categories.items():
        what = f"Table {path}, column {name!r}: its"
        if name not in trained.categories:
            notes = (*notes, f"{what} {len(words):,} different texts are numbered from 1; 0 stands for others.")
        elif name in table.strange:
            notes = (*notes, f"{what} texts are numbered as in training; {table.strange[name]:,} of its "
                             f"{len(table.inputs):,} cells hold others, or none, and are 0.")
    more = {}
    if table.weights is not None:
        at = wanted.weights(table.columns)
        assert at is not None
        more[WEIGHTS] = Field.of(table.weights, f"Column {table.columns[at]} of table {path}")
    return Data(Dataset.of({"x": table.inputs}, table.target, str(path), columns=columns, notes=notes, more=more,
                           label_name=None if label is None else table.columns[label], categories=table.categories),
                None)


def _label_column(columns: tuple[str, ...], options: Options, trained: Roles, path: Path) -> int | None:
    """The column with the labels: the option's, else the one of the training, which the table may lack, else the only one that is called
    like a label (y beside an x is a coordinate), else the last."""
    if options.label:
        return _columns(columns, [options.label], path)[0]
    if trained.label is not None:
        return columns.index(trained.label) if trained.label in columns else None
    weights = _weights_column(columns, options, trained, path)
    lower = [name.lower() for name in columns]
    named = [i for i, name in enumerate(lower) if name in LABEL_NAMES and not (name == "y" and "x" in lower)]
    return named[0] if len(named) == 1 else next((i for i in reversed(range(len(columns))) if i != weights), None)


def _weights_column(columns: tuple[str, ...], options: Options, trained: Roles, path: Path) -> int | None:
    """The column with the weights of rows: the option's, else the one called sample_weight, unless that is an input."""
    if options.sample_weight:
        return _columns(columns, [options.sample_weight], path)[0]
    found = next((i for i, name in enumerate(columns) if name.lower() == WEIGHTS), None)
    return None if found is None or columns[found] in (*options.inputs, *trained.inputs) else found


def _columns(columns: tuple[str, ...], names: Sequence[str], path: Path) -> list[int]:
    """The places of columns."""
    places = {name: i for i, name in enumerate(columns)}
    for name in names:
        if name not in places:
            raise DataError(f"Table {path} has no column {name!r}; its columns are {one_line(', '.join(columns), 1000)}.")
    return [places[name] for name in names]


def _named(arrays: Arrays, name: str, options: Options, trained: Roles) -> Data:
    """Sort named arrays into train and test, inputs and label."""
    parts: dict[str, dict[str, str]] = {}
    for full in arrays:
        base, part = _part_of(full)
        parts.setdefault(part, {})[base] = full
    if not arrays:
        raise DataError(f"Data {name} hold no arrays.")
    train = _dataset(arrays, parts.get("train") or next(iter(parts.values())), name, options, trained)
    measured = parts.get("test") or parts.get("val") if "train" in parts else None
    found = roles_of(train) or trained
    return Data(train, _dataset(arrays, measured, f"{name} (test)", options, found) if measured else None)


def _part_of(full: str) -> tuple[str, str]:
    """`x_test` -> ("x", "test"); names without a part belong to "train"."""
    if match := _PART_LAST.fullmatch(full):
        base, part = match[1], match[2].lower()
    elif match := _PART_FIRST.fullmatch(full):
        base, part = match[2], match[1].lower()
    else:
        base, part = full, "train"
    return base, "val" if part.startswith("val") else part


def _dataset(arrays: Arrays, bases: Mapping[str, str], name: str, options: Options, trained: Roles) -> Dataset:
    """The dataset of one part; `bases` maps names without the part to the arrays' full names."""
    label, more = _loss_arrays(bases, name, options, trained)
    inputs, ordered = _chosen_inputs(bases, (label, *more.values()), name, options, trained)
    found = {base: arrays[bases[base]]() for base in inputs}
    others = {key: Field.of(arrays[bases[base]](), f"Array {base} of data {name}") for key, base in more.items()}
    return Dataset.of(found, None if label is None else arrays[bases[label]](), name, label_name=label, ordered=ordered,
                      more=others)


def _loss_arrays(bases: Mapping[str, str], name: str, options: Options,
                 trained: Roles) -> tuple[str | None, dict[str, str]]:
    """Which of `bases` the label is, and what else the loss reads: labels of further outputs, by these, and the weights
    of rows."""
    lowered, outputs = {base.lower(): base for base in bases}, [*losses_by_output(options.loss)]
    if options.label:
        label: str | None = _chosen(options.label, bases, name)
    elif outputs and outputs[0] in bases:
        label = outputs[0]
    elif trained.label in bases:
        label = trained.label
    else:
        label = next((lowered[word] for word in LABEL_NAMES if word in lowered), None)
    more = {output: output for output in outputs[1:] if output in bases}
    weights = _chosen(options.sample_weight, bases, name) if options.sample_weight else lowered.get(WEIGHTS)
    if weights is not None and weights not in (*options.inputs, *trained.inputs, label):
        more[WEIGHTS] = weights
    return label, more


def _chosen_inputs(bases: Mapping[str, str], others: Collection[str | None], name: str, options: Options,
                   trained: Roles) -> tuple[list[str], bool]:
    """The names of the inputs among `bases`, those that are something else left out, and whether their order is that of
    the model's: the option's, or that of the training."""
    if options.inputs:
        return [_chosen(wanted, bases, name) for wanted in options.inputs], True
    rest = [base for base in bases if base not in others]
    if trained.inputs and set(trained.inputs) <= set(rest):
        return [*trained.inputs, *(base for base in rest if base not in trained.inputs)], True
    return rest, False


def _chosen(wanted: str, bases: Mapping[str, str], name: str) -> str:
    """The base name of an array the user named, with or without its part."""
    for base in (wanted, _part_of(wanted)[0]):
        if base in bases:
            return base
    raise DataError(f"Data {name} have no array {wanted!r}; they have {', '.join(bases.values())}.")
