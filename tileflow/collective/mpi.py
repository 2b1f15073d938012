"""The communicator over MPI, by mpi4py: processes that mpiexec has started, on one host or several."""
from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np

from ..system.errors import OptionError
from ..system.terminal import say
from .communicator import Communicator, differing, wait

HEAD = 16
"""Bytes that say what a message is: its length and a tag."""
NAME = 256
"""Bytes of a host's name."""


class Mpi(Communicator):
    """The processes of MPI's COMM_WORLD, by a communicator of their own."""

    def __init__(self) -> None:
        mpi = _mpi()
        self._mpi, self._all = mpi, mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self._all.rank), int(self._all.size)
        name, names = np.zeros(NAME, np.uint8), np.empty((self.size, NAME), np.uint8)
        own = str(mpi.Get_processor_name()).encode()[:NAME]
        name[:len(own)] = np.frombuffer(own, np.uint8)
        self._gather(name, names)
        self.hosts = tuple(n.tobytes().rstrip(b"\0").decode(errors="replace") for n in names)
        before = sys.excepthook

        def ended(*told: Any) -> None:
            """An error that nobody caught ends all, for MPI would wait for this process for ever."""
            before(*told)
            sys.stderr.flush()
            self._all.Abort(1)
        sys.excepthook = ended

    def allgather(self, send: np.ndarray, what: str) -> np.ndarray:
        flat = send.reshape(-1)
        self._agree(flat.size, what)
        found = np.empty((self.size, flat.size), np.uint8)
        self._gather(flat, found)
        return found.reshape(self.size, *send.shape)

    def _agree(self, length: int, what: str) -> None:
        """All are at the same place, with messages of one length: else MPI would write beyond an array."""
        own = np.array([length, zlib.crc32(what.encode())], np.int64).view(np.uint8)
        heads = np.empty((self.size, HEAD), np.uint8)
        self._gather(own, heads)
        for rank in np.flatnonzero((heads != own).any(1)):
            raise differing(what, int(rank))

    def _gather(self, send: np.ndarray, found: np.ndarray) -> None:
        """Wait by asking, so that signals are handled meanwhile."""
        going = self._all.Iallgather([send, self._mpi.BYTE], [found, self._mpi.BYTE])
        wait(lambda: bool(going.Test()), lambda: None)

    def fail(self, cause: str) -> None:
        """MPI's own launcher does not tell of failures: this ends all processes."""
        say(f"tileflow: process {self.rank} of {self.size}: {cause}", sys.stderr)
        self._all.Abort(1)


def _mpi() -> Any:
    """mpi4py's MPI, which begins when it is imported."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise OptionError(f"Several processes by mpiexec need mpi4py and an MPI library ({error}): pip install 'tileflow-engine[mpi]'. Where the "
                          "library is not found, let LD_LIBRARY_PATH name the folder lib of the environment. On one host, tileflow launch needs "
                          "neither.") from None
    return MPI
