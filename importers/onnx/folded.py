"""Batch normalisation that an exporter folded into the weights before it: the file runs as the network did, and trains as another one."""
from __future__ import annotations

import re
from collections.abc import Callable

from onnx import NodeProto

from tileflow.system.text import one_line

from .model import OnnxModel, label

CONVOLUTIONS = ("Conv", "ConvTranspose")
FOLDED_INTO = (*CONVOLUTIONS, "Gemm", "MatMul")
NORMALISATIONS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "LpNormalization", "LRN")
MANY = 8
"""Convolutions from which on a network without any normalisation is unusual."""
SHOWN = 3
"""Nodes that a sentence names."""
LONGEST = 80
"""Characters of a name in it."""
RULE = "pkg.onnxscript.rewriter.rule_name"
"""Where onnxscript's optimiser, which torch.onnx.export(dynamo=True) runs, leaves the names of the rules that made a node."""
COMPUTED = re.compile(r"(onnx::Conv(Transpose)?_)?\d+")
"""PyTorch's older exporter calls weights by their path in the network, and so those that it computed itself."""
RENAMED = re.compile(r"ConvBnFusion_|_fused_bn\b")
"""ONNX Runtime's and tf2onnx's names for weights with a batch normalisation in them."""
RESULT = re.compile(r"BatchNorm|batch_?norm", re.IGNORECASE)
"""A result that still has the name of the normalisation that made it (onnxsim, tf2onnx)."""


def folded_norms(model: OnnxModel) -> str | None:
    """A sentence if batch normalisation was folded into weights, or may have been; None where nothing says so.

    Traces that tools leave count as evidence: their names for rules, weights and results. Without any, a deep network of convolutions
    that all have a bias and no normalisation is a doubt, and is called one.
    """
    nodes = [n for n in model.proto.graph.node if n.op_type in FOLDED_INTO]
    remedy = f"export the network for training, so that its batch normalisation stays{_by(model)}"
    for sign in (_named_rule, _named_weights, _named_result, _computed_weights(model)):
        found = [one_line(label(n), LONGEST) for n in nodes if sign(n)]
        if found:
            shown = ", ".join(f"'{name}'" for name in found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
            return f"Batch normalisation was folded into the weights of {shown}: what is trained is another network, which learns worse; {remedy}."
    convolutions = [n for n in nodes if n.op_type in CONVOLUTIONS]
    plain = all(len(n.input) > 2 and n.input[2] for n in convolutions)
    if len(convolutions) >= MANY and plain and not any(n.op_type in NORMALISATIONS for n in model.proto.graph.node):
        return (f"All {len(convolutions)} convolutions have a bias and there is no normalisation in the file: if the network has batch "
                f"normalisation, the exporter folded it into the weights, and what is trained is another network; then {remedy}.")
    return None


def _by(model: OnnxModel) -> str:
    """The arguments that do it."""
    if model.proto.producer_name != "pytorch":
        return ""
    if any(p.key.startswith("pkg.torch.") for n in model.proto.graph.node for p in n.metadata_props):
        return " (torch.onnx.export with optimize=False)"
    return " (torch.onnx.export with training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)"


def _named_rule(node: NodeProto) -> bool:
    return any(p.key == RULE and "FuseBatchNorm" in p.value for p in node.metadata_props)


def _named_weights(node: NodeProto) -> bool:
    return any(RENAMED.search(name) for name in node.input[1:])


def _named_result(node: NodeProto) -> bool:
    return bool(RESULT.search(node.output[0]))


def _computed_weights(model: OnnxModel) -> Callable[[NodeProto], bool]:
    """A convolution whose weight and bias were both computed by PyTorch's exporter, in a file that has names otherwise."""
    named = any(not COMPUTED.fullmatch(name) for name in model.initializers)
    same = {n.output[0] for n in model.proto.graph.node if n.op_type == "Identity" and n.output}     # a bias whose values another one has, too
    stored = model.initializers.keys() | same

    def sign(node: NodeProto) -> bool:
        weights = [name for name in node.input[1:] if name in stored]
        return named and node.op_type in CONVOLUTIONS and len(weights) == 2 and all(COMPUTED.fullmatch(name) for name in weights)
    return sign
