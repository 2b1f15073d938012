"""Biases that an exporter dropped because they are zero: PyTorch's optimizer removes them from Gemm and Conv, and the metadata still name them."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from ..tensors import DTYPES
from .groups import Evidence
from .placeholders import TARGET, call_of
from .scopes import parent
from .uses import Use

CALLS = {"linear", "addmm", "convolution", "conv1d", "conv2d", "conv3d"}
"""Calls of products that take a weight and a bias."""
BIAS = {"Gemm": 2, "Conv": 2}
"""Which operand of ONNX's operators the bias is."""


@dataclass(frozen=True)
class Dropped:
    """A bias that belongs to a node again: its placeholder, the name it had, and zeros."""

    placeholder: str
    name: str
    use: Use
    zeros: TensorProto


def dropped_biases(evidence: Evidence) -> Iterator[Dropped]:
    """One for each node that lacks a bias its call had."""
    placeholders = evidence.placeholders
    for place, node in enumerate(evidence.nodes):
        arguments = _arguments(evidence, node)
        if not arguments or arguments[-1] not in placeholders.lost or arguments[:-1] != _weight(placeholders.given.get((place, 1))):
            continue
        bias = arguments[-1]
        index, weight = BIAS[node.op_type], evidence.model.tensors[node.input[1]]
        columns = node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute)
        dims = (weight.dims[-1 if columns else 0],)
        zeros = numpy_helper.from_array(np.zeros(dims, DTYPES[weight.data_type]))
        name = placeholders.called(bias, evidence.scopes.module(node), f"{parent(weight.name)}.bias")
        yield Dropped(bias, name, Use(name, node, index, place, dims, "bias"), zeros)


def _weight(given: str | None) -> list[str]:
    """What a call lists before its bias: nothing where the weight is computed."""
    return [given] if given else []


def _arguments(evidence: Evidence, node: NodeProto) -> list[str]:
    """Weight and bias in the call of a product that has no bias in the file; nothing for other nodes."""
    index = BIAS.get(node.op_type)
    if index is None or (len(node.input) > index and node.input[index]) or node.input[1] not in evidence.model.tensors:
        return []
    call = call_of(node) or ""
    target = TARGET.search(call)
    return evidence.placeholders.arguments(call) if target is not None and target[1] in CALLS else []
