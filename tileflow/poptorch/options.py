"""`Options`: the reference's setters, over the one table that reads its files as well."""
from __future__ import annotations

import copy
import enum
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..collective import current
from ..options import files
from ..options.options import Options as TileflowOptions
from ..options.options import declarations, read_options_file
from ..options.reference import table
from ..options.reference.enums import ENUMS, ConnectionType, OutputMode, SyncPattern, word
from ..options.reference.values import Made, Word, WrittenCall
from ..options.settings import FrozenOptionsError
from ..system.errors import OptionError
from ..system.reading import read_text
from .autocasting import Policy
from .errors import ConfigFileError, InvalidOption, of_options
from .spelling import both_spellings, snake_case
from .strategies import ExecutionStrategy

GROUPS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")
DEFAULT_OPTIONS = "POPTORCH_DEFAULT_OPTIONS"
"""The environment variable that may hold options as JSON, for every `Options()`."""
MODEL_VERSION, VERSIONS = "POPTORCH_IPU_MODEL_VERSION", {"ipu1": "gc2", "ipu2": "gc200", "ipu21": "bow"}
"""The environment variable that may name the chip, and what its words are."""
VALUES: dict[str, Any] = {
    "log_dir": ".", "max_repeat_logs": 4, "connection_type": ConnectionType.Always, "sync_pattern": SyncPattern.Full,
    "model_name": None, "profile_dir": None}
"""What is read of options that have no effect here, before somebody sets them."""
READ_AS = {"random_seed": "seed", "input_cgt": "input_group_type",
           "accumulation_and_replication_reduction_type": "accumulation_reduction",
           "mean_accumulation_and_replication_reduction_strategy": "mean_reduction_strategy",
           "partials_type": "partials"}
"""Values that tileflow calls otherwise."""
ENUM_OF = {"output_mode": "OutputMode", "input_group_type": "CommGroupType", "accumulation_reduction": "ReductionType",
           "mean_reduction_strategy": "MeanReductionStrategy", "half_float_casting": "HalfFloatCastingBehavior",
           "auto_stage": "AutoStage", "tensors_liveness": "Liveness"}
"""Options whose values are members of an enum."""
ADDED = ("anchored_tensors", "min_elements_off_chip", "min_elements_sharded", "io_tiles_for")
"""Options to which each call adds."""


@both_spellings
class TensorLocationSettings:
    """Where a group of tensors is kept: `TensorLocationSettings().useOnChipStorage(False)`, for
    `opts.TensorLocations.setOptimizerLocation`."""

    def __init__(self) -> None:
        self._calls: dict[str, Any] = {}

    def _with(self, name: str, value: Any) -> TensorLocationSettings:
        self._calls[name] = value
        return self

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Tensors of fewer elements stay on the chip."""
        return self._with("minElementsForOffChip", _counted("min_elements", min_elements))

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Tensors of fewer elements are whole on every replica."""
        return self._with("minElementsForReplicatedTensorSharding", _counted("min_elements", min_elements))

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """Keep them on the chip, or in streaming memory; None leaves it to the strategy."""
        return self._with("useOnChipStorage", use if use is None else _true_or_false(use))

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Each replica keeps a share of them."""
        return self._with("useReplicatedTensorSharding", _true_or_false(use))

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """I/O tiles load them from streaming memory."""
        return self._with("useIOTilesToLoad", _true_or_false(use))

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """I/O tiles store them there."""
        return self._with("useIOTilesToStore", _true_or_false(use))

    def made(self) -> Made:
        """As the lines of a file say it."""
        return Made((WrittenCall("poptorch.TensorLocationSettings"),
                     *(WrittenCall(name, (value,)) for name, value in self._calls.items())))

    def __repr__(self) -> str:
        return "TensorLocationSettings()" + "".join(f".{name}({value!r})" for name, value in self._calls.items())


def _true_or_false(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"True or False is needed, not {value!r}.")
    return value


def _counted(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


class Number(int):
    """A number that is read as an option and called as its setter: `opts.device_iterations`,
    `opts.device_iterations(4)`."""

    _set: Callable[..., Any]

    def __new__(cls, value: int, setter: Callable[..., Any]) -> Number:
        made = super().__new__(cls, value)
        made._set = setter
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._set(*args, **kwargs)

    def __reduce__(self) -> Any:
        return int, (int(self),)


class _Names:
    """A group of options: its setters and values, by name."""

    _options: Options
    _group: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setter = self._setter(name)
        if snake_case(name) == name and self._options._is_value(name):
            value = self._options._value(name)
            whole = isinstance(value, int) and not isinstance(value, (bool, enum.Enum))
            return Number(value, setter) if setter is not None and whole else value
        if setter is None:
            near = table.near(self._prefix + name)
            raise AttributeError(f"Invalid attribute {name}." + (f" Did you mean {' or '.join(near)}?" if near else
                                                                 " docs/poptorch.md lists all names."))
        return setter

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name == "random_seed" or self._options._is_value(name):
            self._options._put(name, value)
        else:
            raise InvalidOption(f"Invalid option {name}; {self._prefix}{name} is no option that has a value. "
                                "docs/poptorch.md lists all names.")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(e.name.removeprefix(self._prefix) for e in self._entries())})

    @property
    def _prefix(self) -> str:
        return f"{self._group}." if self._group else ""

    def _entries(self) -> list[table.Entry]:
        return list(table.SECTIONS[f"Options.{self._group}" if self._group else "Options"])

    def _setter(self, name: str) -> Callable[..., Any] | None:
        entry = table.find(self._prefix + name)
        if entry is None or entry.name.rpartition(".")[0] != self._group:
            return None

        def take(*args: Any, **kwargs: Any) -> Any:
            self._options._take(entry, args, kwargs)
            return self
        take.__name__, take.__doc__ = name, entry.says or f"Sets the option {', '.join(entry.options)}."
        return take

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(f"A group of options cannot be copied without them; use Options.clone(), then .{self._group} "
                        "of the copy.")


@both_spellings
class _Group(_Names):
    """`opts.Training` and the others."""

    def __init__(self, options: Options, group: str) -> None:
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_group", group)

    def checkIsFrozen(self, option: str | None = None) -> None:
        """FrozenOptionsError where a model or data loader has taken the options."""
        self._options.checkIsFrozen(option)

    def __repr__(self) -> str:
        return f"{self._group}({self._options._shown(self._entries())})"


@both_spellings
class _Distributed(_Group):
    """`opts.Distributed`: which of the processes that train together this one is (`tileflow launch`, mpiexec)."""

    @property
    def processId(self) -> int:
        """The number of this process: 0 where it is alone."""
        return 0 if (group := current()) is None else group.rank

    @property
    def numProcesses(self) -> int:
        """How many there are: 1 where it is alone."""
        return 1 if (group := current()) is None else group.size


@both_spellings
class Options(_Names):
    """Everything that a model or a data loader is told besides what it computes.

        opts = poptorch.Options().deviceIterations(10)
        opts.Training.gradientAccumulation(10)
        opts.device_iterations                               # 10

    Every setter is there in camelCase and in snake_case and returns its group, so that calls can be chained; what has a
    value is read by its name in snake_case. What has no effect here is taken with a warning, what cannot be is an
    InvalidOption with a sentence. Frozen once a model or data loader uses them; `clone()` gives a copy that can change.
    `tileflow()` gives them as `tileflow.Options`.

    Raises:
        InvalidOption: a value is wrong, or POPTORCH_DEFAULT_OPTIONS is.
        FrozenOptionsError: an option is set after a model or data loader took them (an AttributeError).
    """

    def __init__(self) -> None:
        self.__dict__.update(_values={}, _said={}, _anchors={}, _strategy=None, _is_frozen=False, _group="",
                             _options=self)
        text = os.environ.get(DEFAULT_OPTIONS)
        if text:
            try:
                self.from_json(text)
            except OptionError as error:
                raise InvalidOption(f"{DEFAULT_OPTIONS}: {error}") from None

        version = os.environ.get(MODEL_VERSION)
        if version:
            if version not in VERSIONS:
                raise InvalidOption(f"{MODEL_VERSION}: Invalid IPU model version. Valid versions: "
                                    f"{', '.join(VERSIONS)}.")
            self._values.setdefault("machine", VERSIONS[version])

    # ---- groups

    @property
    def Training(self) -> Any:
        """What is about weight updates."""
        return _Group(self, "Training")

    @property
    def Precision(self) -> Any:
        """What is about element types."""
        return _Group(self, "Precision")

    @property
    def TensorLocations(self) -> Any:
        """What is about where tensors are kept."""
        return _Group(self, "TensorLocations")

    @property
    def Distributed(self) -> Any:
        """What is about several processes."""
        return _Distributed(self, "Distributed")

    @property
    def Jit(self) -> Any:
        """What is about tracing."""
        return _Group(self, "Jit")

    @property
    def _Popart(self) -> Any:
        """Settings of the reference's compiler."""
        return _Group(self, "_Popart")

    # ---- setting

    def checkIsFrozen(self, option: str | None = None) -> None:
        """FrozenOptionsError where a model or data loader has taken them."""
        if self._is_frozen:
            raise FrozenOptionsError("Can't modify frozen Options: a model or data loader has taken them; change a "
                                     "clone() of them.")

    def _take(self, entry: table.Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What a setter does."""
        self.checkIsFrozen()
        call = WrittenCall(entry.name, tuple(map(_plain, args)),
                           {name: _plain(value) for name, value in kwargs.items()})
        with of_options():
            if entry.name == "setExecutionStrategy":
                return self._strategy_of(*args, **kwargs)
            with warnings.catch_warnings():
                if entry.script:
                    warnings.simplefilter("ignore")                             # here it has an effect
                found = table.taken(call)
            assert found is not None
            checked = {name: declarations().find(name).check(value) for name, value in found.items()}
            self._add(checked)
        if entry.idle:
            given_one = len(args) == 1 and not kwargs
            self._said[snake_case(entry.name.rpartition(".")[2])] = \
                args[0] if given_one else next(iter(kwargs.values()), args)
        if entry.name == "anchorTensor":
            given = dict(zip(("short_name", "long_name"), args, strict=False)) | dict(kwargs)
            self._anchors[given["short_name"]] = given["long_name"]
        if entry.name == "enableProfiling":
            self._said["profile_dir"] = str(next(iter((*args, *kwargs.values())), None) or ".")
        if entry.name == "_Popart.setEngineOptions":
            folder = report_folder(next(iter((*args, *kwargs.values()))))
            if folder is not None:
                self._said["profile_dir"] = folder
        if entry.name == "randomSeed":
            torch.manual_seed(checked["seed"])

    def _add(self, checked: Mapping[str, Any]) -> None:
        """Take checked values over. InvalidOption where groups of replicas do not fit."""
        values = dict(self._values)
        for name, value in checked.items():
            before = values.get(name)
            if name in ADDED and before is not None and type(before) is type(value):
                value = ({**before, **value} if isinstance(value, Mapping)
                         else (*before, *(v for v in value if v not in before)))
            values[name] = value
        if {"input_group_size", "replication_factor"} & set(checked):
            TileflowOptions(**{n: values[n]
                               for n in ("input_group_size", "replication_factor") if n in values}).validate()
        self.__dict__["_values"] = values

    def _strategy_of(self, strategy: Any) -> None:
        if not isinstance(strategy, ExecutionStrategy):
            raise InvalidOption("setExecutionStrategy needs a poptorch.PipelinedExecution(...), ShardedExecution, "
                                f"SerialPhasedExecution or ParallelPhasedExecution, not {strategy!r}.")
        self.__dict__["_strategy"] = strategy

    def _put(self, name: str, value: Any) -> None:
        """`opts.device_iterations = 4`."""
        self.checkIsFrozen()
        with of_options():
            entry = table.find(name)
            if entry is not None and entry.take is not None:
                self._take(entry, (value,), {})
            else:
                option = READ_AS.get(name, name)
                self._add({option: declarations().find(option).check(word(value)
                                                                     if isinstance(value, enum.Enum) else value)})

    def set(self, **values: Any) -> None:
        """Options by what they are read by: `opts.set(device_iterations=4)`."""
        for name, value in values.items():
            setattr(self, name, value)

    # ---- reading

    def _is_value(self, name: str) -> bool:
        if name == "random_seed":
            return "seed" in self._values
        return name in VALUES or name in READ_AS or name in declarations()

    def exists(self, option: str) -> bool:
        """Whether an option has a value: all have, but for random_seed, which must be set first."""
        return self._is_value(option)

    def _value(self, name: str) -> Any:
        if name == "anchored_tensors":
            return dict(self._anchors)
        if name in VALUES:
            return self._said.get(name, VALUES[name])
        option = READ_AS.get(name, name)
        value = self._every().get(option, declarations()[option].default)
        if option in ENUM_OF:
            return next(m for m in ENUMS[ENUM_OF[option]] if word(m) == value)
        if option == "output_return_period":
            return value or 1
        return dict(value) if isinstance(value, Mapping) else value

    def _every(self) -> dict[str, Any]:
        """tileflow's options that were set."""
        return {**self._values, **({} if self._strategy is None else self._strategy.to_options())}

    def defaultOutputMode(self) -> bool:
        """Whether nobody chose an output mode: training then returns the last micro-batch, inference all of them."""
        return self._value("output_mode") == OutputMode.Default

    def toDict(self) -> dict[str, Any]:
        """What was set, by what it is read by."""
        return {**self._said, **{name: self._value(name) for name in self._every()}}

    def tileflow(self, **changes: Any) -> TileflowOptions:
        """The same as `tileflow.Options`, with changes by keyword.

        Raises:
            InvalidOption: options that are each right do not go together.
        """
        with of_options():
            values = {**self._every(), **changes}
            policy = {name: values.pop(name) for name in ("autocast",) if name in values}
            made = TileflowOptions(**values).filled(policy)  # as of a file: it lists what any model may have
            made.validate()
            return made

    @property
    def anchors(self) -> dict[str, str]:
        """By the short names of `anchorTensor`, the tensors' own."""
        return dict(self._anchors)

    @property
    def report(self) -> tuple[str, str | None] | None:
        """The folder for reports of what is compiled, and what `modelName` calls the model; None: no reports."""
        folder: str | None = self._value("profile_dir")
        return None if folder is None else (folder, self._value("model_name"))

    @property
    def strategy(self) -> ExecutionStrategy | None:
        """What `setExecutionStrategy` was given."""
        found: ExecutionStrategy | None = self._strategy
        return found

    # ---- files and copies

    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Options:
        """Set what the lines of a file say, `deviceIterations(4)`; lines are parsed, never executed.

        Raises:
            ConfigFileError: a line is no call of a known option, or the file cannot be read.
        """
        self.checkIsFrozen()
        path = Path(filepath)
        try:
            found = (read_options_file(path) if path.suffix in files.READERS
                     else files.from_lines(read_text(path), declarations()))
        except OSError as error:
            raise ConfigFileError(f"{path} cannot be read: {error.strerror or error}.") from None
        except (OptionError, ValueError) as error:
            raise ConfigFileError(f"{error} ({path.name})") from None
        if "strategy" in found:
            self.__dict__["_strategy"] = None
        self._add(found)
        return self

    def from_json(self, string: str) -> Options:
        """Set what a text such as `{"deviceIterations": 4, "Training.gradientAccumulation": 8}` says; a list is several
        arguments.

        Raises:
            InvalidOption: the text is no JSON, or holds an unknown or wrong option.
        """
        try:
            given = json.loads(string)
        except (ValueError, RecursionError) as error:
            raise InvalidOption(f"This is no JSON ({error}); "
                                "options are a table such as {\"deviceIterations\": 4}.") from None
        if not isinstance(given, dict):
            raise InvalidOption(f"Options are a table such as {{\"deviceIterations\": 4}}, not a "
                                f"{type(given).__name__}.")
        for name, value in given.items():
            entry = table.find(name)
            if entry is None:
                raise InvalidOption(f"There is no option {name!r}; docs/poptorch.md lists them.")
            if entry.name == "setExecutionStrategy":
                raise InvalidOption("A strategy is no JSON; call setExecutionStrategy.")
            self._take(entry, tuple(value) if isinstance(value, list) else (value,), {})
        return self

    def clone(self) -> Options:
        """A copy that can change."""
        made = object.__new__(Options)
        copied = {name: copy.deepcopy(self.__dict__[name]) for name in ("_said", "_anchors", "_strategy")}
        made.__dict__.update(copied, _values=dict(self._values), _is_frozen=False, _group="", _options=made)
        return made

    def __copy__(self) -> Options:
        return self.clone()

    def __deepcopy__(self, memo: Any) -> Options:
        return self.clone()

    def __getstate__(self) -> dict[str, Any]:
        values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._values.items()}
        return {**{name: value for name, value in self.__dict__.items() if name != "_options"}, "_values": values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _options=self, _values={name: declarations()[name].check(value)
                                                            for name, value in state["_values"].items()})

    def freeze(self) -> Options:
        """Let nobody change them any more; returns them."""
        self.__dict__["_is_frozen"] = True
        return self

    _freeze = freeze

    def of(self, options: TileflowOptions) -> Options:
        """As these options of tileflow's, where somebody gave them."""
        self._add({name: getattr(options, name) for name, _ in options.told().items()})
        self.__dict__["_anchors"] = {name: name for name in options.anchored_tensors}
        return self

    def _shown(self, entries: list[table.Entry]) -> str:
        """What was set of these, as it is read."""
        mine = {snake_case(e.name.rpartition(".")[2]) for e in entries} | {o for e in entries for o in e.options}
        return ", ".join(f"{name}={value!r}" for name, value in self.toDict().items() if name in mine)

    def __repr__(self) -> str:
        groups = [repr(g) for g in (self.Training, self.Precision, self.TensorLocations) if not repr(g).endswith("()")]
        return f"Options({', '.join(filter(None, [self._shown(self._entries()), *groups]))})"


def report_folder(engine_options: Any) -> str | None:
    """The folder that options of the reference's engine ask reports for; None: for none."""
    said = {str(name): str(value).lower() == "true" or value for name, value in engine_options.items()}
    directory = said.get("autoReport.directory")
    return str(directory or ".") if directory or said.get("autoReport.all") is True else None


def _plain(value: Any) -> Any:
    """A value as the lines of a file have it."""
    if isinstance(value, TensorLocationSettings):
        return value.made()
    if isinstance(value, Policy):
        return Made((WrittenCall("poptorch.autocasting.Policy", (), value.names()),))
    if isinstance(value, torch.dtype):
        return Word(str(value))
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value
