"""What an import refuses: operators that tileflow does not have, operands that would have to be known, and the sentence that names them all."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx import NodeProto

from tileflow.graph import OPS, Op
from tileflow.graph.op import plain_domain, qualified
from tileflow.system.errors import UnsupportedError, see

from .checker import schema_of
from .fold import FOLDERS
from .functions import body_of
from .hosted import is_hosted
from .site import DynamicOperandError
from .versions import form_of

ONNX_DOMAINS = ("", "ai.onnx.ml")
"""Domains that ONNX itself defines."""
HOSTED = "Python runs it, between compiled programs, so that inference has it and a training run of one program does not"
LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of operators on tensors, weights among them, whose memory is laid out for the machine that a file was optimised on."""
LISTED = 10
"""Unsupported nodes that a message names."""


class UnsupportedNodesError(DynamicOperandError):
    """Nodes that cannot be imported: `refused` has (node, why) for all of them; with `names` known as `values` all of them could.

    waiting: those of them that stop one program and not a run in pieces: they wait for data, or Python runs them.
    """

    def __init__(self, message: str, refused: Sequence[tuple[str, str]], names: frozenset[str], waiting: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message, names)
        self.refused, self.waiting = tuple(refused), tuple(waiting)


def refusal(where: str, refused: Sequence[tuple[str, UnsupportedError]],
            ancestors: Callable[[Iterable[UnsupportedError]], frozenset[str]]) -> UnsupportedNodesError:
    """The error for refused nodes of the model `where`; `ancestors` finds the inputs that operands that had to be known depend on."""
    shown = "; ".join(f"{name}: {error}" for name, error in refused[:LISTED])
    more = f"; and {len(refused) - LISTED} more" if len(refused) > LISTED else ""
    count = f"{len(refused)} nodes" if len(refused) > 1 else "a node"
    message = (f"{where} has {count} that tileflow cannot take ({shown}{more}): "
               f"export the model with other operators.{see('operators')}")
    errors = [e for _, e in refused]
    all_dynamic = all(isinstance(e, DynamicOperandError) for e in errors)
    waiting = [(name, str(error)) for name, error in refused if isinstance(error, DynamicOperandError) or str(error) == HOSTED]
    return UnsupportedNodesError(message, [(name, str(error)) for name, error in refused], ancestors(errors) if all_dynamic else frozenset(), waiting)


def declared_for(node: NodeProto, opset: Mapping[str, int]) -> type[Op] | None:
    """The operator that a user has declared for a node of another domain than ONNX's; None where nobody has.

    Raises:
        UnsupportedError: tileflow takes that operator apart itself, and the user's was not declared to take its place.
    """
    if plain_domain(node.domain) == "":
        return None
    found = OPS.get(qualified(node.domain, node.op_type))
    ours = form_of(node.op_type, opset.get(node.domain, 0), node.domain)
    if found is not None and not found.replaces and ours is not None:
        raise UnsupportedError("tileflow has this operator, and one of yours is declared; declare it with "
                               "replace=True, or not at all")
    return found


def unsupported(node: NodeProto, opset: Mapping[str, int], functions: Mapping[tuple[str, str], object], hosted: bool = False) -> str | None:
    """Why a node's operator cannot be imported, judged by its name alone; None where it can. `hosted`: or where Python may run it."""
    domain = plain_domain(node.domain)
    if (node.domain, node.op_type) in functions or (domain and qualified(domain, node.op_type) in OPS):
        return None
    version = opset.get(domain, 0)
    if hosted and is_hosted(node):
        return None
    if schema_of(node, version) is not None:
        known = domain == "" and ((node.op_type in OPS and OPS[node.op_type].onnx) or node.op_type in FOLDERS)
        if known or form_of(node.op_type, version, domain) is not None or body_of(node, opset, {}, None) is not None:
            return None
    return unknown(node, opset)


def unknown(node: NodeProto, opset: Mapping[str, int]) -> str:
    """Why a node's operator is none that can be imported."""
    domain = plain_domain(node.domain)
    if domain in ONNX_DOMAINS and schema_of(node, opset.get(domain, 0)) is None:
        return f"opset {opset.get(domain, 0)}{f' of {domain}' * bool(domain)} has no such operator"
    if is_hosted(node):
        return HOSTED
    if domain in LAYOUTS:
        return "its tensors lie as one machine's ONNX Runtime likes them: optimise the file for any machine (ORT_ENABLE_EXTENDED), or not at all"
    return "tileflow has no such operator" + ("; one of your own is declared by tileflow.operator" if domain else "")
