"""Errors under the reference's names: what went wrong, in which part, where, and what sets it right again."""
from __future__ import annotations

import enum
import errno
import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..system.errors import (
    CheckpointError,
    DataError,
    Interrupted,
    OptionError,
    OutOfMemoryError,
    TileflowError,
    WeightsLostError,
)

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the system's errors where a disk is full."""


class InvalidOption(OptionError, AssertionError):
    """An option, a strategy or an annotation is wrong: a ValueError and an AssertionError, for the reference raises the
    one or the other."""


class ConfigFileError(OptionError):
    """A file of options cannot be parsed: "SyntaxError at line N of FILE: ..."."""


class Error(TileflowError, RuntimeError):
    """A model cannot be compiled or run.

    message: the sentence. type: what kind of error it is, `poptorch_py_error` or the name of tileflow's own. location:
    the calls that led there, the last one first, one a line.
    """

    def __init__(self, message: str = "", type: str = "poptorch_py_error", location: str | None = None) -> None:
        super().__init__(message)
        self.message, self.type = str(self.args[0]), type
        self.location = _calls(traceback.extract_stack()[:-1]) if location is None else location

    def __reduce__(self) -> Any:
        return self.__class__, (self.message, self.type, self.location)


class RecoverableError(Error):
    """Something outside of the model went wrong, and trying again may do.

    recovery_action: what to do first. The reference's words are IPU_RESET, LINK_RESET, PARTITION_RESET and FULL_RESET;
    tileflow's own are FREE_MEMORY (memory that others hold is to be given back), FREE_DISK (a disk is full),
    RESTART_WORKERS (`terminate()` of the data loader, then read on), RESUME (the same call with resume=True) and
    RESTORE (load the last checkpoint).
    """

    def __init__(self, message: str = "", recovery_action: str = "FULL_RESET", type: str = "poptorch_py_error",
                 location: str | None = None) -> None:
        super().__init__(message, type, location)
        self.recovery_action = recovery_action

    def __reduce__(self) -> Any:
        return self.__class__, (self.message, self.recovery_action, self.type, self.location)


class UnrecoverableError(Error):
    """The machine itself is broken, and no model will run on it."""


@contextmanager
def translated() -> Iterator[None]:
    """Errors of tileflow's within are raised as the reference's, with the original as their cause; all others pass as
    they are."""
    try:
        yield
    except (Error, InvalidOption):
        raise
    except (TileflowError, Interrupted, OSError) as error:
        found = of(error)
        if found is None:
            raise
        raise found from error


def of(error: BaseException) -> Error | None:
    """The reference's error for one of tileflow's, with the verb that goes on; None for one that is none of these."""
    location, kind = _calls(traceback.extract_tb(error.__traceback__)), type(error).__name__
    action = _action(error)
    if action is not None:
        return RecoverableError(str(error), action, kind, location)
    return Error(str(error), kind, location) if isinstance(error, TileflowError) else None


def _action(error: BaseException) -> str | None:
    if isinstance(error, Interrupted):
        return "RESUME"
    if isinstance(error, OutOfMemoryError):
        return "FREE_MEMORY"
    if isinstance(error, WeightsLostError):
        return "RESTORE"
    if isinstance(error, DataError) and "worker" in str(error):
        return "RESTART_WORKERS"
    full = isinstance(error, OSError) and error.errno in FULL
    caused = error.__cause__ or error.__context__
    if full or (isinstance(error, CheckpointError) and isinstance(caused, OSError) and caused.errno in FULL):
        return "FREE_DISK"
    return None


@contextmanager
def of_options() -> Iterator[None]:
    """What is wrong with an option within is an InvalidOption."""
    try:
        yield
    except (InvalidOption, AttributeError):
        raise
    except OptionError as error:
        raise InvalidOption(str(error)) from error


def not_there(function: Callable[..., Any]) -> Callable[..., NoReturn]:
    """A decorator of what the reference has and tileflow has not: a call raises NotImplementedError with the docstring,
    which names the way out."""
    @functools.wraps(function)
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{function.__qualname__}: {' '.join((function.__doc__ or '').split())}")
    return refuse


def _calls(frames: Any) -> str:
    """The calls that led somewhere, the last one first."""
    return "\n".join(f"  [{i}] {frame.name} ({frame.filename}:{frame.lineno})"
                     for i, frame in enumerate(reversed(frames)))


# ---- errors to try handlers with

class TestErrorType(enum.IntEnum):
    """Which error `_throwTestError` raises."""

    __test__ = False

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


KINDS = {TestErrorType.Poptorch: "poptorch_cpp_error", TestErrorType.Popart: "popart_exception",
         TestErrorType.PopartInternal: "popart_internal_exception", TestErrorType.Poplibs: "poplibs_exception",
         TestErrorType.PoplarUnrecoverable: "poplar_unrecoverable_runtime_error",
         TestErrorType.PoplarUnknown: "poplar_unknown_runtime_error",
         TestErrorType.PoplarRecoverableFullReset: "poplar_recoverable_runtime_error",
         TestErrorType.PoplarLinkError: "poplar_link_error"}
"""The reference's names for kinds of errors."""


def _throwTestError(kind: TestErrorType) -> NoReturn:
    """Raise an error of a kind, so that a script can try what it does about it."""
    name = KINDS[TestErrorType(kind)]
    if kind == TestErrorType.PoplarUnrecoverable:
        raise UnrecoverableError("A test: the machine is broken.", name)
    if kind == TestErrorType.PoplarRecoverableFullReset:
        raise RecoverableError("A test: a full reset mends it.", "FULL_RESET", name)
    raise Error("A test.", name)
