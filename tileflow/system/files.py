"""Writing files so that they are there whole or not at all, even after a power cut; and what to say when that fails."""
from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from .errors import CheckpointError, TileflowError

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
MODEL = "The model"
"""What sentences call a file with a model that is written."""
TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<process>\d{1,9})-\w+\.tmp", re.DOTALL)
"""Names of files (and folders) that are being written: `.<name>.<host>-<process>-<random>.tmp`."""
STALE = 24 * 3600.0
"""Seconds after which nobody is writing a temporary file of another host any more."""


def atomic_write(path: str | os.PathLike[str], parts: Iterable[Any], check: Callable[[Path], bool] | None = None, follow: bool = True) -> None:
    """Write the parts (buffers of bytes) to `path`, all or nothing.

    They go to a new file beside it that is flushed to disk and moved into place. `check` reads the new file before it is moved and says
    whether it is as it should be. A symbolic link that somebody named stays one, and what it points to is replaced; without `follow`, for
    names that nobody gave, the link itself is.

    Raises:
        CheckpointError: that fails; the file there before is intact and nothing else is left behind.
    """
    try:
        replace_by(path, parts, check, follow)
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(Path(path), error)}. "
                              f"A file that stood there before is unchanged.") from None


def replace_by(path: str | os.PathLike[str], parts: Iterable[Any], check: Callable[[Path], bool] | None = None, follow: bool = True) -> None:
    """`atomic_write` for who has a sentence of its own where it fails: OSError."""
    path = Path(path)
    target = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(path.parent), path.name)
    temporary = target.with_name(temporary_prefix(target) + secrets.token_hex(6) + ".tmp")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            sync(file)
        if check is not None and not check(temporary):
            raise CheckpointError(f"Cannot write {path}: what is read back differs from what was written, so the disk or the memory fails; "
                                  f"{OTHER_REMEDY}. A file that stood there before is unchanged.")
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes | bytearray | memoryview, follow: bool = True) -> None:
    """Write `data` to `path`, all or nothing; CheckpointError where that fails, with the file there before intact."""
    atomic_write(path, [data], follow=follow)


def append(path: Path, data: bytes) -> None:
    """Write `data` to the end of a file that is there, and to the disk; a symbolic link is not followed.

    Raises:
        CheckpointError: that fails; the file is as it was, unless the disk is gone.
    """
    try:
        with open(os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)), "ab", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left):]
                sync(file)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), length)
                raise
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(path, error)}.") from None


def probe(folder: Path) -> None:
    """OSError where no file can be made in `folder`. The one that is tried has a name of its own and is never somebody else's."""
    path = folder / (temporary_prefix(folder / "probe") + secrets.token_hex(6) + ".tmp")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    path.unlink()


def remove_link(path: Path) -> None:
    """Take a symbolic link away from where a file is to be that nobody named; CheckpointError where that fails."""
    try:
        if path.is_symlink():
            path.unlink()
    except OSError as error:
        raise CheckpointError(f"Cannot write {path}: {error.strerror or error}; {remedy(path, error)}.") from None


def require_space(folder: Path, nbytes: int, what: str, error: type[TileflowError] = CheckpointError,
                  remedy: str = "free some space or choose another folder") -> None:
    """`error` where a file of so many bytes cannot become part of `folder`: before the work that it is to keep is done.
    remedy: the sentence's end. Where the file system does not say how much is free, so be it."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(folder)
        if usage.total > 0 and usage.free < nbytes:
            raise error(f"{what} takes {nbytes:,} bytes, and the disk of {folder} has {usage.free:,} left; {remedy}.")


def temporary_prefix(target: Path) -> str:
    """How the name begins under which this process writes `target`; it ends in `.tmp`."""
    return f".{target.name[:100]}.{_host()}-{os.getpid()}-"


def remove_stale(folder: Path) -> None:
    """Remove what killed processes were writing in `folder`: temporary files of ours whose process is gone, or that are a day old where
    another host wrote them. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            found = TEMPORARY.fullmatch(path.name)
            if found and _abandoned(path, found["host"], int(found["process"])):
                with contextlib.suppress(OSError):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()


def _abandoned(path: Path, host: str, process: int) -> bool:
    if host != _host() or os.name == "nt":          # Windows has no signal that only asks
        with contextlib.suppress(OSError):
            return time.time() - path.lstat().st_mtime > STALE
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False                    # it runs, for somebody else
    return False


def _host() -> str:
    """This machine, or container, in eight letters: a process number says nothing anywhere else."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


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


def refuse_folder(path: Path) -> None:
    """IsADirectoryError where a file is to take the place of a folder."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def require_place(path: Path, nbytes: int) -> None:
    """CheckpointError where a trained model of so many bytes cannot be written to `path`, as far as that can be known
    beforehand."""
    try:
        refuse_folder(path)
    except OSError as error:
        raise unwritable(MODEL, path, error) from None
    require_space(path.parent, nbytes, "The trained model")


def unwritable(what: str, path: Path, error: OSError) -> CheckpointError:
    """The sentence on what cannot be written to `path`."""
    return CheckpointError(f"{what} cannot be written to {path} ({error.strerror or error}): {remedy(path, error)}.")


def remedy(path: Path, error: OSError) -> str:
    """How to mend that `path` cannot be written."""
    return REMEDIES.get(error.errno or 0, OTHER_REMEDY).format(folder=path.parent)
