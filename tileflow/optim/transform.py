"""Transforms: the small steps of which optimizers are chains, from a gradient to what is subtracted from a weight.

A direction is held as  scale * top / (over * bottom) + decay * weight  with numbers and tensors apart, so that a chain multiplies numbers by
numbers (in float64) and touches each tensor once. Equations: PopART's, poptorch 3.4; where PyTorch differs the transform has a flag.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .scalars import Number, Scalars

if TYPE_CHECKING:
    from ..graph import Builder, Origin, State, Value

AVERAGE = "average"
"""The state that holds a weight's average, and the number that says how much of it stays."""


@dataclass(frozen=True)
class Slot:
    """A state that each weight has: its name (suffix and role), its element type (None: what the update is computed in), what it starts with."""

    name: str
    dtype: str | None = None
    fill: float = 0.0


def of_update(*states: State) -> Origin:
    """The origin of nodes that update these weights."""
    from ..graph import Origin
    return Origin(tuple(s.known_as for s in states), "update")


@dataclass
class Update:
    """One weight's update under construction. Tensors are in the type that it is computed in, whatever they are stored in.

    raw: the gradient as it arrived, while nothing has been done with it. top: the gradient to begin with, and `scale` what takes loss scale and
    count out of it. result: the weight's new value, once it is known.
    hyper: the attributes of the weight's group by role. count: updates done, this one included (None: nobody counts).
    folded: top is no gradient but what folds of micro-batches have made of a state.
    """

    b: Builder
    scalars: Scalars
    state: State
    weight: Value
    raw: Value | None
    top: Value
    scale: Number
    slots: Mapping[str, Value]
    hyper: Mapping[str, Number]
    count: Value | None = None
    over: Number = 1.0
    bottom: Value | None = None
    decay: Number = 0.0
    folded: bool = False
    result: Value | None = None
    written: dict[str, Value] = field(default_factory=dict)

    @property
    def origin(self) -> Origin:
        return of_update(self.state)

    def cast(self, x: Number) -> Value:
        """A number in the type of the update."""
        return self.scalars.like(x, self.weight)

    def times(self, tensor: Value, x: Number) -> Value:
        return tensor if x == 1.0 else self.b.Mul(tensor, self.cast(x))

    def mix(self, old: Value, keep: Number, new: Value, share: Number) -> Value:
        """keep * old + share * new."""
        return self.b.Add(self.times(old, keep), self.times(new, share))

    def settle(self) -> Value:
        """The direction as one tensor."""
        scalars, self.raw, self.top = self.scalars, None, self._quotient(self.scalars.div(self.scale, self.over))
        if self.decay != 0.0:
            self.top = self.b.Add(self.top, self.b.Mul(self.weight, scalars.like(self.decay, self.weight)))
        self.scale, self.over, self.bottom, self.decay = 1.0, 1.0, None, 0.0
        return self.top

    def _quotient(self, factor: Number) -> Value:
        scaled = self.times(self.top, factor)
        return scaled if self.bottom is None else self.b.Div(scaled, self.bottom)

    def apply(self) -> Value:
        """The weight minus the direction."""
        kept = self.weight if self.decay == 0.0 else self.b.Mul(self.weight, self.cast(self.scalars.sub(1.0, self.decay)))
        return self.b.Sub(kept, self._quotient(self.scalars.div(self.scale, self.over)))


class Transform:
    """One step of a chain, over all weights of all groups; most look at one weight at a time (`step`)."""

    counts: bool = False
    """It needs the number of updates done."""

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        """The states that a weight of a group with these attributes has."""
        return ()

    def apply(self, updates: Sequence[Update]) -> None:
        for u in updates:
            with u.b.at(u.origin):
                self.step(u)

    def step(self, u: Update) -> None:
        """Change a direction; write new states through `u.written`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Each(Transform):
    """A transform without states."""

    change: Callable[[Update], None]

    def step(self, u: Update) -> None:
        self.change(u)


Chain = tuple[Transform, ...]


def chain(*transforms: Transform | None) -> Chain:
    """The transforms in order; None stands for one that is not wanted."""
    return tuple(t for t in transforms if t is not None)


def scale_by_lr() -> Transform:
    """lr * direction, the decay included."""
    def change(u: Update) -> None:
        lr = u.hyper["lr"]
        u.scale, u.decay = u.scalars.mul(u.scale, lr), u.scalars.mul(u.decay, lr) if u.decay != 0.0 else 0.0
    return Each(change)


def add_decayed_weights(decoupled: bool = False) -> Transform:
    """direction + weight_decay * w. Before the moments that is L2 regularisation; `decoupled`, behind them, it is AdamW's. A decay that is the
    constant 0 costs nothing."""
    def change(u: Update) -> None:
        decay = u.hyper["weight_decay"]
        if decoupled:
            u.decay = u.scalars.add(u.decay, decay) if u.decay != 0.0 else decay
        elif decay != 0.0:
            u.top = u.b.Add(u.settle(), u.b.Mul(u.weight, u.cast(decay)))
    return Each(change)


def apply_updates() -> Transform:
    """w - direction."""
    def change(u: Update) -> None:
        u.result = u.apply()
    return Each(change)


class AverageWeights(Transform):
    """average = keep * average + (1 - keep) * w, of the weights as the update leaves them. `keep` is a number of each
    update: what is averaged when does not depend on how many updates a call has."""

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        return Slot(AVERAGE),

    def step(self, u: Update) -> None:
        assert u.result is not None
        keep = u.hyper[AVERAGE]
        u.written[AVERAGE] = u.mix(u.slots[AVERAGE], keep, u.result, u.scalars.sub(1.0, keep))


def square_sum(b: Builder, tensors: Sequence[Value]) -> Value:
    """The sum of the squares of all elements of tensors, a float64 scalar: one sum for each element type, then of
    those."""
    alike: dict[str, list[Value]] = {}
    for x in tensors:
        alike.setdefault(x.dtype, []).append(x)
    squares = [b.SquareSum(*same) for same in alike.values()]
    return squares[0] if len(squares) == 1 else b.Sum(*squares)


@dataclass(frozen=True)
class ClipByGlobalNorm(Transform):
    """direction * min(1, clip / norm), with one norm over the tensors of all weights of all groups.

    The norm is a sum of squares per tensor and of those, in an order that depends on nothing but the shapes. epsilon: PyTorch's
    `clip_grad_norm_` adds 1e-6 to the norm, PopART nothing.
    """

    clip: float
    epsilon: float = 0.0

    def apply(self, updates: Sequence[Update]) -> None:
        scalars, b = updates[0].scalars, updates[0].b
        shared = updates[0].scale
        together = all(u.scale is shared for u in updates)          # then the norm is taken of the tensors as they are, and scaled
        tensors = []
        for u in updates:
            with b.at(u.origin):
                tensors.append(u.raw if u.raw is not None and together else u.top if together else u.settle())
        with b.at(of_update(*(u.state for u in updates))):
            norm = scalars.root(square_sum(b, tensors))
            if together:
                norm = scalars.mul(norm, shared)
            factor = scalars.least(1.0, scalars.div(self.clip, norm if not self.epsilon else scalars.add(norm, self.epsilon)))
        for u in updates:
            u.scale = scalars.mul(u.scale, factor)


def clip_by_global_norm(clip: float, epsilon: float = 0.0) -> Transform | None:
    """None where the clip is infinite: off."""
    return None if math.isinf(clip) else ClipByGlobalNorm(clip, epsilon)


@dataclass(frozen=True)
class ScaleByAdam(Transform):
    """m = b1 m + (1 - b1) s,  v = b2 v + (1 - b2) s²,  direction = m̂ / (sqrt(v̂) + eps), with m̂ = m / (1 - b1^t) and v̂ = v / (1 - b2^t), or m and
    v themselves without bias correction. Moments of 16 bits are computed in float32 and rounded where they are written."""

    bias_correction: bool = True
    first: str | None = None
    second: str | None = None

    @property
    def counts(self) -> bool:                                   # type: ignore[override]
        return self.bias_correction

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        return Slot("exp_avg", self.first), Slot("exp_avg_sq", self.second)

    def step(self, u: Update) -> None:
        b, n, s = u.b, u.scalars, u.settle()
        beta1, beta2 = u.hyper["beta1"], u.hyper["beta2"]
        m = u.mix(u.slots["exp_avg"], beta1, s, n.sub(1.0, beta1))
        v = u.mix(u.slots["exp_avg_sq"], beta2, b.Mul(s, s), n.sub(1.0, beta2))
        u.written.update(exp_avg=m, exp_avg_sq=v)
        root = b.Sqrt(v)
        if self.bias_correction:
            assert u.count is not None
            u.over = n.sub(1.0, n.power(beta1, u.count))
            root = b.Div(root, u.cast(n.root(n.sub(1.0, n.power(beta2, u.count)))))
        u.top, u.bottom = m, b.Add(root, u.cast(u.hyper["eps"]))


@dataclass(frozen=True)
class ScaleByRms(Transform):
    """v = a v + (1 - a) s²,  direction = s / (sqrt(v - c²) + eps), with c = a c + (1 - a) s where centered, else 0.

    The variant of TensorFlow has eps inside the root and v begins at 1. v - c² is a variance: rounding may make it less than zero, which
    counts as zero (PyTorch has NaN then).
    """

    centered: bool = False
    tf: bool = False
    first: str | None = None
    second: str | None = None

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        square = Slot("square_avg", self.second, 1.0 if self.tf else 0.0)
        return (square, Slot("grad_avg", self.first)) if self.centered else (square,)

    def step(self, u: Update) -> None:
        b, s = u.b, u.settle()
        alpha, eps = u.hyper["alpha"], u.cast(u.hyper["eps"])
        share = u.scalars.sub(1.0, alpha)
        spread = u.written["square_avg"] = u.mix(u.slots["square_avg"], alpha, b.Mul(s, s), share)
        if self.centered:
            mean = u.written["grad_avg"] = u.mix(u.slots["grad_avg"], alpha, s, share)
            spread = b.Max(b.Sub(spread, b.Mul(mean, mean)), u.cast(0.0))
        u.bottom = b.Sqrt(b.Add(spread, eps)) if self.tf else b.Add(b.Sqrt(spread), eps)


@dataclass(frozen=True)
class Trace(Transform):
    """v = momentum * v + direction. Where the group's momentum is the constant 0 there is no v."""

    dtype: str | None = None
    scaled: bool = False
    """lr is inside: v = momentum * v + lr * direction (TensorFlow)."""

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        return () if hyper["momentum"] == 0.0 else (Slot("momentum_buffer", self.dtype),)

    def step(self, u: Update) -> None:
        if self.scaled:
            u.scale = u.scalars.mul(u.scale, u.hyper["lr"])
        if u.hyper["momentum"] == 0.0:
            return
        x = u.settle()
        u.top = u.written["momentum_buffer"] = u.b.Add(u.times(u.slots["momentum_buffer"], u.hyper["momentum"]), x)


class TrustRatio(Transform):
    """LAMB's ratio per tensor: direction * min(||w||, max_weight_norm) / ||direction||, or the direction itself where one of the norms is 0.

    A constant max_weight_norm of infinity bounds nothing; one that is variable and 0 turns the ratio off, as in PopART.
    """

    def apply(self, updates: Sequence[Update]) -> None:
        for u in updates:
            with u.b.at(u.origin):
                self._scale(u)

    def _scale(self, u: Update) -> None:
        n, bound, x = u.scalars, u.hyper["max_weight_norm"], u.settle()
        weight, step = (n.root(u.b.SquareSum(*one)) for one in ([u.state.input], [x]))
        assert not isinstance(weight, int | float)
        assert not isinstance(step, int | float)
        ratio = n.div(weight if bound == math.inf else n.least(weight, bound), step)
        for norm in (weight, step, *([] if isinstance(bound, int | float) else [bound])):
            ratio = n.where_equal(norm, 0.0, 1.0, ratio)
        u.scale = ratio
