"""Worker processes that read data ahead: started afresh (never forked, for this process has threads), asked in order, ended with their owner."""
from __future__ import annotations

import math
import multiprocessing
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ..system.errors import DataError, see
from . import wire
from .worker import main

PATIENCE_S = 0.1
"""How often somebody who waits for an answer looks whether it is still wanted."""
LEAVE_S = 2.0
"""How long a worker that has nobody to hear it any more may take to end before it is killed."""
GUARD = 'if __name__ == "__main__":'


class Abandoned(Exception):
    """Nobody wants the answer any more."""


class Workers:
    """Processes that each hold a copy of `reader` and answer requests with what its method `read` gives.

    Requests to one worker are answered in their order. Whoever holds the object ends the processes with `close`; they end with it, and with this
    process, whatever happens to either, and all of them once one has ended, could not begin or was waited for too long.
    """

    def __init__(self, reader: Any, count: int, name: str, initialize: Callable[[int], None] | None = None, timeout: float = 0.0) -> None:
        """Args:
            reader: what is sent to every worker, by pickle.
            name: what messages call the data.
            initialize: called with the worker's number in each process before it reads anything.
            timeout: seconds for which an answer is waited for at most; 0: any time.

        Raises:
            DataError: `reader` or `initialize` cannot be sent.
        """
        self.name, self.count, self.timeout = name, count, timeout
        payload = _pickled(reader, initialize, name)
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        self._tickets, self._lock = 0, threading.Lock()
        self._wanted = threading.Event()
        self._wanted.set()
        self._end = weakref.finalize(self, _end, self._processes, self._connections)
        for i in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(theirs, i), name=f"tileflow-data-{i}", daemon=True)
            try:
                process.start()
            finally:
                theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
            self._send(i, payload)
        self._ready = [False] * count

    @property
    def pids(self) -> list[int]:
        """The processes' numbers."""
        return [p.pid for p in self._processes]

    @property
    def are_open(self) -> bool:
        """The processes were not ended."""
        return self._end.alive

    def ask(self, worker: int, request: Any, seed: int | None = None) -> int:
        """Send a request; the ticket for its answer. `seed`: of Python's, NumPy's and PyTorch's random numbers before it is read."""
        with self._lock:
            self._tickets += 1
            ticket = self._tickets
        self._send(worker, (ticket, seed, request))
        return ticket

    def answer(self, worker: int, ticket: int) -> Any:
        """The answer to a request; answers to earlier ones of this worker are thrown away.

        Raises:
            DataError: the worker has ended, or gave nothing for `timeout` seconds.
            Exception: what `read` raised there, with the traceback's text as a note.
            Abandoned: `abandon` was called meanwhile.
        """
        while True:
            if not self._ready[worker]:
                _, kind, content = self._received(worker)
                if kind == "error":
                    self.close()
                    cause = content[1].rstrip().splitlines()[-1]
                    raise noted(DataError(f"Data {self.name} could not be rebuilt in a worker process: {cause}; define the data set's class in a "
                                          "file that can be imported (not in an interactive session), or leave num_workers at 0."), content[1])
                self._ready[worker] = True
            number, kind, content = self._received(worker)
            if number != ticket:
                continue
            if kind == "error":
                raise self._raised(worker, *content)
            return content

    def abandon(self) -> None:
        """Let whoever waits for an answer give up."""
        self._wanted.clear()

    def want(self) -> None:
        """Answers are wanted again."""
        self._wanted.set()

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _send(self, worker: int, message: Any) -> None:
        try:
            wire.send(self._connections[worker], message)
        except OSError:
            raise self._gone(worker) from None

    def _received(self, worker: int) -> Any:
        connection, process = self._connections[worker], self._processes[worker]
        until = time.monotonic() + self.timeout if self.timeout else math.inf
        while not (found := wait([connection, process.sentinel], PATIENCE_S)):
            if not self._wanted.is_set():
                raise Abandoned
            if time.monotonic() > until:
                self.close()
                raise DataError(f"Worker process {worker} (pid {process.pid}) that reads data {self.name} gave nothing for {self.timeout:g} s (the "
                                "timeout), so the workers were ended; allow more time, or find what of the data set it hangs in.")
        try:
            if connection in found or connection.poll():
                return wire.receive(connection)
        except (EOFError, OSError):
            pass
        raise self._gone(worker)

    def _gone(self, worker: int) -> DataError:
        """What to say of a worker that has ended; the others end, too."""
        process = self._processes[worker]
        process.join(LEAVE_S)
        self.close()
        code = process.exitcode
        by = f"by signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"with exit code {code}"
        hint = ""
        if code == -signal.SIGKILL:
            hint = " Somebody killed it, or there was not enough memory: use fewer num_workers or smaller batches."
        elif not self._ready_yet(worker):
            hint = f" A script that uses worker processes must stand below `{GUARD}`, because they import it."
        return DataError(f"Worker process {worker} (pid {process.pid}) that reads data {self.name} ended {by} before it gave what it was "
                         f"asked for.{hint}")

    def _ready_yet(self, worker: int) -> bool:
        return worker < len(getattr(self, "_ready", ())) and self._ready[worker]

    def _raised(self, worker: int, error: BaseException | None, text: str) -> BaseException:
        if error is None:
            error = DataError(f"Data {self.name} raised in worker process {worker}: {text.rstrip().splitlines()[-1]}")
        return noted(error, f"In worker process {worker} that reads data {self.name}:\n{text.rstrip()}")


def noted(error: BaseException, text: str) -> BaseException:
    """The error with a note."""
    error.add_note(text)
    return error


def _pickled(reader: Any, initialize: Any, name: str) -> bytes:
    try:
        return wire.packed((reader, initialize))
    except Exception as error:                                       # whatever __reduce__ or __getstate__ of somebody's own raises
        raise DataError(f"Data {name} cannot be sent to worker processes ({type(error).__name__}: {error}); define classes and functions at the top "
                        "level of a module, open files in worker_init_fn or at the first row, or leave num_workers at "
                        f"0.{see('data-loading#worker-processes')}") from None


def _end(processes: Sequence[Any], connections: Sequence[Connection]) -> None:
    """Close the connections, at which workers end by themselves; those that do not are killed."""
    for connection in connections:
        connection.close()
    until = time.monotonic() + LEAVE_S
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
