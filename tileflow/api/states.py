"""State dicts in files: safetensors, written all or nothing, checked before memory is taken."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.checkpoint import load_checkpoint, save_tensors
from ..system.errors import CheckpointError

PARTS = "tileflow.parts"
"""Metadata: the names of the tables that a file holds, as a JSON list. Tensors then are called <table>/<name>."""


def save_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write a state dict, or several under names of your own, into one safetensors file.

        tileflow.save_state({"model": model.state_dict(), "optimizer": model.optimizer_state_dict()}, "state.safetensors")

    An older file of that name is replaced when the new one is whole and was read back.

    Raises:
        CheckpointError: something in it is no array of a type that the format has, or the file cannot be written.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"A state is a table of arrays by name, as state_dict() gives it, or of such tables, not {type(state).__name__}.")
    parts = [name for name, value in state.items() if isinstance(value, Mapping)]
    if not parts:
        save_tensors(path, _arrays(state))
        return Path(path)
    if len(parts) != len(state):
        single = next(str(name) for name in state if name not in parts)
        raise CheckpointError(f"A state holds arrays or tables of arrays, not both: {single!r} is no table, {parts[0]!r} is one.")
    tensors: dict[str, np.ndarray] = {}
    for part in parts:
        if not isinstance(part, str) or "/" in part:
            raise CheckpointError(f"The name of a table of a state is a text without '/', not {part!r}.")
        tensors |= {f"{part}/{name}": array for name, array in _arrays(state[part]).items()}
    save_tensors(path, tensors, {PARTS: json.dumps(parts)})
    return Path(path)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_state` wrote, or any safetensors file: arrays by name, or tables of them.

        state = tileflow.load_state("state.safetensors")
        model.load_state_dict(state["model"])
        model.load_optimizer_state_dict(state["optimizer"])

    Raises:
        CheckpointError: the file cannot be read, is damaged, or needs more memory than there is.
    """
    found = load_checkpoint(path)
    if PARTS not in found.metadata:
        return dict(found.tensors)
    try:
        parts = json.loads(found.metadata[PARTS])
        tables: dict[str, Any] = {str(part): {} for part in parts}
        for name, array in found.tensors.items():
            part, _, own = name.partition("/")
            tables[part][own] = array
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CheckpointError(f"{path} does not hold the tables that it names; restore it from a copy.") from None
    return tables


def _arrays(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    for name in state:
        if not isinstance(name, str):
            raise CheckpointError(f"Names in a state are texts, not {name!r}.")
    return {name: np.asarray(value) for name, value in state.items()}
