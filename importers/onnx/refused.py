"""What an import refuses: operators that tileflow does not have, operands that would have to be known, and the sentence that names them all."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx import NodeProto

from tileflow.errors import UnsupportedError
from tileflow.graph import OPS

from .checker import schema_of
from .fold import FOLDERS
from .functions import body_of
from .site import DynamicOperandError
from .versions import form_of

LISTED = 10
"""Unsupported nodes that a message names."""


class UnsupportedNodesError(DynamicOperandError):
    """Nodes that cannot be imported: `refused` has (node, why) for all of them; with `names` known as `values` all of them could."""

    def __init__(self, message: str, refused: Sequence[tuple[str, str]], names: frozenset[str]) -> None:
        super().__init__(message, names)
        self.refused = tuple(refused)


def refusal(where: str, refused: Sequence[tuple[str, UnsupportedError]],
            ancestors: Callable[[Iterable[UnsupportedError]], frozenset[str]]) -> UnsupportedNodesError:
    """The error for refused nodes of the model `where`; `ancestors` finds the inputs that operands that had to be known depend on."""
    shown = "; ".join(f"{name}: {error}" for name, error in refused[:LISTED])
    more = f"; and {len(refused) - LISTED} more" if len(refused) > LISTED else ""
    count = f"{len(refused)} nodes" if len(refused) > 1 else "a node"
    message = f"{where} has {count} that tileflow cannot take ({shown}{more}): export the model with other operators."
    errors = [e for _, e in refused]
    all_dynamic = all(isinstance(e, DynamicOperandError) for e in errors)
    return UnsupportedNodesError(message, [(name, str(error)) for name, error in refused], ancestors(errors) if all_dynamic else frozenset())


def unsupported(node: NodeProto, opset: Mapping[str, int], functions: Mapping[tuple[str, str], object]) -> str | None:
    """Why a node's operator cannot be imported, judged by its name alone; None where it can."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (node.domain, node.op_type) in functions:
        return None
    version = opset.get("", 0)
    if domain == "" and schema_of(node, version) is not None:
        known = node.op_type in OPS and OPS[node.op_type].onnx
        if known or node.op_type in FOLDERS or form_of(node.op_type, version) is not None or body_of(node, opset, {}, None) is not None:
            return None
    return unknown(node, opset)


def unknown(node: NodeProto, opset: Mapping[str, int]) -> str:
    """Why a node's operator is none that can be imported."""
    if node.domain in ("", "ai.onnx") and schema_of(node, opset.get("", 0)) is None:
        return f"opset {opset.get('', 0)} has no such operator"
    return "tileflow has no such operator"
