"""What of an optimizer's attributes a state dict holds: numbers that may change, and schedules with a state, by what updates call them."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .optimizer import Optimizer
from .schedules import described, plateau, plateaus


def _variable(optimizer: Optimizer) -> dict[str, Any]:
    return {role: x for group in optimizer.hyper() for role, x in group.values() if role}


def roles(optimizer: Optimizer) -> list[str]:
    """What updates call the attributes that may change."""
    return list(_variable(optimizer))


def numbers(optimizer: Optimizer) -> dict[str, float]:
    """Those of them that are plain numbers."""
    return {role: float(x) for role, x in _variable(optimizer).items() if not callable(x)}


def set_numbers(optimizer: Optimizer, values: Mapping[str, float]) -> None:
    """Give plain numbers other values."""
    for role, x in values.items():
        optimizer.set_number(role, x)


def with_state(optimizer: Optimizer) -> dict[str, plateau]:
    """The schedules with a state, each once."""
    return plateaus(_variable(optimizer))


def shown(optimizer: Optimizer, role: str) -> str:
    """How sentences call what a variable attribute follows."""
    found = _variable(optimizer).get(role)
    return "a constant of the compiled update" if found is None else f"the schedule {described(found)}"
