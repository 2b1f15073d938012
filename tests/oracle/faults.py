"""Faults injected into what a run writes: each change that it makes to a folder (a file or folder made, a write, a flush to the disk, a rename, a
removal) is numbered, and the process is stopped at one of them, or that one fails."""
from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tileflow.runtime.run_folder import FAILED
from tileflow.system.errors import TileflowError

KINDS = ("mkdir", "creat", "write", "fsync", "rename", "unlink")
AVAILABLE = hasattr(os, "fork") and os.path.isdir("/proc/self/fd")
"""This system has forks, and says which files are open."""
How = Literal["stop", "fail", "full"]
"""The process is killed there; that change fails, once; it and every later one that needs room fails."""
NEEDS_ROOM = ("mkdir", "creat", "write")
MENDED, BROKEN = 0, 70
"""Exit status of a process that ended, or told a sentence; and of one that failed in another way, whose traceback it prints."""


class Injector:
    """Numbers the changes below `folder` in `seen`; at the one numbered `at` it does as `how` says. None: it only counts."""

    def __init__(self, folder: Path, at: int | None = None, how: How = "stop") -> None:
        self.folder, self.at, self.how = os.path.realpath(folder), at, how
        self.seen: list[str] = []

    def change(self, kind: str, path: str, half: Callable[[], Any] = lambda: None) -> None:
        """A change is about to be made. half: does the first half of it, where there are halves."""
        if path != self.folder and not path.startswith(self.folder + os.sep):
            return
        number = len(self.seen)
        self.seen.append(kind)
        later = self.how == "full" and kind in NEEDS_ROOM
        if self.at is None or not (number == self.at or (later and number > self.at)):
            return
        half()
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.EIO if self.how == "fail" else errno.ENOSPC, "injected")

    @contextlib.contextmanager
    def injected(self) -> Iterator[None]:
        """Between every change and the system."""
        with pytest.MonkeyPatch.context() as patch:
            for kind, calls in {"mkdir": ("mkdir",), "unlink": ("unlink", "remove", "rmdir")}.items():
                for name in calls:
                    patch.setattr(os, name, self._on_path(kind, getattr(os, name)))
            for name in ("rename", "replace", "link", "symlink"):
                patch.setattr(os, name, self._on_target(getattr(os, name)))
            for kind, name in (("fsync", "fsync"), ("write", "ftruncate")):
                patch.setattr(os, name, self._on_file(kind, getattr(os, name)))
            patch.setattr(os, "open", self._opened(os.open))
            patch.setattr(os, "write", self._written(os.write))
            opened = self._file(io.open)
            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            yield

    def _on_path(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            self.change(kind, _name(path, dir_fd))
            return real(path, *rest, dir_fd=dir_fd, **more)
        return call

    def _on_target(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, **more: Any) -> Any:
            self.change("rename", _name(target))
            return real(source, target, **more)
        return call

    def _on_file(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, *rest: Any) -> Any:
            self.change(kind, _open_name(handle))
            return real(handle, *rest)
        return call

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, flags: int, *rest: Any, dir_fd: int | None = None) -> Any:
            if flags & os.O_CREAT:
                self.change("creat", _name(path, dir_fd))
            return real(path, flags, *rest, dir_fd=dir_fd)
        return call

    def _written(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, data: bytes) -> Any:
            self.change("write", _open_name(handle), lambda: real(handle, data[:len(data) // 2]))
            return real(handle, data)
        return call

    def _file(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if not set(mode) & set("wxa+"):
                return real(file, mode, *rest, **more)
            path = _open_name(file) if isinstance(file, int) else _name(file)
            if not isinstance(file, int):
                self.change("creat", path)
            return _Written(real(file, mode, *rest, **more), path, self)
        return call


class _Written:
    """A file whose writes are changes."""

    def __init__(self, file: Any, path: str, injector: Injector) -> None:
        self._file, self._path, self._injector = file, path, injector

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[:len(data) // 2])
            self._file.flush()
        self._injector.change("write", self._path, half)
        return int(self._file.write(data))

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_error: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _name(path: Any, dir_fd: int | None = None) -> str:
    """The real path of a name, but for a link at its end."""
    folder, name = os.path.split(os.path.abspath(os.fspath(path)) if dir_fd is None else os.path.join(_open_name(dir_fd), os.fspath(path)))
    return os.path.join(os.path.realpath(folder), name)


def _open_name(handle: int) -> str:
    return os.readlink(f"/proc/self/fd/{handle}")


def changes(folder: Path, work: Callable[[], Any]) -> list[str]:
    """The kinds of all changes that the work makes below the folder, undisturbed."""
    injector = Injector(folder)
    with injector.injected():
        work()
    return injector.seen


def resumptions(run: Path, folder: Path) -> list[tuple[Path, bool | str]]:
    """How a disturbed run can be gone on with, each in a folder of its own: by its folder, and from the state before
    the failure where there is one."""
    places: list[tuple[Path, bool | str]] = [(run, True)]
    if (run / FAILED).exists():
        shutil.copytree(run, folder / "failed")
        places.append((folder / "failed", str(folder / "failed" / FAILED)))
    return places


def disturbed(folder: Path, work: Callable[[], Any], at: int, how: How) -> int:
    """Do the work in a forked process with a fault: its exit status (MENDED, BROKEN), or the signal that killed it, below zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)          # of forks beside threads: ours are made for that
        pid = os.fork()
    if pid == 0:
        status = BROKEN
        try:
            with Injector(folder, at, how).injected(), contextlib.suppress(TileflowError):
                work()
            status = MENDED
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
