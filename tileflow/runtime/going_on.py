"""What to tell the user of a run that has ended early: how to go on with it."""
from __future__ import annotations

from pathlib import Path

from .run_folder import CHECKPOINT
from .run_settings import resume_command


def go_on(folder: Path, has_command: bool, checkpoint: Path | None = None) -> str:
    """How to go on with the run in `folder`, which says all that the command needs or not (`has_command`)."""
    if has_command:
        return resume_command(folder, checkpoint)
    return f"the same call and resume={str(checkpoint) if checkpoint else True!r}"


def last_good(folder: Path, has_command: bool) -> str:
    """Where to go back to when the weights in memory are of no use."""
    path = folder / CHECKPOINT
    if not path.exists():
        return ("This run had not written a checkpoint yet (checkpoint_every and save_every_updates do so on the way): "
                "start it anew.")
    return f"The last good checkpoint is {path}. Go on from it with {go_on(folder, has_command)}."


def saved_failed(folder: Path, has_command: bool, path: Path) -> str:
    """Of a run whose state before a failure is saved at `path`."""
    last = folder / CHECKPOINT
    kept = f" The last checkpoint, {last}, is as it was." if last.exists() else ""
    return (f"The state before the failure is saved in {path}. "
            f"Go on from it with {go_on(folder, has_command, path)}.{kept}")
