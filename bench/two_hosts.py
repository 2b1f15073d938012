"""Two network namespaces of this computer as two hosts, each with a name of its own and a link between them; as
root."""
from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import tileflow

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("hosta", "hostb")
SECONDS = 30
"""Within which a link is up."""
ROOT = Path(tileflow.__file__).parents[1]
_numbers = itertools.count()
SHELL = """#!/bin/sh
# What MPI's launcher calls for ssh: flags, the host, and a command for its shell.
while [ "${{1#-}}" != "$1" ]; do shift; done
[ "$1" = {address} ] || {{ echo "there is no host $1" >&2; exit 1; }}
shift
exec ip netns exec {space} unshare --uts sh -c "hostname {name}; exec $*"
"""


class NoHosts(Exception):
    """Why this computer cannot be two hosts."""


class TwoHosts:
    """The namespaces; commands run on the first.

    Raises:
        NoHosts: this computer cannot have them.
    """

    def __init__(self, folder: Path) -> None:
        if not self.can():
            raise NoHosts("network namespaces as hosts need root, iproute2, util-linux and mpi4py")
        number = f"{os.getpid()}-{next(_numbers)}"
        self.spaces = [f"tf{number}{side}" for side in "ab"]
        if subprocess.run(["ip", "netns", "add", self.spaces[0]], capture_output=True, check=False).returncode:
            raise NoHosts("network namespaces cannot be made here: a container without that right")
        self._ip("netns", "add", self.spaces[1])
        self._ip("link", "add", "link0", "netns", self.spaces[0], "type", "veth", "peer", "name", "link0", "netns",
                 self.spaces[1])
        for space, address in zip(self.spaces, ADDRESSES, strict=True):
            self._ip("-n", space, "addr", "add", f"{address}/24", "dev", "link0")
            self._ip("-n", space, "link", "set", "lo", "up")
            self._ip("-n", space, "link", "set", "link0", "up")
        for space in self.spaces:
            self._wait(space)
        self._shell = folder / "shell"
        self._shell.write_text(SHELL.format(address=ADDRESSES[1], space=self.spaces[1], name=NAMES[1]))
        self._shell.chmod(0o755)

    @staticmethod
    def can() -> bool:
        """Whether this computer can have them."""
        return (importlib.util.find_spec("mpi4py") is not None and not os.geteuid()
                and bool(shutil.which("ip")) and bool(shutil.which("unshare")))

    def _wait(self, space: str) -> None:
        """Until a link counts as up: packets flow up to a second before, while MPI's transports take no link that does
        not."""
        until = time.monotonic() + SECONDS
        while self._ip("netns", "exec", space, "cat", "/sys/class/net/link0/operstate").strip() != "up":
            assert time.monotonic() < until, f"the link of {space} does not come up"
            time.sleep(0.02)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """`tileflow WORDS` on the first host."""
        more = {"UCX_TLS": "tcp,self",  # memory of one computer reaches across namespaces: real hosts have none
                "HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(self._shell), "PYTHONPATH": str(ROOT),
                **environment}
        return subprocess.Popen(["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c",
                                 f'hostname {NAMES[0]}; exec "$@"', "sh",
                                 sys.executable, "-m", "tileflow", *words],
                                env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def sent(self) -> int:
        """Bytes that the first host has sent to the second."""
        told = self._ip("netns", "exec", self.spaces[0], "cat", "/sys/class/net/link0/statistics/tx_bytes")
        return int(told)

    def cut(self) -> None:
        """The link goes down."""
        self._ip("-n", self.spaces[1], "link", "set", "link0", "down")

    def there(self) -> list[int]:
        """All processes on both hosts."""
        return [int(pid) for space in self.spaces for pid in self._ip("netns", "pids", space).split()]

    def ranks(self) -> dict[int, int]:
        """The processes that train, by rank."""
        found = {}
        for pid in self.there():
            try:
                told = dict(pair.partition("=")[::2]
                            for pair in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"))
                python = "python" in os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            if python and "TILEFLOW_PROCESS" in told and "PMI_RANK" in told:
                found.setdefault(int(told["PMI_RANK"]), pid)
        return found

    def close(self) -> None:
        for pid in self.there():
            os.kill(pid, 9)
        for space in self.spaces:
            self._ip("netns", "del", space)

    @staticmethod
    def _ip(*words: str) -> str:
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
