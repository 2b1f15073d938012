"""Files older than the oldest opset that is read, made newer by onnx's version converter."""
from __future__ import annotations

import onnx
from onnx import ModelProto, helper
from onnx.version_converter import ConvertError, convert_version

from tileflow.graph.op import plain_domain
from tileflow.system.errors import ModelError
from tileflow.system.text import one_line

from .checker import check_by_onnx
from .tensors import SHOWN, is_external, tensors_of


def converted(model: ModelProto, opset: int, where: str) -> ModelProto:
    """A copy of a model in a newer opset of ONNX's own domain (ModelError where it cannot be converted)."""
    before = next(o.version for o in model.opset_import if plain_domain(o.domain) == "")
    if any(is_external(t) for t in tensors_of(model)):
        raise ModelError(f"{where} uses opset {before} and has tensors in other files; tileflow reads {opset} and newer: save it in one file, or "
                         f"convert it with onnx.version_converter.")
    check_by_onnx(model, where)
    try:
        copy = ModelProto()
        copy.CopyFrom(model)
        _lift_slopes(copy)
        return convert_version(copy, opset)
    except (RuntimeError, ValueError, TypeError, ConvertError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"{where} uses opset {before} and cannot be converted to opset {opset} ({one_line(error, SHOWN)}): "
                         f"export it again with a newer one.") from None


def _lift_slopes(model: ModelProto) -> None:
    """Until opset 7 the slopes of PRelu are one for each channel, whatever follows it; later they broadcast, which the converter does not mend."""
    graph = model.graph
    if not any(node.op_type == "PRelu" for node in graph.node):
        return
    known = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*known.input, *known.value_info, *known.output)
             if v.type.tensor_type.HasField("shape")}
    ranks |= {t.name: len(t.dims) for t in graph.initializer}
    nodes = []
    for i, node in enumerate(graph.node):
        if node.op_type == "PRelu" and len(node.input) == 2 and ranks.get(node.input[1]) == 1 and ranks.get(node.input[0], 0) > 2:
            lifted = f"{node.input[1]}/channels/{i}"
            nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [lifted], axes=list(range(1, ranks[node.input[0]] - 1))))
            node.input[1] = lifted
        nodes.append(node)
    fresh = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(fresh)
