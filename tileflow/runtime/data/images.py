"""Folders of images by class, and lists of image files in a table: which files there are, their labels, and what they
become."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...feed.images import MODES, ImageForm, Images, form_of_file, is_image
from ...feed.items import Items, RowStream
from ...feed.kept import KeptRows
from ...feed.pictures import Pictures
from ...feed.unpacked import Content
from ...loss import WEIGHTS
from ...memory import budget
from ...options.options import Options
from ...system.errors import DataError
from ...system.text import one_line
from .classes import Numbered, numbered
from .columns import Column, Known, columns_of
from .dataset import Dataset, Field

PARTS = {"train": "train", "training": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}
KEPT_SHARE, UNKNOWN_ROOM = 0.4, 1 << 30
"""Of the memory that can be had, for decoded images; and bytes where nobody says how much that is."""


class Listing(NamedTuple):
    """Image files and, where they have some, their labels: texts, or numbers. others: files that are no images by their
    names. weights: of the rows. classes: the names of labels that are numbers."""

    paths: Sequence[str | Content]
    labels: tuple[str, ...] | np.ndarray | Numbered | None
    others: tuple[str, ...] = ()
    weights: np.ndarray | None = None
    classes: tuple[str, ...] | None = None


class WantedImages(NamedTuple):
    """What a model's input says of images: None is open."""

    channels: int | None = None
    height: int | None = None
    width: int | None = None
    last: bool = False


def wanted_by(dims: Sequence[int | str | None] | None) -> WantedImages | None:
    """What an input of these dimensions takes, [batch, channels, height, width] or [batch, height, width, channels];
    None where it is neither."""
    if dims is None or len(dims) not in (3, 4):
        return None
    sizes = [n if isinstance(n, int) else None for n in dims[1:]]
    if len(sizes) == 2:
        return WantedImages(1, sizes[0], sizes[1])
    last = sizes[0] not in MODES and sizes[2] in MODES
    return WantedImages(sizes[2], sizes[0], sizes[1], True) if last else WantedImages(sizes[0], sizes[1], sizes[2])


def is_folder_of_images(folder: Path) -> bool:
    """There is an image in the folder, or in a folder of it, or one further down where that is a part such as train."""
    return any(is_image(entry.name)
               or (entry.is_dir() and any(is_image(f) or f.lower() in PARTS for f in _names(entry.path)))
               or (entry.name.lower() in PARTS and entry.is_dir()) for entry in _entries(folder))


def folder_listings(folder: Path) -> dict[str, Listing]:
    """The images of a folder by its parts: `train` and, where it has such a folder, `test` (also called val, valid or
    validation).

    The class of an image is the name of the folder right below the part; deeper folders belong to it, but links to
    folders are not followed there. Images without such a folder have no class. Hidden files are left out.

    Raises:
        DataError: some images have a class and others none, or there are two folders for one part.
    """
    inner = {entry.name: entry for entry in _entries(folder) if entry.is_dir()}
    parts: dict[str, str] = {}
    for name in inner:
        if name.lower() in PARTS:
            if (part := PARTS[name.lower()]) in parts:
                raise DataError(f"Folder {folder} has two folders for one part of the data, {parts[part]} and {name}; "
                                "rename one.")
            parts[part] = name
    if "train" not in parts:
        return {"train": _listing(folder)}
    return {part: _listing(folder / name) for part, name in parts.items()}


def _listing(folder: Path) -> Listing:
    paths: list[str] = []
    labels: list[str] = []
    others: list[str] = []
    for entry in _entries(folder):
        if entry.is_dir():
            for path in _below(entry.path):
                (paths if is_image(path) else others).append(path)
                labels += [entry.name] * is_image(path)
        else:
            (paths if is_image(entry.name) else others).append(entry.path)
    if not paths:
        raise DataError(f"Folder {folder} has no images in it.")
    if labels and len(labels) != len(paths):
        bare = next(path for path in paths if Path(path).parent == folder)
        raise DataError(f"Folder {folder} has images in folders, whose names are their classes, and others beside "
                        "these, such as "
                        f"{one_line(os.path.basename(bare))}: put them into a folder, or away.")
    return Listing(tuple(paths), tuple(labels) if labels else None, tuple(others))


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden, by name (DataError where that cannot be read)."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"Folder {folder} cannot be read: {error.strerror}.") from None


def _names(folder: str) -> list[str]:
    return [entry.name for entry in _entries(folder)]


def _below(folder: str) -> Iterable[str]:
    """The files in a folder and all below, in order; links to folders are not followed."""
    left = [folder]
    while left:
        entries = _entries(left.pop())
        yield from (entry.path for entry in entries if not entry.is_dir())
        left += [entry.path for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]


def dataset_of(listing: Listing, name: str, options: Options, wanted: WantedImages,
               label_name: str | None = None) -> Dataset:
    """The images as a dataset, decoded when they are read and kept as far as there is memory. Labels are numbered in
    the order of their texts.

    Args:
        wanted: what the model's input says, or the data that it was trained on; the option image_size goes before it,
            and what both leave open is as the first image has it.

    Raises:
        DataError: an image that must be looked at cannot be read, or the model takes other numbers of channels than
        images have.
    """
    form, notes = _form(listing.paths[0], options, wanted)
    room = budget.available()
    source = KeptRows(Images(listing.paths, form), int(KEPT_SHARE * room) if room is not None else UNKNOWN_ROOM)
    fills: dict[object, float | None] = {}
    source.fills = fills
    columns = columns_of(source, len(source), fills, False)
    pixels = columns[0]
    label, classes = None, None
    if listing.labels is not None:
        values, classes = _labels(listing.labels, name)
        label, classes = _known(columns[1], values), classes or listing.classes
    if listing.others:
        notes.append(f"Data {one_line(name)}: {len(listing.others):,} "
                     f"file{'s are' if len(listing.others) > 1 else ' is'} left out, by the name no "
                     f"image, such as {one_line(listing.others[0])}.")
    return Dataset(name, {"x": Field(pixels, pixels.shape[1:], pixels.dtype)}, label, source=source, nameless=True,
                   notes=tuple(notes), classes=classes, numbers=classes is not None and classes is listing.classes,
                   label_name=label_name,
                   row_names=tuple(path if isinstance(path, str) else path.name for path in listing.paths),
                   more={} if listing.weights is None else {WEIGHTS: _known(columns[1], listing.weights)})


def _known(numbers: Column, values: np.ndarray) -> Field:
    """Values [rows, ...] that are in memory, as a part of rows that are read."""
    known = Known(numbers, values)
    return Field(known, known.shape[1:], known.dtype)


def _labels(texts: tuple[str, ...] | np.ndarray | Numbered, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as numbers, and the names of classes where they were words."""
    if isinstance(texts, np.ndarray):
        return texts, None
    if isinstance(texts, tuple):
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise DataError(f"The labels of data {name}, or the folders that are its classes, have names that are no "
                            "UTF-8 text; rename them.") from None
    given = texts if isinstance(texts, Numbered) else np.array(texts)
    values, classes = numbered(given, f"The labels of data {name}")
    if classes is not None:
        with contextlib.suppress(ValueError):
            return np.array([float(text) for text in classes])[values], None
    return np.asarray(values), classes


def _form(first: str | Content, options: Options, wanted: WantedImages) -> tuple[ImageForm, list[str]]:
    """What the images become, and what to say of it."""
    own = form_of_file(first)
    given: Mapping[str, int] = {}
    if options.image_size:
        given = {"height": options.image_size[0], "width": options.image_size[-1]}
    channels = wanted.channels or own.channels
    if channels not in MODES:
        raise DataError(f"The model takes images of {channels} channels; image files are read as 1 (grey), 3 (red, "
                        "green, blue) or 4 (and alpha).")
    form = ImageForm(channels, given.get("height") or wanted.height or own.height,
                     given.get("width") or wanted.width or own.width, wanted.last)
    budget.require(form.channels * form.height * form.width, "An image", "set a smaller image_size")
    return form, _changes(own, form)


def _changes(own: ImageForm, form: ImageForm) -> list[str]:
    """What to say of images of which the first was of the form `own`."""
    notes = []
    if (form.height, form.width) != (own.height, own.width):
        notes.append(f"Images become {form.width} x {form.height} pixels: the middle of each, scaled to that; the "
                     f"first is {own.width} x {own.height}.")
    if form.channels == 1 and own.channels == 3:
        notes.append("Images become grey, for the model takes one channel.")
    return notes


def pictures_of(options: Options, wanted: WantedImages) -> Pictures:
    """What becomes of Pillow's images in rows of somebody's own: what the option image_size says, else the model."""
    height, width = (options.image_size[0], options.image_size[-1]) if options.image_size \
        else (wanted.height, wanted.width)
    return Pictures(wanted.channels if wanted.channels in MODES else None, height, width, wanted.last)


def pictured(source: Items | RowStream) -> list[str]:
    """What to say of such images, once a row was read."""
    first = source.prepare.first if isinstance(source.prepare, Pictures) else None
    return [] if first is None else _changes(*first)


def form_of(dataset: Dataset) -> ImageForm | None:
    """What the images of a dataset became; None of other data."""
    data = getattr(dataset.source, "data", None)
    if isinstance(data, Images):
        return data.form
    prepare = getattr(dataset.source, "prepare", None)
    return prepare.first[1] if isinstance(prepare, Pictures) and prepare.first else None
