"""What a file written from a network of layers says of its tensors: which are parameters and which buffers, as JSON in its metadata.

    tileflow.states     {"parameters": ["fc.weight", "fc.bias"], "buffers": ["norm.running_mean"]}

Each of them is one parameter for all its readers, and no other one, whatever its elements are.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal

from tileflow.graph import State

from ..model import OnnxModel

KEY = "tileflow.states"
LONGEST = 1 << 24
"""Characters of the text."""
Kind = Literal["parameter", "buffer"]


def told_as(states: Iterable[State]) -> dict[str, str]:
    """The metadata entry for these states."""
    kinds: dict[str, list[str]] = {"parameters": [], "buffers": []}
    for state in states:
        kinds[f"{state.kind}s"].append(state.name)
    return {KEY: json.dumps(kinds, ensure_ascii=False)}


def told(model: OnnxModel) -> Mapping[str, Kind] | None:
    """The kinds of the model's initializers by name, if its metadata say what they are; None where they do not, or say it of another model."""
    text = model.metadata.get(KEY)
    if text is None or len(text) > LONGEST:
        return None
    try:
        said = json.loads(text)
        kinds: dict[str, Kind] = {**dict.fromkeys(map(str, said["parameters"]), "parameter"), **dict.fromkeys(map(str, said["buffers"]), "buffer")}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return kinds if kinds.keys() <= model.initializers.keys() else None
