"""Asking a run to end: Ctrl-C and the signal that process managers send."""
from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def asked_by_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C or SIGTERM sets `stop`; a second one raises KeyboardInterrupt at once. Outside of the main thread, which alone can take
    signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)          # None: set by other than Python
