"""What goes between this process and those that it starts (a data loader's workers): pickled messages with the memory
of their arrays beside them.

The only place where anything is pickled, and nothing pickled comes from outside: both ends of the socket pair are processes that this one started.
"""
from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PROTOCOL = 5          # arrays' memory beside the pickle


Unpackable = (pickle.PicklingError, TypeError, AttributeError)
"""What `packed` raises for what has no pickle; classes of somebody's own may raise anything else."""


def packed(thing: Any) -> bytes:
    """A thing as bytes for the other side."""
    return pickle.dumps(thing, protocol=PROTOCOL)


def unpacked(data: bytes) -> Any:
    """What the other side packed."""
    return pickle.loads(data)


def send(connection: Connection, message: Any) -> None:
    """Send a message; arrays are written from where they lie."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=PROTOCOL, buffer_callback=buffers.append)
    views = [b.raw() for b in buffers]
    connection.send_bytes(head)
    connection.send_bytes(np.array([v.nbytes for v in views], np.int64).tobytes())
    for view in views:
        at = 0
        while at < view.nbytes:
            at += os.write(connection.fileno(), view[at:])


def receive(connection: Connection) -> Any:
    """The next message (EOFError where the other side has ended); its arrays are fresh."""
    head = connection.recv_bytes()
    sizes = np.frombuffer(connection.recv_bytes(), np.int64)
    buffers = []
    for size in sizes.tolist():
        memory = np.empty(size, np.uint8)
        view, at = memory.data, 0
        while at < size:
            got = os.readv(connection.fileno(), [view[at:]])
            if got == 0:
                raise EOFError
            at += got
        buffers.append(memory)
    return pickle.loads(head, buffers=buffers)
