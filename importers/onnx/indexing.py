"""Operators that pick or write elements by index, as files have them.

What is known of an index is compared with the sizes here, where the file can be named; operators whose sizes are values get them."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tileflow.graph import Value
from tileflow.memory.types import HIGHEST_RANK
from tileflow.ops.gather_nd import known_rows
from tileflow.ops.places import known_elements
from tileflow.ops.shape import normal_axis
from tileflow.system.errors import ShapeError

from .fold import fits
from .site import Site
from .versions import form


def _checked(site: Site, places: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise ShapeError where known indices are out of range."""
    index = site.known(1)
    if index is None or index.dtype.kind not in "iu" or index.ndim == 0:
        return
    try:
        places(index)
    except ShapeError as error:
        raise ShapeError(f"{site.title} has {error}") from None


@form("GatherND", "ScatterND")
def by_rows(site: Site) -> None:
    batch, shape = int(site.attrs.get("batch_dims", 0)), site.type(0).shape
    if 0 <= batch <= len(shape):
        _checked(site, lambda index: known_rows(index, shape, batch) if index.shape[-1] + batch <= len(shape) < HIGHEST_RANK else index)


@form("GatherElements", "ScatterElements")
def by_elements(site: Site) -> None:
    shape = site.type(0).shape
    axis = normal_axis(int(site.attrs.get("axis", 0)), len(shape))
    _checked(site, lambda index: known_elements(index, shape, axis) if index.ndim == len(shape) else index)


@form("Scatter")
def scatter(site: Site) -> Sequence[Value]:
    """ScatterElements' name until opset 11."""
    return site.finish("ScatterElements", site.value(0), site.value(1), site.value(2), axis=int(site.attrs.get("axis", 0)))


@form("TopK", below=10)
def top_k(site: Site) -> Sequence[Value]:
    """Until opset 10 K was an attribute, and the largest were taken."""
    return site.finish("TopK", site.value(0), K=int(site.attrs["k"]), axis=int(site.attrs.get("axis", -1)))


@form("OneHot")
def one_hot(site: Site) -> Sequence[Value]:
    """The depth is a number of any type."""
    return site.finish("OneHot", site.value(0), site.value(2), depth=int(site.scalar(1)), axis=int(site.attrs.get("axis", -1)))


@form("Hardmax", below=13)
def flattened_hardmax(site: Site) -> Sequence[Value]:
    """Until opset 13 all dimensions from `axis` on are one."""
    x = site.value(0)
    axis = normal_axis(site.attrs.get("axis", 1), x.type.rank)
    flat = site.emit("Flatten", x, axis=axis)
    return site.finish("Reshape", site.emit("Hardmax", flat, axis=-1), shape=x.shape, allowzero=1)


@form("Compress")
def compress(site: Site) -> Sequence[Value]:
    """Slices where a condition that is known holds; what it does not reach is left out."""
    x, condition = site.value(0), site.static(1).reshape(-1)
    axis = site.attrs.get("axis")
    if axis is None:
        x = site.emit("Reshape", x, shape=(x.type.size,), allowzero=1)
    along = normal_axis(int(axis or 0), x.type.rank)
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[along]:
        raise ShapeError(f"{site.title} has a condition that takes element {places[-1]} of {x.shape[along]}; export the model again")
    return site.finish("Gather", x, site.builder.constant(places.astype(np.int64)), axis=along)


@form("EyeLike")
def eye_like(site: Site) -> Sequence[np.ndarray]:
    """Ones on the k-th diagonal: known from the input's type."""
    like = site.type(0)
    if like.rank != 2:
        raise ShapeError(f"{site.title} is given {list(like.shape)} and makes matrices only; export the model again")
    dtype = np.dtype(site.dtype(site.attrs["dtype"]) if "dtype" in site.attrs else like.dtype)
    rows, columns = fits(site, like.shape, dtype)
    far = max(min(int(site.attrs.get("k", 0)), columns), -rows)
    return [np.eye(rows, columns, far, dtype=dtype)]
