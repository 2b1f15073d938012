"""A Program from data that nobody vouches for: every operator is looked up in the registry, its attributes are read
against its declaration, its types inferred again; what connects graphs is compared before anything is computed.

A program that is read so can be lowered and run as one that was compiled here. What is wrong with it is a `Fault` that
names the place.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import CODES, HIGHEST_RANK, OPS, Graph, Hints, Node, Origin, Region, State, TensorType, Value, verify
from ..graph.graph import Role
from ..kernels.elementwise.expr import Expr
from ..system.errors import TileflowError
from . import schedule
from .batching import Batching
from .checks import check
from .expressions import from_data
from .fields import Fault, Others, read, shown
from .program import Program
from .staging import Staging
from .writing import PARTS, REPLICAS_FIRST

DEEPEST = 24
"""Regions within regions."""
MOST_BYTES = 1 << 62
"""Of all values of all micro-batches of a call together: addresses of more would overflow."""
FIELDS = ("arrays", "batching", "links", "loss", "notes", "origins", "own", "parts", "returned", "schedule", "skips",
          "staging", "training", "values")
GRAPH = ("constants", "inputs", "name", "nodes", "outputs", "states")
Arrays = Sequence[np.ndarray]


def program_of(structure: Any, arrays: Arrays) -> Program:
    """The program that `structure_of` wrote.

    Args:
        arrays: the constants, of the types that `array_types` says.

    Raises:
        Fault: it is none, or one that cannot run.
    """
    table = _table(structure, FIELDS, "the program")
    batching: Batching = read(table["batching"], Batching, "batching")
    if min(dataclasses.astuple(batching)) < 1 or batching.rows > MOST_BYTES:
        raise Fault("batching", f"is {shown(table['batching'])}")
    graphs = _Graphs(_origins(table["origins"]), arrays, batching.micro_batches)
    scope = graphs.scope(table["values"], "values")
    names = REPLICAS_FIRST if type(table["parts"]) is dict and len(table["parts"]) > len(PARTS) else PARTS
    written = _table(table["parts"], names, "parts")
    parts = {name: scope.graph(written[name], name) for name in names}
    own = _table(table["own"], None, "own")
    program = Program(
        parts, batching, _schedule(table["schedule"]), _links(table["links"], scope, parts),
        None if table["loss"] is None else scope.value(table["loss"], "loss"),
        read(table["returned"], int | None, "returned"), read(table["training"], bool, "training"),
        {name: read(others, tuple[str, ...], f"own[{shown(name)}]") for name, others in own.items()},
        read(table["skips"], bool, "skips"), list(read(table["notes"], tuple[str, ...], "notes")),
        read(table["staging"], Staging | None, "staging"))
    check(program)
    return program


def array_types(structure: Any) -> list[tuple[TensorType, str]]:
    """The types and digests of a program's constants."""
    found = []
    for i, item in enumerate(_list(structure.get("arrays") if type(structure) is dict else None, "arrays")):
        dtype, shape, key = _row(item, 3, f"arrays[{i}]")
        found.append((_type(dtype, shape, f"arrays[{i}]"), read(key, str, f"arrays[{i}]")))
    return found


def _table(data: Any, names: Sequence[str] | None, at: str) -> Mapping[str, Any]:
    """A table with these names and no others; None: with any."""
    if type(data) is not dict or (names is not None and set(data) != set(names)):
        raise Fault(at, "is no table" if names is None else f"is no table of {', '.join(names)}")
    return data


def _list(data: Any, at: str) -> list[Any]:
    if type(data) is not list:
        raise Fault(at, "is no list")
    return data


def _row(data: Any, count: int, at: str) -> list[Any]:
    """A list of so many members."""
    if type(data) is not list or len(data) != count:
        raise Fault(at, f"is no list of {count}")
    return data


def _type(dtype: Any, shape: Any, at: str) -> TensorType:
    if type(dtype) is not str or dtype not in CODES:
        raise Fault(at, f"has element type {shown(dtype)}, which tileflow lacks")
    sizes = read(shape, tuple[int, ...], f"{at}.shape")
    if len(sizes) > HIGHEST_RANK or any(n < 0 for n in sizes):
        raise Fault(at, f"has shape {shown(shape)}")
    found = TensorType(dtype, sizes)
    if math.prod(max(1, n) for n in sizes) * found.itemsize > MOST_BYTES:
        raise Fault(at, f"has shape {shown(shape)}, more than any memory holds")
    return found


def _origins(data: Any) -> list[Origin]:
    found = []
    for i, item in enumerate(_list(data, "origins")):
        at = f"origins[{i}]"
        sources, role, asked = _row(item, 3, at)
        hints: Hints = read(asked, Hints, f"{at}.hints")
        if hints.casting is not None or (hints.stage or 0) < 0:
            raise Fault(f"{at}.hints", f"are {shown(asked)}")
        found.append(Origin(read(sources, tuple[str, ...], f"{at}.sources"), read(role, Role, f"{at}.role"), hints))
    return found


class _Graphs:
    """What all graphs of a file share."""

    def __init__(self, origins: Sequence[Origin], arrays: Arrays, times: int) -> None:
        self.origins, self.arrays, self._times = origins, arrays, times
        self._nbytes = 0

    def scope(self, values: Any, at: str, depth: int = 0) -> _Scope:
        """The values of a scope, none of which has a maker yet."""
        if depth > DEEPEST:
            raise Fault(at, f"are in {depth} regions, one within the other; {DEEPEST} are the most")
        found = []
        for i, item in enumerate(_list(values, at)):
            where = f"{at}[{i}]"
            name, dtype, shape = _row(item, 3, where)
            value = Value(read(name, str, f"{where}.name"), _type(dtype, shape, where))
            if value.name.startswith("\0"):
                raise Fault(where, "has a name that no tensor has")
            self._nbytes += value.type.nbytes * self._times
            found.append(value)
        if self._nbytes > MOST_BYTES:
            raise Fault(at, "need more bytes together than any memory has")
        return _Scope(self, found, depth)


class _Scope:
    """Values by number; graphs over them are read one after the other."""

    def __init__(self, graphs: _Graphs, values: Sequence[Value], depth: int) -> None:
        self._graphs, self._values, self._depth = graphs, values, depth
        self._others: Others = {Region: self._region, Expr: from_data, Value: self.value}

    def value(self, number: Any, at: str) -> Value:
        """The value of that number."""
        return _numbered(self._values, number, at)

    def _of(self, numbers: Any, at: str) -> list[Value]:
        return [self.value(n, f"{at}[{i}]") for i, n in enumerate(_list(numbers, at))]

    def graph(self, data: Any, at: str) -> Graph:
        """A graph whose nodes stand in order, each with the types that its operator infers."""
        table = _table(data, GRAPH, at)
        graph = Graph(read(table["name"], str, f"{at}.name"), self._of(table["inputs"], f"{at}.inputs"))
        for i, item in enumerate(_list(table["states"], f"{at}.states")):
            graph.states.append(read(item, State, f"{at}.states[{i}]", self._others))
        for i, item in enumerate(_list(table["constants"], f"{at}.constants")):
            self._constant(graph, item, f"{at}.constants[{i}]")
        known = {*graph.inputs, *graph.constants, *(s.input for s in graph.states)}
        if len(known) < len(graph.inputs) + len(graph.constants) + len(graph.states):
            raise Fault(at, "has two inputs, constants or states that are one value")
        for i, item in enumerate(_list(table["nodes"], f"{at}.nodes")):
            node = self._node(item, known, graph.constants, f"{at}.nodes[{i}]")
            known.update(node.outputs)
            graph.nodes.append(node)
        graph.outputs = self._of(table["outputs"], f"{at}.outputs")
        _guarded(lambda: verify(graph), at)
        return graph

    def _constant(self, graph: Graph, item: Any, at: str) -> None:
        number, array = _row(item, 2, at)
        value, elements = self.value(number, at), _numbered(self._graphs.arrays, array, at)
        if value in graph.constants:
            raise Fault(at, f"is {value!r} again")
        graph.constants[value] = elements

    def _node(self, item: Any, known: set[Value], constants: Mapping[Value, np.ndarray], at: str) -> Node:
        name, attributes, operands, results, origin = _row(item, 5, at)
        kind = OPS.get(name) if type(name) is str else None
        if kind is None:
            if type(name) is str and "::" in name:
                raise Fault(at, f"is {shown(name)}, an operator that is not declared",
                            "declare it with tileflow.operator before the program is read")
            raise Fault(at, f"is {shown(name)}, an operator that tileflow lacks")
        at = f"{at} {name}"
        op = _guarded(lambda: read(attributes, kind, at, self._others), at)
        if op.attributes().get("whole"):
            raise Fault(at, "computes a part of a tensor, as tiles do, and a program has whole ones")
        inputs = [None if n is None else self.value(n, at) for n in _list(operands, at)]
        for v in inputs:
            if v is not None and v not in known:
                raise Fault(at, f"reads {v.shown} before it is made")
        node = Node(op, inputs, self._of(results, at), _numbered(self._graphs.origins, origin, at))
        given = [None if v is None else v.type for v in inputs]
        types = _guarded(lambda: op.infer(*given), at)
        if list(types) != [v.type for v in node.outputs]:
            made = [", ".join(map(str, each)) for each in (types, [v.type for v in node.outputs])]
            raise Fault(at, f"makes ({made[0]}) and not ({made[1]})")
        _guarded(lambda: op.require(given, [None if v is None else constants.get(v) for v in inputs]), at)
        if not op.regions:                         # into regions `verify` looks where it infers
            node.set_inferred()
        for v in node.outputs:
            if v in known or v.producer is not None:
                raise Fault(at, f"makes {v.shown}, which is there already")
            v.producer = node
        return node

    def _region(self, data: Any, at: str) -> Region:
        table = dict(_table(data, (*GRAPH, "values"), at))
        graph = self._graphs.scope(table.pop("values"), f"{at}.values", self._depth + 1).graph(table, at)
        if graph.states or len({*graph.outputs}) < len(graph.outputs):
            raise Fault(at, "is no region: it has states, or one value for two outputs")
        return Region(graph)


def _numbered(members: Sequence[Any], number: Any, at: str) -> Any:
    """The member of that number."""
    if type(number) is not int or not 0 <= number < len(members):
        raise Fault(at, f"has number {shown(number)}, which is not there")
    return members[number]


def _guarded(act: Callable[[], Any], at: str) -> Any:
    """What an operator's own code makes of attributes and types that nobody has checked: whatever it raises is their
    fault."""
    try:
        return act()
    except Fault:
        raise
    except TileflowError as error:
        raise Fault(at, f"cannot be: {error}") from None
    except Exception as error:
        raise Fault(at, f"has what does not fit together ({type(error).__name__} {error})") from None


def _schedule(data: Any) -> schedule.Steps:
    try:
        return schedule.from_data(data)
    except (ValueError, RecursionError) as error:
        raise Fault("the schedule", f"cannot be read: {error}") from None


def _links(data: Any, scope: _Scope, parts: Mapping[str, Graph]) -> dict[Value, Value]:
    """What an input of one part is fed with by another part."""
    entering = {v for graph in parts.values() for v in graph.inputs}
    found: dict[Value, Value] = {}
    for i, item in enumerate(_list(data, "links")):
        at = f"links[{i}]"
        inner, source = (scope.value(n, at) for n in _row(item, 2, at))
        if inner not in entering or inner in found or inner.type != source.type:
            raise Fault(at, f"feeds {inner!r} with {source!r}")
        found[inner] = source
    return found
