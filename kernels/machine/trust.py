"""Whether nobody else can put files into a folder, or write one: compiled code is run as it is found."""
from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

ACL = "system.posix_acl_access"
"""Linux's extended attribute of an access control list: a version, then entries. The mode's bits of the group bound what they allow."""
_ENTRY = struct.Struct("<HHI")
_USER, _GROUP = 0x02, 0x08
"""Kinds of entries: for somebody, and for some group, by number."""
NFS4 = "system.nfs4_acl"
"""The attribute of a list in NFSv4's form: how many entries, then of each its type, flags, mask and name (RFC 7530, 6.2.1). The mode shows
the owner's, the group's and everyone's rights to write, nobody else's, and none to change the list or the owner."""
_HEAD = struct.Struct(">IIII")
_WRITE, _CHANGE = 0x2 | 0x4 | 0x40, 0x40000 | 0x80000
"""Rights: to write, add or delete; to change the list or the owner."""


def doubt(folder: Path) -> str:
    """Why others could write into `folder`, or put another in its place, as the middle of a sentence; "" where they cannot.

    What is not there yet is made by us, in a folder that is looked at. Root's folders are trusted, and those of whoever owns "/" (in a user
    namespace nobody is called root).
    """
    lexical, real = Path(os.path.abspath(folder)), Path(os.path.realpath(folder))
    for place in _chain(lexical, real):
        try:
            status = os.lstat(place)
        except OSError:
            continue
        # Where a link leads to is looked at as part of the real path. Above, where a folder is sticky, others can add names but not touch ours.
        owner_only = stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and place not in (lexical, real))
        if why := _owner(status) if owner_only else doubt_of(place, status):
            return f"{place} {why}"
    return ""


def doubt_of(place: Path | int, status: os.stat_result) -> str:
    """The same for one file or folder, by its path or by the descriptor under which it is open, and what the system says of it."""
    if why := _owner(status):
        return why
    mode = stat.S_IMODE(status.st_mode)
    if hasattr(os, "getuid") and (mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not (_nobody_else_in(status.st_gid) and _nobody_listed(place)))):
        return f"may be written by other users (mode {mode:o})"
    return "may be written by other users (access control list)" if _others_listed(place) else ""


def _owner(status: os.stat_result) -> str:
    return "belongs to another user" if hasattr(os, "getuid") and status.st_uid not in _trusted() else ""


def _trusted() -> set[int]:
    return {0, os.getuid(), os.stat("/").st_uid}


def _chain(lexical: Path, real: Path) -> Iterator[Path]:
    """Both paths and all folders above them."""
    yield from dict.fromkeys([lexical, *lexical.parents, real, *real.parents])


def _nobody_else_in(group: int) -> bool:
    """A group of one: root's, or the one of this user's own name that many systems make with an account. Whoever is listed in it or has it as
    primary group counts."""
    import grp
    import pwd
    own = _names(0, os.getuid())
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return group == 0
    members = {*found.gr_mem, *(account.pw_name for account in pwd.getpwall() if account.pw_gid == group)}
    return (group == 0 or {found.gr_name} <= _names(os.getuid())) and members <= own


def _names(*users: int) -> set[str]:
    """What users of these numbers are called, those that are."""
    import pwd
    found = set()
    for user in users:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwuid(user).pw_name)
    return found


def _nobody_listed(place: Path | int) -> bool:
    """No access control list lets another user write, or a group that somebody else is in."""
    entries = _attribute(place, ACL)[4:]
    writers = [(kind, number) for kind, allowed, number in _ENTRY.iter_unpack(entries) if allowed & 2]
    return all(number in _trusted() if kind == _USER else _nobody_else_in(number) for kind, number in writers if kind in (_USER, _GROUP))


def _others_listed(place: Path | int) -> bool:
    """A list in NFSv4's form lets somebody else write beyond what the mode shows, or cannot be read as one."""
    raw = _attribute(place, NFS4)
    own = {"OWNER@", "0", str(os.getuid()), *_names(0, os.getuid())} if raw else set()
    at = 4
    while at < len(raw):
        if len(raw) < at + _HEAD.size:
            return True
        kind, _, mask, length = _HEAD.unpack_from(raw, at)
        who = raw[at + _HEAD.size:at + _HEAD.size + length].decode("utf-8", "replace")
        at += _HEAD.size + (length + 3) // 4 * 4
        shown = _CHANGE if who in ("GROUP@", "EVERYONE@") else _WRITE | _CHANGE
        if kind == 0 and mask & shown and who not in own and who.partition("@")[0] not in own:
            return True
    return False


def _attribute(place: Path | int, name: str) -> bytes:
    """An extended attribute; empty where there is none."""
    if hasattr(os, "getxattr"):
        with contextlib.suppress(OSError):
            return os.getxattr(place, name)
    return b""
