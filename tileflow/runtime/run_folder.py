"""What of a run outlives its process: the checkpoint, with the position in the data, and the figures of its epochs."""
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..system.errors import CheckpointError
from ..system.files import probe, remove_stale
from .checkpoint import load_checkpoint, save_tensors
from .history import Epoch, Running
from .run_lock import locked

T = TypeVar("T")
CHECKPOINT = "checkpoint.safetensors"
FAILED = "checkpoint.failed"
"""The state before a failure: kept apart, since it may be why the run failed."""
METRICS = "metrics.json"
SHORT = 2
"""Updates at the end of an epoch that may have fewer rows than the others: one of micro-batches, one of the rows that fill none."""
FORMAT = 2
"""Of the state in a checkpoint's metadata. 1 (tileflow 0.1) had no digest."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


FIGURES: dict[str, Callable[[Any], bool]] = {
    "int": _is_count, "float": _is_number, "float | None": lambda value: value is None or _is_number(value),
    "str": lambda value: isinstance(value, str),
    "dict[str, float | None]": lambda table: isinstance(table, dict) and all(x is None or _is_number(x) for x in table.values())}
"""What a figure of an epoch may be, by its annotation: a checkpoint may come from anywhere."""


@dataclass
class RunPosition:
    """How far a run has come."""

    updates: int
    micro_batches: int
    epoch: int
    updates_in_epoch: int
    running: Running = field(default_factory=Running)
    history: list[Epoch] = field(default_factory=list)
    short_updates: int = 0
    begun: int = -1
    """Epochs whose beginning callbacks were told of."""
    evaluated: int = -1
    """The update at which the test data were measured last, and what was found."""
    figures: dict[str, float | None] = field(default_factory=dict)
    stopped: str = ""
    """Why the run ended early, and the callback that stopped it, with its settings."""
    stopped_by: str = ""
    rates_set: dict[str, float] = field(default_factory=dict)
    pending: list[list[Any]] = field(default_factory=list)
    """Files that callbacks have asked for and that are not there yet: name, with ONNX, to be removed."""
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)


def _unused(folder: Path) -> Path:
    """The folder, or, where another run of the same second has it, folder-2, folder-3 ...; it is made, so that nobody else takes it."""
    own, n = folder, 1
    while True:
        try:
            own.mkdir(parents=True)
        except FileExistsError:
            n += 1
            own = folder.with_name(f"{folder.name}-{n}")
        except OSError:
            return own                                       # run_folder says the reason
        else:
            return own


@contextmanager
def run_folder(out: str | None, resume: str | bool, say: Callable[[str], None]) -> Iterator[Path]:
    """The run's folder, made if need be, without what killed runs left half written; nobody else's until the end.

    Raises:
        CheckpointError: it cannot be made or written to, another run has it, or it holds an earlier run that is not to be resumed.
    """
    folder = Path(out) if out else _unused(Path("runs") / time.strftime("%Y%m%d-%H%M%S"))
    goes_on = resume is True or (isinstance(resume, str) and Path(resume).parent.resolve() == folder.resolve())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe(folder)
    except OSError as error:
        raise CheckpointError(f"Cannot write to the folder {folder} ({error.strerror}); choose another one with out.") from None
    with locked(folder, say):
        if not goes_on and os.path.exists(folder / CHECKPOINT):
            raise CheckpointError(f"The folder {folder} already holds a run; go on from it with resume, or choose another one with out.")
        remove_stale(folder)
        yield folder


def checkpoint_of(folder: Path, resume: str | bool, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from; None where the run begins, which is said where it was to be resumed: so one command, repeated, starts
    a run and brings it to its end.

    Raises:
        CheckpointError: the folder's is a link to a file elsewhere, which nobody named.
    """
    if isinstance(resume, str):
        return Path(resume)
    if not resume:
        return None
    path = folder / CHECKPOINT
    if path.is_symlink() and os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
        raise CheckpointError(f"{path} is a link to {os.path.realpath(path)}, which is not in the folder of the run; name that file with resume to "
                              "go on from it.")
    if path.exists():
        return path
    failed = f" A run that failed left its state in {folder / FAILED}: resume that file to go on from it." if (folder / FAILED).exists() else ""
    say(f"There is no checkpoint in {folder} yet: the run begins anew.{failed}")
    return None


def save_run(path: Path, tensors: Mapping[str, np.ndarray], at: RunPosition, fingerprint: Mapping[str, Any]) -> None:
    """Write the checkpoint of a run; CheckpointError where that fails, with the one there before intact."""
    save_tensors(path, tensors, {"tileflow": json.dumps({"format": FORMAT, **asdict(at), "run": fingerprint})}, follow=False)


def remove(path: Path) -> None:
    """Take a file of the run's away; CheckpointError where it is there and stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"Cannot remove {path}: {error.strerror or error}.") from None


def load_run(path: Path) -> tuple[dict[str, np.ndarray], RunPosition, dict[str, Any]]:
    """The tensors of a checkpoint, where its run was, and the fingerprint of the run.

    Raises:
        CheckpointError: damaged, or no checkpoint of a run.
    """
    found = load_checkpoint(path)
    try:
        state = json.loads(found.metadata["tileflow"])
        version = int(state["format"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{path} is no checkpoint of a training run; give the {CHECKPOINT} that train wrote.") from None
    if version > FORMAT:
        raise CheckpointError(f"{path} was written by a newer tileflow (format {version}; this one reads {FORMAT}); update tileflow.")
    if version < FORMAT or not found.proven:
        raise CheckpointError(f"{path} has no digest of its contents, so that it cannot be told from a damaged one: tileflow 0.1 wrote it, or it "
                              "is damaged; go on with the tileflow that wrote it, or train anew.")
    try:
        numbers, short = [state[k] for k in ("updates", "micro_batches", "epoch", "updates_in_epoch")], state.get("short_updates", 0)
        if not all(map(_is_count, (*numbers, short))) or short > min(SHORT, numbers[-1]):
            raise ValueError("position")
        history = [_record(Epoch, e) for e in state["history"]]
        at = RunPosition(*numbers, running=_record(Running, state["running"]), history=history, short_updates=short,
                         **_of_callbacks(state))
        if at.begun < 0:                                    # of a file that does not say
            at.begun = at.epoch + (at.updates_in_epoch > 0)
        if [e.epoch for e in at.history] != list(range(1, len(at.history) + 1)) or len(at.history) != at.epoch:
            raise ValueError("history")
        made = dict(state["run"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} does not say how far its run has come; give the {CHECKPOINT} that train wrote.") from None
    return found.tensors, at, made


def _of_callbacks(state: Mapping[str, Any]) -> dict[str, Any]:
    """What callbacks and evaluations have left in a checkpoint's table; ValueError where it is not of its kind."""
    kinds: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("begun", "evaluated"), lambda n: n == -1 or _is_count(n)),
        "figures": FIGURES["dict[str, float | None]"], "stopped": FIGURES["str"], "stopped_by": FIGURES["str"],
        "rates_set": lambda table: isinstance(table, dict) and all(_is_number(x) and x >= 0 for x in table.values()),
        "pending": lambda rows: isinstance(rows, list)
        and all(isinstance(r, list) and [type(x) for x in r] == [str, bool, bool] for r in rows),
        "callbacks": lambda table: isinstance(table, dict) and all(isinstance(x, dict) for x in table.values())}
    found = {name: state[name] for name in kinds if name in state}
    for name, value in found.items():
        if not kinds[name](value):
            raise ValueError(name)
    return found


def _record(made: type[T], table: Any) -> T:
    """A record of figures out of a table; ValueError, KeyError or TypeError where one is not of its kind."""
    kinds = {f.name: str(f.type) for f in fields(made)}                 # type: ignore[arg-type]
    if not isinstance(table, dict):
        raise TypeError(made.__name__)
    for name, value in table.items():
        if not FIGURES[kinds[name]](value):
            raise ValueError(name)
    return made(**table)
