"""Graphs after the fork of the street, computed in NumPy: what the host's passes made of a graph must mean what the graph meant.

    found = run(host_passes(graph), feeds)       # values by Value; no kernel is compiled
"""
from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np

from tileflow.graph import Graph, Op, Value, type_of
from tileflow.host.rewrite import COMPOSITES, rewrite
from tileflow.kernels.isa import cpu
from tileflow.lower.attach import attach
from tileflow.lower.coarse import coarsen
from tileflow.lower.constants import settle
from tileflow.lower.expand import composites, expand
from tileflow.lower.fuse import fuse
from tileflow.lower.layout import arrange
from tileflow.lower.moves import undo_moves
from tileflow.lower.planes import pool_planes
from tileflow.lower.record import record
from tileflow.lower.through import through
from tileflow.lower.widen import widen

Array = np.ndarray


def host_passes(graph: Graph) -> Graph:
    """What `lower.plan` does to one graph before it becomes rows, packing aside; verified after each pass."""
    path = cpu.current()
    return through(graph, lambda g: rewrite(g, (), COMPOSITES), composites, settle, coarsen, record, rewrite, lambda g: widen(g, path),
                   expand, lambda g: arrange(g, path), undo_moves, fuse, attach, lambda g: pool_planes(g, path), attach)


def run(graph: Graph, feeds: Mapping[str, Array]) -> dict[Value, Array]:
    """All values of a lowered graph by the references of its operators."""
    values: dict[Value, Array] = {v: feeds[v.name] for v in graph.inputs} | graph.constants
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
