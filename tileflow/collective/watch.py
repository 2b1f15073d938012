"""Watching processes on several hosts: whoever does hears all of them, and tells all when one has failed, hangs, or
cannot be reached.

It is a thread of the launcher, or of the first process where nobody else has started them.
"""
from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .frames import BEAT, DONE, END, EVERY, FAILED, HELLO, LEFT, STOP, Line
from .patience import Clock, silent

GONE = "it has ended without a word, as one that is killed does"


@dataclass
class Member:
    """A process that is there. heard: when it said something last."""

    line: Line
    host: str
    heard: float
    left: bool = False


class Watch:
    """Hears `count` processes. first: the rank, the host and the cause of the first that failed; None: all is well."""

    def __init__(self, count: int, hosts: Iterable[str] = (), say: Callable[[str], None] | None = None) -> None:
        """Args:
            hosts: that processes will call from, so that they are told an address that they know.
            say: gets the sentence when one fails.
        """
        self.count, self._say, self.silent = count, say, silent()
        dual = socket.has_dualstack_ipv6()
        self._server = socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET,
                                            dualstack_ipv6=dual)
        self._server.settimeout(EVERY)
        self._token = secrets.token_hex(16)
        self.addresses = addresses(hosts)
        self.told = f"{self._server.getsockname()[1]}/{self._token}/{self.silent:g}/{','.join(self.addresses)}"
        """Where to call, and for how long nobody may be silent: port/token/seconds/addresses."""
        self.members: dict[int, Member] = {}
        self._clock = Clock()
        self.first: tuple[int, str, str] | None = None
        self.asked = self.went = self.mute = False
        """asked: all were asked to end. went: one that did not listen was ended by that. mute: the first that failed
        has not said why: it was killed, hangs, or is out of reach."""
        self._lock, self._over = threading.Lock(), threading.Event()
        for work in (self._accept, self._beat):
            threading.Thread(target=work, name="tileflow-watch", daemon=True).start()

    def sentence(self) -> str:
        """What has failed first; "" where nothing has."""
        if self.first is None:
            return ""
        rank, host, cause = self.first
        return f"Process {rank} of {self.count} (on {host}) failed: {cause.rstrip('.')}."

    def stop(self) -> None:
        """Ask all to end where they agree to."""
        self.asked = True
        self._tell(STOP, 0, "")

    def close(self) -> None:
        """Nobody watches any longer."""
        self._tell(DONE, 0, "")
        self._over.set()
        self._server.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection = self._server.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._hear, args=(Line(connection),), name="tileflow-watch", daemon=True).start()

    def _hear(self, line: Line) -> None:
        """One process, from its first word on; a caller that does not know the token is not listened to."""
        rank, began, member = -1, time.monotonic(), None
        while not self._over.is_set() and (member is not None or time.monotonic() - began < self.silent):
            frames = line.receive()
            if frames is None:
                break
            for kind, told, text in frames:
                if member is None:
                    token, _, host = text.partition(" ")
                    is_awaited = kind == HELLO and told < self.count and told not in self.members
                    if not is_awaited or not hmac.compare_digest(token.encode(), self._token.encode()):
                        line.close()
                        return
                    rank, member = told, Member(line, host, self._clock.now())
                    self.members[rank] = member
                    if self.first is not None:
                        line.send(END, self.first[0], self.sentence())
                member.heard = self._clock.now()
                if kind == FAILED:
                    self._fail(rank, member, text)
                elif kind == LEFT:
                    self._left(rank, member)
        line.close()
        if member is None or member.left or self._over.is_set():
            return
        if self.asked:
            self.went = True
            self._left(rank, member)
        else:
            self._fail(rank, member, GONE, mute=True)

    def _beat(self) -> None:
        while not self._clock.during(lambda: self._over.wait(EVERY), EVERY):
            self._tell(BEAT, 0, "")
            now = self._clock.now()
            for rank, member in sorted(self.members.items()):
                if not member.left and now - member.heard > self.silent:
                    self._fail(rank, member, f"it does not answer: it hangs, or {member.host} cannot be reached",
                               mute=True)

    def _left(self, rank: int, member: Member) -> None:
        member.left = True
        self._tell(LEFT, rank, "")

    def _fail(self, rank: int, member: Member, cause: str, mute: bool = False) -> None:
        with self._lock:
            member.left = True
            if self.first is not None:
                return
            self.first, self.mute = (rank, member.host, cause), mute
        if self._say is not None:
            self._say(self.sentence())
        self._tell(END, rank, self.sentence())

    def _tell(self, kind: int, rank: int, text: str) -> None:
        for member in [*self.members.values()]:
            member.line.send(kind, rank, text)


def addresses(hosts: Iterable[str]) -> list[str]:
    """Addresses of this computer, those first by which it reaches these hosts; nothing is sent."""
    found = []
    for host in (*hosts, socket.gethostname()):
        with contextlib.suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as asked:
                asked.connect(address)
                found.append(str(asked.getsockname()[0]))
    return [*dict.fromkeys((*found, "127.0.0.1"))]
