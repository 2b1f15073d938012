"""Pools over three spatial axes: over the last two of them, then over the first; maxima and means of means are the same."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..system.errors import UnsupportedError

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

PLACED = ("kernel_shape", "strides", "dilations")
"""Attributes with one number for each spatial axis; `pads` has two."""


def max_pool(b: Builder, x: Value, attributes: Mapping[str, Any], indices: bool = False) -> tuple[Value, ...]:
    """MaxPool over one to three axes; with `indices` also the places of the maxima."""
    return _pool(b, "MaxPool", x, attributes, indices)


def average_pool(b: Builder, x: Value, attributes: Mapping[str, Any]) -> Value:
    """AveragePool over one to three axes."""
    return _pool(b, "AveragePool", x, attributes)[0]


def _pool(b: Builder, name: str, x: Value, attributes: Mapping[str, Any], indices: bool = False) -> tuple[Value, ...]:
    given = {k: v for k, v in attributes.items() if v is not None}
    places = {"indices": True} if indices else {}
    if x.type.rank != 5:
        made = getattr(b, name)(x, **given, **places)
        return made if isinstance(made, tuple) else (made,)
    if indices and given.get("storage_order"):
        raise UnsupportedError("places of maxima over three axes are not told in column-major order (storage_order=1).")
    pads = given.get("pads", (0,) * 6)
    others = {k: v for k, v in given.items() if k not in PLACED and k != "pads"}
    within = {k: given[k][1:] for k in PLACED if k in given}
    across = {k: (given[k][0], 1) for k in PLACED if k in given}
    n, c, depth = x.shape[:3]
    planes = b.Reshape(x, shape=(n, c * depth, *x.shape[3:]), allowzero=1)
    y, *where = _pool(b, name, planes, {**others, **within, "pads": (*pads[1:3], *pads[4:])}, indices)
    height, width = y.shape[2:]
    columns = b.Reshape(y, shape=(n, c, depth, height * width), allowzero=1)
    found, *which = _pool(b, name, columns, {**others, **across, "pads": (pads[0], 0, pads[3], 0)}, indices)
    shape = (n, c, found.shape[2], height, width)
    result = [b.Reshape(found, shape=shape, allowzero=1)]
    if indices:                                                    # of each plane's winner, the place of that plane's
        flat = b.Reshape(where[0], shape=(where[0].type.size,), allowzero=1)
        result.append(b.Reshape(b.Gather(flat, which[0], axis=0), shape=shape, allowzero=1))
    return tuple(result)
