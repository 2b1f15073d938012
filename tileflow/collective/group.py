"""The group that this process is in: told by whoever started it, joined at its first question."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..system.errors import OptionError
from .communicator import Communicator

TOLD = "TILEFLOW_PROCESS"
"""Set by our launcher: rank/size/the launcher's process/the path of the control file; or `mpi`, and where it watches:
mpi/port/token/seconds/addresses."""
REPLICAS, IPUS = "TILEFLOW_NUM_REPLICAS", "TILEFLOW_IPUS_PER_REPLICA"
"""What `tileflow launch --num-replicas` and `--ipus-per-replica` tell scripts that ask (tileflow.poptorch.popdist)."""
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE")
"""What MPI's launchers tell the processes that they start."""
_group: list[Communicator | None] = []
_alone = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """What is called within, this process does by itself, as if it were in no group:

        if group.is_first:
            with tileflow.collective.alone():
                result.evaluate()
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def current() -> Communicator | None:
    """The group of this process, which is joined by the first call; None: it is alone."""
    if _alone.get():
        return None
    if not _group:
        told = os.environ.get(TOLD, "")
        use(_joined(told) if told else None)
    return _group[0]


def init() -> Communicator | None:
    """Join the group of a process that mpiexec has started (or `tileflow launch`, which needs no such call); None: it
    is alone.

    Raises:
        OptionError: mpiexec has started it, and there is no mpi4py.
    """
    if current() is None and not _alone.get() and any(int(os.environ.get(name) or 1) > 1 for name in SIZES):
        use(_joined("mpi"))
    return current()


def use(group: Communicator | None) -> None:
    """Let this process be in a group of your own making, a `Communicator`; None: alone."""
    _group[:] = [None if group is None or group.size == 1 else group]


def _joined(told: str) -> Communicator:
    if told.partition("/")[0] == "mpi":
        from .mpi import Mpi
        return Mpi(told.partition("/")[2])
    from .control import Control
    from .shared import SharedMemory
    try:
        rank, size, launcher, path = told.split("/", 3)
        return SharedMemory(Control("/" + path, int(size)), int(rank), int(launcher))
    except (ValueError, OSError) as error:
        raise OptionError(f"The environment says {TOLD}={told}, which is no group of processes ({error}): tileflow "
                          "launch sets it, nobody else.") from None
