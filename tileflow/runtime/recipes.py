"""Optimizers and losses as data: what of them a file can hold, so that another process makes them again.

A compiled program holds what they compute; what is left is what a call asks of them: numbers at each update, and which
labels a loss takes. Functions and classes of somebody's own are no data: they are named, and whoever reads gives them.
"""
from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from ..loss import ClassLoss, IdentityLoss, Loss, NumberLoss, OutputLoss, SeveralLosses, SoftClassLoss, WeightedLoss
from ..loss.dice import BinaryDiceLoss, DiceLoss
from ..loss.focal import FocalLoss
from ..loss.numbers import HuberLoss
from ..memory.types import TensorType
from ..optim import CLASSES, Optimizer, schedules
from ..program.fields import Fault, read, shown, written
from ..system.errors import TileflowError, UnsupportedError

DEEPEST = 16
"""Schedules within schedules."""

# ---- losses

LOSSES: Mapping[str, type[Loss]] = {kind.__name__: kind for kind in (
    BinaryDiceLoss, ClassLoss, DiceLoss, FocalLoss, HuberLoss, IdentityLoss, NumberLoss, SoftClassLoss)}
"""Those that are data; others hold such (`WeightedLoss`, `SeveralLosses`)."""
NESTED = 3
"""Losses within losses."""


@dataclasses.dataclass(frozen=True)
class CompiledLoss(Loss):
    """A loss of somebody's own, of which there is only what was compiled of it."""

    name: str
    takes: Literal["classes", "numbers", "nothing", "anything"] = "anything"      # type: ignore[misc]

    def _absent(self) -> NoReturn:
        raise UnsupportedError(f"The loss {self.name} is compiled into the executable, which has nothing else of it: "
                               "give the loss to tileflow.training_model with the model itself, to compile it for "
                               "other shapes or to measure with it.")

    def __call__(self, b: Any, outputs: Any) -> NoReturn:
        self._absent()

    def rows(self, b: Any, outputs: Any) -> NoReturn:
        self._absent()

    def label_type(self, outputs: Sequence[TensorType]) -> None:
        return None


def loss_data(loss: Loss) -> dict[str, Any]:
    """A loss as data."""
    kind = type(loss).__name__
    if isinstance(loss, WeightedLoss):
        return {"class": kind, "fields": {"inner": loss_data(loss.inner)}}
    if isinstance(loss, SeveralLosses):
        parts = [{"part": [p.output, p.place, float(p.factor)], "loss": loss_data(p.loss)} for p in loss.parts]
        return {"class": kind, "fields": {"parts": parts}}
    if LOSSES.get(kind) is type(loss):
        return {"class": kind, "fields": written(loss, type(loss), f"the loss {loss.name}")}
    return {"class": CompiledLoss.__name__, "fields": {"name": loss.name, "takes": loss.takes}}


def loss_of(data: Any, outputs: int, depth: int = NESTED) -> Loss:
    """The loss that `loss_data` wrote (Fault where it is none, or of an output that is not among so many)."""
    kinds = {**LOSSES, **{k.__name__: k for k in (CompiledLoss, SeveralLosses, WeightedLoss)}}
    kind = _named(kinds, data["class"]) if type(data) is dict and data.keys() == {"class", "fields"} else None
    if kind is None or not depth:
        raise Fault("the loss", f"is {shown(data)}")
    fields = data["fields"]
    if kind is WeightedLoss:
        return WeightedLoss(loss_of(_field(fields, "inner"), outputs, depth - 1))
    if kind is SeveralLosses:
        parts = _field(fields, "parts")
        if type(parts) is not list or not parts or not all(type(p) is dict and p.keys() == {"part", "loss"}
                                                           for p in parts):
            raise Fault("the loss", f"is {shown(data)}")
        own = [read(p["part"], tuple[str, int, float], "the loss") for p in parts]
        if not all(0 <= place < outputs for _, place, _ in own):
            raise Fault("the loss", f"is of an output that is not there: {shown(data)}")
        return SeveralLosses(tuple(OutputLoss(output, place, loss_of(p["loss"], outputs, depth - 1), factor)
                                   for p, (output, place, factor) in zip(parts, own, strict=True)))
    found: Loss = read(fields, kind, "the loss")
    return found


def _field(fields: Any, name: str) -> Any:
    """The only field of what holds other losses."""
    if type(fields) is not dict or fields.keys() != {name}:
        raise Fault("the loss", f"is {shown(fields)}")
    return fields[name]


def _named(kinds: Mapping[str, Any], name: Any) -> Any:
    """The class of that name; None where there is none, or it is no name."""
    return kinds.get(name) if type(name) is str else None


# ---- optimizers

_SCHEDULES: Mapping[str, type[schedules.Schedule]] = {
    name: kind for name in schedules.__all__
    if isinstance(kind := getattr(schedules, name), type) and issubclass(kind, schedules.Schedule)}


class Recipe:
    """An optimizer as data.

    asked: what of it is none, as words: functions of the update, a class of somebody's own.
    """

    def __init__(self, optimizer: Optimizer, named: Mapping[int, str]) -> None:
        """Args:
            named: names of the model's own parameter objects, by identity.
        """
        kind = type(optimizer)
        self.asked: list[str] = []
        self.data: dict[str, Any] | None = None
        if kind not in CLASSES.values():
            self.asked.append(f"the optimizer {kind.__name__}")
            return
        fields: dict[str, Any] = {}
        for f in dataclasses.fields(kind):
            if f.name == "groups":
                fields["groups"] = [self._group(group, named) for group in optimizer.param_groups[1:]]
            else:
                fields[f.name] = self._written(getattr(optimizer, f.name), f.name)
        self.data = {"class": kind.__name__, "fields": fields, "variable": list(optimizer.variable)}

    def _group(self, group: Any, named: Mapping[int, str]) -> dict[str, Any]:
        names: list[str] = []
        for item in group.params:
            objects = item.parameters() if hasattr(item, "parameters") else [item]
            names += [item] if isinstance(item, str) else [named[id(p)] for p in objects if id(p) in named]
        own = {name: self._written(x, f"{name} of group {group.name}") for name, x in group.own.items()}
        return {"params": names or [group.name], "name": group.name, **own}

    def _written(self, value: Any, what: str) -> Any:
        if isinstance(value, schedules.Schedule) and _SCHEDULES.get(type(value).__name__) is type(value):
            fields = vars(value) if isinstance(value, schedules.chained) else \
                {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}  # type: ignore[arg-type]
            return {"schedule": type(value).__name__, "fields": {n: self._written(x, what) for n, x in fields.items()}}
        if callable(value):
            self.asked.append(f"{what}, the function {schedules.described(value)}")
            return None
        if isinstance(value, (list, tuple)):
            return [self._written(x, what) for x in value]
        if isinstance(value, np.generic):
            value = value.item()
        return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def optimizer_of(data: Any) -> Optimizer:
    """The optimizer of a `Recipe` (Fault where it is none)."""
    at = "the optimizer"
    is_recipe = type(data) is dict and data.keys() == {"class", "fields", "variable"}
    kind = _named(_BY_NAME, data["class"]) if is_recipe else None
    if kind is None:
        raise Fault(at, f"is {shown(data)}")
    fields, variable = data["fields"], read(data["variable"], tuple[str, ...], f"{at}.variable")
    if type(fields) is not dict or fields.keys() != {f.name for f in dataclasses.fields(kind)}:
        raise Fault(f"{at}.fields", "are not those of its class")
    try:
        made: Optimizer = kind(**{name: _groups(x) if name == "groups" else _value(x) for name, x in fields.items()})
        for name in made.numbers:
            if name in variable:
                made.variable_attrs.mark_as_variable(name)
            else:
                made.variable_attrs.mark_as_constant(name)
    except Fault:
        raise
    except (TileflowError, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        raise Fault(at, f"cannot be: {error}") from None
    return made


_BY_NAME = {kind.__name__: kind for kind in CLASSES.values()}


def _groups(data: Any) -> tuple[dict[str, Any], ...]:
    if type(data) is not list or not all(type(group) is dict and type(group.get("params")) is list for group in data):
        raise Fault("the optimizer's groups", f"are {shown(data)}")
    return tuple({name: x if name in ("params", "name") else _value(x) for name, x in group.items()} for group in data)


def _value(data: Any, depth: int = 0) -> Any:
    """What `Recipe` wrote of an attribute."""
    if depth > DEEPEST:
        raise Fault("the optimizer", f"has schedules within schedules, more than {DEEPEST} deep")
    if type(data) is list:
        return tuple(_value(x, depth + 1) for x in data)
    if type(data) is not dict:
        return data
    if data.keys() == {"float"} and data["float"] in ("inf", "-inf"):
        return float(data["float"])
    kind = _named(_SCHEDULES, data["schedule"]) if data.keys() == {"schedule",
                                                                   "fields"} and type(data["fields"]) is dict else None
    if kind is None:
        raise Fault("the optimizer", f"has {shown(data)}, which is no attribute")
    fields = {name: _value(x, depth + 1) for name, x in data["fields"].items()}
    return kind(fields["lr"], *fields["factors"]) if kind is schedules.chained else kind(**fields)


def structure_data(optimizer: Optimizer) -> dict[str, Any]:
    """What of an optimizer is compiled in, in JSON's types: two with the same can take each other's place."""
    found = optimizer.structure()
    groups = [list(group.own) for group in optimizer.param_groups]
    made: dict[str, Any] = json.loads(json.dumps({**found, "class": type(optimizer).__name__, "groups": groups},
                                                 default=str))
    return made
