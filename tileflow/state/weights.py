"""Weights that come from outside: checked as a whole before any of them is taken over."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..memory.tensor import check_reach, kind_of
from ..system.errors import DataError

LISTED = 5
"""Weights that a sentence names."""


def fitting(own: Mapping[str, np.ndarray], tensors: Mapping[str, Any], strict: bool = True) -> dict[str, np.ndarray]:
    """The given tensors that have a place in `own`, as arrays.

    Floats of any width go into floats (they are rounded); other types must be alike.

    Raises:
        DataError: with `strict`, names are missing or unknown; a shape or a type differs. The sentence says which.
    """
    if not isinstance(tensors, Mapping):
        raise DataError(f"Weights are a table of arrays by name, as state_dict() gives them, not {type(tensors).__name__}.")
    missing, extra = [n for n in own if n not in tensors], [str(n) for n in tensors if n not in own]
    if strict and (missing or extra):
        raise DataError(f"These weights are not this network's: missing {_some(missing)}, unexpected {_some(extra)}.")
    arrays, wrong = {}, []
    for name, have in own.items():
        if name in tensors:
            arrays[name] = array = np.asarray(tensors[name])
            floats = kind_of(array.dtype) == kind_of(have.dtype) == "f"
            if array.shape != have.shape or not (floats or array.dtype == have.dtype):
                wrong.append(f"{name!r} is {have.dtype}{list(have.shape)}, got {array.dtype}{list(array.shape)}")
            else:
                check_reach(array, have.dtype.name, name)
    if wrong:
        raise DataError(f"These weights do not fit, and none was taken over: {_some(wrong)}.")
    return arrays


def _some(words: Sequence[str]) -> str:
    """The first words and how many more there are."""
    return ", ".join(words[:LISTED]) + (f" and {len(words) - LISTED} more" if len(words) > LISTED else "") if words else "none"
