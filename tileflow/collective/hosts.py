"""Starting a group of processes on several hosts, by MPI's launcher, and ending all of them when one ends before its
time."""
from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from ..system.errors import OptionError, see
from ..system.exit_codes import INTERRUPTED
from .frames import GRACE
from .group import TOLD
from .launch import FINAL, LOOK, End, passed_on
from .pinning import PIN
from .watch import Watch, addresses

AUTO_CLEANUP = "-disable-auto-cleanup"
"""MPICH's launcher would kill all at once when one dies, before anybody could say which."""

REACHED = 8.0
"""Seconds within which a host that is there has started a process."""

NOISE = (b"[mpiexec@", b"[proxy:")
"""How lines of MPI's launcher begin."""


def mpiexec() -> str:
    """MPI's launcher: that of this Python's environment, else the first on the path.

    Raises:
        OptionError: there is none, or it is not MPICH's.
    """
    own = Path(sys.executable).parent / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if found is None:
        raise OptionError("Processes on several hosts are started by MPI's launcher, mpiexec, which is not there: pip "
                          "install 'tileflow-engine[mpi]' on every host.")
    said = subprocess.run([found, "-info"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" not in said.upper():
        raise OptionError(f"{found} is not MPICH's launcher, whose options --hosts needs: pip install "
                          f"'tileflow-engine[mpi]', or start the processes yourself.{see('distributed')}")
    return found


def names(hosts: str | None, file: str | None) -> list[str]:
    """The hosts of a list "a,b:2", or of a file with one in a line, as mpiexec takes them: `:2` is how many processes
    it gets in its turn.

    Raises:
        OptionError: there are none, or one is no host's name.
    """
    try:
        text = hosts or "" if file is None else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"The hosts file {file} cannot be read: {error}.") from None
    found = [word for line in text.splitlines() for word in line.partition("#")[0].replace(",", " ").split()]
    for name in found:
        host, _, count = name.partition(":")
        is_name = not host.startswith("-") and host.translate(str.maketrans("", "", "-._")).isalnum()
        if not is_name or (":" in name and not count.isdecimal()):
            raise OptionError(f"{name!r} is no host: hosts are names or addresses, separated by commas, each with :N "
                              "where it is to get N processes in its turn.")
    if not found:
        raise OptionError("There are no hosts: --hosts a,b names them, --hosts-file FILE has one in a line.")
    return found


def check(hosts: Sequence[str]) -> None:
    """Whether MPI's launcher can start something on all of these hosts.

    Raises:
        OptionError: there is no launcher, or a host on which it can start nothing.
    """
    told = [f"{_name(host)} cannot be reached" + (f" ({words.rstrip('.')})" if words else "")
            for host, words in unreachable(hosts).items()]
    if told:
        raise OptionError(f"{'; '.join(told)}: MPI's launcher can start no process there.{see('distributed')}")


def run(command: Sequence[str], count: int, hosts: Sequence[str], pin: bool = True) -> End:
    """Run the command in `count` processes, dealt to the hosts in turn, and wait for them. Every host has the same
    files at the same places, and is one on which a process can be started (`check`, `remaining`).

    Raises:
        OptionError: there is no launcher.
    """
    start = mpiexec()
    watch = Watch(count, [_name(host) for host in hosts])
    environment = {**os.environ, TOLD: f"mpi/{watch.told}", **({} if pin else {PIN: "0"})}
    child = subprocess.Popen(
        [start, *_known_as(watch.addresses), AUTO_CLEANUP, "-n", str(count), "-hosts", ",".join(hosts), *command],
        env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    shown = threading.Thread(target=_shown, args=(child, watch), daemon=True)
    shown.start()

    def ask(number: int) -> None:
        if number == signal.SIGKILL:
            _kill(child)
        else:
            watch.stop()
    try:
        with passed_on(ask):
            return _watched(child, watch)
    finally:
        _kill(child)
        shown.join(GRACE)
        watch.close()


def dealt(hosts: Sequence[str], count: int) -> list[str]:
    """By rank, the host that mpiexec starts a process on: in turn, with `:2` two at a time."""
    turn = [host for host in hosts for _ in range(max(1, int(host.partition(":")[2] or 1)))]
    return [turn[rank % len(turn)] for rank in range(count)]


def unreachable(hosts: Sequence[str]) -> dict[str, str]:
    """Those of the hosts on which MPI's launcher cannot start anything within `REACHED` seconds, which all are asked at
    once, each with what was said of it, or "".

    Raises:
        OptionError: there is no such launcher.
    """
    start = mpiexec()
    children = [subprocess.Popen([start, *_known_as(addresses([host])), "-n", "1", "-hosts", host, "true"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 start_new_session=True)
                for host in map(_name, hosts)]
    until = time.monotonic() + REACHED
    found = {}
    for host, child in zip(hosts, children, strict=True):
        try:
            said = child.communicate(timeout=max(0.0, until - time.monotonic()))[1]
        except subprocess.TimeoutExpired:
            said = f"nothing was heard for {REACHED:g} seconds".encode()
        if child.returncode != 0:
            found[host] = " ".join(line.decode(errors="replace").strip() for line in said.splitlines()
                                   if not line.startswith(NOISE))
    for child in children:
        _kill(child)
    return found


def remaining(hosts: Sequence[str], count: int) -> tuple[list[str], int, str]:
    """With which hosts and how many processes a run goes on: without the hosts that are gone and what ran there; and a
    sentence of it, or "".

    Raises:
        OptionError: the first host, whose process writes the folder, cannot be reached.
    """
    out = unreachable(hosts)
    there, gone = [host for host in hosts if host not in out], [_name(host) for host in out]
    if not gone:
        return [*hosts], count, ""
    if hosts[0] not in there:
        raise OptionError(f"The first host, {gone[0]}, whose process has written the folder, cannot be reached: start "
                          "again with --resume when it can, or on other hosts that have the "
                          f"folder.{see('distributed')}")
    left = sum(host in there for host in dealt(hosts, count))
    return there, left, (f"Without {', '.join(gone)}, which cannot be reached: {left} of {count} processes go on, "
                         "to the same weights.")


def _name(host: str) -> str:
    """A host's name or address, without how many processes it gets."""
    return host.partition(":")[0]


def _known_as(told: Sequence[str]) -> list[str]:
    """Tells MPI's launcher by which of its addresses hosts reach this computer: its own name, which it would tell them,
    need not be known there."""
    found = [address for address in told if ip_address(address).version == 4 and not ip_address(address).is_loopback]
    return ["-localhost", found[0]] if found else []


def _shown(child: subprocess.Popen[bytes], watch: Watch) -> None:
    """Show what processes write to standard error, but for what MPI's launcher says of a failure that is known."""
    assert child.stderr is not None
    for line in child.stderr:
        if watch.first is None or not line.startswith(NOISE):
            sys.stderr.buffer.write(line)
            sys.stderr.flush()


def _watched(child: subprocess.Popen[bytes], watch: Watch) -> End:
    """Wait until MPI's launcher has ended, or one process has failed and the others had time to end by themselves."""
    until = math.inf
    while child.poll() is None and time.monotonic() < until:
        if watch.first is not None:
            over = watch.mute and all(member.left for member in watch.members.values())
            until = min(until, time.monotonic() + (10 * LOOK if over else GRACE + LOOK))
        time.sleep(LOOK)
    code = child.returncode or 0
    if watch.first is None:
        if watch.asked and code in (signal.SIGTERM, 128 + signal.SIGTERM):
            code = INTERRUPTED                       # the request has met one that did not listen yet, or any longer
        return End(code, f"mpiexec ended with code {code}" if code else "", bool(code) and code not in FINAL,
                   shown=bool(watch.members))
    if watch.went and not watch.mute:
        return End(INTERRUPTED, watch.sentence())    # others have waited for it in vain
    return End(1 if watch.mute or code <= 0 else code, watch.sentence(), watch.mute or code not in FINAL)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End MPI's launcher, where it has not ended well, and what it has started: those on other hosts end when they hear
    it no more."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() != 0:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10 * LOOK)
