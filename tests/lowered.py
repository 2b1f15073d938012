"""Graphs after the fork of the street, computed in NumPy: what the host's passes made of a graph must mean what the graph meant.

    found = run(host_passes(graph), feeds)       # values by Value; no kernel is compiled
"""
from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from tileflow.graph import Graph, Op, Value, type_of
from tileflow.graph.rewrite import rewrite
from tileflow.kernels.elementwise.expr import evaluate as scalar
from tileflow.kernels.isa import cpu
from tileflow.lower.attach import Finished, attach
from tileflow.lower.expand import composites, expand
from tileflow.lower.fuse import Fused, fuse
from tileflow.lower.layout import Turn, View, arrange
from tileflow.lower.planes import Pooled, pool_planes
from tileflow.lower.record import record
from tileflow.lower.widen import Rounded, widen

Array = np.ndarray


def host_passes(graph: Graph) -> Graph:
    """What `lower.plan` does to one graph before it becomes rows, packing aside."""
    path = cpu.current()
    arranged = arrange(expand(widen(rewrite(record(composites(graph))), path)), path)
    return attach(pool_planes(attach(fuse(arranged)), path))


def run(graph: Graph, feeds: Mapping[str, Array]) -> dict[Value, Array]:
    """All values of a lowered graph by the references of its operators, and by what the passes say of those that they made."""
    values: dict[Value, Array] = {v: feeds[v.name] for v in graph.inputs} | graph.constants
    for node in graph.nodes:
        assert all(v in values for v in node.operands), f"{node!r} reads what is not yet made"
        with np.errstate(all="ignore"):
            made = _meaning(node.op, [None if v is None else values[v] for v in node.inputs])
        for v, array in zip(node.outputs, made, strict=True):
            assert type_of(array) == v.type, f"{node!r} computed {type_of(array)}"
            values[v] = array
    return values


def _meaning(op: Any, arrays: list[Array | None]) -> tuple[Array, ...]:
    given: list[Any] = arrays
    if isinstance(op, Fused):
        return tuple(_elements(op.expressions, given, op.types[0].shape))
    if isinstance(op, Finished):
        first, *others = _meaning(op.op, given[:op.inputs])
        made = _elements(op.exprs, [first, *given[op.inputs:]], first.shape)
        return (made[0], *others, *made[1:])
    if isinstance(op, Pooled):
        return _meaning(op.reader, list(_meaning(op.product, given[:op.inputs])))
    if isinstance(op, Rounded):
        return (given[0].astype(op.to),)
    if isinstance(op, Turn):
        return (np.ascontiguousarray(np.moveaxis(given[0], -1, 1) if op.back else np.moveaxis(given[0], 1, -1)),)
    if isinstance(op, View):
        return (given[0].reshape(op.shape),)
    return _plain(op, given)


def _plain(op: Op, arrays: list[Array | None]) -> tuple[Array, ...]:
    streams = {"seed": 0, "micro": 0} if "seed" in inspect.signature(op.reference).parameters else {}
    return op.reference(*arrays, **streams)


def _elements(expressions: Any, arrays: list[Array], shape: tuple[int, ...]) -> list[Array]:
    padded = [np.asarray(a) for a in arrays]
    return [np.array(np.broadcast_to(scalar(e, padded), shape)) for e in expressions]
