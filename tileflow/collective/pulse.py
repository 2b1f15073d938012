"""The heart of a process whose watcher may be on another host: it beats, and ends the process when another one has
failed or nobody hears it."""
from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

from ..system.errors import ProcessError
from .communicator import ended
from .frames import BEAT, DONE, END, EVERY, FAILED, GRACE, HELLO, LEFT, STOP, Line
from .patience import Clock

CALL_S = 2.0
"""Seconds for which an address of the watcher is tried."""
PROXY = "hydra_pmi_prox"
"""What the system calls MPICH's process on each host, the parent of ours (the kernel keeps 15 letters)."""


class Pulse:
    """Process `rank`, which a `Watch` hears."""

    def __init__(self, told: str, rank: int, host: str, watcher: str) -> None:
        """Args:
            told: `Watch.told`. watcher: who watches, for messages.

        Raises:
            ProcessError: it cannot be reached.
        """
        port, token, silent, addresses = told.split("/", 3)
        self._silent = float(silent)
        self.rank, self.cause, self._watcher, self._leaves = rank, "", watcher, False
        """cause: the sentence of what has failed first; "": all is well."""
        self.left: dict[int, float] = {}
        """When others have ended as they should."""
        self._over = False
        self._answered = threading.Event()
        """Who watches has heard how this process ends, or no longer listens."""
        self._line = Line(_called(addresses.split(","), int(port), rank, host))
        self._line.send(HELLO, rank, f"{token} {host}")
        self._process = os.getpid()
        for work in (self._beat, self._hear):
            threading.Thread(target=work, name="tileflow-heartbeat", daemon=True).start()

    def check(self, what: str) -> None:
        """ProcessError where another process has failed, or has ended while this one waits for it: what it sent before
        has arrived by now."""
        if self.cause:
            raise ProcessError(self.cause)
        for rank, at in [*self.left.items()]:
            if time.monotonic() - at > GRACE:
                raise ended(rank, what)

    def verdict(self) -> str:
        """Why a message did not arrive, for which it is waited a while; "" where nobody knows."""
        until = time.monotonic() + self._silent + GRACE
        while not self.cause and time.monotonic() < until:
            time.sleep(EVERY / 5)
        return self.cause

    def fail(self, cause: str) -> None:
        """This process goes no further."""
        self.cause = self.cause or cause
        self._line.send(FAILED, self.rank, cause)
        self._answered.wait(GRACE)

    def leave(self) -> None:
        """This process ends as it should, once MPI lets it; a request to end would only kill it now."""
        self._leaves = True
        self._line.send(LEFT, self.rank)

    def close(self) -> None:
        """It has ended. A process that goes while something for it is on its way breaks the connection, and what it has
        said last is lost with it: so it waits for the answer."""
        self._answered.wait(GRACE)
        self._over = True

    def _beat(self) -> None:
        while not self._over and os.getpid() == self._process:
            self._line.send(BEAT, self.rank)
            time.sleep(EVERY)

    def _hear(self) -> None:
        clock = Clock()
        heard = clock.now()
        while not self._over:
            frames = clock.during(self._line.receive, EVERY)
            now = clock.now()
            heard = now if frames else heard
            kinds = {kind: text for kind, _, text in frames or ()}
            self.left |= {rank: time.monotonic()
                          for kind, rank, _ in frames or () if kind == LEFT and rank != self.rank}
            if {DONE, END} & kinds.keys() or any(kind == LEFT and rank == self.rank for kind, rank, _ in frames or ()):
                self._answered.set()
            if DONE in kinds:
                return
            if END in kinds:
                return self._end(kinds[END])
            if STOP in kinds and not self._leaves:
                os.kill(os.getpid(), signal.SIGTERM)
            if (frames is None or now - heard > self._silent) and not self._over:
                how = "has ended" if frames is None else "does not answer, or cannot be reached"
                who = f"{self._watcher[:1].upper()}{self._watcher[1:]}"
                return self._end(f"{who} {how}: process {self.rank} ends, too.", orphaned=True)
        return None

    def _end(self, cause: str, orphaned: bool = False) -> None:
        """The process may end by itself for a while; then it is ended, and with it, where its launcher is out of reach,
        MPI's part of that here."""
        self.cause = cause
        time.sleep(GRACE)
        if orphaned:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{os.getppid()}/comm").read_text().startswith(PROXY):
                    os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)


def _called(addresses: list[str], port: int, rank: int, host: str) -> socket.socket:
    for address in addresses:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), CALL_S)
    raise ProcessError(f"Process {rank} on {host} cannot reach who watches all processes, at {' or '.join(addresses)}, "
                       f"port {port}: hosts of a group must let each other connect at any port, for MPI does so, too.")
