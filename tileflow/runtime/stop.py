"""Asking a run to end: Ctrl-C and the signal that process managers send."""
from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..collective import Communicator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a run ends early: somebody has asked this process (`asked`), and all processes have agreed to it.

    group: the processes that train together; one that trains alone has agreed as soon as it is asked.
    """

    def __init__(self, group: Communicator | None) -> None:
        self._group = group
        self._agreed = threading.Event()
        self.asked = self._agreed if group is None else threading.Event()

    def is_asked(self) -> bool:
        """Somebody has asked this process, whatever others do."""
        return self.asked.is_set()

    def is_set(self) -> bool:
        """The run ends."""
        return self._agreed.is_set()

    def set(self) -> None:
        """The run ends, as all processes know."""
        self._agreed.set()

    def agree(self) -> None:
        """What one process was asked for holds in all: to be called by each of them at the same place."""
        if self._group is not None and self._group.any(self.is_asked(), "a request to end"):
            self.set()


@contextmanager
def asked_by_signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C or SIGTERM asks `stop`; a second one raises KeyboardInterrupt at once. Outside of the main thread, which
    alone can take signals, nothing changes.

    Whoever asks a group asks each of its processes. Where all have agreed before this one was asked, its own request is
    still on its way: it is spent on what has ended, for nobody would listen to it any longer, and it would kill."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_asked():
            raise KeyboardInterrupt
        stop.asked.set()

    def spent(*_: Any) -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by other than Python
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, spent)
        if stop.is_asked() or not stop.is_set():
            spent()
