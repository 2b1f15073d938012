"""Opening files that somebody named: regular ones only. A fifo, a device or a terminal would be waited for, perhaps for ever."""
from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

KINDS = {stat.S_IFIFO: "a fifo (a named pipe)", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """A regular file (or a link to one) opened for reading bytes; OSError where that fails or it is something else."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(f"it is {KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file; copy its content into one")


def open_text(path: str | os.PathLike[str], encoding: str = "utf-8", newline: str | None = None) -> io.TextIOWrapper:
    """The same for reading text."""
    return io.TextIOWrapper(open_regular(path), encoding=encoding, newline=newline)


def read_text(path: str | os.PathLike[str]) -> str:
    """The whole text of a regular file in UTF-8."""
    with open_text(Path(path)) as file:
        return file.read()
