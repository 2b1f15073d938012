"""Options of data and of how they are loaded."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

from .declaration import declared
from .kinds import COUNT, Choice, FilePath, Flag, Integer, Integers, Names, Number, Numbers, Range, Text

_option = functools.partial(declared, "data")
DataFormat = Literal["auto", "npz", "npy", "idx", "csv", "parquet", "arrow", "images"]
SyntheticData = Literal["none", "zeros", "normal"]
MIXING = ("mixup", "cutmix")
AUGMENTATIONS = ("flip", "crop", "color", *MIXING)
Sampling = Literal["each", "balanced", "weighted"]
DataLoaderMode = Literal["sync", "async", "async_rebatched"]


@dataclass(kw_only=True, repr=False)
class DataOptions:
    """Where rows come from, what of them is taken, and how they are read."""

    data: str | None = _option(
        None, FilePath(), "training data: a folder (of images by class, too), an .npz, .npy, .csv or .parquet file, or "
                          "the name digits",
        optional=True, common=True, free=True, known_as=("train_data", "train_dir"))
    test_data: str | None = _option(
        None, FilePath(), "data to measure accuracy with after each epoch", optional=True, common=True,
        verbs=("train",), free=True, known_as=("val_data", "validation_data", "eval_data"))
    data_format: DataFormat = _option(
        "auto", Choice(get_args(DataFormat)), "format of the data; auto goes by the file's name", free=True)
    inputs: tuple[str, ...] = _option(
        (), Names(), "arrays or columns that are the model's inputs; by default x, or all columns but the label",
        common=True, free=True)
    label: str | None = _option(
        None, Text(),
        "array or column with the labels; by default the one called y, label or target, else the last column",
        optional=True, common=True, free=True, known_as=("target", "labels", "y"))
    sample_weight: str | None = _option(
        None, Text(), "array or column with a weight of each row in the loss; by default the one called sample_weight",
        optional=True, free=True, known_as=("weights", "sample_weights"))
    categories: tuple[str, ...] = _option(
        (), Names(),
        "columns of a table that hold texts: these are numbered from 1 in their sorted order, 0 stands for "
        "others and for none; * is every column of texts. The trained file keeps them", free=True,
        known_as=("categorical", "categorical_features", "cat_features"))
    validation_split: float = _option(
        0.0, Number(Range(least=0, below=1)),
        "share of the training rows kept for measuring, where the data have no test part", common=True, free=True,
        known_as=("val_split",))
    image_size: tuple[int, ...] = _option(
        (), Integers(COUNT), "height and width of the images that files are decoded to (one number: both); by default "
        "what the model's input says, else the size of the first image", known_as=("img_size", "imgsz"))
    shuffle: bool = _option(True, Flag(), "draw the training rows in a new random order each epoch", verbs=("train",))
    augment: tuple[str, ...] = _option(
        (), Names(), "what is done to training images at random: flip (left and right), crop (moved by up to an "
                     "eighth), "
        "color (brightness, contrast, saturation), mixup and cutmix (mixed with another of the micro-batch, labels, "
        "too)",
        verbs=("train",), known_as=("augmentation", "data_augmentation"))
    sampling: Sampling = _option(
        "each", Choice(get_args(Sampling)),
        "an epoch has each row once, or rows drawn with replacement: all classes as "
        "often (balanced), or by sample_weight (weighted), which then does not weigh the loss", verbs=("train",))
    drop_last: bool = _option(
        True, Flag(),
        "leave out the rows at the end that do not fill a whole call; else they are trained in updates of fewer rows",
        verbs=("train",))
    round_lengths: bool = _option(
        True, Flag(), "where batches change their length, round it up to one of few (8, 12, 16, 24 ...), filled with "
        "zeros, labels with ignore_index; else each length has a program of its own", verbs=("train",))
    whole_elements: bool = _option(
        False, Flag(), "each element of the data is a micro-batch, whose arrays are fed as they are, such as a "
        "graph's nodes and edges", verbs=("train",))
    max_batches: int | None = _option(
        None, COUNT, "end each training epoch after this many batches", optional=True, verbs=("train",))
    scale: float | None = _option(
        None, Number(), "factor on the inputs; by default 1/255 for bytes that go into a float input, else 1",
        optional=True, free=True)
    mean: tuple[float, ...] = _option(
        (), Numbers(), "subtracted from the scaled inputs: one number or one per channel", free=True)
    std: tuple[float, ...] = _option(
        (), Numbers(Number(Range(above=0))), "then divides them: one number or one per channel", free=True)
    synthetic_data: SyntheticData = _option(
        "none", Choice(get_args(SyntheticData)), "train on made-up rows, to measure speed: zeros, or normal numbers "
        "(whole numbers are zero), of the shapes and with the labels of the data, or, without data, of the model's "
        "shapes for 16 calls", verbs=("train",))
    num_workers: int = _option(
        0, Integer(Range(least=0)), "processes that read the rows of data sets of your own; 0: this process does",
        free=True)
    worker_timeout: float = _option(
        0.0, Number(Range(least=0)), "seconds for which a worker's answer is waited for; 0: any time", free=True)
    persistent_workers: bool = _option(True, Flag(), "keep worker processes from one epoch to the next", free=True)
    data_loader_mode: DataLoaderMode | None = _option(
        None, Choice(get_args(DataLoaderMode)), "prepare a batch when it is asked for (sync), keep batches ready "
        "(async, by default), or let all workers read pieces of the same batch (async_rebatched)", optional=True,
        free=True)
    rebatched_worker_size: int | None = _option(
        None, COUNT,
        "rows that a worker reads at once with async_rebatched; by default a batch divided by the workers",
        optional=True, free=True)
    prefetch: int = _option(
        2, Integer(Range(least=0)), "batches prepared ahead by a thread; 0 prepares them on demand", free=True)
