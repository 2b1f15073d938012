"""Graphs after the fork of the street, computed in NumPy: what the host's passes made of a graph must mean what the
graph meant.

    found = run(host_passes(graph), feeds)       # values by Value; no kernel is compiled
    found = run_parts(*host_parts(program), feeds)

The passes are the product's own (`lower.passes`). Packing alone is left out of a program's: what it lays out only
kernels can read.
"""
from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np

from tileflow.graph import Graph, Op, Value, type_of
from tileflow.kernels.isa import cpu
from tileflow.lower.passes import PROGRAM, PassSetting, formed, fused, host_program, part_forms
from tileflow.program.program import Program

Array = np.ndarray


def host_passes(graph: Graph) -> Graph:
    """What the lowering does to one graph before it becomes rows; verified after each pass."""
    setting = PassSetting(cpu.current())
    return fused(formed(graph, setting), setting)


def host_parts(program: Program) -> tuple[Program, dict[str, Graph]]:
    """The host's program, and by part the graph that becomes rows."""
    setting = PassSetting(cpu.current())
    program = host_program(program, setting, [step for step in PROGRAM if step.name != "pack"])
    return program, part_forms(program, setting)[0]


def run(graph: Graph, feeds: Mapping[str, Array]) -> dict[Value, Array]:
    """All values of a lowered graph by the references of its operators."""
    return _computed(graph, {v: feeds[v.name] for v in graph.inputs})


def run_parts(program: Program, parts: Mapping[str, Graph], feeds: Mapping[str, Array],
              states: dict[str, Array] | None = None) -> dict[Value, Array]:
    """All values of a host's program, whose parts run once each, in the order in which they first do; `states` are
    read, and written."""
    found: dict[Value, Array] = {}
    states = {} if states is None else states
    for graph in parts.values():
        given = {v: found[program.links[v]] if v in program.links else feeds[v.name] for v in graph.inputs}
        found |= _computed(graph, given | {s.input: states[s.name] for s in graph.states})
        states |= {s.name: found[s.output] for s in graph.states if s.output is not None}
    return found


def _computed(graph: Graph, given: Mapping[Value, Array]) -> dict[Value, Array]:
    values: dict[Value, Array] = {**given, **graph.constants}
    for node in graph.nodes:
        assert all(v in values for v in node.operands), f"{node!r} reads what is not yet made"
        with np.errstate(all="ignore"):
            made = _plain(node.op, [None if v is None else values[v] for v in node.inputs])
        for v, array in zip(node.outputs, made, strict=True):
            assert type_of(array) == v.type, f"{node!r} computed {type_of(array)}"
            values[v] = array
    return values


def _plain(op: Op, arrays: list[Array | None]) -> tuple[Array, ...]:
    streams = {"seed": 0, "micro": 0} if "seed" in inspect.signature(op.reference).parameters else {}
    return op.reference(*arrays, **streams)
