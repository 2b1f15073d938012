"""What processes that train together ask of whatever connects them: a communicator of two calls, allgather and barrier.

Whoever implements it carries bytes; sums are made by the processes themselves, in one order.
"""
from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..system.errors import ProcessError
from . import messages, window
from .messages import Parts

YIELDS = 2000
"""So often a process that waits offers its core to others, before it sleeps in between."""
LONGEST_NAP = 1e-3
"""Seconds."""


class Communicator(ABC):
    """A group of processes, seen by one of them. All make the same calls in the same order.

    rank: the number of this one. size: how many they are. hosts: by rank, the name of the computer.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]

    @abstractmethod
    def allgather(self, send: np.ndarray, what: str) -> np.ndarray:
        """Bytes of every process, uint8 [size, *send.shape]; also a barrier.

        Args:
            send: uint8, C-contiguous, of the same shape in every process. what: what it is, for messages, the same in
                every process.

        Raises:
            ProcessError: another process has ended, has failed, or is at another place of the program.
        """

    @abstractmethod
    def fail(self, cause: str) -> None:
        """Let the others know that this process goes no further, and why: their calls raise ProcessError, or they
        end."""

    def barrier(self, what: str) -> None:
        """Wait until every process is here. What each has written into common memory before, all can read after."""
        self.allgather(np.zeros(1, np.uint8), what)

    # ---- made of these

    @property
    def is_first(self) -> bool:
        """This is the process that writes files and talks to people."""
        return self.rank == 0

    @property
    def on_one_host(self) -> bool:
        return len(set(self.hosts)) == 1

    def common(self, nbytes: int) -> np.ndarray | None:
        """Zeroed memory, uint8 [nbytes], that all processes have in common; None where they are on several hosts.

        Raises:
            ProcessError: this host has no room for it.
        """
        what = "common memory"
        return window.opened(nbytes, self.is_first, lambda path: str(self.told(path, what)),
                             lambda: self.barrier(what)) if self.on_one_host else None

    def told(self, value: Any, what: str) -> Any:
        """The first process's value (of JSON's types), in every process."""
        text = json.dumps(value).encode() if self.is_first else b""
        length = int(self.allgather(np.array([len(text)], np.int64).view(np.uint8), what)[0].view(np.int64)[0])
        send = messages.filled(np.frombuffer(text, np.uint8), length)
        return json.loads(self.allgather(send, what)[0].tobytes()) if length else None

    def numbers(self, values: Sequence[int], what: str) -> np.ndarray:
        """Whole numbers of every process, int64 [size, len(values)]."""
        send = np.ascontiguousarray(values, np.int64)
        return self.allgather(send.view(np.uint8), what).view(np.int64).reshape(self.size, len(send))

    def alltoall(self, send: Sequence[np.ndarray], sizes: Sequence[int], what: str) -> list[np.ndarray]:
        """Bytes from every process for this one, uint8 [n] each; made of allgather where nothing better is known. To be
        called where all are known to be at the same place: nothing goes along that says so.

        Args:
            send: by rank, what goes there, uint8 [n]. sizes: by rank, how many bytes come from there. what: as of
                allgather.
        """
        counts = self.numbers([a.size for a in send], what)
        for rank in np.flatnonzero(counts[:, self.rank] != sizes):
            raise differing(what, int(rank))
        flat = np.zeros(int(counts.sum(1).max()), np.uint8)
        np.concatenate([*send], out=flat[:int(counts[self.rank].sum())])
        found, first = self.allgather(flat, what), counts[:, :self.rank].sum(1).tolist()
        return [found[rank, at:at + n] for rank, (at, n) in enumerate(zip(first, sizes, strict=True))]

    def allgatherv(self, send: np.ndarray, sizes: Sequence[int], what: str) -> list[np.ndarray]:
        """Bytes of every process, uint8 [n] each, of known sizes by rank; to be called as alltoall is."""
        flat = messages.filled(send, max(sizes))
        return [found[:n] for found, n in zip(self.allgather(flat, what), sizes, strict=True)]

    def gathered(self, parts: Parts | None, what: str) -> list[Parts | None]:
        """Arrays of every process, by rank; None where one has none."""
        own = np.zeros(0, np.uint8) if parts is None else messages.packed(parts)
        lengths = self.numbers([own.size], what)[:, 0].tolist()
        found = self.allgather(messages.filled(own, max(lengths)), what)
        return [parts if rank == self.rank else messages.unpacked(found[rank, :n], rank) if n else None
                for rank, n in enumerate(lengths)]

    def any(self, flag: bool, what: str) -> bool:
        """Whether a process says so: the same answer in all."""
        return bool(self.allgather(np.array([flag], np.uint8), what).any())


def wait(ready: Callable[[], bool], check: Callable[[], None], longest: float = LONGEST_NAP) -> None:
    """Wait until `ready`; `check` raises where nothing is left to be waited for. Signals are handled meanwhile.
    `longest`: seconds of a nap."""
    turns = 0
    while not ready():
        turns += 1
        if turns < YIELDS:
            os.sched_yield()
        else:
            time.sleep(min(longest, 1e-5 * (turns - YIELDS)))
        check()


def differing(what: str, rank: int) -> ProcessError:
    """The error where processes make different calls."""
    return ProcessError(f"Process {rank} is at another place of the program than this one, which is at {what}: all "
                        "processes of a group must make the same calls of tileflow in the same order.")


def ended(rank: int, what: str) -> ProcessError:
    """The error where a process has ended that this one, which is at `what`, waits for."""
    return ProcessError(f"Process {rank} has ended, and this one is at {what}: all processes of a group must make the "
                        "same calls of tileflow.")
