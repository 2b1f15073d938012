"""Starting a group of processes on this host, and ending all of them when one ends before its time."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..system.errors import OptionError
from ..system.exit_codes import INTERRUPTED, NO_UPDATE, USER_ERROR
from . import pinning
from .control import BEAT, FAILED, LEFT, Control
from .group import TOLD
from .patience import Clock, silent, starves, used

LOOK = 0.05
"""Seconds between two looks at the processes."""
GRACE = 2.0
"""Seconds for which the others may end by themselves once one has failed."""
TAIL = 4000
"""Bytes of what a process other than the first wrote to standard error that are shown where it was the first to
fail."""
FINAL = (NO_UPDATE, USER_ERROR, INTERRUPTED)
"""Exit codes of what starting again would not mend."""


@dataclass
class End:
    """How a group ended. code: the exit code of the command. cause: the first cause as a sentence; "": all went well.
    again: to start again may help. shown: the process that failed has told people itself."""

    code: int
    cause: str = ""
    again: bool = False
    shown: bool = False


def run(command: Sequence[str], count: int, threads: int | None = None, pin: bool = True) -> End:
    """Run the command in `count` processes, and wait for them.

    Args:
        threads: of each; None: it decides itself. pin: each has processors of its own, where there are as many.

    Raises:
        OptionError: they cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="tileflow-launch-"))
    children: list[subprocess.Popen[bytes]] = []
    try:
        control = Control.create(folder / "control", count)
        cpus = pinning.parts(pinning.allowed() if pin else set(), count)
        for rank in range(count):
            with pinning.pinned(cpus[rank] if cpus else None):
                children.append(_started(command, folder, rank, count, threads))

        def ask(number: int) -> None:
            if number == signal.SIGINT and _from_keyboard():
                return                                      # a terminal has told the processes as well
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)
        with passed_on(ask) as asked:
            return _watched(children, control, folder, asked)
    except OSError as error:
        raise OptionError(f"The processes cannot be started: {error}.") from None
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _started(command: Sequence[str], folder: Path, rank: int, count: int,
             threads: int | None) -> subprocess.Popen[bytes]:
    """Process `rank`; only the first one has the terminal."""
    more = {} if threads is None or "NUMBA_NUM_THREADS" in os.environ else {"NUMBA_NUM_THREADS": str(threads)}
    told = {TOLD: f"{rank}/{count}/{os.getpid()}/{str(folder / 'control').lstrip('/')}"}
    with open(folder / f"errors{rank}", "wb") as errors:
        quiet: dict[str, Any] = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
                                                      "stderr": errors}
        return subprocess.Popen(list(command), env={**os.environ, **more, **told}, **quiet)


@contextmanager
def passed_on(ask: Callable[[int], None]) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM go on to the processes, which agree on where they end: `ask(number)`; a second one ends all:
    `ask(SIGKILL)`. Gives a list of these numbers, which they join."""
    asked: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        asked.append(signal.SIGKILL if asked else number)
        ask(asked[-1])
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_keyboard() -> bool:
    """This process stands in the foreground of a terminal, whose Ctrl-C all processes of its group get."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _watched(children: Sequence[subprocess.Popen[bytes]], control: Control, folder: Path, asked: Sequence[int]) -> End:
    """Wait until all have ended; the first that fails, dies or hangs ends all, but for one that ends since it is asked
    to: the others are asked as well, and save what they have.

    Args:
        asked: the signals that have gone to the processes so far.
    """
    clock, most = Clock(), silent()
    beats = [(0, clock.now(), 0.0)] * len(children)
    broke, hung = -1, False
    while broke < 0 and None in [child.poll() for child in children]:
        now = clock.now()
        for rank, child in enumerate(children):
            beat = int(control.lines[rank, BEAT])
            if beat != beats[rank][0] or not beat:
                beats[rank] = beat, now, used(child.pid)
            died = child.returncode not in (None, 0)
            if died and _as_asked(child, asked):
                if control.state(rank) < FAILED:
                    control.end(rank, LEFT)                 # others that wait for it wait in vain
                continue
            is_silent = now - beats[rank][1] > most
            hangs = child.returncode is None and is_silent and not starves(child.pid, beats[rank][2])
            if died or hangs:
                broke, hung = rank, hangs
                break
        else:
            clock.during(lambda: time.sleep(LOOK), LOOK)
    went = [_as_asked(child, asked) for child in children]
    if broke < 0:
        broke = next((r for r, child in enumerate(children) if child.returncode and not went[r]), -1)
    end = End(0) if broke < 0 else _ended(children, control, folder, broke, hung)
    if not any(went):
        return end
    cause = end.cause or "The processes have ended, as they were asked to."
    return End(INTERRUPTED, cause, shown=end.shown or (broke < 0 and children[0].returncode == INTERRUPTED))


def _as_asked(child: subprocess.Popen[bytes], asked: Sequence[int]) -> bool:
    """Whether a process has ended as it was asked to: by itself, or, where it does not listen yet or any longer, by the
    signal."""
    return bool(asked) and (child.returncode == INTERRUPTED or -(child.returncode or 0) in asked)


def _ended(children: Sequence[subprocess.Popen[bytes]], control: Control, folder: Path, rank: int, hangs: bool) -> End:
    """One has ended before its time: end the others, and say what came first."""
    told = [r for r in range(len(children)) if control.state(r) == FAILED and control.cause(r)]
    first = rank if rank in told or not told or hangs else told[0]
    if first == rank and not control.cause(rank) and (hangs or (children[rank].returncode or 0) < 0):
        control.end(rank, FAILED,
                    "it does not answer" if hangs else f"it was ended by {_signal(-(children[rank].returncode or 0))}")
    elif first == rank and not control.cause(rank):
        control.end(rank, FAILED)
    if hangs:
        children[rank].kill()
    until = time.monotonic() + GRACE
    while time.monotonic() < until and any(child.poll() is None for child in children):
        time.sleep(LOOK)
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
    code = children[first].returncode
    cause = control.cause(first) or f"it ended with code {code}"
    said = b"" if first == 0 else (folder / f"errors{first}").read_bytes()[-TAIL:]
    text = said.decode(errors="replace").strip()
    if text and not (hangs or code < 0) and code not in FINAL:
        cause += f"\n{text}"
    again = hangs or code < 0 or code not in FINAL
    return End(code if code > 0 else 1, f"Process {first} of {len(children)} failed: {cause.rstrip('.')}.", again,
               shown=first == 0 and code > 0)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def repeated(start: Callable[[bool], End], restarts: int, say: Callable[[str], None]) -> End:
    """Run a group of processes, at most `restarts` times anew where one died, hung or broke.

    Args:
        start: runs it; True: it goes on with what an earlier one has left.
    """
    end = start(False)
    for turn in range(restarts):
        if not end.again:
            break
        say(f"{end.cause} Start {turn + 2} of at most {restarts + 1} goes on from the last checkpoint.")
        end = start(True)
    return end


def this_python(words: Sequence[str]) -> list[str]:
    """The command line of a process: a command of tileflow, a script, or `python` with arguments, all by this
    Python."""
    if words[0] in ("python", "python3"):
        return [sys.executable, *words[1:]]
    return [sys.executable, *words] if words[0].endswith(".py") else [sys.executable, "-m", "tileflow", *words]
