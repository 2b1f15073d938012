"""Models whose values within are outputs, and models of a few nodes of another: to find where two runtimes part."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from .model import OnnxModel, title


@dataclass(frozen=True)
class NamedNode:
    """A node of the main graph: how messages call it, and which of its values are known to be tensors of numbers."""

    index: int
    called: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def whole(model: OnnxModel) -> ModelProto:
    """A copy of a model with all of its data in it."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    if model.external_files and model.path is not None:
        onnx.load_external_data_for_model(proto, str(model.path.parent))
    return proto


def steps(proto: ModelProto) -> tuple[list[NamedNode], dict[str, ValueInfoProto]]:
    """The nodes in their order, and the types of the values that shape inference knows."""
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    known = {v.name: v for v in (*graph.value_info, *graph.output) if v.type.HasField("tensor_type")
             and v.type.tensor_type.elem_type
             not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)}
    found = [NamedNode(i, title(node), tuple(filter(None, node.input)),
                       tuple(name for name in node.output if name in known))
             for i, node in enumerate(proto.graph.node)]
    return found, known


def exposed(proto: ModelProto, known: Mapping[str, ValueInfoProto]) -> ModelProto:
    """The model with every value that is known as an output."""
    made = ModelProto()
    made.CopyFrom(proto)
    there = {v.name for v in made.graph.output}
    made.graph.output.extend(v for name, v in known.items() if name not in there)
    return made


def part(proto: ModelProto, nodes: Collection[int], result: str,
         values: Mapping[str, np.ndarray]) -> tuple[ModelProto, list[str]]:
    """A model of some nodes whose output is `result`, and the names of its inputs: what these nodes read of others.
    values: arrays by name, of which inputs have their types and shapes."""
    chosen = [node for i, node in enumerate(proto.graph.node) if i in nodes]
    made_here = {name for node in chosen for name in node.output}
    read = list(dict.fromkeys(name for node in chosen for name in (*node.input, *_captured(node)) if name
                              and name not in made_here))
    stored = {t.name: t for t in proto.graph.initializer}
    inputs = [name for name in read if name not in stored]
    graph = helper.make_graph(
        chosen, "part", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype),
                                                       values[n].shape) for n in inputs],
        [helper.make_tensor_value_info(result, helper.np_dtype_to_tensor_dtype(values[result].dtype), None)],
        [stored[name] for name in read if name in stored])
    found = helper.make_model(graph, opset_imports=list(proto.opset_import), functions=list(proto.functions),
                              ir_version=proto.ir_version)
    return found, inputs


def _captured(node: NodeProto) -> list[str]:
    """What the graphs within a node read of those around."""
    found = []
    for attribute in node.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs]):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {name for n in graph.node
                                                                                         for name in n.output}
            found += [name for n in graph.node for name in (*n.input, *_captured(n)) if name and name not in own]
    return found


def producers(found: Sequence[NamedNode], names: Collection[str]) -> set[int]:
    """The nodes that make these values."""
    return {step.index for step in found if set(step.outputs) & set(names)}


def constants(proto: ModelProto) -> dict[str, np.ndarray]:
    """The stored tensors by name."""
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
