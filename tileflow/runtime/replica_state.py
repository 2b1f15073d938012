"""Weights and buffers that replicas have of their own, as arrays with a first dimension of groups or of replicas."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.replicas import chosen
from ..state import Session
from ..state.weights import fitting
from ..system.errors import DataError, OptionError

if TYPE_CHECKING:
    from ..program.program import Program
    from ..program.replicas import Grouping

OF_REPLICA_0 = "Replicas have weights of their own, and a file has those of replica 0; state_dict(replica=1) of the model gives another's."


def of_replica(program: Program, session: Session, common: Mapping[str, np.ndarray], replica: int) -> dict[str, np.ndarray]:
    """Parameters and buffers as one replica has them.

    Args:
        common: those of the first one, by name.

    Raises:
        OptionError: there is no such replica.
    """
    if isinstance(replica, bool) or not isinstance(replica, int) or not 0 <= replica < program.batching.replicas:
        raise OptionError(f"There is no replica {replica!r}; the model has {program.batching.replicas}, counted from 0.")
    return {name: session[program.own[name][replica]].copy() if name in program.own else array for name, array in common.items()}


def collect(program: Program, session: Session, wanted: Mapping[str, Grouping]) -> dict[str, np.ndarray]:
    """Copies of what replicas have of their own: parameters [groups, *shape] each, or [replicas, *shape] where that was asked for, and buffers
    [replicas, *shape]."""
    return {name: np.stack([session[n] for n in _shown(program, name, wanted)]) for name in _names(program)}


def check(program: Program, session: Session, wanted: Mapping[str, Grouping], tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `collect` gave, or arrays like that, as tensors for the session, by the names of its states.

    Raises:
        DataError: names, shapes or types differ, or replicas of one group would get different weights; the sentence says which.
    """
    names = _names(program)
    if not isinstance(tensors, Mapping) or (unknown := [str(n) for n in tensors if n not in names]) or not tensors:
        found = ", ".join(unknown) if isinstance(tensors, Mapping) and tensors else "nothing by name"
        raise DataError(f"Replicas have weights or buffers of their own of {', '.join(names) or 'nothing'}; got {found}.")
    own: dict[str, np.ndarray] = {}
    given: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        array = np.asarray(tensor)
        if array.ndim == 0:
            raise DataError(f"{name!r}: Scalars cannot be passed as per-replica weight tensor values")
        groups, every = list(dict.fromkeys(program.own[name])), _shown(program, name, wanted)
        targets = every if len(array) == len(every) else groups
        if len(array) != len(targets):
            raise DataError(f"{name!r} has {len(array)} arrays in its first dimension, and there are {len(groups)} groups of replicas.")
        for target, one in zip(targets, array, strict=True):
            if target in given and not np.array_equal(given[target], one):
                raise DataError(f"{name!r}: replicas of one group would get different weights; give one array for each group.")
            own[target], given[target] = session[target], one
    return fitting(own, given)


def _names(program: Program) -> list[str]:
    """The parameters and buffers of which replicas have their own."""
    return [s.name for s in program.states.values() if s.name in program.own and s.kind in ("parameter", "buffer")]


def _shown(program: Program, name: str, wanted: Mapping[str, Grouping]) -> list[str]:
    """The states whose arrays a user gets of a parameter or buffer."""
    grouping = chosen(program.states[name], wanted)
    every = list(program.own[name])
    return every if grouping is None or grouping.retrieval == "all_replicas" else list(dict.fromkeys(every))
