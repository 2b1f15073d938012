"""GatherND with known indices: a plain Gather of rows, which has a gradient (a table of biases by relative position is one)."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tileflow.errors import ShapeError
from tileflow.graph import Value

from .site import Site
from .versions import form


@form("GatherND")
def gather_nd(site: Site) -> Sequence[Value]:
    """The axes that an index goes through are one; the index is its place there."""
    x, index, batch = site.value(0), site.static(1), site.attrs.get("batch_dims", 0)
    if batch:
        raise site.unsupported(f"batch_dims={batch}")
    depth = index.shape[-1] if index.ndim else 0
    if not 0 < depth <= x.type.rank:
        raise ShapeError(f"{site.title} has indices of shape {list(index.shape)} into {x.type}: their last axis must name 1 to {x.type.rank} axes")
    sizes = x.shape[:depth]
    if index.size and not all(-n <= low and high < n for n, low, high in zip(
            sizes, index.reshape(-1, depth).min(axis=0), index.reshape(-1, depth).max(axis=0), strict=True)):
        raise ShapeError(f"{site.title} has indices outside of {x.type}; export the model again")
    places = np.zeros(index.shape[:-1], np.int64)
    for axis, n in enumerate(sizes):
        places = places * n + index[..., axis] % max(n, 1)
    rows = site.emit("Reshape", x, shape=(math.prod(sizes), *x.shape[depth:]), allowzero=1)
    return site.finish("Gather", rows, site.builder.constant(places, "places"), axis=0)
