"""What optimizers of PyTorch's remember, in PyTorch's own form: shown by their `state_dict`, and taken over from
`load_state_dict` or from steps of their own."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..optim.base import STEP
from ..runtime.training_model import TrainingModel
from ..system.errors import OptionError
from .calls import array_of, tensor_of

UPDATES = "optimizer.updates"
"""The number of updates that a model has done, whatever its optimizer counts."""
SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg")
"""What each parameter may have, by names that are PyTorch's and ours."""
Remembered = Mapping[str, np.ndarray]


def shown(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], remembered: Remembered
) -> dict[int, dict[str, torch.Tensor]]:
    """What a model remembers of each parameter, by its number in the optimizer's groups.

    Args:
        names: what the model calls the parameters, by identity. remembered: the model's `optimizer_state_dict`.
    """
    steps = float(remembered[next(iter(counters(remembered)), UPDATES)])
    found: dict[int, dict[str, torch.Tensor]] = {}
    for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        called = names.get(id(p))
        own = {slot: tensor_of(remembered[name]) for slot in SLOTS if (name := f"{called}.{slot}") in remembered}
        if own and steps:
            found[number] = own if isinstance(optimizer, torch.optim.SGD) else {"step": torch.tensor(steps), **own}
    return found


def taken(optimizer: torch.optim.Optimizer, names: Mapping[int, str], remembered: Remembered) -> dict[str, np.ndarray]:
    """What a model is to remember for it to go on from what the optimizer does; other values stay.

    Raises:
        OptionError: parameters have made different numbers of steps, or what is remembered has another shape.
    """
    found, steps = dict(remembered), set[float]()
    for p, own in optimizer.state.items():
        name = names.get(id(p))
        for slot, value in own.items():
            if slot == "step":
                steps.add(float(value))
            elif name is not None and isinstance(value, torch.Tensor) and f"{name}.{slot}" in found:
                old, new = found[f"{name}.{slot}"], array_of(value)
                if old.shape != new.shape:
                    raise OptionError(f"The optimizer's {slot} of {name!r} has the shape {list(new.shape)}, and the "
                                      f"parameter {list(old.shape)}.")
                found[f"{name}.{slot}"] = np.array(new, old.dtype)
    if len(steps) > 1:
        raise OptionError(f"The parameters of the {type(optimizer).__name__} have made different numbers of steps "
                          f"({', '.join(f'{n:g}' for n in sorted(steps))}), and a model counts one for all; give a new "
                          "optimizer.")
    for name in counters(found) if optimizer.state else ():
        found[name] = np.array(max(steps, default=1.0), found[name].dtype)      # SGD asks whether there was a first one
    return found


def begin(model: TrainingModel) -> None:
    """Let a model remember nothing of updates that another optimizer made of the same weights."""
    session = model.source.session

    def clear() -> None:
        for s in model.engine.image.states:
            if s.kind == "optimizer" and s.role in (*SLOTS, "step"):
                session[s.name][...] = s.fill

    session.turn.change(clear)


def counters(remembered: Remembered) -> list[str]:
    """What a model calls the number of updates that its optimizer reads; none where that reads none."""
    return [name for name in remembered if name == STEP or name.startswith(f"{STEP}.")]


def tell(optimizer: torch.optim.Optimizer, show: Callable[[Any], dict[int, Any]], take: Callable[[Any], None]) -> None:
    """Let an optimizer's `state_dict` have what `show(optimizer)` gives, where it gives any, and call `take(optimizer)`
    after its `load_state_dict`."""
    def saved(asked: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state["state"] = show(asked) or state["state"]

    optimizer.register_state_dict_post_hook(saved)                    # type: ignore[arg-type]
    optimizer.register_load_state_dict_post_hook(take)
