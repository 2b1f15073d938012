"""State dicts of optimizers: all that an optimizer remembers, as arrays by name, so that training goes on bit for bit elsewhere.

    <weight>.exp_avg ...        moments and velocities, as the session has them; the optimizer's own states (optimizer.step, the loss scale)
    optimizer.lr ...            variable attributes that are numbers, float64; schedules follow from the count of updates
    optimizer.lr.schedule       what a plateau has come to
    optimizer.updates, optimizer.micro_batches       what was done, int64: schedules and random streams count them
    optimizer.class             the optimizer's name, as bytes
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..optim import Optimizer, remembered
from ..optim.schedules import is_state
from ..state import Session
from ..system.errors import CheckpointError
from .shards import together, whole

CLASS = "optimizer.class"
COUNTS = ("updates", "micro_batches")
"""Of the session."""
LISTED = 5
"""Names that a sentence lists."""


def collect(session: Session, optimizer: Optimizer, states: Sequence[str]) -> dict[str, np.ndarray]:
    """The state dict: copies, all after the same whole update; of several processes that divide states among them a
    call of all. `states` names those of kind optimizer in the compiled program."""
    def read() -> dict[str, np.ndarray]:
        divided = whole(session, states)
        found = {name: divided[name] if name in divided else session[name].copy() for name in states}
        found |= {f"optimizer.{name}": np.array(value, np.float64) for name, value in remembered.numbers(optimizer).items()}
        found |= {f"optimizer.{name}.schedule": p.state() for name, p in remembered.with_state(optimizer).items()}
        found |= {f"optimizer.{name}": np.array(getattr(session, name), np.int64) for name in COUNTS}
        return found | {CLASS: np.frombuffer(type(optimizer).__name__.encode(), np.uint8).copy()}
    return session.turn.hold(read)


def check_form(tensors: Any) -> None:
    """Refuse what is no state dict of an optimizer here, whatever the model; the reference's sentences.

    Raises:
        CheckpointError: it is none, is empty, or is PyTorch's own.
    """
    if not isinstance(tensors, Mapping):
        raise CheckpointError(f"An optimizer's state is a table of arrays by name, as optimizer_state_dict() gives it, not {type(tensors).__name__}.")
    if not tensors:
        raise CheckpointError("Cannot load optimizer state dictionary because it is empty.")
    if "param_groups" in tensors or CLASS not in tensors:
        kind = "this one is PyTorch's own" if "param_groups" in tensors else "this one does not say which optimizer it is of"
        raise CheckpointError(f"Only IPU optimizer states can be loaded onto the IPU: {kind}; give what optimizer_state_dict() of a training model "
                              "of tileflow returned.")


def load(session: Session, optimizer: Optimizer, states: Sequence[str], tensors: Mapping[str, Any]) -> None:
    """Take a state dict over; nothing changes unless all of it fits. The caller has the session's turn.

    Raises:
        CheckpointError: it is of another optimizer or model; the sentence says what differs.
    """
    check_form(tensors)
    arrays = {str(name): np.asarray(value) for name, value in tensors.items()}
    _check_class(arrays[CLASS], type(optimizer).__name__)
    plateaus, numbers = remembered.with_state(optimizer), remembered.numbers(optimizer)
    own = {*states, CLASS, *(f"optimizer.{n}" for n in COUNTS)}
    missing = [n for n in own if n not in arrays]
    spare = {f"optimizer.{n}{end}" for n in remembered.roles(optimizer) for end in ("", ".schedule")}
    unexpected = [n for n in arrays if n not in own and n not in spare]
    if missing or unexpected:
        raise CheckpointError(f"This optimizer state is not this model's: missing {_some(missing)}, unexpected {_some(unexpected)}; it belongs to "
                              "another model, or to an optimizer with other settings.")
    for name in states:
        have, dtype, shape = arrays[name], session[name].dtype, session.whole_shape(name)
        if have.shape != shape or have.dtype != dtype:
            raise CheckpointError(f"This optimizer state is not this model's: {name!r} is {have.dtype}{list(have.shape)}, the model needs "
                                  f"{dtype}{list(shape)}.")
    if any(name in session.parts for name in states):
        together()
    counts = {name: _count(name, arrays[f"optimizer.{name}"]) for name in COUNTS}
    values = {name: _number(name, arrays[f"optimizer.{name}"]) for name in numbers if f"optimizer.{name}" in arrays}
    come_to = {name: arrays[f"optimizer.{name}.schedule"] for name in plateaus if f"optimizer.{name}.schedule" in arrays}
    for name, state in come_to.items():
        if not is_state(state):
            raise CheckpointError(f"This optimizer state holds no state of a schedule under optimizer.{name}.schedule.")
    remembered.set_numbers(optimizer, values)
    for name, state in come_to.items():
        plateaus[name].restore(state)
    for name in states:
        session.write(name, arrays[name])
    for name, count in counts.items():
        setattr(session, name, count)
    session.version += 1


def _check_class(written: np.ndarray, own: str) -> None:
    found = written.tobytes().decode(errors="replace") if written.dtype == np.uint8 else str(written)
    if found != own:
        raise CheckpointError(f"This optimizer state is of {found}, and this model's optimizer is {own}.")


def _count(name: str, array: np.ndarray) -> int:
    if array.shape != () or array.dtype.kind not in "iu" or int(array) < 0:
        raise CheckpointError(f"This optimizer state says no number of updates under optimizer.{name}.")
    return int(array)


def _number(name: str, array: np.ndarray) -> float:
    if array.shape != () or array.dtype.kind != "f" or not (math.isfinite(float(array)) and float(array) >= 0):
        raise CheckpointError(f"This optimizer state has no number >= 0 under optimizer.{name}.")
    return float(array)


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:LISTED])
    return (shown + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")) or "none"
