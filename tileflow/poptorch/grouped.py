"""Parameters of which groups of replicas have their own: a module whose parameter has a first axis of groups, and the
one that a replica computes."""
from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..optim import Optimizer as OwnOptimizer
from ..options.reference.enums import CommGroupType, VariableRetrievalMode, word
from ..torch.optimizers import mapped
from .errors import Error, InvalidOption


class Grouped:
    """A module as one replica has it.

    module: shares all but the parameters of groups. groupings: the option replica_grouping, by name.

    Raises:
        Error: a parameter is a scalar, or has no first axis.
    """

    def __init__(self, module: torch.nn.Module, groupings: Mapping[str, str]) -> None:
        self.groupings = dict(groupings)
        self.module = copy.copy(module)
        self.module._parameters = dict(module._parameters)
        self._whole: dict[str, torch.nn.Parameter] = {}
        self._seen: dict[str, int] = {}
        for name in groupings:
            whole = module._parameters[name]
            assert whole is not None
            self._whole[name] = whole
            self.module._parameters[name] = torch.nn.Parameter(whole.detach()[0].clone(), whole.requires_grad)

    def optimizer(self, given: Any) -> Any:
        """The optimizer of the whole module for this one."""
        return _OfReplica(given, {id(whole): self.module._parameters[name] for name, whole in self._whole.items()})

    def load(self, model: Any) -> None:
        """Give the groups what the parameters hold, where it is new."""
        new = {name: whole for name, whole in self._whole.items() if self._seen.get(name) != whole._version}
        if new:
            model.load_replica_state_dict({name: whole.detach().numpy() for name, whole in new.items()})
            self._seen.update({name: whole._version for name, whole in new.items()})

    def take(self, model: Any) -> None:
        """Let the parameters hold what the groups have."""
        found = model.replica_state_dict()
        with torch.no_grad():
            for name, whole in self._whole.items():
                whole.copy_(torch.from_numpy(found[name]))
                self._seen[name] = whole._version


class _OfReplica:
    """An optimizer in whose groups a replica's parameters stand for the whole ones."""

    def __init__(self, given: Any, instead: Mapping[int, Any]) -> None:
        self._given, self._instead = given, instead

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{**group, "params": [self._instead.get(id(p), p) for p in group["params"]]}
                for group in self._given.param_groups]

    def tileflow_optimizer(self, names: Mapping[int, str]) -> OwnOptimizer:
        return mapped(self._given, {**names, **{whole: names[id(own)]
                                                for whole, own in self._instead.items() if id(own) in names}}).optimizer


def checked(name: str, parameter: torch.nn.Parameter, kind: str, shards: int, replicas: int) -> None:
    """Whether groups of replicas can have a parameter each.

    Raises:
        Error: it is a scalar, or its first axis is not the number of groups. InvalidOption: the replicas are no such
            groups.
    """
    if parameter.dim() == 0:
        raise Error("Scalars cannot be passed as per-replica weight tensor values")
    size = {"all": replicas, "no_grouping": 1}.get(kind, shards)
    if isinstance(shards, bool) or not isinstance(shards, int) or size < 1 or replicas % size:
        raise InvalidOption(f"replicaGrouping of {name}: groups of {shards} do not divide {replicas} replicas.")
    if parameter.shape[0] != replicas // size:
        raise Error(f"{name} has {parameter.shape[0]} weights along its first axis, and there are {replicas // size} "
                    "groups of replicas.")


class Weight:
    """A parameter of a module that is to be trained, of which replicas may have their own, by
    `model.W.replicaGrouping(...)`; else it is the parameter.

    groupings: the option replica_grouping of the model, by name; what is asked for is added. replicas: how many there
        are.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, groupings: dict[str, str], replicas: int) -> None:
        self._name, self._parameter, self._groupings, self._replicas = name, parameter, groupings, replicas

    def replicaGrouping(self, comm_group_type: CommGroupType, shards: int,
                        variable_retrieval_mode: VariableRetrievalMode) -> None:
        """Give groups of replicas weights of their own: the parameter's first axis counts the groups.

        Args:
            comm_group_type: which replicas are a group. shards: how many replicas a group has.
            variable_retrieval_mode: OnePerGroup.

        Raises:
            Error: the parameter is a scalar, or its first axis is not the number of groups.
            InvalidOption: a value is wrong.
        """
        kind, kept = word(CommGroupType(comm_group_type)), word(VariableRetrievalMode(variable_retrieval_mode))
        checked(self._name, self._parameter, str(kind), shards, self._replicas)
        self._groupings[self._name] = "no_grouping" if kind == "no_grouping" else f"{kind}:{shards}:{kept}"

    replica_grouping = replicaGrouping

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._parameter, name)

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(x: Any) -> Any:
            if isinstance(x, Weight):
                return x._parameter
            return type(x)(map(plain, x)) if type(x) in (list, tuple) else x
        return func(*map(plain, args), **{name: plain(x) for name, x in (kwargs or {}).items()})
