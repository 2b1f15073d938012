"""Whether nobody else can put files into a folder: compiled code is run as it is found."""
from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def doubt(folder: Path) -> str:
    """Why others could write into `folder`, or put another in its place, as the middle of a sentence; "" where they cannot.

    What is not there yet is made by us, in a folder that is looked at. Root's folders are trusted, and those of whoever owns "/" (in a user
    namespace nobody is called root).
    """
    if not hasattr(os, "getuid"):
        return ""
    trusted = {0, os.getuid(), os.stat("/").st_uid}
    lexical, real = Path(os.path.abspath(folder)), Path(os.path.realpath(folder))
    for place in _chain(lexical, real):
        try:
            status = os.lstat(place)
        except OSError:
            continue
        if status.st_uid not in trusted:
            return f"{place} belongs to another user"
        if stat.S_ISLNK(status.st_mode):                         # where it leads to is looked at as part of the real path
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & stat.S_ISVTX and place not in (lexical, real):          # others can add names there, but not touch ours
            continue
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _nobody_else_in(status.st_gid)):
            return f"{place} may be written by other users (mode {mode:o})"
    return ""


def _chain(lexical: Path, real: Path) -> Iterator[Path]:
    """Both paths and all folders above them."""
    yield from dict.fromkeys([lexical, *lexical.parents, real, *real.parents])


def _nobody_else_in(group: int) -> bool:
    """A group of one: root's, or the one of this user's own name that many systems make with an account."""
    import grp
    import pwd
    if group == 0:
        return True
    try:
        name, found = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
