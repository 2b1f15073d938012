"""Small files as PyTorch's two exporters write them: merged tensors behind Identity nodes, metadata that name modules and parameters."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto
from onnx_models import imported, model_of, node, port

from tileflow.importers.onnx import Imported, export_model

RNG = np.random.default_rng(3)


def f4(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def by_pytorch(nodes: Sequence[NodeProto], inputs: Sequence[Any], weights: dict[str, Any], **fields: Any) -> ModelProto:
    """A file with the one output y."""
    shape = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim]
    return model_of(nodes, inputs, [port("y", [*shape[:-1], None])], weights, producer_name="pytorch", **fields)


def called(made: NodeProto, module: str, call: str) -> NodeProto:
    """The node with the metadata of torch.export: the module it belongs to, and the call of PyTorch it was made from."""
    target, _, arguments = call.partition("(")
    for key, value in (("pkg.torch.onnx.name_scopes", str(["", *_outer(module), "result"])),
                       ("pkg.torch.onnx.fx_node", f"%r : call_function[target=torch.ops.aten.{target}.default](args = ({arguments}, kwargs = {{}})")):
        made.metadata_props.add(key=key, value=value)
    return made


def signed(proto: ModelProto, parameters: Sequence[str], folded: dict[str, Sequence[str]]) -> ModelProto:
    """The file with what torch.export says of the network's parameters, and its optimiser of the values that it computed, and from what."""
    lines = [f"p_{name.replace('.', '_').lower()}: PARAMETER target='{name}'" for name in parameters]
    proto.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="\n# inputs\n" + "\n".join(lines) + "\n")
    for name, sources in folded.items():
        value = proto.graph.value_info.add(name=name)
        value.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=str(list(sources)))
    return proto


def _outer(module: str) -> list[str]:
    parts = module.split(".") if module else []
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def two_layers() -> ModelProto:
    """TorchScript, in evaluation: the second bias is an Identity of the first, the second weight an Identity of the first's transpose."""
    return by_pytorch([
        node("Identity", ["a.bias"], ["b.bias"], "Identity_1"), node("Identity", ["onnx::MatMul_7"], ["onnx::MatMul_9"], "Identity_2"),
        node("MatMul", ["x", "onnx::MatMul_7"], ["/a/MatMul_output_0"], "/a/MatMul"),
        node("Add", ["a.bias", "/a/MatMul_output_0"], ["/a/Add_output_0"], "/a/Add"),
        node("MatMul", ["/a/Add_output_0", "onnx::MatMul_9"], ["/b/MatMul_output_0"], "/b/MatMul"),
        node("Add", ["b.bias", "/b/MatMul_output_0"], ["y"], "/b/Add")],
        [port("x", [2, 4])], {"a.bias": zeros(4), "onnx::MatMul_7": f4(4, 4)})


def scales() -> ModelProto:
    """Two layer scales of one module, a buffer and an attention's scale, all merged into one tensor where they are equal."""
    return by_pytorch([
        called(node("Mul", ["gamma1", "x"], ["a"], "node_mul"), "block", "mul(%p_block_gamma1, %x)"),
        called(node("Mul", ["gamma1", "a"], ["b"], "node_mul_1"), "block", "mul(%p_block_gamma2, %mul)"),
        called(node("Add", ["b", "gamma1"], ["c"], "node_add"), "block", "add(%mul_1, %b_block_shift)"),
        called(node("Mul", ["c", "val_2"], ["d"], "node_Mul_2"), "block.att", "scaled_dot_product_attention(%q, %k, %v)"),
        called(node("Add", ["d", "gamma1"], ["y"], "node_Add_3"), "block.att", "scaled_dot_product_attention(%q, %k, %v)")],
        [port("x", [2, 4])], {"gamma1": zeros(4), "val_2": np.float32(0.5)})


def written(proto: ModelProto, path: Path, change: float = 0.0, **options: Any) -> tuple[Imported, ModelProto]:
    """The import, and the file written back with `change` added to each weight once for its place in the order of names."""
    result = imported(proto, **options)
    weights = {name: array + change * i for i, (name, array) in enumerate(result.weights.items(), 1)}
    export_model(result.model, weights, path)
    return Imported(result.graph, result.names, weights, result.binding, result.model, result.verdicts, result.warnings), onnx.load(path)
