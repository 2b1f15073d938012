"""Stochastic gradient descent with momentum, dampening, decay and Nesterov's look-ahead."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..system.errors import OptionError
from .attributes import Schedule
from .groups import ParamGroup
from .optimizer import Optimizer
from .scalars import Number
from .transform import Chain, Slot, Transform, Update, add_decayed_weights, apply_updates, chain, clip_by_global_norm, scale_by_lr

TORCH_EPSILON = 1e-6
"""What PyTorch's `clip_grad_norm_` adds to the norm."""
VELOCITY = "momentum_buffer"


@dataclass
class SGD(Optimizer):
    """v = mm v + (1 - dm) (g + wd w);  w -= lr * v, or with Nesterov w -= lr * (g + wd w + mm v).

    Without momentum (a constant 0) there is no velocity; the dampening still scales the step, and with it the first velocity starts from zero,
    as PopART has it; `torch_compat=True` gives PyTorch's forms of both (they agree when dampening is 0).

    Args:
        velocity_accum_type: element type of the velocity (float32, float16, bfloat16); by default that of the update, at least float32.
        use_combined_accum: one tensor per weight holds velocity and accumulated gradients: each micro-batch is added to the velocity. It has the
            weight's own type and holds velocity_scaling * (mm v + (1 - dm) wd w), the next step's decay included, so that a changed attribute
            takes effect one update later.
        velocity_scaling: what the combined tensor is scaled with, against underflow in 16 bits.
    """

    momentum: Schedule = 0.0
    dampening: Schedule = 0.0
    nesterov: bool = False
    velocity_scaling: Schedule = field(default=1.0, kw_only=True)
    use_combined_accum: bool = field(default=False, kw_only=True)
    velocity_accum_type: Any = field(default=None, kw_only=True)
    numbers: ClassVar[tuple[str, ...]] = ("lr", "momentum", "dampening", "weight_decay", "velocity_scaling")
    flags: ClassVar[tuple[str, ...]] = ("nesterov",)
    types: ClassVar[tuple[str, ...]] = ("accum_type", "velocity_accum_type")

    @property
    def combined(self) -> bool:                            # type: ignore[override]
        return self.use_combined_accum

    def check(self) -> None:
        if self.use_combined_accum:
            for name in self.types:
                if getattr(self, name) is not None:
                    raise OptionError(f"SGD: {name} is for separate accumulators; with use_combined_accum there is one tensor, of the weight's type.")
            if not math.isinf(self.max_grad_norm):
                raise OptionError("SGD: max_grad_norm needs separate accumulators: with use_combined_accum gradients are part of the velocity before "
                                  "their norm is known.")
            if self.torch_compat:
                raise OptionError("SGD: torch_compat has no form with use_combined_accum, for PyTorch has separate accumulators only.")

    def check_group(self, group: ParamGroup) -> None:
        where = f"SGD: group {group.name}:" if group.number else "SGD:"
        momentum, constant = group["momentum"], self._is_constant("momentum")
        if group["nesterov"] and (momentum == 0 or group["dampening"] != 0):
            raise OptionError(f"{where} nesterov needs momentum > 0 and dampening 0, got {momentum} and {group['dampening']}.")
        if self.use_combined_accum and group["nesterov"]:
            raise OptionError(f"{where} nesterov needs separate accumulators; leave use_combined_accum out.")
        if self.use_combined_accum and momentum == 0 and constant:
            raise OptionError(f"{where} use_combined_accum is about the velocity, and without momentum there is none.")
        if not self.use_combined_accum and group["velocity_scaling"] != 1.0:
            raise OptionError(f"{where} velocity_scaling is for use_combined_accum=True; a separate velocity has velocity_accum_type.")

    def _is_constant(self, name: str) -> bool:
        return "_attrs" in self.__dict__ and self.variable_attrs.is_constant(name)

    def chain(self) -> Chain:
        if self.use_combined_accum:
            return chain(CombinedVelocity(), scale_by_lr(), apply_updates(), CarryVelocity())
        damped = any(group["dampening"] != 0 for group in self.param_groups) or "dampening" in self.variable
        return chain(clip_by_global_norm(self.max_grad_norm, TORCH_EPSILON if self.torch_compat else 0.0), add_decayed_weights(),
                     Velocity(self.velocity_accum_type, self.torch_compat, damped), scale_by_lr(), apply_updates())


@dataclass(frozen=True)
class Velocity(Transform):
    """v = mm v + (1 - dm) s;  direction = v, or s + mm v with Nesterov, or (1 - dm) s without momentum.

    torch: PyTorch's first velocity is the plain gradient, and without momentum it knows no dampening.
    """

    dtype: str | None = None
    torch: bool = False
    damped: bool = False

    @property
    def counts(self) -> bool:                              # type: ignore[override]
        return self.torch and self.damped

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        return () if hyper["momentum"] == 0.0 else (Slot(VELOCITY, self.dtype),)

    def step(self, u: Update) -> None:
        s, momentum = u.settle(), u.hyper["momentum"]
        share = u.scalars.sub(1.0, u.hyper["dampening"])
        if momentum == 0.0:
            u.scale = 1.0 if self.torch else share
            return
        if self.torch and share != 1.0:
            assert u.count is not None
            share = u.scalars.where_equal(u.count, 1.0, 1.0, share)
            if not isinstance(momentum, int | float):
                share = u.scalars.where_equal(momentum, 0.0, 1.0, share)
        u.top = u.written[VELOCITY] = u.mix(u.slots[VELOCITY], momentum, s, share)
        if u.hyper["nesterov"]:
            u.top = u.b.Add(s, u.times(u.top, momentum))


def combined_share(u: Update) -> Number:
    """What a gradient is multiplied with before it is added to the combined velocity."""
    return u.scalars.mul(u.scalars.sub(1.0, u.hyper["dampening"]), u.hyper["velocity_scaling"])


def _decay(u: Update) -> Number:
    """What the weight is multiplied with for its decay in the combined velocity."""
    wd = u.hyper["weight_decay"]
    return 0.0 if wd == 0.0 else u.scalars.mul(combined_share(u), wd)


class CombinedVelocity(Transform):
    """direction = v / vs, with v = (what the last update carried over) + (1 - dm) vs g. Folds of micro-batches have added the gradients where
    there are several; what the first update was carried is the weights' decay."""

    counts = True

    def slots(self, hyper: Mapping[str, Number]) -> tuple[Slot, ...]:
        return (Slot(VELOCITY, "parameter"),)

    def step(self, u: Update) -> None:
        v = u.top if u.folded else u.b.Add(u.slots[VELOCITY], u.times(u.settle(), combined_share(u)))
        decay = _decay(u)
        if decay != 0.0:
            assert u.count is not None
            first = u.scalars.where_equal(u.count, 1.0, decay, 0.0)
            v = u.b.Add(v, u.times(u.weight, first))
        u.top, u.scale = v, u.scalars.div(1.0, u.hyper["velocity_scaling"])


class CarryVelocity(Transform):
    """mm v + (1 - dm) vs wd w, of the new weight, is what the next update begins with."""

    def step(self, u: Update) -> None:
        assert u.result is not None
        carried, decay = u.times(u.top, u.hyper["momentum"]), _decay(u)
        u.written[VELOCITY] = carried if decay == 0.0 else u.b.Add(carried, u.times(u.result, decay))
