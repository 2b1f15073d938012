"""What of a run outlives its process: the checkpoint, with the position in the data, and the figures of its epochs."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..files import atomic_write_bytes
from ..options import Options
from .checkpoint import load_tensors, save_tensors
from .history import Epoch, Running

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.json"
FORMAT = "1"


@dataclass
class Position:
    """How far a run has come."""

    updates: int
    micro_batches: int
    epoch: int
    updates_in_epoch: int
    running: Running = field(default_factory=Running)
    history: list[Epoch] = field(default_factory=list)


def save_run(path: Path, tensors: Mapping[str, np.ndarray], at: Position, fingerprint: Mapping[str, Any]) -> None:
    """Write the checkpoint of a run; CheckpointError where that fails, with the one there before intact."""
    save_tensors(path, tensors, {"tileflow": json.dumps({"format": FORMAT, **asdict(at), "run": fingerprint})})


def load_run(path: Path, fingerprint: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], Position]:
    """The tensors of a checkpoint and where its run was.

    Raises:
        CheckpointError: damaged, no checkpoint, or of a run whose fingerprint is another.
    """
    tensors, metadata = load_tensors(path)
    try:
        state = json.loads(metadata["tileflow"])
        numbers = {k: int(state[k]) for k in ("updates", "micro_batches", "epoch", "updates_in_epoch")}
        at = Position(**numbers, running=Running(**state["running"]), history=[Epoch(**e) for e in state["history"]])
        made = state["run"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path} is no checkpoint of a training run; give the {CHECKPOINT} that train wrote.") from None
    for name, value in fingerprint.items():
        if made.get(name) != value:
            raise CheckpointError(f"{path} was made with {name} = {made.get(name)}, this run has {value}; resume with the same settings, "
                                  "or start anew in another folder.")
    return tensors, at


def write_metrics(folder: Path, updates: int, history: Sequence[Epoch], options: Options) -> None:
    """Write the figures of all finished epochs."""
    records = [asdict(e) | {"samples_per_second": e.samples_per_second} for e in history]
    text = json.dumps({"schema": 1, "updates": updates, "epochs": records, "options": _plain(options.to_dict())}, indent=2)
    atomic_write_bytes(folder / METRICS, text.encode())


def _plain(value: Any) -> Any:
    """JSON's types only."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
