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
from .planning import machine
from .point import Point
from .search import planned, point_of

AT_ONCE = 16
"""Settings that a process is given together, at most."""
_BEGIN = (  # programs find operators by their names
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import tileflow.ops; "
    "from tileflow.exploration.crew import serve; serve(int(sys.argv[2]))"
)


def batches(settings: Sequence[tuple[int, Options]], processes: int) -> list[list[tuple[int, Options]]]:
    """Settings in the order in which they share most: chips with the same plans together, of one bound after the
    other's."""

    def alike(setting: tuple[int, Options]) -> Any:
        chip = machine(setting[1])
        return repr(chip.key_of_cycles), chip.bytes_per_tile, repr(setting[1].available_memory_proportion)

    ordered = sorted(settings, key=alike)
    size = max(1, min(AT_ONCE, len(ordered) // (4 * processes)))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


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
        waiting = batches(settings, len(self._members))[::-1]
        idle, busy = [c for _, c in self._members], list[Connection]()
        while waiting or busy:
            while waiting and idle:
                busy.append(idle.pop())
                with _alive():
                    wire.send(busy[-1], (str(self._path), waiting.pop()))
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
                held = {"stamp": stamp, "program": Compilation(file.load(path))}
            except TileflowError:
                wire.send(connection, False)
                continue
        for number, options in settings:
            point = point_of(planned(held["program"], options))
            wire.send(connection, (number, point))
        wire.send(connection, None)
