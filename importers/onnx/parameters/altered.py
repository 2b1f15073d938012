"""Layers that a file holds in a form that trains differently from the network's own: rows of padding, and running statistics of instances."""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from onnx import NodeProto

from tileflow.system.text import one_line

from ..model import OnnxModel, label
from .placeholders import call_of
from .ties import Ties, listed
from .uses import Use

PADDING = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)[,)]")
"""An embedding's call that has a padding_idx."""
INSTANCES = re.compile(r"aten\.instance_norm\.default\]\(args = \([^)]*%b_\w*running_mean")
SHOWN = 80
"""Characters of a node's name."""


def altered(ties: Ties, states: Iterable[str]) -> Iterator[tuple[list[str], str]]:
    """(layers, sentence about them) for `states`, the trained parameters among them."""
    rows = [f"{name} ({row})" for name in states for row in sorted(set(_padding(ties, name)))]
    yield rows, (f"Trained with the row of padding, which PyTorch leaves as it is (padding_idx) and ONNX has no word for: {listed(rows)}. "
                 f"If it must stay, set it again after training.")
    norms = [one_line(label(node), SHOWN) for node in _instances(ties.evidence.model)]
    yield norms, (f"Instance normalisation with running statistics, for which ONNX has no operator: {listed(norms)}. The file normalises by each "
                  f"instance alone, or by statistics of each row of a batch, and neither are the network's; export it without track_running_stats.")


def _padding(ties: Ties, name: str) -> Iterator[str]:
    """The rows that an embedding's calls leave alone; without calls, of a table of PyTorch's, the only row of zeros."""
    tables = [use for use in ties.uses.get(name, ()) if use.role == "table" and use.node.op_type == "Gather" and len(use.dims) == 2]
    for use in tables:
        found = PADDING.search(call_of(use.node) or "")
        if found is not None and int(found[1]) < use.dims[0]:
            yield f"row {int(found[1])}"
    if tables and ties.evidence.by_torchscript:
        yield from _zero_row(ties, name, tables[0])


def _zero_row(ties: Ties, name: str, use: Use) -> Iterator[str]:
    empty = (~ties.evidence.model.array(ties.tensor(name)).any(axis=1)).nonzero()[0]
    if len(empty) == 1 and use.dims[0] > 1:
        yield f"row {empty[0]}, by its zeros"


def _instances(model: OnnxModel) -> Iterator[NodeProto]:
    """What PyTorch made of instance normalisation with running statistics: by its call, or by a scale that is repeated for each row."""
    makers = {output: node for node in model.proto.graph.node for output in node.output}
    for node in model.proto.graph.node:
        if node.op_type in ("BatchNormalization", "InstanceNormalization") and len(node.input) > 1:
            call, scale = call_of(node), makers.get(node.input[1])
            if (call is not None and INSTANCES.search(call)) or (scale is not None and scale.op_type == "Tile"):
                yield node
