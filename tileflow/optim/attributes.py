"""Attributes of optimizers: which are numbers and what they may be, and whether an update reads them (variable) or has them compiled in."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ..system.errors import OptionError
from .schedules import Number as Schedule

ALWAYS_VARIABLE = "loss_scaling"
"""It is a state, which the backward pass reads."""
PARTS: dict[str, tuple[str, ...]] = {"betas": ("beta1", "beta2")}
"""Attributes that are several numbers, and what these are called in an update."""
WORDS = {"lr": "learning rate", "weight_decay": "weight decay", "velocity_scaling": "velocity scaling", "max_weight_norm": "maximum weight norm"}
POSITIVE = ("eps", "velocity_scaling")
BELOW_ONE = ("beta1", "beta2", "alpha")


def numbers_of(name: str, value: Any) -> dict[str, Any]:
    """The numbers that an attribute's value is made of, by what they are called in an update."""
    if name in PARTS:
        return dict(zip(PARTS[name], value, strict=True))
    return {name: math.inf if name == "max_weight_norm" and value is None else value}


def check_number(owner: str, name: str, value: Any) -> Any:
    """The value of an attribute that is a number (or several, or functions of the update index) in its normal form.

    Raises:
        OptionError: it is none, or out of range; the reference's sentences.
    """
    if name in PARTS:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__") or len(tuple(value)) != len(PARTS[name]):
            raise OptionError(f"{owner}: {name} must be {len(PARTS[name])} numbers, got {value!r}.")
        return tuple(check_number(owner, part, one) for part, one in zip(PARTS[name], value, strict=True))
    if callable(value) or (name == "max_weight_norm" and value is None):
        return value
    return check_value(owner, name, value)


def check_value(owner: str, name: str, value: Any) -> float:
    """One number in its range, as a float (OptionError else)."""
    if isinstance(value, (bool, str, bytes)) or np.ndim(value) != 0 or not isinstance(value, (int, float, np.number, np.ndarray)):
        hint = "; the weights are the model's, groups=[...] names some of them" if name == "lr" and hasattr(value, "__iter__") else ""
        raise OptionError(f"{owner}: {name} must be a number or a function of the update index, got {type(value).__name__}{hint}.")
    x, word = float(value), WORDS.get(name, name)
    if math.isnan(x) or (math.isinf(x) and name != "max_weight_norm"):
        raise OptionError(f"{owner}: {name} must be a finite number, got {x!r}.")
    if name in POSITIVE and x <= 0:
        raise OptionError(f"Non-positive {word} ({x:g}) in {owner}, bailing as this might be a user error.")
    if x < 0:
        raise OptionError(f"Negative {word} ({x:g}) in {owner}, bailing as this might be a user error.")
    if name == "average" and x > 1:
        raise OptionError(f"{owner}: average must be at most 1, got {x:g}.")
    if name in BELOW_ONE and x >= 1:
        raise OptionError(f"{owner}: {name} must be below 1, got {x:g}.")
    return x


def check_type(owner: str, name: str, value: Any) -> str | None:
    """The name of an accumulation type; None is the default (OptionError for others)."""
    try:
        found = None if value is None else np.dtype(value).name
    except TypeError:
        found = str(value).removeprefix("torch.")
    if found not in (None, "float16", "bfloat16", "float32"):
        raise OptionError(f"{owner}: Accumulation types must be either float32, float16 or bfloat16; {name} is {value!r}.")
    return found


__all__ = ["ALWAYS_VARIABLE", "PARTS", "AttributeOwner", "Schedule", "VariableAttributes", "check_number", "check_type",
           "check_value", "numbers_of"]


class AttributeOwner(Protocol):
    """What groups and variable attributes ask of the optimizer whose they are."""

    numbers: ClassVar[tuple[str, ...]]
    flags: ClassVar[tuple[str, ...]]

    @property
    def param_groups(self) -> Sequence[Mapping[str, Any]]: ...
    def changed(self) -> None: ...


class VariableAttributes:
    """Which attributes are variables, read by every update, and which constants, compiled into it.

    Those given to the constructor (or in a group) are variable and the others constant, as in PopTorch; lr is always variable unless it is
    marked, and loss_scaling always. Mark before the model is compiled.
    """

    def __init__(self, optimizer: AttributeOwner, given: Iterable[str]) -> None:
        self._optimizer = optimizer
        self._variable = set(given)

    def of(self, other: AttributeOwner) -> VariableAttributes:
        """The same for a copy of the optimizer."""
        return VariableAttributes(other, self._variable)

    def check(self) -> None:
        """OptionError where a constant has a value that none may have."""
        if "lr" not in self._variable and any(group["lr"] == 0 for group in self._optimizer.param_groups):
            raise OptionError(f"Constant, zero learning rate in {type(self._optimizer).__name__}, bailing as this might be a user error.")

    def _known(self, name: str) -> str:
        allowed = [*self._optimizer.numbers, ALWAYS_VARIABLE]
        if name not in allowed:
            raise OptionError(f"Unknown attribute {name}, allowed values: {allowed}.")
        return name

    def mark_as_constant(self, name: str) -> None:
        """Compile its value into the update.

        Raises:
            OptionError: there is no such attribute, or its value changes: a function of the update index, the loss scale.
        """
        if self._known(name) == ALWAYS_VARIABLE:
            raise OptionError("loss_scaling is always variable: it is a state, which the backward pass reads.")
        owner = type(self._optimizer).__name__
        values = [x for group in self._optimizer.param_groups for x in numbers_of(name, group[name]).values()]
        if any(map(callable, values)):
            raise OptionError(f"{owner}: {name} is a function of the update index, which cannot be constant; give it a number first.")
        before = set(self._variable)
        self._variable.discard(name)
        try:
            self.check()
        except OptionError:
            self._variable = before
            raise
        self._optimizer.changed()

    def mark_as_variable(self, name: str) -> None:
        """Let every update read it."""
        self._variable.add(self._known(name))
        self._optimizer.changed()

    def is_constant(self, name: str) -> bool:
        return self._known(name) not in self._variable
