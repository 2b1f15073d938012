"""Writing files so that they are there whole or not at all, even after a power cut; and what to say when that fails."""
from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from .errors import CheckpointError

REMEDIES = {
    errno.ENOSPC: "free some space or choose another folder",
    errno.EDQUOT: "free some of your quota or choose another folder",
    errno.EACCES: "choose a folder you may write to",
    errno.EPERM: "choose a folder you may write to",
    errno.EROFS: "choose a folder that is not read-only",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "{folder} must be a folder, so name a file in a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}
OTHER_REMEDY = "choose another folder"


def atomic_write(path: str | os.PathLike[str], parts: Iterable[Any]) -> None:
    """Write the parts (buffers of bytes) to `path`, all or nothing.

    They go to a new file beside it that is flushed to disk and moved into place; a symbolic link stays one.

    Raises:
        CheckpointError: that fails; the file there before is intact and nothing else is left behind.
    """
    path = Path(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                for part in parts:
                    file.write(part)
                sync(file)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(path, error)}. "
                              f"A file that stood there before is unchanged.") from None
    sync_folder(target.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Write `data` to `path`, all or nothing; CheckpointError where that fails, with the file there before intact."""
    atomic_write(path, [data])


def sync(file: BinaryIO) -> None:
    """Bring what was written to `file` to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make new names in `folder` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remedy(path: Path, error: OSError) -> str:
    """How to mend that `path` cannot be written."""
    return REMEDIES.get(error.errno or 0, OTHER_REMEDY).format(folder=path.parent)
