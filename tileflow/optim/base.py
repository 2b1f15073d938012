"""The graphs of an update: micro-batches' gradients into accumulators, and these with weights and states through a chain into new ones."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import PARTIAL, Builder, Graph, Origin, State, Value
from ..memory.types import TensorType
from ..system.errors import OptionError
from .adapting import loss_scale, unscaling
from .groups import assigned, undecayed
from .listed import is_for_some
from .optimizer import Optimizer
from .scalars import SCALAR, Number, Scalars
from .sgd import VELOCITY, combined_share
from .transform import Slot, Update

STEP = "optimizer.step"


def arithmetic(t: TensorType) -> TensorType:
    """What updates of a weight are computed in, and its moments kept in where nothing else is said: float32 for 16-bit weights, in which eps
    would be 0, small moments would be lost and small steps add up to nothing. The weight itself is rounded once."""
    return t.with_dtype("float32") if t.is_half else t


def accumulates_in(optimizer: Optimizer, t: TensorType) -> TensorType:
    """What a weight's gradients are accumulated in."""
    if optimizer.combined:
        return t
    return t.with_dtype(optimizer.accum_type) if optimizer.accum_type else arithmetic(t)


@dataclass(frozen=True)
class Averaged:
    """How the gradients of an update's micro-batches become one.

    divisor: what their sum is divided by at the update, besides the loss scale. running: they are a running mean all the time.
    loss_scaling: the loss scale that a new session begins with.
    """

    divisor: int = 1
    running: bool = False
    loss_scaling: float = 1.0

    @classmethod
    def of(cls, optimizer: Optimizer, micro_batches: int, reduction: str = "mean", mean_reduction: str | None = None,
           loss_scaling: float = 1.0) -> Averaged:
        """mean_reduction: "post" divides once at the end, "running" keeps a mean. By default post, and running where accumulators are float16, which
        a sum would overflow: as in the reference.

        Raises:
            OptionError: a combined velocity is to have a running mean.
        """
        if optimizer.combined and mean_reduction == "running":
            raise OptionError(f"{type(optimizer).__name__}: use_combined_accum adds gradients to the velocity, which is no running mean; leave "
                              "mean_reduction_strategy out.")
        if reduction == "sum" or micro_batches == 1:
            return cls(loss_scaling=loss_scaling)
        chosen = mean_reduction or ("running" if optimizer.accum_type == "float16" and not optimizer.combined else "post")
        return cls(1, True, loss_scaling) if chosen == "running" else cls(micro_batches, False, loss_scaling)


@dataclass
class _Groups:
    """An optimizer's groups over the parameters of a model."""

    optimizer: Optimizer
    of: Mapping[str, int]
    undecayed: set[str]

    @classmethod
    def of_model(cls, optimizer: Optimizer, parameters: Sequence[State], named: Mapping[int, str]) -> _Groups:
        return cls(optimizer, assigned(optimizer, parameters, named), undecayed(optimizer, parameters))

    def given(self, parameter: State) -> dict[str, tuple[str, Any]]:
        """A weight's attributes: role ("" for a constant) and value. Copies that other replicas have of it share them."""
        name = parameter.owner or parameter.name
        number = self.of[name]
        own = dict(self.optimizer.hyper()[number])
        if name in self.undecayed and "weight_decay" not in self.optimizer.param_groups[number].own:
            own["weight_decay"] = ("", 0.0)
        return own


class _Writer:
    """A graph under construction that reads an optimizer's numbers."""

    def __init__(self, name: str, groups: _Groups) -> None:
        self.graph, self.groups = Graph(name), groups
        self.b = Builder(self.graph)
        self.scalars = Scalars(self.b)
        self._read: dict[str, Value] = {}
        self._factor: Value | None = None

    def state(self, name: str, kind: Any, type: TensorType, group: str, owner: str = "", role: str = "", **more: Any) -> State:
        made = State(name, kind, Value(self.b.name(name), type), group=group, owner=owner, role=role, **more)
        self.graph.states.append(made)
        return made

    def hyper(self, parameter: State) -> dict[str, Number]:
        """A weight's attributes as numbers: constants, or scalars that the host fills before each call."""
        return {what: self._scalar(role) if role else x for what, (role, x) in self.groups.given(parameter).items()}

    def unscaling(self, averaged: Averaged) -> Value:
        """What takes loss scale and count out of a sum of gradients."""
        if self._factor is None:
            self._factor = unscaling(self.b, loss_scale(self.b, averaged.loss_scaling).input, averaged.divisor)
        return self._factor

    def _scalar(self, role: str) -> Value:
        if role not in self._read:
            self._read[role] = self.state(f"optimizer.{role}", "scalar", SCALAR, "scalar", "optimizer", role).input
        return self._read[role]

    def slot(self, parameter: State, slot: Slot) -> State:
        t = parameter.input.type
        dtype = t.dtype if slot.dtype == "parameter" else slot.dtype or arithmetic(t).dtype
        return self.state(f"{parameter.name}.{slot.name}", "optimizer", t.with_dtype(dtype), f"{parameter.group}.{slot.name}", parameter.name,
                          slot.name, fill=slot.fill)


def counter_of(optimizer: Optimizer, parameters: Sequence[State], every: Sequence[State]) -> str:
    """What the count of updates is called. Optimizers of some weights each, which take turns over one network, count
    for themselves."""
    own = {s.name for s in parameters}
    return f"{STEP}.{min(own)}" if is_for_some(optimizer) and {s.name for s in every} - own else STEP


def build_update(optimizer: Optimizer, parameters: list[State], gradients: Sequence[Value | None],
                 averaged: Averaged = Averaged(), *, every: Sequence[State] | None = None,
                 named: Mapping[int, str] | None = None) -> tuple[Graph, dict[str, Value]]:
    """The update graph for trainable parameters.

    Args:
        gradients: per parameter the value that arrives from the micro-step (an input is made), or None: an accumulator
            state `<name>.grad` holds it (with a combined velocity `<name>.momentum_buffer.next`).
        averaged: what sums of gradients are divided by, with the loss scale.
        every: all parameters of the model, among which groups may name some that are not trained.
        named: names of the network's own parameter objects, by identity, for groups that hold such.

    Returns:
        the graph, and the new input per parameter name where a gradient arrives from the micro-step.

    Raises:
        OptionError: a group matches no parameter, or two match the same.
    """
    w = _Writer("update", _Groups.of_model(optimizer, every or parameters, named or {}))
    b = w.b
    factor = w.unscaling(averaged)
    count = None
    if optimizer.counts:
        name = counter_of(optimizer, parameters, every or parameters)
        counter = w.state(name, "optimizer", SCALAR, name, "optimizer", "step")
        count = counter.output = b.Add(counter.input, b.scalar(1.0, counter.input))
    arrivals, updates, slots = {}, [], []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        t, wide = parameter.input.type, arithmetic(parameter.input.type).dtype
        weight = w.state(parameter.name, "parameter", t, parameter.group, parameter.owner, parameter.role, called=parameter.called,
                         aliases=parameter.aliases)
        folded = gradient is None and optimizer.combined
        if gradient is None:
            g = _accumulator(w, optimizer, parameter).input
        else:
            g = arrivals[parameter.name] = b.input(f"{parameter.name}.grad", gradient.type)
        own = {s.name: w.slot(parameter, s) for s in optimizer.slots_of(w.groups.given(parameter))}
        with b.at(Origin((parameter.known_as,), "update")):
            read = {name: b.cast(s.input, wide) for name, s in own.items()}
            updates.append(Update(b, w.scalars, weight, b.cast(weight.input, wide), g, b.cast(g, wide), 1.0 if folded else factor, read,
                                  w.hyper(parameter), count, folded=folded))
        slots.append(own)
    for transform in optimizer.transforms():
        transform.apply(updates)
    for u, own in zip(updates, slots, strict=True):
        assert u.result is not None
        with b.at(u.origin):
            u.state.output = b.cast(u.result, u.state.input.dtype)
            for name, value in u.written.items():
                own[name].output = b.cast(value, own[name].input.dtype)
    return w.graph, arrivals


def _accumulator(w: _Writer, optimizer: Optimizer, parameter: State, partial: bool = False) -> State:
    """What an update's micro-batches are folded into; `partial`: those of each replica."""
    t = accumulates_in(optimizer, parameter.input.type)
    if partial:
        assert not optimizer.combined, "a velocity is no sum of a replica's gradients"
        return w.state(f"{parameter.name}.grad.partial", "accumulator", t, f"{parameter.group}.grad.partial",
                       parameter.name, PARTIAL, when="micro")
    if not optimizer.combined:
        return w.state(f"{parameter.name}.grad", "accumulator", t, f"{parameter.group}.grad", parameter.name, "grad", when="micro")
    start = f"{parameter.name}.{VELOCITY}"
    return w.state(f"{start}.next", "accumulator", t, f"{parameter.group}.{VELOCITY}.next", parameter.name, "next", when="micro", start=start)


def build_fold(optimizer: Optimizer, parameters: list[State], gradients: Sequence[Value], averaged: Averaged = Averaged(), *,
               every: Sequence[State] | None = None, named: Mapping[int, str] | None = None,
               name: str = "fold", partial: bool = False) -> tuple[Graph, dict[str, Value]]:
    """The graph `name` that adds one micro-batch's gradients to the accumulators; `partial`: to its replica's.

    Sum and post mean: a = a + g. Running mean: a = f/(f+1) a + 1/(f+1) g, with the micro-batch's index f. A combined velocity:
    v = v + (1 - dm) vs / (ls * count) g. Sums are computed in float32 at least and rounded to the accumulator's type after each micro-batch.

    Returns:
        the graph, and its input per parameter name.
    """
    w = _Writer(name, _Groups.of_model(optimizer, every or parameters, named or {}))
    arrivals = {s.name: w.b.input(f"{s.name}.contribution", g.type) for s, g in zip(parameters, gradients, strict=True)}
    _add_up(w, optimizer, parameters, arrivals, averaged, partial)
    return w.graph, arrivals


def build_reduce(optimizer: Optimizer, parameters: list[State], averaged: Averaged, *, every: Sequence[State],
                 named: Mapping[int, str], name: str) -> Graph:
    """The graph `name` that adds one replica's sums to the accumulators, as `build_fold` adds a micro-batch's
    gradients: of running means the mean."""
    w = _Writer(name, _Groups.of_model(optimizer, every, named))
    _add_up(w, optimizer, parameters, {s.name: _accumulator(w, optimizer, s, partial=True).input for s in parameters},
            averaged)
    return w.graph


def _add_up(w: _Writer, optimizer: Optimizer, parameters: Sequence[State], arrivals: Mapping[str, Value],
            averaged: Averaged, partial: bool = False) -> None:
    """Add what arrives, by the parameter's name, to its accumulator."""
    b, n = w.b, w.scalars
    keep: Number = 1.0
    share: Number = 1.0
    if averaged.running:
        name, role = ("optimizer.micro_batch.partial", PARTIAL) if partial else ("optimizer.micro_batch", "micro_batch")
        index = w.state(name, "accumulator", SCALAR, name, "optimizer", role, when="micro")
        following = n.add(index.input, 1.0)
        assert isinstance(following, Value)
        keep, share, index.output = n.div(index.input, following), n.div(1.0, following), following
    for parameter in parameters:
        arriving, total = arrivals[parameter.name], _accumulator(w, optimizer, parameter, partial)
        wide = arithmetic(total.input.type).dtype if arriving.dtype != "float64" else "float64"
        with b.at(Origin((parameter.known_as,), "backward")):
            old, new = b.cast(total.input, wide), b.cast(arriving, wide)
            u = Update(b, n, parameter, old, None, new, 1.0, {}, w.hyper(parameter) if optimizer.combined else {})
            if optimizer.combined:
                share = n.mul(combined_share(u), w.unscaling(averaged))
            total.output = b.cast(u.mix(old, keep, new, share), total.input.dtype)
