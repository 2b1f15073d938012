"""Every setting of a run, typed and checked where it is set.

    Options(micro_batch_size=40, epochs=3)      keywords
    options.learning_rate = 1e-2                checked on assignment
    Options.load("run.toml")                    a TOML or JSON file, parsed and never executed

Each field declares its kind (what values it takes), its group and its help sentence once; the command line's flags, the
error sentences and the options file all follow from that declaration.
"""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import numbers
import operator
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from .errors import OptionError

Loss = Literal["auto", "cross_entropy", "nll", "mse", "l1", "bce_with_logits", "identity"]
OutputMode = Literal["default", "all", "final", "sum", "every_n"]
GROUPS = {
    "batching": "Batching",
    "training": "Training",
    "optimizer": "Optimizer",
    "data": "Data",
    "run": "Run",
}
"""Groups of options and their titles; an options file may use them as tables."""


class FrozenOptionsError(OptionError, AttributeError):
    """An option is set after a model or a data loader took the options over."""


class Kind:
    """What values an option takes. `check` raises ValueError; `expected` completes 'Option x must be …'."""

    metavar = "VALUE"

    @property
    def expected(self) -> str:
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """The value in its normal form."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """A command-line word to a value; still to be checked."""
        return text


@dataclass(frozen=True)
class Range:
    """Bounds of a number: least <= x <= most, above < x < below."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, x: float) -> bool:
        return ((self.least is None or x >= self.least) and (self.most is None or x <= self.most)
                and (self.above is None or x > self.above) and (self.below is None or x < self.below))

    def __str__(self) -> str:
        words = {"at least": self.least, "at most": self.most, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {x:g}" for word, x in words.items() if x is not None)


def _within(noun: str, bounds: Range) -> str:
    return f"{noun}, {bounds}".rstrip(", ")


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number (NumPy's too; not a bool)."""

    bounds: Range = Range()
    metavar = "N"

    @property
    def expected(self) -> str:
        return _within("a whole number", self.bounds)

    def check(self, value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError from None
        if number not in self.bounds:
            raise ValueError
        return number

    def parse(self, text: str) -> Any:
        return int(text)


@dataclass(frozen=True)
class Number(Kind):
    """A finite real number."""

    bounds: Range = Range()
    metavar = "X"

    @property
    def expected(self) -> str:
        return _within("a number", self.bounds)

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError
        if not math.isfinite(value) or float(value) not in self.bounds:
            raise ValueError
        return float(value)

    def parse(self, text: str) -> Any:
        return float(text)


@dataclass(frozen=True)
class Numbers(Kind):
    """A list of numbers; a single number counts as a list of one. `count` None: any length."""

    each: Number = Number()
    count: int | None = None
    metavar = "X,X"

    @property
    def expected(self) -> str:
        many = "numbers" if self.count is None else f"{self.count} numbers"
        return f"{many}, each {self.each.bounds}".removesuffix(", each ")

    def check(self, value: Any) -> tuple[float, ...]:
        items = _listed([value] if isinstance(value, numbers.Real) else value)
        if self.count is not None and len(items) != self.count:
            raise ValueError
        return tuple(self.each.check(item) for item in items)

    def parse(self, text: str) -> Any:
        return [float(word) for word in text.split(",")]


@dataclass(frozen=True)
class Choice(Kind):
    """One word out of a few."""

    words: tuple[str, ...]

    @property
    def metavar(self) -> str:          # type: ignore[override]
        return "{" + ",".join(self.words) + "}"

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(map(repr, self.words))

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    expected = "true or false"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
            raise ValueError
        return bool(value)


@dataclass(frozen=True)
class Text(Kind):
    """A text that is not empty."""

    expected = "a text that is not empty"
    metavar = "NAME"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


@dataclass(frozen=True)
class FilePath(Kind):
    """A path, kept as text. `flag`: true is accepted as well and means "the usual place"."""

    flag: bool = False
    metavar = "PATH"

    @property
    def expected(self) -> str:
        return "a path, true or false" if self.flag else "a path"

    def check(self, value: Any) -> str | bool:
        if self.flag and isinstance(value, bool):
            return value
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError
        path = os.fspath(value)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError
        return path


@dataclass(frozen=True)
class Names(Kind):
    """A list of names or name patterns; a single text counts as a list of one."""

    expected = "a list of texts"
    metavar = "NAME,NAME"

    def check(self, value: Any) -> tuple[str, ...]:
        items = _listed([value] if isinstance(value, str) else value)
        if not all(isinstance(item, str) and item for item in items):
            raise ValueError
        return tuple(items)

    def parse(self, text: str) -> Any:
        return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class Sizes(Kind):
    """Dimension names to sizes."""

    expected = "a table of dimension names and sizes of at least 1, such as {batch = 4}"
    metavar = "DIM=N,DIM=N"
    _size = Integer(Range(least=1))

    def check(self, value: Any) -> Mapping[str, int]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
            raise ValueError
        return MappingProxyType({name: self._size.check(size) for name, size in value.items()})

    def parse(self, text: str) -> Any:
        pairs = [word.split("=") for word in text.split(",")]
        return {name.strip(): int(size) for name, size in pairs}


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError
    return list(value)


@dataclass(frozen=True)
class Declaration:
    """What is known about one option: the source of its flag, of its checks and of its help."""

    name: str
    default: Any
    kind: Kind
    group: str
    help: str
    optional: bool

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        return self.kind.expected + (" or None" if self.optional else "")

    def check(self, value: Any) -> Any:
        """The value in its normal form; OptionError where it is not one."""
        if value is None and self.optional:
            return None
        try:
            return self.kind.check(value)
        except ValueError:
            raise OptionError(f"Option {self.name} must be {self.expected}, not {value!r}.") from None

    def parse(self, text: str) -> Any:
        """A command-line word to a checked value; OptionError where it is not one."""
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise OptionError(f"Option {self.name} ({self.flag}) must be {self.kind.expected}, not {text!r}.") from None
        return self.check(value)


def _option(default: Any, kind: Kind, group: str, help: str, optional: bool = False) -> Any:
    """Declare an option. `optional` lets it be None."""
    checked = default if default is None else kind.check(default)
    return field(default_factory=lambda: checked,
                 metadata={"default": checked, "kind": kind, "group": group, "help": help, "optional": optional})


_COUNT = Integer(Range(least=1))
_NOT_NEGATIVE = Number(Range(least=0))


@dataclass(kw_only=True, repr=False)
class Options:
    """All options of training and inference; every field works as a keyword of `tileflow.train` and as a command-line flag.

    Raises OptionError where a name is unknown or a value is of the wrong type or out of range, at construction and on
    assignment alike. Once a model or data loader uses them, options are frozen; `clone()` gives a copy that can change.
    """

    micro_batch_size: int = _option(16, _COUNT, "batching", "rows that one operator sees at a time")
    gradient_accumulation: int = _option(1, _COUNT, "batching", "micro-batches per weight update")
    device_iterations: int = _option(1, _COUNT, "batching", "weight updates (inference: micro-batches) per call of the engine")
    output_mode: OutputMode = _option(
        "default", Choice(("default", "all", "final", "sum", "every_n")), "batching",
        "which micro-batches' outputs a call returns; default is all for inference, final for training")
    output_return_period: int | None = _option(
        None, _COUNT, "batching", "with output_mode every_n: return every n-th iteration", optional=True)

    epochs: int = _option(1, Integer(Range(least=0)), "training", "passes over the training data")
    loss: Loss = _option(
        "auto", Choice(("auto", "cross_entropy", "nll", "mse", "l1", "bce_with_logits", "identity")), "training",
        "loss function; auto is cross_entropy for whole-number labels and mse otherwise; identity takes the model's output as the loss")
    accumulation_reduction: Literal["mean", "sum"] = _option(
        "mean", Choice(("mean", "sum")), "training", "how the micro-batches' gradients are combined")
    frozen: tuple[str, ...] = _option((), Names(), "training", "name patterns (* and ?) of parameters to leave as they are")
    trainable: tuple[str, ...] = _option((), Names(), "training", "name patterns of the only parameters to train")

    optimizer: Literal["sgd", "adam", "adamw"] = _option("adamw", Choice(("sgd", "adam", "adamw")), "optimizer", "update rule")
    learning_rate: float = _option(1e-3, _NOT_NEGATIVE, "optimizer", "step size")
    weight_decay: float | None = _option(
        None, _NOT_NEGATIVE, "optimizer", "weight decay; by default 0.01 for adamw and 0 for the others", optional=True)
    momentum: float = _option(0.0, _NOT_NEGATIVE, "optimizer", "momentum (sgd)")
    dampening: float = _option(0.0, _NOT_NEGATIVE, "optimizer", "dampening of the momentum (sgd)")
    nesterov: bool = _option(False, Flag(), "optimizer", "Nesterov momentum (sgd)")
    betas: tuple[float, float] = _option(
        (0.9, 0.999), Numbers(Number(Range(least=0, below=1)), 2), "optimizer", "decay of the two moments (adam, adamw)")
    eps: float = _option(1e-8, Number(Range(above=0)), "optimizer", "added to the denominator (adam, adamw)")
    loss_scaling: float = _option(1.0, Number(Range(above=0)), "optimizer", "factor on the loss, taken out again before the update")

    data: str | None = _option(
        None, FilePath(), "data", "training data: a folder, an .npz, .npy or .csv file, or the name digits", optional=True)
    test_data: str | None = _option(None, FilePath(), "data", "data to measure accuracy with after each epoch", optional=True)
    data_format: Literal["auto", "npz", "npy", "idx", "csv"] = _option(
        "auto", Choice(("auto", "npz", "npy", "idx", "csv")), "data", "format of the data; auto goes by the file's name")
    inputs: tuple[str, ...] = _option(
        (), Names(), "data", "arrays or columns that are the model's inputs; by default x, or all columns but the label")
    label: str | None = _option(None, Text(), "data", "array or column with the labels; by default y, or the last column", optional=True)
    validation_split: float = _option(
        0.0, Number(Range(least=0, below=1)), "data", "share of the training rows kept for measuring, where the data have no test part")
    shuffle: bool = _option(True, Flag(), "data", "draw the training rows in a new random order each epoch")
    drop_last: bool = _option(True, Flag(), "data", "leave out the rows at the end that do not fill a whole batch")
    max_batches: int | None = _option(None, _COUNT, "data", "end each training epoch after this many batches", optional=True)
    scale: float | None = _option(
        None, Number(), "data", "factor on the inputs; by default 1/255 for bytes that go into a float input, else 1", optional=True)
    mean: tuple[float, ...] = _option((), Numbers(), "data", "subtracted from the scaled inputs: one number or one per channel")
    std: tuple[float, ...] = _option((), Numbers(Number(Range(above=0))), "data", "then divides them: one number or one per channel")
    prefetch: int = _option(2, Integer(Range(least=0)), "data", "batches prepared ahead by a thread; 0 prepares them on demand")

    seed: int = _option(0, Integer(Range(least=0, most=2**63 - 1)), "run", "seed of every random number")
    threads: int | None = _option(None, _COUNT, "run", "worker threads; by default one per core", optional=True)
    precision: Literal["float32", "float64"] = _option(
        "float32", Choice(("float32", "float64")), "run", "element type to compute with")
    dims: Mapping[str, int] = _option({}, Sizes(), "run", "sizes of the model's symbolic dimensions")
    on_new_shape: Literal["error", "compile"] = _option(
        "error", Choice(("error", "compile")), "run", "what a call with inputs of another shape does")
    out: str | None = _option(
        None, FilePath(), "run", "where results go: a folder for train (by default a new one under runs/), a file for infer", optional=True)
    resume: str | bool = _option(
        False, FilePath(flag=True), "run", "go on from this checkpoint, or from the one in the out folder")
    checkpoint_every: int = _option(1, Integer(Range(least=0)), "run", "epochs between checkpoints; 0 writes one at the end only")
    save_every_updates: int | None = _option(
        None, _COUNT, "run", "write a checkpoint after this many weight updates as well", optional=True)
    progress: bool | None = _option(None, Flag(), "run", "progress bars; by default on a terminal only", optional=True)

    def __new__(cls, **values: Any) -> Options:
        for name in values:
            _declaration(name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        declaration = _declaration(name)
        if self.is_frozen:
            raise FrozenOptionsError(
                f"Can't modify frozen Options: {name} was set after a model or data loader took the options; change a clone() of them.")
        object.__setattr__(self, name, declaration.check(value))

    def __delattr__(self, name: str) -> None:
        raise OptionError(f"Option {name} cannot be deleted.")

    @property
    def is_frozen(self) -> bool:
        return bool(self.__dict__.get("_frozen", False))

    def freeze(self) -> Options:
        """Check the combination and let nobody change the options any more; returns them."""
        self.validate()
        self.__dict__["_frozen"] = True
        return self

    def validate(self) -> None:
        """OptionError where options that are each right do not go together."""
        if self.output_mode == "every_n":
            period = self.output_return_period
            if period is None or self.device_iterations % period:
                raise OptionError(f"Option output_mode 'every_n' needs an output_return_period that divides "
                                  f"device_iterations ({self.device_iterations}), not {period}.")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise OptionError(f"Option nesterov needs momentum above 0 and dampening 0, not momentum {self.momentum:g} "
                              f"and dampening {self.dampening:g}.")
        if self.frozen and self.trainable:
            raise OptionError("Options frozen and trainable exclude each other: name either the parameters to leave or those to train.")
        if self.test_data is not None and self.validation_split > 0:
            raise OptionError("Options test_data and validation_split exclude each other: the rows to measure with come from one of them.")

    def output_mode_for(self, training: bool) -> OutputMode:
        """The output mode with "default" resolved: final for training, all for inference."""
        if self.output_mode != "default":
            return self.output_mode
        return "final" if training else "all"

    @property
    def global_batch_size(self) -> int:
        """Rows per weight update."""
        return self.micro_batch_size * self.gradient_accumulation

    @property
    def combined_batch_size(self) -> int:
        """Rows per call of the engine."""
        return self.global_batch_size * self.device_iterations

    @property
    def resolved_weight_decay(self) -> float:
        """The weight decay with None resolved."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 0.01 if self.optimizer == "adamw" else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values that JSON can hold and `Options(**values)` takes back."""
        return {d.name: _plain(getattr(self, d.name)) for d in declarations().values()}

    def clone(self, **changes: Any) -> Options:
        """A copy that can change, with `changes` made."""
        return Options(**{**{d.name: getattr(self, d.name) for d in declarations().values()}, **changes})

    def __copy__(self) -> Options:
        return self.clone()

    def __deepcopy__(self, _memo: Any) -> Options:
        return self.clone()

    def __repr__(self) -> str:
        """The options that differ from their defaults."""
        shown = {d.name: _plain(getattr(self, d.name)) for d in declarations().values() if getattr(self, d.name) != d.default}
        return f"Options({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changes: Any) -> Options:
        """Options from a TOML or JSON file (by its suffix), with `changes` made on top.

        Options stand at the top level or in tables named after their group:

            seed = 1
            [training]
            epochs = 3

        Raises OptionError where the file cannot be read or parsed, or holds an unknown or wrong option.
        """
        return cls(**{**read_options_file(path), **changes})


@functools.cache
def declarations() -> Mapping[str, Declaration]:
    """The declarations of all options by name, in the order of the class."""
    return MappingProxyType({f.name: Declaration(f.name, **f.metadata) for f in dataclasses.fields(Options)})


def _declaration(name: str) -> Declaration:
    """The declaration of `name`; OptionError with the nearest names where there is none."""
    found = declarations()
    if name not in found:
        near = difflib.get_close_matches(name, found, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(found)}."
        raise OptionError(f"There is no option {name!r}; {hint}")
    return found[name]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def read_options_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options that a TOML or JSON file sets, flat and checked by name; OptionError where it cannot be used."""
    where = Path(path)
    readers: dict[str, Any] = {".toml": tomllib.loads, ".json": json.loads}
    if where.suffix.lower() not in readers:
        raise OptionError(f"Options file {where} must end in .toml or .json.")
    try:
        content = readers[where.suffix.lower()](where.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"Options file {where} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"Options file {where} is not valid {where.suffix[1:].upper()}: {error}.") from None
    if not isinstance(content, dict):
        raise OptionError(f"Options file {where} must hold a table of options, not a {type(content).__name__}.")
    try:
        return _flatten(content)
    except OptionError as error:
        raise OptionError(f"Options file {where}: {error}") from None


def _flatten(content: Mapping[str, Any]) -> dict[str, Any]:
    """Group tables and top-level options to one table."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        inner = value if key in GROUPS and isinstance(value, Mapping) else {key: value}
        for name, item in inner.items():
            declaration = _declaration(name)
            if inner is value and declaration.group != key:
                raise OptionError(f"Option {name} belongs to [{declaration.group}], not to [{key}].")
            if name in flat:
                raise OptionError(f"Option {name} is set twice.")
            flat[name] = declaration.check(item)
    return flat
