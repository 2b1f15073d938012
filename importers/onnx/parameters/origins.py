"""What PyTorch's exporter (torch.export) says of whole tensors: which are the network's parameters, and what its optimiser computed from which.

    of the graph   pkg.torch.export.ExportedProgram.graph_signature     a line for each: p_fc_weight: PARAMETER target='fc.weight'
    of a value     pkg.torch.export.graph_signature.InputSpec.kind      PARAMETER, BUFFER, …; beside it the placeholder's name
    of a value     pkg.onnxscript.optimizer.folded_from                 ['fc.weight', 'val_0']: all values that it was computed from

Other writers may say anything: a parameter counts where its placeholder's name is its own, flattened.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto

from .scopes import QUOTED, flattened

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
PLACEHOLDER = "pkg.torch.onnx.original_node_name"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
SIGNED = re.compile(r"^(p_\w+): PARAMETER target='([^'\n]+)'$", re.MULTILINE)
NUMBERED = re.compile(r"_\d+$")
"""What torch.export adds to a placeholder whose name there is already."""
LONGEST = 1 << 24
"""Characters of an entry."""


@dataclass(frozen=True)
class Origins:
    """parameters: of the network, read or not, by their placeholders. computed: of each value that the exporter's optimiser computed, the parameters
    that it was computed from, in their order."""

    parameters: Mapping[str, str]
    computed: Mapping[str, tuple[str, ...]]


def origins_of(graph: GraphProto) -> Origins:
    """What the metadata of a graph and of its values say; nothing of files from elsewhere."""
    parameters = {placeholder: name for placeholder, name in _signed(graph) if _is_its_own(placeholder, name)}
    known = set(parameters.values())
    computed = {}
    for value in graph.value_info:
        sources = next((p.value for p in value.metadata_props if p.key == FOLDED_FROM and len(p.value) <= LONGEST), None)
        if sources is not None and known:
            computed[value.name] = tuple(name for name in QUOTED.findall(sources) if name in known)
    return Origins(parameters, computed)


def _signed(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for entry in graph.metadata_props:
        if entry.key == SIGNATURE and len(entry.value) <= LONGEST:
            yield from SIGNED.findall(entry.value)
    for value in graph.value_info:
        said = {entry.key: entry.value for entry in value.metadata_props}
        if said.get(KIND) == "PARAMETER" and PLACEHOLDER in said:
            yield said[PLACEHOLDER], value.name


def _is_its_own(placeholder: str, name: str) -> bool:
    flat = f"p_{flattened(name)}"
    return placeholder in (flat, f"{flat}{number[0] if (number := NUMBERED.search(placeholder)) else ''}")
