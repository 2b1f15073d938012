"""A digest of a graph: what it computes but for the weights, the same in every process and version of Python."""
from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .graph import Graph, Value


def digest(graph: Graph) -> str:
    """SHA-256 of the operators with their attributes, how they are connected, types, constants, and the names of inputs, outputs and
    states. The elements of states and the names of nodes and of values in between do not count."""
    found = hashlib.sha256()
    numbers: dict[Value, int] = {}

    def add(*what: Any) -> None:
        found.update(_encoded(what))

    def number(value: Value) -> int:
        return numbers.setdefault(value, len(numbers))
    for v in graph.inputs:
        add("input", v.name, number(v), str(v.type))
    for s in graph.states:
        add("state", s.name, s.kind, s.trainable, number(s.input), str(s.input.type))
    for v, array in graph.constants.items():
        add("constant", number(v), array)
    for node in graph.nodes:
        attributes: list[Any] = [(f.name, getattr(node.op, f.name)) for f in dataclasses.fields(node.op)] if dataclasses.is_dataclass(node.op) else []
        add("node", node.op.name, attributes, [None if v is None else number(v) for v in node.inputs])
        if node.origin.hints.casting is not None:
            add("cast", node.origin.hints.casting)
        add("makes", [(number(v), str(v.type)) for v in node.outputs])
    for s in graph.states:
        add("written", None if s.output is None else number(s.output), s.when)
    add("outputs", [(v.name, number(v)) for v in graph.outputs])
    return found.hexdigest()


def _encoded(value: Any) -> bytes:
    """Bytes that differ where values do: each kind has a letter, each text and list its length."""
    if isinstance(value, np.ndarray):
        return f"a{value.dtype.name}{list(value.shape)}:".encode() + hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return f"s{len(text)}:".encode() + text
    if isinstance(value, (list, tuple)):
        return f"l{len(value)}:".encode() + b"".join(map(_encoded, value))
    if isinstance(value, Mapping):
        return b"m" + _encoded(list(value.items()))
    if isinstance(value, Graph):
        return f"g{digest(value)}".encode()
    if dataclasses.is_dataclass(value):
        return b"d" + _encoded([type(value).__name__, *(getattr(value, f.name) for f in dataclasses.fields(value))])
    text = repr(value).encode()
    return f"r{len(text)}:".encode() + text
