"""A worker process of a data loader: it rebuilds what reads the data, answers requests in their order, and ends with its parent."""
from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import numpy as np

from . import wire


def main(connection: Connection, number: int) -> None:
    """Serve until the other side of the connection is closed or the parent has ended.

    The first message is what to serve: a pickled pair (object with a method `read`, a function of the worker's number to call first, or None).
    Then come requests (ticket, seed or None, request); answers are (ticket, kind, content): "done" with what `read` gave, or "error" with the
    exception, where it can be sent, and its traceback's text.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)                     # Ctrl-C reaches all processes of a terminal; the parent says what it means
    requests: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    try:
        reader, initialize = wire.unpacked(requests.get())
        if initialize is not None:
            initialize(number)
    except BaseException as error:
        _answer(connection, 0, "error", _told(error))
        return
    _answer(connection, 0, "done", None)
    while True:
        ticket, seed, request = requests.get()
        if seed is not None:
            _seed(seed)
        _serve(connection, ticket, reader.read, request)


def _serve(connection: Connection, ticket: int, read: Callable[[Any], Any], request: Any) -> None:
    try:
        found = read(request)
    except BaseException as error:
        _answer(connection, ticket, "error", _told(error))
    else:
        try:
            _answer(connection, ticket, "done", found)
        except wire.Unpackable as error:
            _answer(connection, ticket, "error", _told(error))


def _listen(connection: Connection, requests: SimpleQueue[Any]) -> None:
    """Take requests at once, so that nobody waits to be heard, and end the process when nobody is there to hear."""
    parent = parent_process()
    others = [parent.sentinel] if parent is not None else []
    try:
        while connection in wait([connection, *others]):
            requests.put(wire.receive(connection))
    except (EOFError, OSError):
        pass
    os._exit(0)


def _answer(connection: Connection, ticket: int, kind: str, content: Any) -> None:
    try:
        wire.send(connection, (ticket, kind, content))
    except OSError:
        os._exit(0)


def _told(error: BaseException) -> tuple[BaseException | None, str]:
    """An exception, where it can be sent, and its traceback's text."""
    text = "".join(traceback.format_exception(error))
    try:
        if type(wire.unpacked(wire.packed(error))) is type(error):
            return error.with_traceback(None), text
    except Exception:
        pass
    return None, text


def _seed(seed: int) -> None:
    """Random numbers that a data set draws follow from the batch, not from who reads it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
