"""The model whose readers read each parameter by its own name."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from onnx import NodeProto

from ..model import OnnxModel
from .ties import Ties, find_ties


@dataclass(frozen=True)
class ResolvedModel(OnnxModel):
    """A model with its parameters told apart: `initializers` and `tensors` hold the new ones too, under the names by which `nodes` read them."""

    ties: Ties = field(repr=False, compare=False)

    @property
    def nodes(self) -> Sequence[NodeProto]:
        return self.ties.nodes

    def shape(self, name: str) -> tuple[int, ...]:
        dims = super().shape(name)
        return (math.prod(dims),) if name in self.ties.columns else dims


def resolved(model: OnnxModel, tie: Sequence[str] = (), untie: Sequence[str] = ()) -> ResolvedModel:
    """Tell a model's parameters apart; see `ties`. One whose parameters are stays as it is."""
    if isinstance(model, ResolvedModel):
        return model
    ties = find_ties(model, tie, untie)
    new = {name: model.tensors[tensor] for name, tensor in ties.copies.items()} | dict(ties.restored)
    called = {tensor: name for name, tensor in ties.renamed.items()}
    kept = {f.name: getattr(model, f.name) for f in fields(model)}
    initializers, tensors = ({called.get(n, n): t for n, t in held.items()} | new for held in (model.initializers, model.tensors))
    return ResolvedModel(**kept | {"initializers": initializers, "tensors": tensors}, ties=ties)
