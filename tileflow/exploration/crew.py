"""Several processes for one exploration: each is given the program as a file, and settings of it that have most plans
in common.

They are started afresh (never forked, for this process may have threads) and run no script of the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from ..compiler import Compilation
from ..feed import wire
from ..options.options import Options
from ..program import file
from ..system.errors import TileflowError, UnsupportedError
from ..tiles.machine import Analyses
from .planning import machine
from .point import Point
from .search import planned, point_of

AT_ONCE = 16
"""Settings that a process is given together, at most."""
_BEGIN = (  # programs find operators by their names
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import tileflow.ops; "
    "from tileflow.exploration.crew import serve; serve(int(sys.argv[2]))"
)


Numbered = tuple[int, Options]


def costs(setting: Numbered) -> str:
    """What makes chips of settings the same in all that a plan costs."""
    return repr(machine(setting[1]).key_of_cycles)


def together(settings: Sequence[Numbered]) -> list[list[Numbered]]:
    """Settings in the order in which they share most: chips with the same costs in one list, those with the same plans
    one after the other, from the least bytes to the most."""
    groups: dict[str, list[tuple[Any, Numbered]]] = {}
    for setting in settings:
        chip = machine(setting[1])
        of = chip.bytes_per_tile, repr(setting[1].available_memory_proportion), setting[0]
        groups.setdefault(costs(setting), []).append((of, setting))
    return [[setting for _, setting in sorted(groups[key], key=lambda one: one[0])] for key in sorted(groups)]


def batches(settings: Sequence[Numbered], processes: int) -> list[list[Numbered]]:
    """The settings that a process is given at once: of chips with the same costs only."""
    size = max(1, min(AT_ONCE, len(settings) // (4 * processes)))
    return [group[i : i + size] for group in together(settings) for i in range(0, len(group), size)]


def next_batch(waiting: list[list[Numbered]], had: str, taken: set[str]) -> list[Numbered]:
    """Take the batch that a process does next: of the chip that it has had, else of one that none of `taken` is, so
    that no two processes make the same plans while there are others."""
    keys = [costs(batch[0]) for batch in waiting]
    at = next((i for i, key in enumerate(keys) if key == had), None)
    if at is None:
        at = next((i for i, key in enumerate(keys) if key not in taken), 0)
    return waiting.pop(at)


class Crew:
    """Processes that analyse settings of a program; with one there are none, and nobody helps. They end with `close`,
    and with this process."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._members: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def helps(self, program: Compilation | Exception) -> bool:
        """Whether there are processes, and they can read the program: operators of a user's own are declared in this
        process alone.

        Raises:
            TileflowError: a process has ended.
        """
        if self.processes < 2 or isinstance(program, Exception):
            return False
        self._start()
        try:
            file.save(self._path, program.program)
        except UnsupportedError:
            return False
        first = self._members[0][1]
        with _alive():
            wire.send(first, (str(self._path), []))
            return wire.receive(first) is None

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "program"

    def _start(self) -> None:
        if self._folder is not None:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="tileflow-explore-")
        for _ in range(self.processes):
            ours, theirs = Pipe()
            words = [sys.executable, "-c", _BEGIN, json.dumps(sys.path), str(theirs.fileno())]
            try:
                child = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            finally:
                theirs.close()
            self._members.append((child, ours))

    def close(self) -> None:
        """End the processes, also in the middle of a setting."""
        for child, connection in self._members:
            connection.close()
            child.kill()
            child.wait()
        if self._folder is not None:
            self._folder.cleanup()

    def points(self, settings: Sequence[tuple[int, Options]]) -> Iterator[tuple[int, Point]]:
        """The points of settings of the program with which it `helps`, by their numbers, as they are done.

        Raises:
            TileflowError: a process has ended.
        """
        waiting = batches(settings, len(self._members))
        idle, busy, had = [c for _, c in self._members], list[Connection](), dict[Connection, str]()
        while waiting or busy:
            while waiting and idle:
                busy.append(idle.pop())
                batch = next_batch(waiting, had.get(busy[-1], ""), {*had.values()})
                had[busy[-1]] = costs(batch[0])
                with _alive():
                    wire.send(busy[-1], (str(self._path), batch))
            for connection in [c for c in wait(busy) if isinstance(c, Connection)]:
                with _alive():
                    done = wire.receive(connection)
                if done is None:
                    busy.remove(connection)
                    idle.append(connection)
                else:
                    yield done


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    """Say so where the other side of a connection has ended."""
    try:
        yield
    except (EOFError, OSError):
        raise TileflowError(
            "A process of the exploration has ended, perhaps because memory is short; give fewer processes."
        ) from None


def serve(descriptor: int) -> None:
    """A process of the crew: analyse what comes over the connection until its other side is closed.

    Answers to (path of a program, numbered settings) are (number, point) for each, then None; or False, where the
    program cannot be read here.
    """
    # it reaches all processes of a terminal; the parent says what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    held: dict[str, Any] = {}
    while True:
        try:
            path, settings = wire.receive(connection)
        except (EOFError, OSError):
            os._exit(0)
        stamp = os.stat(path).st_mtime_ns, os.stat(path).st_ino
        if held.get("stamp") != stamp:
            try:
                program = Compilation(file.load(path))
                held = {"stamp": stamp, "program": program, "analyses": Analyses(program.program)}
            except TileflowError:
                wire.send(connection, False)
                continue
        for number, options in settings:
            point = point_of(planned(held["program"], options, held["analyses"]))
            wire.send(connection, (number, point))
        wire.send(connection, None)
