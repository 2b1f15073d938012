"""Options of the update rule and of the learning rate's schedule."""
# ruff: noqa: RUF009    (`_option` is `dataclasses.field` with a checked default)
from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .declaration import declared
from .kinds import NOT_NEGATIVE, Choice, Flag, Integer, Integers, Names, Number, Numbers, ParamGroups, Range
from .needs import With
from .registries import OPTIMIZERS, SCHEDULES
from .verbs import UPDATING

_option = functools.partial(declared, "optimizer")
Average = Literal["none", "ema", "swa"]
AccumType = Literal["float32", "float16", "bfloat16"]
ACCUM = Choice(get_args(AccumType))


@dataclass(kw_only=True, repr=False)
class OptimizerOptions:
    """What the optimizer is made of, which has no say where one is given as an object."""

    optimizer: str = _option("adamw", Choice(tuple(OPTIMIZERS)), "update rule", common=True, known_as=("optim",))
    learning_rate: float = _option(1e-3, NOT_NEGATIVE, "step size", common=True, known_as=("lr",))
    weight_decay: float | None = _option(
        None, NOT_NEGATIVE, f"weight decay; by default {OPTIMIZERS.told('weight_decay')} and 0 for the others",
        optional=True, common=True, known_as=("wd",))
    no_decay: tuple[str, ...] = _option(
        (), Names(), "parameters without weight decay, by name pattern; auto means biases and the weights of norms")
    param_groups: tuple[Mapping[str, Any], ...] = _option(
        (), ParamGroups(),
        "parameters, by name pattern, with settings of their own, such as *.bias:weight_decay=0,lr=0.01")
    max_grad_norm: float | None = _option(
        None, Number(Range(above=0)), "scale the gradients of an update down to this norm of all of them together",
        optional=True, common=True)
    momentum: float = _option(0.0, NOT_NEGATIVE, "momentum ({whose})", common=True, of=OPTIMIZERS)
    dampening: float = _option(0.0, NOT_NEGATIVE, "dampening of the momentum ({whose})", of=OPTIMIZERS)
    nesterov: bool = _option(False, Flag(), "Nesterov momentum ({whose})", of=OPTIMIZERS)
    betas: tuple[float, float] = _option(
        (0.9, 0.999), Numbers(Number(Range(least=0, below=1)), 2), "decay of the two moments ({whose})", of=OPTIMIZERS)
    eps: float = _option(1e-8, Number(Range(above=0)), "added to the denominator ({whose})", of=OPTIMIZERS)
    alpha: float = _option(0.99, Number(Range(least=0, below=1)), "decay of the mean square ({whose})", of=OPTIMIZERS)
    centered: bool = _option(
        False, Flag(), "divide by the gradients' deviation, not their mean square ({whose})", of=OPTIMIZERS)
    use_tf_variant: bool = _option(
        False, Flag(), "TensorFlow's form: eps inside the root, which begins at 1 ({whose})", of=OPTIMIZERS)
    bias_correction: bool = _option(
        True, Flag(), "correct the moments for having begun at zero ({whose})", of=OPTIMIZERS)
    max_weight_norm: float = _option(
        65500.0, Number(Range(least=0), infinite=True),
        "bound of a weight's norm in the trust ratio, inf for none ({whose})", of=OPTIMIZERS)
    use_combined_accum: bool = _option(
        False, Flag(),
        "one tensor for velocity and accumulated gradients, of the weight's type ({whose} with momentum)",
        of=OPTIMIZERS)
    velocity_scaling: float = _option(
        1.0, Number(Range(above=0)), "factor on the combined velocity, against underflow in 16 bits ({whose})",
        of=OPTIMIZERS)
    accum_type: AccumType | None = _option(
        None, ACCUM, "element type in which gradients are accumulated; by default the weight's, float32 for 16 bits",
        optional=True)
    first_order_momentum_accum_type: AccumType | None = _option(
        None, ACCUM, "element type of the first moment ({whose}); by default the weight's, float32 for 16 bits",
        optional=True, of=OPTIMIZERS)
    second_order_momentum_accum_type: AccumType | None = _option(
        None, ACCUM, "element type of the second moment ({whose}); by default the weight's, float32 for 16 bits",
        optional=True, of=OPTIMIZERS)
    velocity_accum_type: AccumType | None = _option(
        None, ACCUM, "element type of the velocity ({whose}); by default the weight's, float32 for 16 bits",
        optional=True, of=OPTIMIZERS)
    torch_compat: bool = _option(False, Flag(), "PyTorch's form where it differs from PopTorch's (docs/optimizers.md)")
    schedule: str = _option(
        "constant", Choice(tuple(SCHEDULES)),
        "how the learning rate changes: linear, polynomial, cosine and one_cycle (which drives momentum or the first "
        "beta, too) from update to update over the whole run, step, exponential and plateau (of the loss on the test "
        "data) after epochs", common=True, verbs=UPDATING,
        known_as=("lr_scheduler", "scheduler", "lr_schedule"))
    warmup: float = _option(
        0.0, Number(Range(least=0)),
        "updates in which the learning rate rises before the schedule begins; below 1: a share of the run", common=True,
        verbs=UPDATING, known_as=("warmup_steps", "warmup_ratio", "warmup_updates"))
    schedule_epochs: tuple[int, ...] = _option(
        (), Integers(Integer(Range(least=0))), "step: the rate falls every so many epochs, or at each of several; "
        "cosine: starts again every so many; plateau: waits for progress so long", verbs=UPDATING,
        known_as=("milestones",), of=SCHEDULES)
    schedule_gamma: float | None = _option(
        None, NOT_NEGATIVE, "factor on the rate when it falls ({whose}); by default 0.1", optional=True,
        verbs=UPDATING, known_as=("lr_gamma", "gamma"), of=SCHEDULES)
    schedule_power: float = _option(
        1.0, NOT_NEGATIVE, "power of the polynomial schedule", verbs=UPDATING, of=SCHEDULES)
    schedule_end: float = _option(
        0.0, NOT_NEGATIVE,
        "the rate at the end (linear, polynomial, cosine) or below which it does not fall (plateau)",
        verbs=UPDATING, known_as=("min_lr",), of=SCHEDULES)
    average: Average = _option(
        "none", Choice(get_args(Average)),
        "keep an average of the weights, which is measured and written to the trained "
        "file: ema, exponential, after every update; swa, their mean at the ends of epochs (stochastic weight "
        "averaging)", verbs=UPDATING, known_as=("ema", "swa", "model_ema", "use_ema"))
    ema_decay: float = _option(
        0.999, Number(Range(least=0, below=1)), "how much of the exponential average stays at an update, less at first",
        verbs=UPDATING, needs=(With("average", ("ema",)),), known_as=("ema_momentum", "model_ema_decay"))
    swa_start: float = _option(
        0.75, Number(Range(least=0)), "updates after which the mean begins; below 1: a share of the run",
        verbs=UPDATING, needs=(With("average", ("swa",)),), known_as=("swa_epoch_start",))
    loss_scaling: float | None = _option(
        None, Number(Range(above=0)), "factor on the loss, taken out of the gradients again before the update; by "
        "default 1, and 65536 to begin with where automatic_loss_scaling is dynamic", optional=True)
