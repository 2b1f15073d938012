"""One run at a time in a folder: a lock that the system gives back however the process ends."""
from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..system.errors import CheckpointError
from ..system.files import remedy, remove_link

try:
    import fcntl
except ImportError:                                     # no such locks on this system
    fcntl = None                                        # type: ignore[assignment]

LOCK = "run.lock"
"""The locked file. It stays when a run ends, for one that waits for it may have it open: only the lock says whether there is a run."""
HOLDER = re.compile(r"process (\d{1,9}) on (\S{1,255}), since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\n")
"""What the file says of the run that holds it."""
_held: set[int] = set()
"""Descriptors of this process. A lock belongs to all copies of one, so a child that was forked would hold it after its parent's end."""


def _forked() -> None:
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Have the folder to oneself; where the file system has no locks, that is said.

    Raises:
        CheckpointError: another run has it, or the lock file cannot be written.
    """
    path = folder / LOCK
    remove_link(path)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(path, error)}.") from None
    _held.add(handle)
    try:
        _lock(handle, folder, say)
        _sign(handle, path)
        yield
    finally:
        if handle in _held:                             # not in a forked child
            _held.remove(handle)
            os.close(handle)


def _lock(handle: int, folder: Path, say: Callable[[str], None]) -> None:
    """Lock the open file, or say that this cannot be; CheckpointError where it is locked already."""
    try:
        if fcntl is None:
            raise OSError
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = HOLDER.match(os.pread(handle, 512, 0).decode(errors="replace"))
        holder = f"process {found[1]} on {found[2]}, since {found[3]}" if found else "of another process"
        raise CheckpointError(f"Another run has the folder {folder} ({holder}); wait for it to end, or choose another folder with out.") from None
    except OSError:
        say(f"The file system of {folder} has no locks, so that a second run in this folder would go unnoticed: see that there is none.")


def _sign(handle: int, path: Path) -> None:
    """Write into the locked file who holds it."""
    text = f"process {os.getpid()} on {platform.node() or 'this computer'}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    try:
        os.ftruncate(handle, 0)
        os.write(handle, text.encode())
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(path, error)}.") from None
