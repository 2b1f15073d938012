"""Whether a file was written for training, and which of its batch normalisations are frozen there: normalise by
running statistics that stay.

PyTorch's older exporter says how each normalises by ONNX's own means: the attribute training_mode, before opset 14
more than one output. The newer writes all of them for inference; the calls that they were made from, in the nodes'
metadata, say it (`aten._native_batch_norm_legit_no_training`, or another with training=True). A dropout that drops
shows as well what a file was written for. Where nothing does, as in files for inference, nobody knows which of its
normalisations the network has frozen.
"""
from __future__ import annotations

import re

from onnx import NodeProto

from tileflow.system.text import one_line

from .model import OnnxModel, label
from .parameters.placeholders import call_of
from .parameters.ties import listed
from .parameters.told import told

NORM, DROPOUT = "BatchNormalization", "Dropout"
STATISTICS = (3, 4)
"""Operands of a batch normalisation."""
NAMED = ("Identity", "Cast")
"""Operators by which a stored tensor gets another name or type."""
BY_BATCH = re.compile(r"aten\.\w*batch_norm\w*\.\w+\]\(args = \((?:%\w+|None)(?:, (?:%\w+|None))*, True\b")
"""A call whose first argument that is no tensor, training, is true."""
SHOWN = 80
"""Characters of a node's name."""


class Modes:
    """How the batch normalisations of one file normalise in training."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        lists = [model.proto.graph.node, *(f.node for f in model.proto.functions)]
        every = [node for nodes in lists for node in nodes]
        self._computed = {name for node in every if node.op_type not in NAMED for name in node.output}
        norms = [node for node in every if node.op_type == NORM and self._is_tracked(node)]
        dropouts = (node for node in model.proto.graph.node if node.op_type == DROPOUT)
        self.for_training = any(map(_is_by_batch, norms)) or any(map(self._drops, dropouts))
        """The file was written for training."""
        self._frozen = [one_line(label(n), SHOWN) for n in norms if self.is_frozen(n)]
        self._count = len(norms)

    def is_frozen(self, node: NodeProto) -> bool:
        """A batch normalisation that a file written for training has for inference."""
        return self.for_training and not _is_by_batch(node) and self._is_tracked(node)

    def said(self) -> str | None:
        """A sentence about frozen ones, or that nothing tells which are; None where there is nothing to say."""
        if self._frozen:
            return ("Frozen, for a file that was written for training has them for inference: the batch normalisation "
                    f"in {listed(self._frozen)}. The running statistics stay as they are; scale and shift are trained.")
        if self._count and not self.for_training and told(self._model) is None:
            several = f"{self._count} batch normalisations train", "them all", "some"
            norms, them, some = several if self._count > 1 else ("The batch normalisation trains", "it", "it")
            return (f"{norms} by the batch's statistics: the file has {them} for inference, and nothing in it tells "
                    f"whether the network froze {some}. The bridge keeps each layer's mode (docs/pytorch.md).")
        return None

    def _is_tracked(self, node: NodeProto) -> bool:
        """It has statistics that run; without any, exporters compute the batch's before it, in either mode."""
        return len(node.input) > max(STATISTICS) and all(node.input[i] not in self._computed for i in STATISTICS)

    def _drops(self, node: NodeProto) -> bool:
        """A dropout that the file itself turns on."""
        tensor = node.input[2] if len(node.input) > 2 else ""
        return tensor in self._model.tensors and bool(self._model.array(tensor).all())


def _is_by_batch(node: NodeProto) -> bool:
    if any(a.name == "training_mode" and a.i for a in node.attribute) or sum(map(bool, node.output)) > 1:
        return True
    return BY_BATCH.search(call_of(node) or "") is not None
