"""Weights that a file stores as whole numbers (or 8-bit floats), with a scale beside them: their type has no gradients, so they are not trained."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto

from tileflow.graph import FLOATS, NARROW
from tileflow.graph.op import plain_domain

from ..declared import ROLES
from ..model import OnnxModel
from ..tensors import DTYPES

TYPES = ("int8", "uint8", "int16", "uint16", *NARROW)
"""Element types in which weights are quantised; int32, too, where it is dequantised (biases)."""
WEIGHTS = {"DequantizeLinear": 0, "MatMulInteger": 1, "ConvInteger": 1, "QLinearMatMul": 3, "QLinearConv": 3}
"""Which operand of ONNX's operators is the quantised weight."""


@dataclass(frozen=True)
class Quantized:
    """A stored weight of a type without gradients: its name, element type and shape, and the node that takes it as numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    node: NodeProto

    @property
    def elements(self) -> int:
        """How many numbers it holds; some types have several in a byte."""
        return math.prod(self.shape)


def quantized_weights(model: OnnxModel) -> list[Quantized]:
    """The quantised weights of a file, in its order: what is dequantised, by an operator or by Cast and Mul, or multiplied as integers."""
    nodes = model.proto.graph.node
    makers = {output: node for node in nodes for output in node.output}
    found: dict[str, NodeProto] = {}
    for node in nodes:
        for name in (by_cast(model, makers, node), _operand(node)):
            dtype = _narrow(model, name) if name else ""
            if dtype in TYPES or (dtype == "int32" and node.op_type == "DequantizeLinear"):
                found.setdefault(str(name), node)
    return [Quantized(name, DTYPES[tensor.data_type], tuple(tensor.dims), found[name]) for name, tensor in model.tensors.items() if name in found]


def by_cast(model: OnnxModel, makers: Mapping[str, NodeProto], node: NodeProto) -> str | None:
    """The stored integers that a Mul dequantises: those behind the Cast (and the Sub of a zero point) that is its one operand, where the other one
    is stored; None: it does nothing of that kind."""
    if node.op_type != "Mul" or plain_domain(node.domain) != "" or len(node.input) != 2:
        return None
    for one, other in (tuple(node.input), tuple(node.input)[::-1]):
        maker = makers.get(one)
        if maker is not None and maker.op_type == "Sub" and len(maker.input) == 2:
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "Cast" and other in model.tensors and _narrow(model, maker.input[0]) in TYPES:
            to = next((a.i for a in maker.attribute if a.name == "to"), 0)
            return str(maker.input[0]) if DTYPES.get(to) in FLOATS else None
    return None


def _narrow(model: OnnxModel, name: str) -> str:
    """The element type of a stored tensor of more than one element; '' for what is none."""
    tensor = model.tensors.get(name)
    return DTYPES.get(tensor.data_type, "") if tensor is not None and math.prod(tensor.dims) > 1 else ""


def _operand(node: NodeProto) -> str | None:
    """The operand that the operator takes as its quantised weight."""
    if plain_domain(node.domain) == "":
        at = WEIGHTS.get(node.op_type, -1)
    else:
        roles = ROLES.get((node.domain, node.op_type), ())
        at = roles.index("weight") if "weight" in roles else 0 if node.op_type == "DequantizeLinear" else -1
    return str(node.input[at]) if 0 <= at < len(node.input) else None
