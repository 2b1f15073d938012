"""What processes and whoever watches them say to each other over a socket: short frames, parsed and never executed."""
from __future__ import annotations

import socket
import struct
import threading

HEAD = struct.Struct("!BIH")
"""A frame: its kind, a rank, the length of its text in UTF-8."""
LONGEST = 4096
"""Bytes of a text."""
EVERY = 0.25
"""Seconds between two beats."""
GRACE = 2.0
"""Seconds for which processes may end by themselves once one has failed."""
HELLO, BEAT, FAILED, LEFT, END, STOP, DONE = range(7)
"""A process joins (its text: the token, and its host), is alive, has failed (why), ends as it should; the watcher: all
end (why), all are asked to end, nobody watches any longer."""


class Line:
    """One end of a connection: frames out, whole or not at all, and frames in."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.settimeout(EVERY)
        self._rest, self._broken = b"", False
        self._lock = threading.Lock()

    def send(self, kind: int, rank: int, text: str = "") -> bool:
        """Whether it went out; after one that did not none does."""
        data = text.encode(errors="replace")[:LONGEST]
        with self._lock:
            try:
                if not self._broken:
                    self.socket.sendall(HEAD.pack(kind, rank, len(data)) + data)
            except OSError:
                self._broken = True
            return not self._broken

    def receive(self) -> list[tuple[int, int, str]] | None:
        """The frames that have come whole, as (kind, rank, text), after at most EVERY seconds; None: the other side is
        gone, or sends what are none."""
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._rest += data
        found = []
        while len(self._rest) >= HEAD.size:
            kind, rank, length = HEAD.unpack_from(self._rest)
            if kind > DONE or length > LONGEST:
                return None
            if len(self._rest) < HEAD.size + length:
                break
            found.append((kind, rank, self._rest[HEAD.size:HEAD.size + length].decode(errors="replace")))
            self._rest = self._rest[HEAD.size + length:]
        return found

    def close(self) -> None:
        self.socket.close()
