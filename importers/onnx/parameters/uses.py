"""Who reads the floating tensors that a file stores, and as what: the role that the reading operator declares for its operand."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, NodeProto

from tileflow.graph import DATA, FLOATS, MOVED, OPS, START, STATISTIC, TRAINED
from tileflow.graph.op import plain_domain, qualified

from ..checker import schema_of
from ..declared import ROLES
from ..model import OnnxModel
from ..tensors import DTYPES

FORMALS = {"W": "weight", "R": "weight", "B": "bias", "scale": "scale", "bias": "bias", "slope": "slope"}
"""Roles by the names of ONNX's formal inputs, for operators that tileflow knows by ONNX's definition only."""
STANDS_FOR = {"CastLike": "Cast"}
"""Operators that the importer writes as another one."""
NOT_READING = ("Shape", "Size")
"""They look at a tensor's type only."""
UNIT = "unit"
"""The role of ones and zeros by which a normalisation changes nothing (`norms.py`)."""
IMPORTANCE = (STATISTIC, *TRAINED, START, DATA, UNIT)


@dataclass(frozen=True)
class Use:
    """A node's operand that is a stored tensor.

    name: the tensor's, or that of the Identity output it is read by.
    node, index: the reader and which of its operands. place: where the reader stands in the file; None: in a branch or loop body.
    dims: the tensor's shape.
    role: what the operand is for; behind operators that only move elements, what their readers use it for.
    """

    name: str
    node: NodeProto
    index: int
    place: int | None
    dims: tuple[int, ...]
    role: str


def uses_of(model: OnnxModel, known: Mapping[tuple[int, int], str]) -> dict[str, list[Use]]:
    """The uses of each floating tensor, in the order of the file. Identity nodes are looked through.

    known: roles of operands (place of the node, index) that the operator alone does not tell.
    """
    nodes = model.proto.graph.node
    stored = [name for name, tensor in model.tensors.items() if DTYPES.get(tensor.data_type) in FLOATS]
    roles = _roles_by_value(nodes, model.opset, known)
    dims = {name: tuple(model.tensors[name].dims) for name in stored}
    same = {name: name for name in stored}
    found: dict[str, list[Use]] = {name: [] for name in stored}
    for place, node in enumerate(nodes):
        if node.op_type == "Identity" and node.input and node.input[0] in same:
            same[node.output[0]] = same[node.input[0]]
            continue
        if node.op_type in NOT_READING:
            continue
        for index, name in enumerate(node.input):
            if name in same:
                found[same[name]].append(Use(name, node, index, place, dims[same[name]], roles[place][index]))
        for inner in bodies(node):
            for index, name in enumerate(inner.input):
                if name in same and inner.op_type not in NOT_READING:
                    role = _role_inside(inner, index, model.opset)
                    found[same[name]].append(Use(name, inner, index, None, dims[same[name]], role))
    return found


def declared_role(node: NodeProto, index: int, opset: Mapping[str, int]) -> str:
    """What the operator says its operand `index` is for."""
    if plain_domain(node.domain) != "":
        own = OPS.get(qualified(node.domain, node.op_type))
        roles = own.roles if own is not None else ROLES.get((node.domain, node.op_type), ())
        return roles[index] if index < len(roles) else DATA
    op = OPS.get(STANDS_FOR.get(node.op_type, node.op_type))
    if op is not None and op.onnx:
        return op.roles[index] if index < len(op.roles) else DATA
    schema = schema_of(node, opset.get("", 0))
    formals = schema.inputs if schema is not None else ()
    return FORMALS.get(formals[index].name, DATA) if index < len(formals) else DATA


def _role_inside(node: NodeProto, index: int, opset: Mapping[str, int]) -> str:
    """What an operand is for of a node in a branch or body, where nothing is followed behind operators that only move elements."""
    role = declared_role(node, index, opset)
    return DATA if role == MOVED else role


def _roles_by_value(nodes: Sequence[NodeProto], opset: Mapping[str, int], known: Mapping[tuple[int, int], str]) -> list[list[str]]:
    """For each node the roles of its operands; readers stand behind what they read, so one pass from the end suffices."""
    readers: dict[str, str] = {}
    result: list[list[str]] = [[] for _ in nodes]
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        for index, name in enumerate(node.input):
            role = known.get((place, index)) or declared_role(node, index, opset)
            if role == MOVED:
                role = most_important([readers[output] for output in node.output if output in readers])
            result[place].append(role)
            readers[name] = most_important((role, readers.get(name, role)))
        for inner in bodies(node):
            for index, name in enumerate(inner.input):
                role = _role_inside(inner, index, opset)
                readers[name] = most_important((role, readers.get(name, role)))
    return result


def most_important(roles: Iterator[str] | Sequence[str]) -> str:
    """The role that decides where a tensor has several."""
    return min(roles, key=IMPORTANCE.index, default=DATA)


def bodies(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes of a node's branches and loop bodies, to any depth."""
    stack = [g for a in node.attribute for g in _graphs(a)]
    while stack:
        for inner in stack.pop().node:
            yield inner
            stack += [g for a in inner.attribute for g in _graphs(a)]


def _graphs(attribute: AttributeProto) -> list:
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
