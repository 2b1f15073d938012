"""What an optimizer is to its user: attributes, groups of weights, what is variable; and, for the update, a chain of transforms."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from ..system.errors import OptionError
from .attributes import ALWAYS_VARIABLE, PARTS, Schedule, VariableAttributes, check_number, check_type, check_value, numbers_of
from .bound import Bound
from .groups import ParamGroup
from .listed import TakesParameters
from .scaling import check_scale
from .schedules import UNKNOWN, Run, described, value_at
from .transform import AVERAGE, AverageWeights, Chain, Slot, chain

TORCH_ONLY = {
    "amsgrad": "Only non-amsgrad Adam/AdamW optimizers are supported",
    "maximize": "maximize is not supported, but minimising the negated loss is",
    "foreach": "foreach chooses among PyTorch's implementations, and there is one here",
    "fused": "fused chooses among PyTorch's implementations, and there is one here, which is fused",
    "capturable": "capturable is about CUDA graphs",
    "differentiable": "differentiable is not supported: no gradient goes through an update",
    "decoupled_weight_decay": "AdamW has the decoupled decay",
    "adam": "adam is not supported; LAMB(bias_correction=False) leaves the correction out",
}
"""Arguments that PyTorch's optimizers take, and why they are refused."""


@dataclass
class Optimizer(Bound, metaclass=TakesParameters):
    """Base of the optimizers.

    Attributes given to the constructor are *variable*: read before each call, one value per update, never compiled in. Change them by
    assignment (`optimizer.lr = 1e-4`): a value set by hand holds for the whole next call. The others are *constants* of the compiled
    update, which may not change any more (see `variable_attrs`); lr is always variable.

    Weights may come first, as in PyTorch: AdamW(net.parameters(), lr=1e-3), or a list of tables such as {"params":
    net.head, "lr": 1e-4}. Then it is for these only, and other weights are not trained.

    Args:
        lr, weight_decay, …: numbers, or functions of the update index (schedules).
        groups: weights with attributes of their own, as PyTorch writes them: [{"params": "*.bias", "weight_decay": 0}]; params is a name
            pattern, a module, a parameter, or a list of these. What a group does not say is as for the others.
        no_decay: "auto" or name patterns: weights without weight decay, unless their group has one of its own. auto: biases and norms,
            which are the parameters of at most one dimension and those whose name ends in bias.
        max_grad_norm: the gradients of all groups together are scaled to at most this norm; infinity: they are as they are.
        accum_type: element type in which micro-batches' gradients are accumulated (float32, float16, bfloat16); by default that of the
            parameter, and float32 for 16-bit ones.
        torch_compat: PyTorch's form where it differs from PopTorch's.
    """

    lr: Schedule = 1e-3
    weight_decay: Schedule = 0.0
    groups: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    no_decay: str | Sequence[str] = field(default=(), kw_only=True)
    max_grad_norm: float = field(default=math.inf, kw_only=True)
    accum_type: Any = field(default=None, kw_only=True)
    torch_compat: bool = field(default=False, kw_only=True)
    loss_scaling: float | None = field(default=None, kw_only=True)
    """Factor on the loss, taken out of the gradients again before anything else is done with them; None: that of the options. Always variable: an
    assigned one holds from the next call on, in automatic modes as what is adapted from there."""
    average: Schedule | None = field(default=None, kw_only=True)
    """An average of each weight beside it: how much of the average stays at an update, a number or a schedule
    (`schedules.ema`, `schedules.swa`); None: there are no averages. Always variable."""

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    """Attributes that are numbers: groups may have their own, and they are variable or constant."""
    flags: ClassVar[tuple[str, ...]] = ()
    """Attributes that are true or false, of which groups may have their own; always constant."""
    types: ClassVar[tuple[str, ...]] = ("accum_type",)
    """Attributes that are element types."""
    combined: ClassVar[bool] = False
    """Micro-batches are added to the velocity itself."""

    def __new__(cls, *args: Any, **named: Any) -> Optimizer:
        for name, why in TORCH_ONLY.items():
            if name in named:
                raise OptionError(f"{cls.__name__}: {why}; leave {name} out.")
        known = [f.name for f in fields(cls)]
        for name in named:
            if name not in known:
                raise OptionError(f"{cls.__name__} has no argument {name!r}; it takes {', '.join(known)}.")
        made = super().__new__(cls)
        made.__dict__["_given"] = (*known[:len(args)], *named)
        return made

    def __post_init__(self) -> None:
        given = self.__dict__["_given"]
        if isinstance(self.groups, Mapping) or not all(isinstance(g, Mapping) for g in self.groups):
            raise OptionError(f"{type(self).__name__}: groups is a list of tables such as {{\"params\": \"*.bias\", \"weight_decay\": 0}}, "
                              f"not {self.groups!r}.")
        self.__dict__["_groups"] = [ParamGroup(self, i, g) for i, g in enumerate(({}, *self.groups))]
        own = [name for g in self.param_groups for name in g.own]
        self.__dict__["_attrs"] = VariableAttributes(self, ["lr", ALWAYS_VARIABLE, *(n for n in (*given, *own) if n in self.numbers)])
        names = [group.name for group in self.param_groups]
        if len(set(names)) < len(names):
            raise OptionError(f"{type(self).__name__}: two groups have one name among {', '.join(names[1:])}; a group without one is called by its "
                              "number.")
        self._check_all()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in (f.name for f in fields(self)):
            near = ", ".join(f.name for f in fields(self))
            raise OptionError(f"{type(self).__name__} has no attribute {name!r}; it has {near}.")
        before = self.__dict__.get(name)
        object.__setattr__(self, name, self._checked(name, value))
        if "_attrs" in self.__dict__:
            self.changed()
            try:
                self._check_all()
            except OptionError:
                object.__setattr__(self, name, before)
                raise

    def _check_all(self) -> None:
        self.check()
        self.variable_attrs.check()
        for group in self.param_groups:
            self.check_group(group)

    def __copy__(self) -> Optimizer:
        return self._copied(lambda x: x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        """Schedules are copied as well. The weights that it is for stay the same ones, but for those that are being
        copied with it, as in a copy of a model."""
        made = self._copied(lambda x: copy.deepcopy(x, memo))
        for group in made.param_groups:
            group.params = tuple(memo.get(id(item), item) for item in group.params)
        if (only := self.__dict__.get("_only")) is not None:
            made.__dict__["_only"] = type(only)(memo.get(id(item), item) for item in only)
        return made

    def _copied(self, one: Callable[[Any], Any]) -> Optimizer:
        made = object.__new__(type(self))
        made.__dict__.update({n: x if n == "groups" or n.startswith("_") else one(x) for n, x in self.__dict__.items()})
        made.__dict__["_groups"] = [group.of(made, one) for group in self.param_groups]
        made.__dict__["_attrs"] = self.variable_attrs.of(made)
        made.changed()
        return made

    @property
    def changes(self) -> int:
        """How often an attribute was set since it was made."""
        return int(self.__dict__.get("_changes", 0))

    def changed(self) -> None:
        """An attribute, of a group or of all, was set or marked: what was derived from the old ones is of no use."""
        self.__dict__["_changes"] = self.changes + 1
        self.__dict__.pop("_hyper", None)

    def _checked(self, name: str, value: Any) -> Any:
        """An attribute in its normal form."""
        owner = type(self).__name__
        if name in self.numbers:
            return check_number(owner, name, value)
        if name in self.types:
            return check_type(owner, name, value)
        if name == "loss_scaling":
            return None if value is None else check_scale(value)
        if name == AVERAGE:
            return None if value is None else check_number(owner, name, value)
        if name == "max_grad_norm":
            return check_norm(owner, value)
        if name == "no_decay":
            return (value,) if isinstance(value, str) else tuple(value)
        return value

    def check(self) -> None:
        """OptionError where attributes that are each right do not go together."""

    def check_group(self, group: ParamGroup) -> None:
        """OptionError where a group's attributes do not go together, or may not differ from the others'."""

    # ---- what changes

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The groups as PyTorch shows them; the first has all weights of no other one."""
        found: list[ParamGroup] = self.__dict__["_groups"]
        return found

    @property
    def variable_attrs(self) -> VariableAttributes:
        """Which attributes are variables and which constants, to see and to change."""
        found: VariableAttributes = self.__dict__["_attrs"]
        return found

    @property
    def variable(self) -> tuple[str, ...]:
        """The names of the attributes that may change between updates."""
        return tuple(name for name in self.numbers if not self.variable_attrs.is_constant(name))

    def hyper(self) -> list[dict[str, tuple[str, Any]]]:
        """Per group, by what an update calls a number: its role among the states ("" for a constant) and its value.

        A number that a group has from the optimizer has the optimizer's role. The first group's roles are the plain names.
        """
        if "_hyper" not in self.__dict__:
            self.__dict__["_hyper"] = self._numbers()
        found: list[dict[str, tuple[str, Any]]] = self.__dict__["_hyper"]
        return found

    def _numbers(self) -> list[dict[str, tuple[str, Any]]]:
        found = []
        for group in self.param_groups:
            own: dict[str, tuple[str, Any]] = {}
            for name in self.numbers:
                stem = f"{group.name}." if name in group.own else ""
                variable = not self.variable_attrs.is_constant(name)
                own |= {part: (f"{stem}{part}" if variable and x != math.inf else "", x) for part, x in numbers_of(name, group[name]).items()}
            if self.average is not None:
                own[AVERAGE] = AVERAGE, self.average
            found.append(own | {name: ("", group[name]) for name in self.flags})
        return found

    def values(self, update: int, run: Run = UNKNOWN) -> dict[str, float]:
        """The variable numbers at an update index of a run, by role.

        Raises:
            OptionError: a schedule gives a number that is none or out of range, or depends on what is not known of the run.
        """
        return {role: self._now(name, x, update, run) if callable(x) else float(x)
                for group in self.hyper() for name, (role, x) in group.items() if role}

    def _now(self, name: str, schedule: Any, update: int, run: Run) -> float:
        x = value_at(schedule, update, run)
        try:
            return check_value(type(self).__name__, name, x)
        except OptionError as error:
            raise OptionError(f"{error} The schedule of {name} gives {x!r} at update {update}; weights are as after the update before.") from None

    def set_number(self, role: str, x: float) -> None:
        """Give a variable number another value, by its role among the states."""
        for group in self.param_groups:
            for name in self.numbers if not group.number else group.own:
                parts = numbers_of(name, group[name]) if name in self.numbers else {}
                for i, part in enumerate(parts):
                    if role == (f"{group.name}.{part}" if group.number else part):
                        group[name] = (*group[name][:i], x, *group[name][i + 1:]) if name in PARTS else x

    # ---- what is compiled

    def chain(self) -> Chain:
        """From gradients to new weights."""
        raise NotImplementedError

    def transforms(self) -> Chain:
        """The chain, and what is done with new weights."""
        return chain(*self.chain(), None if self.average is None else AverageWeights())

    @property
    def counts(self) -> bool:
        """The number of updates done is a state (float64, starts at zero)."""
        return any(t.counts for t in self.transforms())

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the states that a weight of the first group has."""
        return tuple(s.name for s in self.slots_of(self.hyper()[0]))

    def slots_of(self, hyper: Mapping[str, tuple[str, Any]]) -> tuple[Slot, ...]:
        """The states that a weight of a group has; a variable number counts as one that may be anything."""
        known = {name: x if not role else math.nan for name, (role, x) in hyper.items()}
        return tuple(s for t in self.transforms() for s in t.slots(known))

    def structure(self) -> dict[str, Any]:
        """All that is compiled in: constants by role, which numbers are variable, the groups, everything else by name."""
        constants, variables = {}, []
        for group, numbers in zip(self.param_groups, self.hyper(), strict=True):
            for name, (role, x) in numbers.items():
                shown = f"{group.name}.{name}" if group.number else name
                if role:
                    variables.append((shown, role))
                else:
                    constants[shown] = x
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*self.numbers, *self.flags, "groups", "loss_scaling")}
        rest[AVERAGE] = self.average is not None
        return {"class": type(self), "constants": constants, "variables": dict(variables), "rest": rest,
                "groups": [*(group.params for group in self.param_groups),
                           tuple(map(id, self.__dict__.get("_only") or ()))]}

    def describe(self) -> dict[str, Any]:
        """Constructor fields as plain values for logs and checkpoints, but for the loss scale, which the options may give as well: schedules by name,
        keyword-only fields where they say something."""
        shown: dict[str, Any] = {"name": type(self).__name__}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "loss_scaling":
                continue
            if f.name == "groups":
                value = [g.described() for g in self.param_groups[1:]]
            if not f.kw_only or (value != self._checked(f.name, f.default) if f.default is not MISSING and f.name != "groups" else value):
                shown[f.name] = _plain(value)
        return shown


def check_norm(owner: str, value: Any) -> float:
    """A bound of the gradients' norm."""
    if isinstance(value, (bool, str)) or value is None:
        raise OptionError(f"{owner}: max_grad_norm must be a number above 0, or infinity for none, got {value!r}.")
    if math.isnan(float(value)):
        raise OptionError(f"{owner}: Maximum norm of gradients cannot be NaN.")
    if float(value) <= 0:
        raise OptionError(f"{owner}: max_grad_norm must be above 0, got {value!r}; infinity turns it off.")
    return float(value)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if callable(value):
        return described(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def same_structure(compiled: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse an optimizer that does not fit a compiled update, with the reference's sentences.

    Raises:
        OptionError: its class, a constant, what is constant, its groups or anything else that is compiled in differs.
    """
    one, other = compiled["class"].__name__, now["class"].__name__
    remedy = "give it to a new training_model"
    if compiled["class"] is not now["class"]:
        raise OptionError(f"Can not replace optimizer of type {one} with new optimizer of type {other}; {remedy}.")
    if len(compiled["groups"]) != len(now["groups"]) or any(a != b for a, b in zip(compiled["groups"], now["groups"], strict=True)):
        raise OptionError(f"Can not replace {one} with one that has other parameter groups; {remedy}.")
    for name, x in compiled["constants"].items():
        if name not in now["constants"]:
            raise OptionError(f"{one}: Can not replace a constant value with a non constant value: {name} was compiled as {x!r}; mark it as "
                              f"constant, or {remedy}.")
        if now["constants"][name] != x:
            raise OptionError(f"{one}: Values are constant but do not match: {name} was compiled as {x!r} and is {now['constants'][name]!r}; give "
                              f"it to the constructor, or mark it as variable (variable_attrs), before the model is compiled.")
    for name, role in compiled["variables"].items():
        if now["variables"].get(name) != role:
            raise OptionError(f"{one}: Can not replace a non constant value with a constant value: {name}; mark it as variable, or {remedy}.")
    for name, value in compiled["rest"].items():
        if now["rest"][name] != value:
            raise OptionError(f"{one}: {name} does not match: it was compiled as {value!r} and is {now['rest'][name]!r}; {remedy}.")


__all__ = ["PARTS", "Optimizer", "Schedule", "same_structure"]
