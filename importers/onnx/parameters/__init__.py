"""What a file's stored tensors are: parameters, buffers or constants, which of them are one, what they are called, and why."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..load import OnnxModel
from .messages import notes
from .patterns import matches
from .rules import Verdict, verdicts
from .ties import Ties, find_ties, listed
from .views import View

__all__ = ["Ties", "Verdict", "View", "listed", "matches", "notes", "resolved", "verdicts"]


def resolved(model: OnnxModel, tie: Sequence[str] = (), untie: Sequence[str] = ()) -> OnnxModel:
    """The model whose readers read each parameter by its own name; see `ties`. One that is resolved already stays as it is."""
    if model.ties is not None:
        return model
    ties = find_ties(model, tie, untie)
    new = {name: model.tensors[tensor] for name, tensor in ties.copies.items()} | dict(ties.restored)
    return dataclasses.replace(model, ties=ties, initializers=model.initializers | new, tensors=model.tensors | new)
