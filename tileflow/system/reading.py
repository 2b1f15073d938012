"""Reading files that somebody named: regular ones only, for a fifo, a device or a terminal would be waited for, perhaps for ever; and parsing what
they hold, with a sentence for all that may be wrong."""
from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .text import one_line

_LONG = re.compile(r"(?<!\d)\d{4000,}")
"""A number of more digits than Python reads."""
_DEEP = re.compile(r"""(?<![\w."'-])(?:[\w"'-]+\s*\.\s*){100}""")
"""A name of so many parts that `tomllib`, which takes the square of their number, would be at it for minutes."""
_NESTED = re.compile(r"(?:[\[{]\s*+){100}")
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


def parsed(parse: Callable[[str], Any], text: str) -> Any:
    """What a parser of TOML or JSON makes of a text; ValueError, as the end of a sentence, for any text that it does not take."""
    if found := _DEEP.search(text):
        raise ValueError(f"{_beginning(text, found)} has too many parts")
    try:
        return parse(text)
    except RecursionError:
        found = _NESTED.search(text)
        raise ValueError(f"{_beginning(text, found) if found else 'what it holds'} is nested too deeply") from None
    except ValueError as error:
        found = _LONG.search(text) if type(error) is ValueError else None            # others are the parser's own
        if found is None:
            raise
        raise ValueError(f"{_beginning(text, found)} has {len(found[0]):,} digits, more than a number may have") from None


def _beginning(text: str, found: re.Match[str]) -> str:
    """The beginning of what was found, and what stands before it in its line: the name of a value."""
    before = text[max(0, found.start() - 60):found.start()].rpartition("\n")[2]
    return one_line(f"{before}{found[0][:20]}...")
