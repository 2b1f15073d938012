"""Optimizers, losses, schedules and loggers by name: what options take, said once, and where the rooms that have them
find their makers.

Options know none of those rooms, which are built on them, and --help loads none: an entry names its maker, and the room
itself loads it.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from .needs import joined


@dataclass(frozen=True)
class Registered:
    """What a name stands for.

    maker: "module.attribute" in the room that has the registry. options: those that count with some of the names only,
    and with this one. defaults: options that are something else with this name where nobody sets them.
    """

    maker: str
    options: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


class Registry(Mapping[str, Registered]):
    """The names that an option takes, in their order."""

    def __init__(self, option: str, entries: Mapping[str, Registered], late: bool = False) -> None:
        """late: which name it is may be decided after the options were given."""
        self.option, self.late, self._entries = option, late, dict(entries)

    def __getitem__(self, name: str) -> Registered:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def own(self) -> tuple[str, ...]:
        """Options that do not count with all of the names."""
        return tuple(dict.fromkeys(option for entry in self.values() for option in entry.options))

    def having(self, option: str) -> tuple[str, ...]:
        """The names that an option counts with."""
        return tuple(name for name, entry in self.items() if option in entry.options)

    def whose(self, option: str) -> str:
        """These names in words: "sgd, rmsprop", "all but sgd"."""
        others = [name for name, entry in self.items() if option not in entry.options]
        return f"all but {others[0]}" if len(others) == 1 else ", ".join(self.having(option))

    def told(self, option: str) -> str:
        """An option's defaults in words, where names have their own: "0.01 for adamw and lamb"."""
        values = dict.fromkeys(entry.defaults[option] for entry in self.values() if option in entry.defaults)
        names = {x: joined(name for name, entry in self.items() if entry.defaults.get(option) == x) for x in values}
        return ", ".join(f"{x:g} for {those}" for x, those in names.items())

    def makers(self, room: str) -> dict[str, Any]:
        """What the names stand for, loaded from `room`, a package."""
        return {name: self.maker(name, room) for name in self}

    def maker(self, name: str, room: str) -> Any:
        """What one of them stands for."""
        module, _, made = self[name].maker.rpartition(".")
        return getattr(import_module(f"{room}.{module}"), made)


_MOMENTS = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
_ADAM = ("betas", "eps", "bias_correction", *_MOMENTS)
OPTIMIZERS = Registry("optimizer", {
    "sgd": Registered("sgd.SGD", ("momentum", "dampening", "nesterov", "velocity_scaling", "use_combined_accum",
                                  "velocity_accum_type")),
    "adam": Registered("adam.Adam", _ADAM),
    "adamw": Registered("adam.AdamW", _ADAM, {"weight_decay": 0.01}),
    "rmsprop": Registered("rmsprop.RMSprop", ("momentum", "eps", *_MOMENTS, "alpha", "centered", "use_tf_variant")),
    "lamb": Registered("lamb.LAMB", (*_ADAM, "max_weight_norm"), {"weight_decay": 0.01}),
})
"""Classes of `tileflow.optim`."""

_CLASSES = ("ignore_index", "class_weights", "class_axis")
LOSSES = Registry("loss", {
    "cross_entropy": Registered("classes.cross_entropy", (*_CLASSES, "label_smoothing")),
    "nll": Registered("classes.nll", _CLASSES),
    "soft_cross_entropy": Registered("soft.soft_cross_entropy", ("class_weights", "class_axis", "label_smoothing")),
    "focal": Registered("focal.focal", (*_CLASSES, "focal_gamma")),
    "kl": Registered("soft.kl", ("class_weights", "class_axis", "label_smoothing")),
    "dice": Registered("dice.dice", _CLASSES),
    "mse": Registered("numbers.mse"),
    "l1": Registered("numbers.l1"),
    "huber": Registered("numbers.huber", ("huber_delta",)),
    "bce": Registered("numbers.bce"),
    "bce_with_logits": Registered("numbers.bce_with_logits"),
    "identity": Registered("own.identity"),
}, late=True)
"""Functions of the options in `tileflow.loss`; the option's auto is one of these."""

SCHEDULES = Registry("schedule", {
    "constant": Registered("named.constant"),
    "step": Registered("named.step", ("schedule_epochs", "schedule_gamma")),
    "exponential": Registered("named.exponential", ("schedule_gamma",)),
    "linear": Registered("named.linear", ("schedule_end",)),
    "polynomial": Registered("named.polynomial", ("schedule_power", "schedule_end")),
    "cosine": Registered("named.cosine", ("schedule_epochs", "schedule_end")),
    "one_cycle": Registered("named.one_cycle"),
    "plateau": Registered("named.plateau", ("schedule_epochs", "schedule_gamma", "schedule_end")),
})
"""Functions of the options in `tileflow.optim.schedules`: the learning rate."""

LOGGERS = Registry("log", {
    "csv": Registered("loggers.CSVLogger"),
    "tensorboard": Registered("tensorboard.TensorBoardLogger"),
    "wandb": Registered("tracker.wandb"),
    "trackio": Registered("tracker.trackio"),
})
"""Callbacks in `tileflow.runtime.callbacks`."""
