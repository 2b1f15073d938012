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
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from . import toml
from .errors import OptionError
from .kinds import (
    Choice,
    FilePath,
    Flag,
    Integer,
    Kind,
    Machine,
    Names,
    Number,
    Numbers,
    OneOf,
    Proportions,
    Range,
    SerialSplits,
    Sizes,
    Text,
    serial_split,
)
from .reading import read_text

Loss = Literal["auto", "cross_entropy", "nll", "mse", "l1", "bce", "bce_with_logits", "identity"]
OutputMode = Literal["default", "all", "final", "sum", "every_n"]
GROUPS = {
    "batching": "Batching",
    "training": "Training",
    "optimizer": "Optimizer",
    "data": "Data",
    "machine": "Tile machine (what train computes does not depend on it, but for serialized_matmul)",
    "run": "Run",
}
"""Groups of options and their titles; an options file may use them as tables."""
KNOWN_AS = {
    "lr": "learning_rate", "batch_size": "micro_batch_size", "batch": "micro_batch_size", "dim": "dims", "wd": "weight_decay", "num_epochs": "epochs",
    "n_epochs": "epochs", "criterion": "loss", "optim": "optimizer", "freeze": "frozen", "accumulate": "gradient_accumulation",
    "val_data": "test_data", "validation_data": "test_data", "eval_data": "test_data", "val_split": "validation_split", "target": "label",
    "labels": "label", "y": "label", "num_threads": "threads", "n_jobs": "threads", "num_workers": "prefetch", "random_state": "seed",
    "dtype": "precision", "output": "out", "output_dir": "out", "chip": "machine",
}
"""What other tools and people call an option."""


MODEL_TABLE = "model"
"""A table that an options file may hold and that is no group: a run folder's file names the run's model there."""


class FrozenOptionsError(OptionError, AttributeError):
    """An option is set after a model or a data loader took the options over."""


@dataclass(frozen=True)
class Declaration:
    """What is known about one option: the source of its flag, of its checks and of its help."""

    name: str
    default: Any
    kind: Kind
    group: str
    help: str
    optional: bool
    aliases: tuple[str, ...] = ()
    """Names that it had before, taken wherever its name is."""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return _flag(self.name)

    @property
    def old_flags(self) -> tuple[str, ...]:
        """The flags of the names that it had before."""
        return tuple(map(_flag, self.aliases))

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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _option(default: Any, kind: Kind, group: str, help: str, optional: bool = False, aliases: tuple[str, ...] = ()) -> Any:
    """Declare an option. `optional` lets it be None; `aliases` are names that it had before."""
    checked = default if default is None else kind.check(default)
    return field(default_factory=lambda: checked,
                 metadata={"default": checked, "kind": kind, "group": group, "help": help, "optional": optional, "aliases": aliases})


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
        "auto", Choice(("auto", "cross_entropy", "nll", "mse", "l1", "bce", "bce_with_logits", "identity")), "training",
        "loss function; auto decides by the model's output and the labels and says why; identity takes the model's output as the loss")
    ignore_index: int | None = _option(
        None, Integer(), "training", "class number of labels that do not count (cross_entropy, nll)", optional=True)
    class_weights: tuple[float, ...] = _option(
        (), Numbers(Number(Range(least=0))), "training", "weight of each class in the loss (cross_entropy, nll)")
    label_smoothing: float = _option(
        0.0, Number(Range(least=0, most=1)), "training", "share of each label that is spread evenly over all classes (cross_entropy)")
    class_axis: Literal[1, -1] | None = _option(
        None, OneOf((1, -1)), "training", "axis of the classes in scores of three and more dimensions (cross_entropy, nll); by default by the shapes",
        optional=True)
    metrics: tuple[str, ...] = _option(
        (), Names(), "training", "what to measure on the test data besides the loss: accuracy, top5, f1, f1_macro, f1_micro, f1_weighted, auc and "
        "perplexity of classes, mae, rmse and r2 of numbers; accuracy is measured anyway")
    accumulation_reduction: Literal["mean", "sum"] = _option(
        "mean", Choice(("mean", "sum")), "training", "how the micro-batches' gradients are combined")
    frozen: tuple[str, ...] = _option((), Names(), "training", "name patterns (* and ?) of parameters to leave as they are")
    trainable: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of the only parameters to train; one that fits constants only makes parameters of them")
    tie: tuple[str, ...] = _option((), Names(), "training", "name patterns of parameters to train as one where their values are equal")
    untie: tuple[str, ...] = _option(
        (), Names(), "training", "name patterns of parameters to train as one for each module, or each node, that reads them")
    keep_training_mode: bool = _option(
        False, Flag(), "training", "write the trained file with batch normalisation and dropout as the model has them, not in the form for inference")

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
    drop_last: bool = _option(
        True, Flag(), "data", "leave out the rows at the end that do not fill a whole call; else they are trained in updates of fewer rows")
    max_batches: int | None = _option(None, _COUNT, "data", "end each training epoch after this many batches", optional=True)
    scale: float | None = _option(
        None, Number(), "data", "factor on the inputs; by default 1/255 for bytes that go into a float input, else 1", optional=True)
    mean: tuple[float, ...] = _option((), Numbers(), "data", "subtracted from the scaled inputs: one number or one per channel")
    std: tuple[float, ...] = _option((), Numbers(Number(Range(above=0))), "data", "then divides them: one number or one per channel")
    prefetch: int = _option(2, Integer(Range(least=0)), "data", "batches prepared ahead by a thread; 0 prepares them on demand")

    machine: Any = _option(
        None, Machine(), "machine", "simulated chip to compile for: gc2, gc200, bow, c600, or a .toml file that describes one", optional=True)
    available_memory_proportion: float | Mapping[str, float] = _option(
        0.6, Proportions(), "machine", "share of a tile's memory that one operator's temporaries may take, for all operators or by name pattern")
    machine_precision: Literal["32.32", "16.32", "16.16"] = _option(
        "32.32", Choice(("32.32", "16.32", "16.16")), "machine", "bits of the simulated tensors and of their partial sums")
    serialized_matmul: Mapping[str, str] = _option(
        {}, SerialSplits(), "machine", "matmuls, by name pattern, to do in pieces one after the other", aliases=("serialised_matmul",))
    joint_plans: bool = _option(True, Flag(), "machine", "plan a layer's forward and backward passes together where that is cheaper")
    optimizer_off_chip: bool = _option(False, Flag(), "machine", "keep optimizer state in streaming memory instead of on the tiles")
    recompute: bool = _option(
        False, Flag(), "machine", "run parts of the forward pass again before the backward pass instead of keeping their results on the tiles")
    tile_plans: str | None = _option(
        None, FilePath(), "machine", "file of plans (JSON) to use instead of searching, as written by compile --report", optional=True)

    seed: int = _option(0, Integer(Range(least=0, most=2**63 - 1)), "run", "seed of every random number")
    threads: int | None = _option(None, _COUNT, "run", "worker threads; by default one per core that may be used", optional=True)
    precision: Literal["float32", "float64"] = _option(
        "float32", Choice(("float32", "float64")), "run", "element type to compute with")
    matmul_precision: Literal["highest", "high", "medium"] = _option(
        "highest", Choice(("highest", "high", "medium")), "run",
        "how float32 products are computed by CPUs with bfloat16 tiles (AMX): with float32's accuracy, with about 16 bits, or with 8; "
        "other CPUs always compute them in float32")
    dims: Mapping[str, int] = _option({}, Sizes(), "run", "sizes of the model's symbolic dimensions")
    on_new_shape: Literal["error", "compile"] = _option(
        "error", Choice(("error", "compile")), "run", "what a call with inputs of another shape does")
    out: str | None = _option(
        None, FilePath(), "run", "where results go: a folder for train (by default a new one under runs/), a file for infer and tune", optional=True)
    resume: str | bool = _option(
        False, FilePath(flag=True), "run", "go on from this checkpoint, or from the one in the out folder")
    allow_other_data: bool = _option(False, Flag(), "run", "resume on data that differ from those the run began with")
    checkpoint_every: int = _option(1, Integer(Range(least=0)), "run", "epochs between checkpoints; 0 writes one at the end only")
    save_every_updates: int | None = _option(
        None, _COUNT, "run", "write a checkpoint after this many weight updates as well", optional=True)
    progress: bool | None = _option(None, Flag(), "run", "progress bars; by default on a terminal only", optional=True)

    def __new__(cls, **values: Any) -> Options:
        for name in values:
            _declaration(name)
        made = super().__new__(cls)
        made.__dict__["_given"] = dict.fromkeys(renamed(values), "code")
        return made

    def __post_init__(self) -> None:
        self.validate()
        self.__dict__["_made"] = True

    def __getattr__(self, name: str) -> Any:
        """An option by a name that it had before."""
        current = _current_names().get(name)
        if current is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, current)

    def __setattr__(self, name: str, value: Any) -> None:
        declaration = _declaration(name)
        name = declaration.name
        if self.is_frozen:
            raise FrozenOptionsError(
                f"Can't modify frozen Options: {name} was set after a model or data loader took the options; change a clone() of them.")
        object.__setattr__(self, name, declaration.check(value))
        if "_made" in self.__dict__:
            self.__dict__["_given"][name] = "code"

    def __delattr__(self, name: str) -> None:
        raise OptionError(f"Option {name} cannot be deleted.")

    @property
    def is_frozen(self) -> bool:
        return bool(self.__dict__.get("_frozen", False))

    def given(self, name: str, files: bool = True) -> bool:
        """Whether somebody set the option, be it to its default. `files`: a value out of an options file counts."""
        return self.__dict__["_given"].get(_declaration(name).name) in (("code", "file") if files else ("code",))

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
    def frozen_patterns(self) -> tuple[str, ...]:
        """Patterns of the parameters to leave alone: `trainable` alone means all others."""
        return ("*",) if self.trainable and not self.frozen else self.frozen

    @property
    def serial_splits(self) -> dict[str, tuple[str, int]]:
        """`serialized_matmul` as mode and factor by name pattern."""
        return {name: serial_split(text) for name, text in self.serialized_matmul.items()}

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
        changes = renamed(changes)
        copy = Options(**{**{d.name: getattr(self, d.name) for d in declarations().values()}, **changes})
        copy.__dict__["_given"] = {**self.__dict__["_given"], **dict.fromkeys(changes, "code")}
        return copy

    def filled(self, values: Mapping[str, Any]) -> Options:
        """A copy in which what nobody gave is as `values` say."""
        taken = {name: value for name, value in renamed(values).items() if not self.given(name)}
        copy = self.clone(**taken)
        copy.__dict__["_given"].update(dict.fromkeys(taken, "file"))
        return copy

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
        content, changes = read_options_file(path), renamed(changes)
        made = cls(**{**content, **changes})
        made.__dict__["_given"].update(dict.fromkeys(content.keys() - changes.keys(), "file"))
        return made

    def tables(self, complete: bool = False) -> dict[str, dict[str, Any]]:
        """The options by group as plain values: those that differ from their defaults, or all but those that are None."""
        tables: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for d in declarations().values():
            value = getattr(self, d.name)
            if value is not None and (complete or value != d.default):
                tables[d.group][d.name] = _plain(value)
        return tables

    def save(self, path: str | os.PathLike[str], comment: str = "") -> None:
        """Write the options that differ from their defaults as a TOML file that `load` and --options read; OptionError where it cannot be."""
        try:
            Path(path).write_text(toml.dumps(self.tables(), comment), encoding="utf-8")
        except (OSError, UnicodeEncodeError) as error:
            raise OptionError(f"Options file {path} cannot be written ({getattr(error, 'strerror', None) or error}).") from None


def _by_any_name(made: Any) -> Any:
    """The initializer that dataclasses made, for keywords by names that options had before as well."""
    @functools.wraps(made)
    def initialize(self: Options, **values: Any) -> None:
        made(self, **renamed(values))
    return initialize


Options.__init__ = _by_any_name(Options.__init__)          # type: ignore[method-assign]


@functools.cache
def _current_names() -> Mapping[str, str]:
    """What options are called now, by the names that they had before."""
    return {old: d.name for d in declarations().values() for old in d.aliases}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by what they are called now; names that are none stay as they are. OptionError where one is set by two of its names."""
    current: dict[str, Any] = {}
    for name, value in values.items():
        now = _current_names().get(name, name)
        if now in current:
            raise OptionError(f"Option {now} is set twice: it was called {', '.join(declarations()[now].aliases)} before.")
        current[now] = value
    return current


@functools.cache
def declarations() -> Mapping[str, Declaration]:
    """The declarations of all options by name, in the order of the class."""
    return MappingProxyType({f.name: Declaration(f.name, **f.metadata) for f in dataclasses.fields(Options)})


def near_names(name: str) -> list[str]:
    """Options that somebody may have meant by a name that is none: what others call it, else what is spelled alike."""
    known = KNOWN_AS.get(name.lower())
    return [known] if known is not None else difflib.get_close_matches(name, declarations(), n=3)


def _declaration(name: str) -> Declaration:
    """The declaration of what is or was called `name`; OptionError with the nearest names where there is none."""
    found = declarations()
    name = _current_names().get(name, name)
    if name not in found:
        near = near_names(name)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(found)}."
        raise OptionError(f"There is no option {name!r}; {hint}")
    return found[name]


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
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
        content = readers[where.suffix.lower()](read_text(where))
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
        if key == MODEL_TABLE and isinstance(value, Mapping):
            continue
        inner = value if key in GROUPS and isinstance(value, Mapping) else {key: value}
        for name, item in inner.items():
            declaration = _declaration(name)
            if inner is value and declaration.group != key:
                raise OptionError(f"Option {name} belongs to [{declaration.group}], not to [{key}].")
            if declaration.name in flat:
                raise OptionError(f"Option {declaration.name} is set twice.")
            flat[declaration.name] = declaration.check(item)
    return flat
