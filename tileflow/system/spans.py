"""What this process does when: spans of time by name, written as a file that https://ui.perfetto.dev and
chrome://tracing open.

    with tileflow.trace("trace.json"):
        model(x, labels)

Nothing is measured while no trace is open.
"""
from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import ReportError
from .files import replace_by

TRACE = "TILEFLOW_TRACE"
"""The environment variable that names a file for the trace of the whole process."""
ROWS = "TILEFLOW_TRACE_ROWS"
"""The environment variable that has that trace show what calls compute, row by row."""
MOST = 1_000_000
"""Spans that a trace holds; what comes after them is counted only."""
KINDS = ("compile", "call", "row", "data", "checkpoint", "mark")
"""What spans are told apart as: compiling, calls of models, what calls compute, making and awaiting batches, writing
checkpoints, and a user's own marks."""


class TraceFile:
    """Spans between its begin and its end, and the file that it writes then.

    Raises:
        ReportError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], rows: bool = False) -> None:
        self.path, self.rows = Path(path), rows
        self.events: list[tuple[str, str, int, int, int]] = []
        """Name, kind, begin and duration in nanoseconds, thread."""
        self.left_out = 0
        self._threads: dict[int, str] = {}

    def __enter__(self) -> TraceFile:
        _open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it, and write the file."""
        if self not in _open:
            return
        _open.remove(self)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_by(self.path, [json.dumps(self.content()).encode()])
        except OSError as error:
            raise ReportError(f"The trace cannot be written to {self.path} ({error.strerror or error}).") from None

    def add(self, name: str, kind: str, begin: int, end: int, track: int | None = None) -> None:
        """A span, in nanoseconds of `time.perf_counter_ns`; of this thread, or of a task of a program."""
        if len(self.events) >= MOST:
            self.left_out += 1
            return
        thread = threading.get_ident() if track is None else 1 + track
        self._threads.setdefault(thread, threading.current_thread().name if track is None else f"rows of task {track}")
        self.events.append((name, kind, begin, end - begin, thread))

    def content(self) -> dict[str, Any]:
        """What the file says: complete events in microseconds from the first one's begin, and the names of threads."""
        pid, first = os.getpid(), min((e[2] for e in self.events), default=0)
        rows = [{"name": name, "cat": kind, "ph": "X", "ts": (begin - first) / 1e3, "dur": took / 1e3, "pid": pid,
                 "tid": thread}
                for name, kind, begin, took, thread in sorted(self.events, key=lambda e: e[2])]
        named = [{"name": "thread_name", "ph": "M", "pid": pid, "tid": thread, "args": {"name": name}}
                 for thread, name in self._threads.items()]
        return {"traceEvents": [*named, *rows], "displayTimeUnit": "ms", "otherData": {"left_out": self.left_out}}


_open: list[TraceFile] = []


def trace(path: str | os.PathLike[str], rows: bool = False) -> TraceFile:
    """A trace of what this process does within the block, written to `path` at its end: calls of models, compiling,
    batches, checkpoints, and the marks of `span`, for https://ui.perfetto.dev.

        with tileflow.trace("trace.json"):
            for x, labels in loader:
                model(x, labels)

    rows: what calls compute, too, by operators and the names of their nodes, a track for each task. Calls then stop
    after every row of some microseconds (shorter ones share a span) and take longer; their numbers stay the same.
    """
    return TraceFile(path, rows)


def is_open() -> bool:
    """Whether anything is measured."""
    return bool(_open)


def shows_rows() -> bool:
    """Whether what calls compute is measured row by row."""
    return bool(_open) and any(one.rows for one in _open)


def add_row(name: str, begin: int, end: int, task: int) -> None:
    """What a task of a call has computed between two moments of `time.perf_counter_ns`, for the traces that show it."""
    for one in _open:
        if one.rows:
            one.add(name, "row", begin, end, task)


def span(name: str, kind: str = "mark") -> AbstractContextManager[None]:
    """A block of code that traces show by this name."""
    return _span(name, kind) if _open else nullcontext()


@contextmanager
def _span(name: str, kind: str) -> Iterator[None]:
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        end = time.perf_counter_ns()
        for one in _open:
            one.add(name, kind, begin, end)


def from_environment() -> None:
    """Begin the trace that the environment names, which ends with this process."""
    path = os.environ.get(TRACE)
    if path and not any(one.path == Path(path) for one in _open):
        begun = TraceFile(path, os.environ.get(ROWS) == "1")
        begun.__enter__()
        atexit.register(begun.close)
