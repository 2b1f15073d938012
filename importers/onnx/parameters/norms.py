"""Which stored operands of normalisations are their parameters, and which are ones and zeros that stand where an operator wants something (`UNIT`).

A layer without scale and bias (`affine=False`) is written with ones and zeros: constants, where the call of PyTorch that the node was made from takes
nothing but data or, without metadata, an exporter made up their names. Groups of channels are written as

    x -> Reshape [N, groups, -1] -> InstanceNormalization by ones and zeros -> Reshape [N, C, …] -> Mul by [C, 1, …] -> Add of [C, 1, …]

where ones and zeros of groups say nothing that the numbers per channel do not: they are constants, and the numbers per channel are scale and bias,
where these are of the same call or module, or the file says of neither. A scale of groups that is not all ones is a parameter of its own; so is one
with a module's name, where nothing per channel is in its module.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnx import NodeProto

from tileflow.graph import MOVED
from tileflow.graph.op import plain_domain

from ..model import OnnxModel
from .placeholders import VALUE, call_of
from .uses import UNIT, bodies, declared_role

Place = tuple[int, int]
"""A node of the file, and which of its operands."""
NORMALISATIONS = ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization")
WANTED = {1: 1.0, 2: 0.0}
"""What their scale and bias are where they change nothing."""
GROUPED = ("rows", "groups", "the rest")
"""Axes of what is normalised by groups."""
VIEWS = ("Reshape", "Cast", "Identity")
"""What may stand between the normalisation and what is per channel, a Reshape among it."""
MADE = re.compile(r"_?val_\d+|(?P<module>.*/)Constant(_\d+)?_output_0")
"""PyTorch's names of results that its exporters computed and of Constant nodes, which optimisers make initializers of."""
FAR = 8
"""Nodes that are looked through."""


@dataclass
class Norms:
    """roles: what operands are for, where the operator alone does not tell. columns: those that hold a number per channel as [C, 1, …] or
    [1, C, 1, …]."""

    roles: dict[Place, str] = field(default_factory=dict)
    columns: set[Place] = field(default_factory=set)


Together = Callable[[NodeProto, NodeProto], bool]
"""Two nodes are of one module, as far as the file says."""


def find_norms(model: OnnxModel, together: Together) -> Norms:
    """Look at every normalisation of the main graph."""
    graph, found = _Graph(model), Norms()
    for place, node in enumerate(graph.nodes):
        if node.op_type not in NORMALISATIONS or plain_domain(node.domain) != "":
            continue
        grouped = node.op_type == "InstanceNormalization" and len(node.input) == 3 and "Reshape" in graph.behind(node.input[0])
        per_channel = _per_channel(graph, node, together) if grouped else {}
        found.roles |= per_channel
        found.columns |= {(i, k) for i, k in per_channel if graph.plain(graph.nodes[i].input[k]) in model.tensors}
        for index, number in WANTED.items():
            stored = graph.stored(node.input[index]) if index < len(node.input) else None
            if stored is not None and (per_channel or _is_made_up(graph, node, stored, grouped)) and graph.is_all(stored, number):
                found.roles[place, index] = UNIT
    return found


def _per_channel(graph: _Graph, node: NodeProto, together: Together) -> dict[Place, str]:
    """The operands behind a normalisation of groups that are its numbers per channel, and their roles."""
    found: dict[Place, str] = {}
    last, rank = graph.ahead(node.output[0])
    for kind, role in (("Mul", "scale"), ("Add", "bias")):
        reader = graph.only_reader(last)
        if reader is None or graph.nodes[reader].op_type != kind or len(graph.nodes[reader].input) != 2 or not together(node, graph.nodes[reader]):
            continue
        inputs = list(graph.nodes[reader].input)
        index = 1 - inputs.index(last)
        column = inputs[0] != inputs[1] and graph.is_column(inputs[index], node.input[1], rank)
        if column and _takes_parameters(graph.nodes[reader]):
            found[reader, index] = role
        elif not column and not graph.is_single(inputs[index]):
            break
        last = graph.through(graph.nodes[reader].output[0])
    return found


def _is_made_up(graph: _Graph, node: NodeProto, stored: str, grouped: bool) -> bool:
    """The exporter made up this operand, for a call that has none. Equal tensors may be one, a parameter's among them: outside of groups only a
    Constant of the node's own module, or what nobody else reads, is surely none."""
    if call_of(node) is not None:
        return not _takes_parameters(node)
    made = MADE.fullmatch(stored)
    if made is None or grouped:
        return made is not None
    return made["module"] == node.name[:node.name.rfind("/") + 1] if "Constant" in stored else graph.is_read_once(stored)


def _takes_parameters(node: NodeProto) -> bool:
    """The call of PyTorch that the node was made from takes more than data and buffers, as far as the file says."""
    call = call_of(node)
    return call is None or sum(not name.startswith(("b_", "c_")) for name in VALUE.findall(call.partition("](")[2])) > 1


class _Graph:
    """Makers and readers of the main graph's values."""

    def __init__(self, model: OnnxModel) -> None:
        self.model, self.nodes = model, model.proto.graph.node
        self._makers = {output: i for i, node in enumerate(self.nodes) for output in node.output}
        self._same: dict[str, str] = {}
        for node in self.nodes:
            if node.op_type == "Identity" and node.input and self.plain(node.input[0]) in model.tensors:
                self._same[node.output[0]] = self.plain(node.input[0])
        self._readers: dict[str, list[int | None]] = {v.name: [None] for v in model.proto.graph.output}
        for i, node in enumerate(self.nodes):
            for name in node.input:
                self._readers.setdefault(name, []).append(i)
            for inner in bodies(node):
                for name in inner.input:
                    self._readers.setdefault(name, []).append(None)

    def plain(self, name: str) -> str:
        """The stored tensor that an Identity names anew; other names as they are."""
        return self._same.get(name, name)

    def only_reader(self, name: str) -> int | None:
        """The one node that reads a value, if nothing else does."""
        found = self._readers.get(name, [])
        return found[0] if len(found) == 1 else None

    def is_read_once(self, tensor: str) -> bool:
        """One node reads a stored tensor, under one of its names."""
        return sum(len(self._readers.get(name, ())) for name in (tensor, *(n for n, t in self._same.items() if t == tensor))) == 1

    def behind(self, name: str) -> Sequence[str]:
        """The operators that only look at elements in another way and make a value, from the last back."""
        found: list[str] = []
        while len(found) < FAR and (maker := self._makers.get(name)) is not None and self.nodes[maker].op_type in VIEWS:
            found.append(self.nodes[maker].op_type)
            name = self.nodes[maker].input[0]
        return found

    def ahead(self, name: str) -> tuple[str, int | None]:
        """What becomes of a value behind a Reshape that alone reads it, and its rank, where a constant says it. Without the Reshape, which an
        optimiser takes away from groups of one channel each in three axes, it has their rank."""
        rank, seen = None, False
        for _ in range(FAR):
            reader = self.only_reader(name)
            if reader is None or self.nodes[reader].op_type not in VIEWS or self.nodes[reader].input[0] != name:
                break
            if self.nodes[reader].op_type == "Reshape":
                shape = self.model.tensors.get(self.nodes[reader].input[1])
                rank, seen = (shape.dims[0] if shape is not None and len(shape.dims) == 1 else None), True
            name = self.nodes[reader].output[0]
        return (name, rank) if seen else (name, len(GROUPED))

    def through(self, name: str) -> str:
        """What becomes of a value behind the casts that alone read it."""
        for _ in range(FAR):
            reader = self.only_reader(name)
            if reader is None or self.nodes[reader].op_type not in ("Cast", "Identity"):
                break
            name = self.nodes[reader].output[0]
        return name

    def stored(self, name: str) -> str | None:
        """The stored tensor whose elements a value holds, behind operators that only move them."""
        for _ in range(FAR):
            if (name := self.plain(name)) in self.model.tensors:
                return name
            maker = self._makers.get(name)
            if maker is None or not self.nodes[maker].input or declared_role(self.nodes[maker], 0, self.model.opset) != MOVED:
                return None
            name = self.nodes[maker].input[0]
        return None

    def is_all(self, tensor: str, number: float) -> bool:
        """All elements of a stored tensor are this number."""
        array = self.model.array(tensor)
        return bool(array.size) and bool((array == number).all())

    def is_single(self, name: str) -> bool:
        """A stored number: the exporter's one or zero where a norm has no numbers per channel."""
        tensor = self.model.tensors.get(self.plain(name))
        return tensor is not None and all(n == 1 for n in tensor.dims)

    def is_column(self, name: str, scale: str, rank: int | None) -> bool:
        """Stored numbers, one for each channel of a whole number of them in a group; `rank`: of what they are multiplied with, where it is known."""
        stored, groups = self.stored(name), self._size(self.stored(scale))
        size = self._size(stored)
        if stored is None or size is None or size < 2 or (groups is not None and size % groups):
            return False
        if stored != self.plain(name):
            return True
        dims = list(self.model.tensors[stored].dims)
        at = dims.index(size) if size in dims else -1
        leading = at if rank is None else rank - len(dims) + at
        return at >= 0 and leading <= 1 and (at < len(dims) - 1 or rank == 2) and (rank is None or leading == 1)

    def _size(self, name: str | None) -> int | None:
        """Elements of a stored tensor of more than one."""
        if name is None:
            return None
        size = 1
        for n in self.model.tensors[name].dims:
            size *= n
        return size if self.model.tensors[name].dims else None
