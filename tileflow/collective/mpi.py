"""The communicator over MPI, by mpi4py: processes that mpiexec has started, on one host or several."""
from __future__ import annotations

import atexit
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..system.errors import OptionError, ProcessError
from ..system.terminal import say
from . import pinning
from .communicator import Communicator, differing, wait
from .messages import filled, filled_text, text_of
from .pulse import Pulse
from .watch import Watch

HEAD = 16
"""Bytes that say what a message is: its length and a tag."""
TAGS = 32768
"""MPI has so many tags at least."""
SMALL = 64
"""Bytes of a message that goes along with these."""
NAP = 5e-5
"""Seconds for which a process that waits sleeps at most: bytes move only while it asks."""
NAME = 256
"""Bytes of a host's name."""
LAUNCHER = "tileflow launch"


class Mpi(Communicator):
    """The processes of MPI's COMM_WORLD, by a communicator of their own. All of them are watched: by their launcher, or
    by the first."""

    def __init__(self, told: str = "") -> None:
        """`told`: where the launcher watches (`Watch.told`); "": the first process does.

        Raises:
            OptionError: there is no mpi4py.
            ProcessError: this process cannot reach who watches.
        """
        mpi, own = _mpi()
        self._mpi, self._all = mpi, mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self._all.rank), int(self._all.size)
        self._pulse: Pulse | None = None
        self._watch: Watch | None = None
        host, names = str(mpi.Get_processor_name()), np.empty((self.size, NAME), np.uint8)
        self._gather(filled_text(host, NAME), names, "hosts")
        self.hosts = tuple(map(text_of, names))
        if not told and self.is_first and self.size > 1:
            self._watch = Watch(self.size, set(self.hosts),
                                lambda sentence: say(f"tileflow: error: {sentence}", sys.stderr))
        if told and not self.is_first:                      # only the first talks to people
            sys.stdout.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        watcher = LAUNCHER if told else f"process 0 of {self.size} (on {self.hosts[0]})"
        if told := told or self.told(self._watch.told if self._watch else "", "who watches"):
            self._pulse = Pulse(told, self.rank, host, watcher)
        self._pin()
        before = sys.excepthook

        def ended(kind: Any, error: Any, trace: Any) -> None:
            """An error that nobody caught ends all, for MPI would wait for this process for ever."""
            before(kind, error, trace)
            sys.stderr.flush()
            if self._pulse is None or not self._pulse.cause:
                self.fail(f"{kind.__name__}: {error}")
        sys.excepthook = ended
        atexit.register(self._leave, own)

    def allgather(self, send: np.ndarray, what: str) -> np.ndarray:
        flat = send.reshape(-1)
        small = flat.size <= SMALL
        found = self._agreed(flat.size, flat[:SMALL], what)[:, :flat.size].copy()
        if not small:
            found = np.empty((self.size, flat.size), np.uint8)
            self._gather(flat, found, what)
        return found.reshape(self.size, *send.shape)

    def alltoall(self, send: Sequence[np.ndarray], sizes: Sequence[int], what: str) -> list[np.ndarray]:
        found = [send[rank] if rank == self.rank else np.empty(n, np.uint8) for rank, n in enumerate(sizes)]
        others = [(self.rank + step) % self.size for step in range(1, self.size)]  # not all to the same one first
        come, go = [rank for rank in others if sizes[rank]], [rank for rank in others if send[rank].size]
        tag, states = zlib.crc32(what.encode()) % TAGS, [self._mpi.Status() for _ in (*come, *go)]
        self._wait(lambda: [*(self._all.Irecv([found[rank], self._mpi.BYTE], rank, tag) for rank in come),
                            *(self._all.Isend([send[rank], self._mpi.BYTE], rank, tag) for rank in go)], what, states)
        for rank, state in zip(come, states, strict=False):
            if state.Get_count(self._mpi.BYTE) != sizes[rank]:
                raise differing(what, rank)
        return found

    def allgatherv(self, send: np.ndarray, sizes: Sequence[int], what: str) -> list[np.ndarray]:
        return self.alltoall([send] * self.size, sizes, what)

    def _agreed(self, length: int, more: np.ndarray, what: str) -> np.ndarray:
        """All are at the same place, with messages of one length: else MPI would write beyond an array. `more` goes
        along, at most SMALL bytes; what all gave, uint8 [size, SMALL]."""
        head = np.array([length, zlib.crc32(what.encode())], np.int64).view(np.uint8)
        own = filled(np.concatenate([head, more]), HEAD + SMALL)
        heads = np.empty((self.size, own.size), np.uint8)
        self._gather(own, heads, what)
        for rank in np.flatnonzero((heads[:, :HEAD] != own[:HEAD]).any(1)):
            raise differing(what, int(rank))
        return heads[:, HEAD:]

    def _gather(self, send: np.ndarray, found: np.ndarray, what: str) -> None:
        self._wait(lambda: [self._all.Iallgather([send, self._mpi.BYTE], [found, self._mpi.BYTE])], what)

    def _wait(self, begin: Callable[[], Any], what: str, states: list[Any] | None = None) -> None:
        """Wait by asking, so that signals are handled and failures heard of meanwhile. `states`: to be filled, one for
        each that is waited for."""
        def check() -> None:
            if self._pulse is not None:
                self._pulse.check(what)
        check()
        try:
            going = begin()
            wait(lambda: bool(self._mpi.Request.Testall(going, states)), check, NAP)
        except self._mpi.Exception as error:
            why = "" if self._pulse is None else self._pulse.verdict()
            raise ProcessError(why or f"MPI cannot reach another process: {error}") from None

    def fail(self, cause: str) -> None:
        """Where nobody watches, MPI ends all: its own launcher does not tell of failures."""
        if self._pulse is not None:
            self._pulse.fail(cause)
            return
        say(f"tileflow: process {self.rank} of {self.size}: {cause}", sys.stderr)
        self._all.Abort(1)

    def _pin(self) -> None:
        """The processes of a host share its processors by equal parts, unless somebody else has dealt these out."""
        found = self.gathered([(np.array(sorted(pinning.allowed()), np.int64),)], "processors")
        cpus = [set(parts[0][0].tolist()) for parts in found if parts is not None]
        local = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank]]
        if len(local) == 1 or not cpus[self.rank] or any(cpus[rank] != cpus[self.rank] for rank in local):
            return
        parts = pinning.parts(cpus[self.rank], len(local))
        if parts is not None:
            os.sched_setaffinity(0, parts[local.index(self.rank)])

    def _leave(self, finalize: bool) -> None:
        """MPI is ended only where all is well: it would wait for those that are gone."""
        pulse = self._pulse
        well = pulse is None or not pulse.cause
        if pulse is not None and well:
            pulse.leave()
        if finalize and well and not self._mpi.Is_finalized():
            self._mpi.Finalize()
        if pulse is not None and well:
            pulse.close()
        if self._watch is not None:
            self._watch.close()


def _mpi() -> tuple[Any, bool]:
    """mpi4py's MPI, which begins when it is imported; whether we are to end it."""
    own = "mpi4py.MPI" not in sys.modules
    try:
        if own:
            import mpi4py
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as error:
        raise OptionError(f"Several processes by mpiexec need mpi4py and an MPI library ({error}): pip install "
                          "'tileflow-engine[mpi]'. Where the library is not found, let LD_LIBRARY_PATH name the folder "
                          "lib of the environment. On one host, tileflow launch needs neither.") from None
    return MPI, own
