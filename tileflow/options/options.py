"""Every setting of a run, typed and checked where it is set.

    Options(micro_batch_size=40, epochs=3)      keywords
    options.learning_rate = 1e-2                checked on assignment
    Options.load("run.toml")                    a TOML or JSON file, parsed and never executed

Each field declares all that is known of an option once (`declaration.Declaration`), in the file of its group: flags,
error sentences, options files, which verb uses it and what a resumed run may change all follow from that declaration.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..system.errors import OptionError
from . import files as options_file
from .batching import BatchingOptions, OutputMode
from .data import AUGMENTATIONS, DataOptions
from .declaration import GROUPS, MODEL_TABLE, Declarations
from .execution import ExecutionOptions
from .kinds import grouping, serial_split
from .loop import LoopOptions
from .loss_scaling import LossScalingOptions
from .machine import MachineOptions
from .optimizer import OptimizerOptions
from .run import RunOptions
from .settings import FrozenOptionsError, Settings, by_any_name
from .training import TrainingOptions

__all__ = ["GROUPS", "MODEL_TABLE", "FrozenOptionsError", "Options", "declarations", "default_options", "near_names",
           "read_options_file", "renamed", "with_defaults"]

MEASURED_TWICE = "Options test_data and validation_split exclude each other: the rows to measure with come from one of them."


@dataclass(kw_only=True, repr=False)
class Options(Settings, RunOptions, LoopOptions, MachineOptions, ExecutionOptions, DataOptions, LossScalingOptions,
              OptimizerOptions, TrainingOptions, BatchingOptions):          # the last one's fields come first
    """All options of training and inference; every field works as a keyword of `tileflow.train` and as a command-line
    flag.

    Raises OptionError where a name is unknown or a value is of the wrong type or out of range, at construction and on
    assignment alike. Once a model or data loader uses them, options are frozen; `clone()` gives a copy that can change.
    """

    def validate(self) -> None:
        """OptionError where options that are each right do not go together."""
        if self.output_mode == "every_n":
            period = self.output_return_period
            if period is None or self.device_iterations % period:
                raise OptionError(f"Option output_mode 'every_n' needs an output_return_period that divides "
                                  f"device_iterations ({self.device_iterations}), not {period}.")
        if self.replication_factor % self.input_group_size:
            why = "cannot be larger than" if self.input_group_size > self.replication_factor else "must be a factor of"
            raise OptionError(f"Option input_group_size {why} replication_factor: {self.input_group_size} is given, "
                              f"and there are {self.replication_factor} replicas.")
        self._validate_grouping()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise OptionError(f"Option nesterov needs momentum above 0 and dampening 0, not momentum {self.momentum:g} "
                              f"and dampening {self.dampening:g}.")
        self._validate_schedule()
        for name in ("bin_edge_location", "threshold_upper_count_proportion"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise OptionError(f"Out of range value for '{name}'. The current value is {value:g}, but it should be "
                                  "in the range [0, 1].")
        if self.automatic_loss_scaling == "dynamic" and self.skip_non_finite is False:
            raise OptionError("Option automatic_loss_scaling 'dynamic' finds the scale by the updates that it skips; "
                              "leave skip_non_finite=False out, or choose histogram.")
        if self.gradient_noise and self.gradient_accumulation * self.replication_factor < 2:
            raise OptionError("Option gradient_noise compares the micro-batches of an update, and there is one; give "
                              "gradient_accumulation 2 or more.")
        if self.frozen and self.trainable:
            raise OptionError("Options frozen and trainable exclude each other: name either the parameters to leave or "
                              "those to train.")
        if not self.autocast_enabled and (self.precision.endswith("mixed") or self.autocast):
            given = f"precision {self.precision}" if self.precision.endswith("mixed") else "autocast"
            raise OptionError(f"Option {given} casts automatically, which autocast_enabled = false forbids; leave one "
                              "of them out.")
        if self.bits == "portable" and self.matmul_precision != "highest":
            raise OptionError(f"Option matmul_precision {self.matmul_precision!r} is for products in tiles, which bits "
                              "'portable' does without; leave one of them out.")
        if strange := [name for name in self.augment if name not in AUGMENTATIONS]:
            raise OptionError(f"Option augment takes {', '.join(AUGMENTATIONS)}, not {strange[0]!r}.")
        if len(self.image_size) > 2:
            raise OptionError("Option image_size takes a height and a width, or one number for both, not "
                              f"{list(self.image_size)}.")
        if self.test_data is not None and self.validation_split > 0:
            raise OptionError(MEASURED_TWICE)

    def _validate_grouping(self) -> None:
        for name, (kind, size, _) in self.groupings.items():
            if self.replication_factor % size:
                why = "cannot be larger than" if size > self.replication_factor else "must be a factor of"
                raise OptionError(f"Option replica_grouping: the size of {name}={kind}:{size} {why} "
                                  f"replication_factor, and there are {self.replication_factor} replicas.")
        if self.replica_grouping and not self.drop_last:
            raise OptionError("Option replica_grouping: with drop_last=False the last rows would train the weights of "
                              "replica 0 only; leave one of the two out.")

    def _validate_schedule(self) -> None:
        if self.schedule == "step" and not (self.schedule_epochs and min(self.schedule_epochs) >= 1
                                            and list(self.schedule_epochs) == sorted(self.schedule_epochs)):
            raise OptionError("Option schedule 'step' needs schedule_epochs, after how many epochs the rate falls "
                              f"(every 30: 30; at 30 and at 60: 30,60), not {list(self.schedule_epochs)}.")
        if self.schedule in ("cosine", "plateau") and (len(self.schedule_epochs) > 1
                                                       or (self.schedule == "cosine" and 0 in self.schedule_epochs)):
            raise OptionError(f"Option schedule {self.schedule!r} takes one number of schedule_epochs, not "
                              f"{list(self.schedule_epochs)}.")
        if self.schedule == "exponential" and self.schedule_gamma is None:
            raise OptionError("Option schedule 'exponential' needs schedule_gamma, what the rate is multiplied with "
                              "after each epoch, such as 0.95.")
        if self.schedule == "plateau" and self.schedule_gamma is not None and self.schedule_gamma >= 1:
            raise OptionError("Option schedule_gamma must be below 1 for the schedule 'plateau', not "
                              f"{self.schedule_gamma:g}.")
        if self.warmup and self.schedule == "one_cycle":
            raise OptionError("Option warmup has no place before the schedule 'one_cycle', which begins with a rise of "
                              "its own; leave it out.")
        for name in ("warmup", "swa_start"):
            if (value := getattr(self, name)) >= 1 and value != int(value):
                raise OptionError(f"Option {name} must be a whole number of updates, or a share of the run below 1, "
                                  f"not {value:g}.")

    def output_mode_for(self, training: bool) -> OutputMode:
        """The output mode with "default" resolved: final for training, all for inference."""
        if self.output_mode != "default":
            return self.output_mode
        return "final" if training else "all"

    def for_inference(self) -> Self:
        """These, without accumulation where only a file asks for it: a run's file says how it was trained."""
        given = self.given("gradient_accumulation", files=False)
        return self if given else self.clone(gradient_accumulation=1)

    def require_one(self, names: Iterable[str], why: str) -> None:
        """OptionError, which begins with `why`, where one of these options is another number than 1."""
        for name in names:
            if (value := getattr(self, name)) != 1:
                raise OptionError(f"{why}: leave {name}={value} out.")

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """Patterns of the parameters to leave alone: `trainable` alone means all others."""
        return ("*",) if self.trainable and not self.frozen else self.frozen

    @property
    def serial_splits(self) -> dict[str, tuple[str, int]]:
        """`serialized_matmul` as mode and factor by name pattern."""
        return {name: serial_split(text) for name, text in self.serialized_matmul.items()}

    @property
    def groupings(self) -> dict[str, tuple[str, int, str]]:
        """`replica_grouping` as type, size and retrieval by name pattern."""
        return {name: grouping(text) for name, text in self.replica_grouping.items()}

    @property
    def global_batch_size(self) -> int:
        """Rows per weight update, of all replicas; what several of them get counts once."""
        return self.micro_batch_size * self.gradient_accumulation * self.input_groups

    @property
    def input_groups(self) -> int:
        """Replicas that get rows of their own."""
        return self.replication_factor // self.input_group_size

    @property
    def combined_batch_size(self) -> int:
        """Rows per call of the engine."""
        return self.global_batch_size * self.device_iterations


Options.__init__ = by_any_name(Options.__init__)          # type: ignore[method-assign]


def declarations() -> Declarations:
    """The declarations of all options by name, in the order of the class."""
    return Options.declared()


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by what they are called now; names that are none stay as they are. OptionError where one is set by two of
    its names."""
    return declarations().renamed(values)


def near_names(name: str) -> list[str]:
    """Options that somebody may have meant by a name that is none: what others call it, else what is spelled alike."""
    return declarations().near(name)


def read_options_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options that a file sets, flat and checked by name; OptionError where it cannot be used."""
    return options_file.read(path, declarations())


DEFAULTS = "TILEFLOW_DEFAULT_OPTIONS"
"""The environment variable that may name a file of options for all runs."""


def default_options() -> dict[str, Any]:
    """What the file says that the environment names; empty where it names none. OptionError where it cannot be used."""
    path = os.environ.get(DEFAULTS)
    if not path:
        return {}
    try:
        return read_options_file(path)
    except OptionError as error:
        raise OptionError(f"{DEFAULTS}: {error}") from None


def with_defaults(options: Options) -> Options:
    """The options, and what neither code nor a file gives as `default_options` say."""
    found = default_options()
    return options.filled(found, "defaults") if found else options
