"""The on-disk compile cache: machine code under names that tell all that shapes it (`content`), a folder for each
version of the compilers.

Numba's own cache looks at one file's time stamp and at a function's name, so it misses edits in a callee's file and
can return the code of another dtype (two signatures of one body share file, line and name). What the files hold
`stored` knows.

What is read back is run, so it is checked first: every file starts with a digest of its name and content, and one that is damaged or stands in
another's place is deleted unread and compiled anew. A digest does not stop who can write the folder or a file: neither is used where others may,
and both are made so that they may not, whatever the umask.
"""
from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from . import trust

MAGIC = b"tileflow kernel 3\n"
SUFFIX = ".nbc"
DIGEST = hashlib.sha256
MODE, FILE_MODE = 0o755, 0o644
"""Of folders and files that we make, whatever the umask: others read them, nobody else writes there."""
PRIVATE = 0o700
"""Of our folder among everybody's temporary files."""

on_compile: list[Callable[[str], None]] = []
"""Called with a leaf's name each time machine code is made anew (not when it is read from disk)."""


def root() -> Path:
    """The cache folder: `TILEFLOW_CACHE_DIR`, else the platform's user cache folder."""
    if chosen := os.environ.get("TILEFLOW_CACHE_DIR"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tileflow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tileflow"


@functools.cache
def versions() -> str:
    """A hash of the versions of what compiles."""
    told = " ".join(f"{name} {metadata.version(name)}" for name in ("numba", "llvmlite"))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def folder() -> Path:
    """Where this version's compiled kernels lie: below `root`, or in a private folder where that is refused."""
    wanted = root() / f"kernels-{versions()}"
    return _instead(wanted) if refusal() else wanted


def refusal() -> str:
    """Why the folder below `root` is not used; "" where it is."""
    return _doubt(root() / f"kernels-{versions()}")


_doubt = functools.cache(trust.doubt)


@functools.cache
def _instead(wanted: Path) -> Path:
    """This user's own folder among the temporary files, which later starts find again; one for the time of this process where that is in doubt,
    too; a place where nothing can be kept where there is none."""
    own = Path(tempfile.gettempdir()) / f"tileflow-{os.getuid()}"
    with contextlib.suppress(OSError):
        own.mkdir(PRIVATE, exist_ok=True)
    trusted = own.is_dir() and not trust.doubt(own)
    warnings.warn(f"Compiled kernels are not kept in {wanted.parent}, because {_doubt(wanted)}: they would be run as they are found there. "
                  + (f"They are kept in {own}; " if trusted else "This start compiles them anew; ")
                  + "mend the permissions, or set TILEFLOW_CACHE_DIR to a folder of your own.", RuntimeWarning, stacklevel=2)
    return own / wanted.name if trusted else _for_this_process()


def _for_this_process() -> Path:
    try:
        made = Path(tempfile.mkdtemp(prefix="tileflow-kernels-"))
    except OSError:
        return Path(os.devnull) / "kernels"
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    return made


def make_folder() -> None:
    """Make `folder` and what is missing above it (OSError where that fails)."""
    if folder().is_dir():
        return
    for path in reversed([folder(), *folder().parents]):
        if not path.is_dir():
            with contextlib.suppress(FileExistsError):
                path.mkdir(MODE)
                if path in (folder(), root()):                   # ours alone: what is above them stays as narrow as the umask makes it
                    path.chmod(MODE)
    if why := trust.doubt(folder()):
        raise PermissionError(errno.EPERM, why)


def writable() -> bool:
    """Whether compiled kernels can be kept for other processes."""
    try:
        make_folder()
    except OSError:
        return False
    return os.access(folder(), os.W_OK)


def damaged() -> list[Path]:
    """The files of this version whose content is not what was written; they are compiled anew when they are needed next."""
    return [path for path in sorted(folder().glob(f"*{SUFFIX}")) if path.is_file() and not path.is_symlink()
            and _payload(path) is None]


def _digest(path: Path, payload: bytes) -> bytes:
    """Of a payload in its place."""
    return DIGEST(f"{versions()}/{path.name}\n".encode() + payload).digest()


def _payload(path: Path) -> bytes | None:
    """What was written to a file; None where that is not what it holds, or others may write it (OSError where it cannot be read)."""
    with open(path, "rb", opener=_no_link) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or trust.doubt_of(file.fileno(), status):
            return None
        content = file.read()
    start = len(MAGIC) + DIGEST().digest_size
    payload = content[start:]
    return payload if content[:start] == MAGIC + _digest(path, payload) else None


def _no_link(path: str, flags: int) -> int:
    """Open what has that name itself, for its owner alone where it is made, and without waiting for the other end of a fifo."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def _path(name: str) -> Path:
    return folder() / f"{name}{SUFFIX}"


def read(name: str) -> bytes | None:
    """What was written under a name; None where there is nothing, or nothing whole that is ours alone (then it is deleted)."""
    path = _path(name)
    try:
        payload = _payload(path)
    except OSError:
        return None
    if payload is None:
        with contextlib.suppress(OSError):
            path.unlink()
    return payload


def write(name: str, payload: bytes, mode: int = FILE_MODE) -> None:
    """Keep a payload under a name, whole or not at all: a full or read-only disk costs the next start some seconds, never this run."""
    path = _path(name)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        make_folder()
        with open(temporary, "xb", opener=_no_link) as file:
            file.write(MAGIC + _digest(path, payload) + payload)
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise


def told(name: str) -> None:
    """Tell those who listen that machine code was made anew."""
    for listener in on_compile:
        listener(name)
