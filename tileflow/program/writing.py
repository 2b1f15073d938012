"""A Program as data: a table as JSON has it (the structure), and the constants beside it.

Values are numbered in the order in which the parts name them, constants in the order of their first readers, so that
two programs that are the same are the same text, in whatever order dictionaries were filled.
"""
from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph import OPS, Graph, Hints, Node, Origin, Region, State, Value
from ..kernels.elementwise.expr import Expr
from . import schedule
from .arrays import digest_of
from .batching import Batching
from .expressions import to_data
from .fields import Fault, Others, shown, written
from .program import Program
from .staging import Staging

PARTS = ("micro", "prologue", "fold", "update")
"""The parts of a program that is not cut into stages, in their order."""
REPLICAS_FIRST = ("micro", "prologue", schedule.ACCUMULATE, "fold", schedule.REDUCE, "update")
"""The same where each replica has sums of its own."""


@dataclass
class Written:
    """A program's structure, and its distinct constants in the order in which the structure numbers them."""

    structure: dict[str, Any]
    arrays: list[np.ndarray]


def structure_of(program: Program) -> Written:
    """The program as data.

    Raises:
        Fault: it holds what a file cannot; the sentence names it.
    """
    if program.caller is not None:
        raise Fault("the program", "is cut into stages; write the one that it was made of, whose marks say where")
    if tuple(program.parts) not in (PARTS, REPLICAS_FIRST):
        raise Fault("the program", f"has the parts {', '.join(program.parts)} and not {', '.join(PARTS)}")
    tables = _Tables()
    scope = _Scope(tables)
    parts = {name: scope.graph(graph, name) for name, graph in program.parts.items()}
    links = sorted([scope.known(v, "a link"), scope.known(source, "a link")] for v, source in program.links.items())
    structure = {
        "arrays": [[a.dtype.name, list(a.shape), key] for key, a in tables.arrays.items()],
        "batching": written(program.batching, Batching, "batching"),
        "links": links,
        "loss": None if program.loss is None else scope.known(program.loss, "the loss"),
        "notes": written(tuple(program.notes), tuple[str, ...], "notes"),
        "origins": [json.loads(text) for text in tables.origins],
        "own": {name: list(others) for name, others in program.own.items()},
        "parts": parts,
        "returned": written(program.returned, int | None, "returned"),
        "schedule": schedule.to_data(program.schedule),
        "skips": written(program.skips, bool, "skips"),
        "staging": written(program.staging, Staging | None, "staging"),
        "training": written(program.training, bool, "training"),
        "values": scope.values}
    return Written(structure, list(tables.arrays.values()))


@dataclass
class _Tables:
    """What all graphs of a program share: distinct origins as texts, and distinct constants by their digests."""

    origins: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def origin(self, origin: Origin, at: str) -> int:
        """The number of an origin. What was asked of automatic casts is no part of it: these are nodes by now."""
        hints = written(dataclasses.replace(origin.hints, casting=None), Hints, f"{at}.hints")
        text = json.dumps([list(origin.sources), origin.role, hints], sort_keys=True)
        return self.origins.setdefault(text, len(self.origins))

    def array(self, array: np.ndarray) -> int:
        """The number of a constant."""
        key = digest_of(array)
        self.arrays.setdefault(key, array)
        return self.numbers.setdefault(key, len(self.numbers))


class _Scope:
    """Numbers of values: those of all parts are one scope, each region is one."""

    def __init__(self, tables: _Tables) -> None:
        self.values: list[list[Any]] = []
        self._numbers: dict[Value, int] = {}
        self._tables = tables
        self._others: Others = {Region: self._region, Expr: to_data, Value: self.known}

    def _number(self, value: Value) -> int:
        """The number of a value: its first, or the one that it has."""
        if value not in self._numbers:
            self._numbers[value] = len(self.values)
            self.values.append([value.name, value.dtype, list(value.shape)])
        return self._numbers[value]

    def known(self, value: Value, at: str) -> int:
        """The number of a value that some graph has."""
        if value not in self._numbers:
            raise Fault(at, f"is {shown(value)}, which no graph makes")
        return self._numbers[value]

    def graph(self, graph: Graph, at: str) -> dict[str, Any]:
        """A graph as data; `at`: what messages call it."""
        inputs = [self._number(v) for v in graph.inputs]
        for state in graph.states:
            self._number(state.input)
        constants = [[self._number(v), self._tables.array(graph.constants[v])] for v in _in_order(graph)]
        nodes = [self._node(node, f"{at}.nodes[{i}]") for i, node in enumerate(graph.nodes)]
        states = [written(s, State, f"{at}.states[{i}]", self._others) for i, s in enumerate(graph.states)]
        outputs = [self.known(v, f"{at}.outputs") for v in graph.outputs]
        return {"name": graph.name, "inputs": inputs, "states": states, "constants": constants, "nodes": nodes,
                "outputs": outputs}

    def _node(self, node: Node, at: str) -> list[Any]:
        """[operator, attributes, operands, results, origin]."""
        op = node.op
        at = f"{at} {op.name} ({node.origin})"
        if OPS.get(op.name) is not type(op):
            again = "was declared again since this was compiled" if op.code is not None and op.name in OPS else ""
            raise Fault(at, op.no_file or again or "is an operator that is not in the registry")
        attributes = written(op, type(op), at, self._others)
        operands = [None if v is None else self.known(v, at) for v in node.inputs]
        results = [self._number(v) for v in node.outputs]
        return [op.name, attributes, operands, results, self._tables.origin(node.origin, at)]

    def _region(self, region: Region, at: str) -> dict[str, Any]:
        scope = _Scope(self._tables)
        graph = scope.graph(region.graph, at)
        return {**graph, "values": scope.values}


def _in_order(graph: Graph) -> list[Value]:
    """The constants: those that are read in the order of their first readers, then the others by name."""
    read = [v for node in graph.nodes for v in node.operands] + list(graph.results())
    found = dict.fromkeys(v for v in read if v in graph.constants)
    return [*found, *sorted(graph.constants.keys() - found.keys(), key=lambda v: v.name)]
