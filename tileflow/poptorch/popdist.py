"""PopDist's names: `from tileflow.poptorch import popdist` in a script that poprun started, and that `tileflow launch`
or mpiexec starts here.

As there, an instance is a process and has its part of the replicas. Other than there, loaders and calls have the rows
of all instances in each, which computes its own (docs/distributed.md).
"""
from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable
from typing import Any

from .. import collective
from ..collective.group import IPUS, REPLICAS, TOLD
from ..program.dealing import ReplicaShare
from .options import Options as _Options

REFUSED = ("replicationFactor", "useIpuId", "Distributed.disable", "Distributed.setEnvVarNames",
           "Distributed.configureProcessId")
"""What whoever starts the processes says, and no script."""


def init() -> None:
    """Join the group of instances that this one is of."""
    collective.init()


def isPopdistEnvSet() -> bool:
    """Whether something has started this process as an instance: `tileflow launch`, or mpiexec once `init` was
    called."""
    return TOLD in os.environ or collective.current() is not None


def getInstanceIndex() -> int:
    """The number of this instance."""
    return 0 if (group := collective.current()) is None else group.rank


def getNumInstances() -> int:
    """How many instances there are."""
    return 1 if (group := collective.current()) is None else group.size


def getNumTotalReplicas() -> int:
    """The replicas of all instances: `tileflow launch --num-replicas`, by default one of each."""
    return int(os.environ.get(REPLICAS) or getNumInstances())


def getNumLocalReplicas() -> int:
    """The replicas of this instance; the first ones have one more where they cannot be dealt evenly."""
    return len(ReplicaShare(getInstanceIndex(), getNumInstances()).of(getNumTotalReplicas()))


def getNumIpusPerReplica() -> int:
    """`tileflow launch --ipus-per-replica`, by default 1."""
    return int(os.environ.get(IPUS) or 1)


def execute_on_instances(instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the function gives in these instances, each of which calls it by itself; None in the others."""
    if getInstanceIndex() not in set(instances):
        return None
    with collective.alone():
        return function(*args, **kwargs)


class Options(_Options):
    """`popdist.poptorch.Options()`: `poptorch.Options` whose replicas are those of all instances.

    Raises:
        RuntimeError: a script sets what whoever starts the processes says.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        """`ipus_per_replica`: taken; how many a model has follows from its blocks."""
        super().__init__()
        if getNumTotalReplicas() > 1:
            self._add({"replication_factor": getNumTotalReplicas()})

    def _take(self, entry: Any, args: Any, kwargs: Any) -> None:
        if entry.name in REFUSED:
            raise RuntimeError(f"Cannot call `{entry.name.rpartition('.')[2]}` with popdist.poptorch.Options: whoever "
                               "starts the processes says it (tileflow launch -n, --num-replicas).")
        super()._take(entry, args, kwargs)


poptorch = types.SimpleNamespace(Options=Options)
"""`popdist.poptorch.Options`."""


def __getattr__(name: str) -> Any:
    if name == "rank":
        return getInstanceIndex()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/distributed.md lists all names.")
