"""A file with its parameters told apart, written back: new initializers, and nodes that read them."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, helper

from ..model import OnnxModel
from .resolve import ResolvedModel

INITIALIZERS_ARE_INPUTS = 4
"""Before this IR version every initializer is an input too."""


def tell_apart(proto: ModelProto, model: OnnxModel) -> None:
    """Give `proto`, a copy of the model's own, the initializers and nodes of its parameters."""
    if not isinstance(model, ResolvedModel) or not (model.ties.copies or model.ties.renamed or model.ties.restored):
        return
    ties = model.ties
    called = {tensor: name for name, tensor in ties.renamed.items()}
    for held in (*proto.graph.initializer, *proto.graph.input):
        held.name = called.get(held.name, held.name)
    del proto.graph.node[:]
    proto.graph.node.extend(ties.nodes)
    for name in (*ties.copies, *ties.restored):
        tensor = proto.graph.initializer.add()
        tensor.CopyFrom(model.tensors[name])
        tensor.name = name
        if proto.ir_version < INITIALIZERS_ARE_INPUTS:
            proto.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))


def with_views(model: OnnxModel, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights, and what the file holds of them in other tensors."""
    result = dict(weights)
    for name, view in (model.ties.views if isinstance(model, ResolvedModel) else {}).items():
        if view.base in weights:
            result[name] = weights[view.base].T if view.transposed else weights[view.base]
    return result
