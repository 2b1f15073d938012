"""Optimizers of PyTorch's as ours: SGD, Adam, AdamW and RMSprop with their groups, in PyTorch's own form
(`torch_compat`)."""
from __future__ import annotations

import math
from collections.abc import Mapping
from glob import escape
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from .. import optim
from ..optim.listed import for_some
from ..system.errors import OptionError

NUMBERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0, "dampening": 0, "weight_decay": 0},
    "Adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0},
    "AdamW": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
    "RMSprop": {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0},
}
"""Attributes of each class that are numbers, beside lr, and PyTorch's defaults. Where all groups have the default it is
compiled in, else it is read by every update; lr always is."""
FLAGS = {"SGD": ("nesterov",), "RMSprop": ("centered",)}
REFUSED = {"amsgrad": "Only non-amsgrad Adam/AdamW optimizers are supported",
           "maximize": "maximize is not supported, but minimising the negated loss is",
           "differentiable": "differentiable is not supported: no gradient goes through an update",
           "decoupled_weight_decay": "Adam with decoupled_weight_decay is AdamW, which is supported"}
"""What a group may say that no update of ours does, and the way out."""


class Mapped(NamedTuple):
    """An optimizer of ours. trained: the names of what it updates; None: all that require gradients."""

    optimizer: optim.Optimizer
    trained: frozenset[str] | None


def mapped(optimizer: Any, names: Mapping[int, str]) -> Mapped:
    """Ours for an optimizer of ours, of PyTorch's, or one that says by itself what it is (`tileflow_optimizer`).

    Args:
        names: what the session calls the parameters of the model, by their identity.

    Raises:
        OptionError: it is of another class, or asks for what there is not; the sentence names it.
    """
    if isinstance(optimizer, optim.Optimizer):
        return Mapped(optimizer, None)
    of = getattr(optimizer, "param_groups", None)
    trained = None if of is None else frozenset(names[id(p)] for group in of for p in group["params"] if id(p) in names)
    if hasattr(optimizer, "tileflow_optimizer"):
        return _for_these(optimizer.tileflow_optimizer(dict(names)), trained)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError("optimizer must be one of torch.optim (SGD, Adam, AdamW, RMSprop) or of tileflow.optim, "
                          f"not {type(optimizer).__name__}.")
    return _for_these(_ours(optimizer, names), trained)


def _for_these(ours: optim.Optimizer, trained: frozenset[str] | None) -> Mapped:
    if trained is not None:
        for_some(ours)
    return Mapped(ours, trained)


def kind_of(optimizer: Any) -> str | None:
    """The name of PyTorch's class where an update here does what the optimizer's does."""
    return next((name for name in NUMBERS if type(optimizer) is getattr(torch.optim, name)), None)


_ATTRIBUTES = {kind: itemgetter("lr", *names) for kind, names in NUMBERS.items()}


def numbers(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What the attributes of its groups are now that may change, a tuple for each; tensors by their values."""
    found: list[Any] = [*map(_ATTRIBUTES[type(optimizer).__name__], optimizer.param_groups)]
    return [*map(_plain, found)] if any(isinstance(group[0], torch.Tensor) for group in found) else found


def _ours(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> optim.Optimizer:
    kind = kind_of(optimizer)
    if kind is None:
        raise OptionError(
            f"{type(optimizer).__name__} has no update here; use {', '.join(NUMBERS)} of torch.optim, or one of "
            "tileflow.optim."
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise OptionError(f"The {kind} has hooks on its step, which are not called here, where the step is compiled; "
                          "take them away.")
    groups = [group for group in optimizer.param_groups if any(id(p) in names for p in group["params"])]
    if not groups:
        raise OptionError(
            f"The {kind} has no parameter of the module; make it of the module's own: "
            f"torch.optim.{kind}(module.parameters(), lr=...)."
        )
    for group in groups:
        for name, why in REFUSED.items():
            if group.get(name) and (name, kind) != ("decoupled_weight_decay", "AdamW"):
                raise OptionError(f"{kind}: {why}; leave {name} out.")
    wanted = [
        "lr",
        *(n for n, default in NUMBERS[kind].items() if any(_plain(g[n]) != _plain(default) for g in groups)),
        *FLAGS.get(kind, ()),
    ]
    first, *more = ({name: _plain(group[name]) for name in wanted} for group in groups)
    rest = [
        {"params": [escape(names[id(p)]) for p in group["params"] if id(p) in names], **own}
        for group, own in zip(groups[1:], more, strict=True)
    ]
    made: optim.Optimizer = getattr(optim, kind)(**first, groups=rest, torch_compat=True)
    return made


def _plain(value: Any) -> Any:
    """Numbers, of tensors too, as Python's."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    if isinstance(value, torch.Tensor):
        return value.item()
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        else value
    )
