"""Tensors that become one. What was made of equal cuts of one tensor, each cut for itself, is made of the whole tensor at once."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from tileflow.graph import Node, Value
from tileflow.ops.elementwise import Elementwise
from tileflow.ops.index import Gather, Slice
from tileflow.ops.reduce import Reduction
from tileflow.ops.shape import Unsqueeze

from .site import Site


def joined(site: Site, parts: Sequence[Value], axis: int, new_axis: bool) -> Value:
    """The parts one after the other along an axis, which is a new one or theirs."""
    if axis == 0:
        runs = [list(run) for _, run in groupby(parts, _kind)]
        parts = [part for run in runs for part in _rows(site, run, new_axis) or _raised(site, run, 0, new_axis)]
    else:
        parts = _raised(site, parts, axis, new_axis)
    return parts[0] if len(parts) == 1 else site.emit("Concat", *parts, axis=axis)


def _raised(site: Site, parts: Sequence[Value], axis: int, new_axis: bool) -> list[Value]:
    return [site.emit("Unsqueeze", part, axes=(axis,)) for part in parts] if new_axis else list(parts)


def _kind(part: Value) -> object:
    """What parts have in common that are reduced alike; others have nothing in common."""
    node = part.producer
    return (node.op, node.inputs[0].type) if node is not None and isinstance(node.op, Reduction) and node.inputs[0] is not None else part


def _rows(site: Site, parts: Sequence[Value], new_axis: bool) -> list[Value] | None:
    """Parts that reduce equal cuts along their first axis, as one reduction: a row each; None where they do anything else."""
    nodes = _alike(parts)
    if nodes is None or len(parts) == 1:
        return None
    op = nodes[0].op
    if not isinstance(op, Reduction) or tuple(op.axes or ()) != (0,) or bool(op.keepdims) == new_axis:
        return None
    whole = _whole(site, [node.inputs[0] for node in nodes])
    if whole is None:
        return None
    table = site.emit("Reshape", whole, shape=(len(parts), -1, *whole.shape[1:]))
    return [site.emit(op.name, table, axes=(1,), keepdims=0)]


def _whole(site: Site, cuts: Sequence[Value | None]) -> Value | None:
    """The tensor whose equal cuts along the first axis these are, or are made of row by row."""
    nodes = _alike(cuts)
    if nodes is None:
        return None
    op, operands = nodes[0].op, list(zip(*(node.inputs for node in nodes), strict=True))
    if isinstance(op, Slice):
        return _between(site, nodes)
    if isinstance(op, Gather) and op.axis == 0 and len(set(operands[0])) == 1:
        rows = _whole(site, operands[1])
        return None if rows is None else site.emit("Gather", operands[0][0], rows, axis=0)
    if isinstance(op, Elementwise) or (isinstance(op, Unsqueeze) and min(op.axes) > 0):
        wholes = [_whole(site, same) for same in operands]
        if len({(w.shape[0], w.type.rank) for w in wholes if w is not None}) == 1 and None not in wholes:
            return site.builder.emit(op, *wholes, names=(nodes[0].outputs[0].name,))[0]
    return None


def _between(site: Site, nodes: Sequence[Node]) -> Value | None:
    """The rows of one tensor that slices of it take, each where the one before it ends."""
    base = nodes[0].inputs[0]
    if base is None or any(node.inputs[0] is not base for node in nodes):
        return None
    bounds = [node.op.slices(base.shape) for node in nodes if isinstance(node.op, Slice)]
    rows = [cut[0] for cut in bounds]
    every = tuple(slice(0, n, 1) for n in base.shape[1:])
    if any(cut[1:] != every or cut[0].step != 1 for cut in bounds) or any(a.stop != b.start for a, b in pairwise(rows)):
        return None
    return site.emit("Slice", base, starts=(rows[0].start,), ends=(rows[-1].stop,), axes=(0,), steps=(1,))


def _alike(values: Sequence[Value | None]) -> list[Node] | None:
    """The nodes that make these values, where all do the same, or cut, to operands of the same types."""
    nodes = [v.producer for v in values if v is not None and v.producer is not None]
    kinds = {(Slice if isinstance(n.op, Slice) else n.op, n.outputs[0].type) for n in nodes}
    return nodes if len(nodes) == len(values) and len(kinds) == 1 else None
