"""A pytest plugin: tests run in two processes, one from either end of the list until they meet.

Most of the time goes into compiling kernels, on one core. Neighbours share kernels, so each process keeps to its end. The second
process is a copy (fork) of the first after collection, and shares the cache of kernels with it; what it reports is replayed in
the first as if it had run there. `--processes 1` switches it off.
"""
from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pytest

FEWEST = 50
"""Tests for which a second process is worth its while."""


def pytest_addoption(parser: pytest.Parser) -> None:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    parser.addoption("--processes", type=int, choices=(1, 2), default=min(2, cores), help="run tests in one or two processes (default: two)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    alone = option.processes == 1 or option.collectonly or option.usepdb or session.testsfailed or len(session.items) < FEWEST
    if alone or not hasattr(os, "fork") or threading.active_count() > 1:
        return None                                          # pytest's own loop
    groups = [list(group) for _, group in itertools.groupby(session.items, lambda item: item.nodeid.partition("[")[0])]
    leave = _leave(len(groups))
    with tempfile.NamedTemporaryFile("r") as reports:
        second = _Second(session, groups, leave, reports)
        try:
            for item, after in _mine(groups, leave):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                second.replay()
                _stop_if_asked(session)
            second.wait()
        finally:
            second.end()
    return True


def _leave(groups: int) -> int:
    """A pipe that holds as many bytes as there are groups of tests: who takes one may run the next group at its end."""
    leave, fill = os.pipe()
    os.write(fill, bytes(groups))
    os.close(fill)
    return leave


def _mine(groups: Sequence[list[pytest.Item]], leave: int) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """The tests that this process may run, in its order, each with the one after it (whose fixtures stay)."""
    def drawn() -> Iterator[pytest.Item | None]:
        for group in groups:
            if not os.read(leave, 1):
                break
            yield from group
        yield None
    for item, after in itertools.pairwise(drawn()):
        assert item is not None
        yield item, after


def _stop_if_asked(session: pytest.Session) -> None:
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


class _Second:
    """The second process as the first sees it."""

    def __init__(self, session: pytest.Session, groups: Sequence[list[pytest.Item]], leave: int, reports: Any) -> None:
        self._session, self._reports, self._line, self._test = session, reports, "", "its first test"
        self._end: int | None = None
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        session.config._tmp_path_factory.getbasetemp()      # type: ignore[attr-defined]      # one folder for both
        capture.stop_global_capturing()                     # each process catches its own output
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)       # threads of libraries (BLAS) wait for work
            self._process = os.fork()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        if self._process == 0:
            _serve(session, groups[::-1], leave, reports.name)

    def replay(self) -> None:
        """Tell this process's plugins what the second has reported meanwhile."""
        hook = self._session.config.hook
        while text := self._reports.readline():
            self._line += text
            if not text.endswith("\n"):
                break                                       # half written
            [(event, values)], self._line = json.loads(self._line).items(), ""
            if event == "pytest_runtest_logstart":
                self._test = values["nodeid"]
            elif event == "pytest_runtest_logreport":
                values = {"report": hook.pytest_report_from_serializable(config=self._session.config, data=values)}
            getattr(hook, event)(**values)

    def wait(self) -> None:
        """Until the second process has run its tests."""
        while self._end is None:
            process, status = os.waitpid(self._process, os.WNOHANG)
            if process:
                self._end = os.waitstatus_to_exitcode(status)
            self.replay()
            _stop_if_asked(self._session)
            time.sleep(0.02)
        if self._end:
            self._session.shouldfail = f"the second process of tests ended with {self._end} in {self._test}"
            _stop_if_asked(self._session)

    def end(self) -> None:
        """Stop the second process if it runs still."""
        if self._end is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGTERM)
                os.waitpid(self._process, 0)


class _Sender:
    """The second process's reporter."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config = config
        self._file = open(path, "w", buffering=1)           # noqa: SIM115     (until the process ends)

    def _send(self, event: str, values: Any) -> None:
        self._file.write(json.dumps({event: values}) + "\n")

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("pytest_runtest_logstart", {"nodeid": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send("pytest_runtest_logreport", self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location})


def _serve(session: pytest.Session, groups: Sequence[list[pytest.Item]], leave: int, path: str) -> NoReturn:
    """What the second process does: run tests while there are any; never come back."""
    status, first = 1, os.getppid()
    try:
        plugins = session.config.pluginmanager
        plugins.unregister(plugins.getplugin("terminalreporter"))
        plugins.register(_Sender(session.config, path))
        for item, after in _mine(groups, leave):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldfail or session.shouldstop or os.getppid() != first:
                break
        status = 0
    finally:
        os._exit(status)
