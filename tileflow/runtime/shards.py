"""Optimizer states of which each of several processes keeps a slice (option optimizer_sharded), as whole arrays."""
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..collective import Communicator, current
from ..state import Session
from ..system.errors import TileflowError, see

WHAT = "slices of optimizer states"


def together() -> Communicator:
    """The group whose processes have the other slices; TileflowError where this one acts alone."""
    group = current()
    if group is None:
        raise TileflowError("With option optimizer_sharded each process has a slice of the optimizer's states, and "
                            "this one is alone here, as callbacks are: get and set them in all processes, outside of "
                            f"callbacks and collective.alone().{see('distributed')}")
    return group


def whole(session: Session, states: Iterable[str], everywhere: bool = True) -> dict[str, np.ndarray]:
    """Whole arrays of those of the states of which there are slices: a call of all processes.

    Args:
        everywhere: all get them; else the first one does, and the others get none.

    Raises:
        TileflowError: this process acts alone.
        ProcessError: another process has ended or failed, or is at another place of the program.
    """
    names = [name for name in states if name in session.parts]
    if not names:
        return {}
    group = together()
    group.barrier(WHAT)
    found = {}
    for name in names:
        part, own = session.parts[name], session[name]
        send, sizes = own.view(np.uint8), [(cut.stop - cut.start) * own.itemsize for cut in part.cuts]
        if everywhere:
            pieces = group.allgatherv(send, sizes, WHAT)
        else:
            nothing = np.zeros(0, np.uint8)
            wanted = sizes if group.is_first else [0] * group.size
            pieces = group.alltoall([nothing if rank else send for rank in range(group.size)], wanted, WHAT)
        if everywhere or group.is_first:
            found[name] = np.concatenate(pieces).view(own.dtype).reshape(part.shape)
    return found


def to_first(session: Session, wanted: bool = True) -> dict[str, np.ndarray]:
    """All such states, in the first process where it wants them: a call of all, as `whole`."""
    if not session.parts:
        return {}
    told = together().told([wanted, sorted(session.cleared & session.parts.keys())], "whether states are wanted")
    session.clear(told[1])
    return whole(session, session.parts, everywhere=False) if told[0] else {}
