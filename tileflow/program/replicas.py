"""Replicas: which of them share a weight, and the copies of states that others have of their own.

A part is compiled once for all replicas. Where its states are not the same for all of them, `Program.own` says whose is called what, and a run gets
the addresses of its own replica's when it is bound.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..system.errors import OptionError

if TYPE_CHECKING:
    from ..graph import Graph, State

REPLICA = "replica"
"""The role of a state that is another replica's copy of its owner's."""
LISTED = 8
"""Names that a sentence lists."""


@dataclass(frozen=True)
class Grouping:
    """Groups of replicas that share something.

    type: of R replicas in groups of `size` k, consecutive ones are {0 .. k-1}, {k .. 2k-1} ...; orthogonal ones {0, m, 2m ..}, {1, m+1 ..} ... with
        m = R / k; all is one group, no_grouping a group for each replica.
    retrieval: whether a user gets an array for each group, or for each replica.
    """

    type: Literal["all", "consecutive", "orthogonal", "no_grouping"]
    size: int = 1
    retrieval: Literal["one_per_group", "all_replicas"] = "one_per_group"

    @classmethod
    def named(cls, parts: Mapping[str, tuple[str, int, str]]) -> dict[str, Grouping]:
        """Groupings by name pattern, of their parts in order, as the option replica_grouping has them."""
        return {name: cls(*each) for name, each in parts.items()}                      # type: ignore[arg-type]

    def groups(self, replicas: int) -> tuple[int, ...]:
        """The number of each replica's group."""
        if self.type == "all":
            return (0,) * replicas
        if self.type == "no_grouping":
            return tuple(range(replicas))
        return tuple(r // self.size if self.type == "consecutive" else r % (replicas // self.size) for r in range(replicas))


def copy_name(name: str, number: int) -> str:
    """What the copy of a state is called that a later group, or replica, has."""
    return f"{name}@{number}" if number else name


def copy_of(state: State, number: int) -> State:
    """A later group's copy of a parameter or a buffer; it begins as what its owner is."""
    return replace(state, name=copy_name(state.name, number), group=f"{state.group or state.kind}@{number}", owner=state.name, role=REPLICA)


def is_own(state: State) -> bool:
    """A buffer that each replica may have for itself: micro-batches change it."""
    return state.kind == "buffer" and state.output is not None


def refuse_written(graphs: Sequence[Graph]) -> None:
    """Raise OptionError where the model's own operators write buffers, which replicas that share them would write at the same time. Running
    statistics are sums over all micro-batches, in order."""
    from ..graph import WRITTEN
    names = dict.fromkeys(s.name for graph in graphs for s in graph.states if is_own(s) and s.role == WRITTEN)
    if names:
        raise OptionError("tileflow does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of sync between "
                          "replicas, you can disable buffer broadcasting using broadcast_buffers=False. "
                          f"The buffers that forward() writes are {', '.join([*names][:LISTED])}{' ...' if len(names) > LISTED else ''}.")


def chosen(parameter: State, wanted: Mapping[str, Grouping]) -> Grouping | None:
    """What was asked for of a parameter: the first pattern that matches counts."""
    return next((g for pattern, g in wanted.items() if parameter.fits(pattern)), None)


def grouped(parameters: Sequence[State], wanted: Mapping[str, Grouping], replicas: int) -> dict[str, tuple[int, ...]]:
    """The parameters that not all replicas share: name -> the group of each replica.

    Raises:
        OptionError: a pattern fits no parameter.
    """
    for pattern in wanted:
        if not any(s.fits(pattern) for s in parameters):
            known = [s.known_as for s in parameters]
            more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
            raise OptionError(f"Option replica_grouping: the pattern {pattern!r} fits no parameter; they are {', '.join(known[:LISTED])}{more}.")
    found = {}
    for s in parameters:
        grouping = chosen(s, wanted)
        if grouping is not None and max(grouping.groups(replicas)):
            found[s.name] = grouping.groups(replicas)
    return found


def own_states(graphs: Sequence[Graph], groups: Mapping[str, tuple[int, ...]], replicas: int, buffers: bool) -> dict[str, tuple[str, ...]]:
    """What `Program.own` is: of grouped parameters, of what belongs to them (sums of gradients), and with `buffers` of what micro-batches change."""
    found = {}
    for s in (s for graph in graphs for s in graph.states if s.role != REPLICA):
        whose = s.name if s.name in groups else s.owner
        if whose in groups:
            assert s.name.startswith(whose), f"{s.name} belongs to {whose}, and its name does not say so"
            found[s.name] = tuple(copy_name(whose, g) + s.name[len(whose):] for g in groups[whose])
        elif buffers and is_own(s):
            found[s.name] = tuple(copy_name(s.name, r) for r in range(replicas))
    return found
