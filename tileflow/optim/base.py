"""What an optimizer is: hyper-parameters that may change between updates, states per weight, one graph builder."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from ..errors import OptionError
from ..graph import Builder, Graph, Origin, State, TensorType, Value

Schedule = float | Callable[[int], float]
"""A number, or a function from the update index (0, 1, …) to a number: an array of rates becomes `rates.__getitem__`."""


@dataclass
class Optimizer:
    """Base. Fields of type `Schedule` are *variable*: read before each call, one value per update, never compiled in.

    Change them by assignment (`optimizer.lr = 1e-4`): a value set by hand holds for the whole next call.
    """

    lr: Schedule = 1e-3
    weight_decay: Schedule = 0.0
    variable: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    slots: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the states that each weight has, all of the type its update is computed in and starting at zero."""
    counts: ClassVar[bool] = False
    """Keeps the number of updates done (float64, starts at zero) for bias correction."""

    def __post_init__(self) -> None:
        for name in self.variable:
            number = getattr(self, name)
            if not callable(number) and not float(number) >= 0:
                raise OptionError(f"{type(self).__name__}: {name} must be a number >= 0 (or a function of the update index), got {number!r}.")

    def values(self, update: int) -> dict[str, float]:
        """The variable hyper-parameters at an update index."""
        result = {}
        for name in self.variable:
            number = getattr(self, name)
            result[name] = float(number(update) if callable(number) else number)
        return result

    def step(self, u: Update) -> Value:
        """The weight's new value; writes new states through `u`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Constructor fields for logs and checkpoints; schedules by name."""
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"name": type(self).__name__} | {k: getattr(v, "__name__", "schedule") if callable(v) else v for k, v in shown.items()}


@dataclass
class Update:
    """One weight's update under construction: weight, gradient and states in the type that it is computed in (`arithmetic`)."""

    b: Builder
    weight: Value
    gradient: Value
    slots: Mapping[str, Value]
    hyper: Mapping[str, Value]              # float64 scalars
    count: Value | None                     # updates done, this one included (float64 scalar)
    written: dict[str, Value] = field(default_factory=dict)

    def cast(self, scalar: Value) -> Value:
        """A float64 scalar in the type of the update."""
        return _cast(self.b, scalar, self.weight.dtype)

    def number(self, x: float) -> Value:
        """A float64 scalar constant."""
        return self.b.constant(np.array(x, np.float64))

    def one_minus(self, scalar: Value) -> Value:
        return self.b.Sub(self.number(1.0), scalar)


def arithmetic(t: TensorType) -> TensorType:
    """What updates of a weight are computed in, and its moments kept in: float32 for 16-bit weights, in which eps would be 0, small
    moments would be lost and small steps add up to nothing. The weight itself is rounded once."""
    return t.with_dtype("float32") if t.is_half else t


def _cast(b: Builder, value: Value, dtype: str) -> Value:
    return value if value.dtype == dtype else b.Cast(value, to=dtype)


def decayed(u: Update, gradient: Value) -> Value:
    """L2 regularisation: g + wd * w."""
    return u.b.Add(gradient, u.b.Mul(u.cast(u.hyper["weight_decay"]), u.weight))


def unscaled(u: Update, gradient: Value, factor: float) -> Value:
    """g * factor: undoes loss scaling and turns the sum over micro-batches into a mean."""
    return gradient if factor == 1.0 else u.b.Mul(gradient, u.b.scalar(factor, gradient))


def build_update(optimizer: Optimizer, parameters: list[State], gradients: list[Value | None], factor: float) -> tuple[Graph, dict[str, Value]]:
    """The update graph for trainable parameters.

    Args:
        gradients: per parameter the value that arrives from the micro-step (an input is made), or None: an accumulator
            state `<name>.grad` holds it.
        factor: multiplies each gradient.

    Returns:
        the graph, and the new input per parameter name where a gradient arrives from the micro-step.
    """
    graph = Graph("update")
    b = Builder(graph)

    def state(name: str, kind: Any, type: TensorType, group: str, owner: str = "", role: str = "") -> State:
        made = State(name, kind, Value(b.name(name), type), group=group, owner=owner, role=role)
        graph.states.append(made)
        return made

    hyper = {}
    for name in optimizer.variable:
        hyper[name] = state(f"optimizer.{name}", "scalar", TensorType("float64", ()), "scalar", "optimizer", name).input
    count = None
    if optimizer.counts:
        counter = state("optimizer.step", "optimizer", TensorType("float64", ()), "optimizer.step", "optimizer", "step")
        count = counter.output = b.Add(counter.input, b.scalar(1.0, counter.input))
    arrivals = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        type = parameter.input.type
        weight = state(parameter.name, "parameter", type, parameter.group)
        if gradient is None:
            g = state(f"{parameter.name}.grad", "accumulator", type, f"{parameter.group}.grad", parameter.name, "grad").input
        else:
            g = arrivals[parameter.name] = b.input(f"{parameter.name}.grad", type)
        wide = arithmetic(type)
        slots = {s: state(f"{parameter.name}.{s}", "optimizer", wide, f"{parameter.group}.{s}", parameter.name, s) for s in optimizer.slots}
        with b.at(Origin((parameter.name,), "update")):
            u = Update(b, _cast(b, weight.input, wide.dtype), _cast(b, g, wide.dtype), {s: v.input for s, v in slots.items()}, hyper, count)
            u.gradient = unscaled(u, u.gradient, factor)
            weight.output = _cast(b, optimizer.step(u), type.dtype)
            for suffix, value in u.written.items():
                slots[suffix].output = value
    return graph, arrivals
