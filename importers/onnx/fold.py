"""Shape arithmetic at import time: operators whose inputs are all known are evaluated by their references, so that chains such as
Shape -> Gather -> Concat -> Reshape vanish from the graph; functions are here for what the engine declares no operator for, named as
the operators. Sizes are checked before memory is taken."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tileflow.graph import HALVES, HIGHEST_RANK, OPS, Op, type_of
from tileflow.memory import budget
from tileflow.ops.cast import Cast
from tileflow.ops.elementwise import Elementwise
from tileflow.ops.shape import Split, normal_axis
from tileflow.system.errors import ModelError, TileflowError
from tileflow.system.text import one_line

from .tensors import SHOWN, sparse_array

if TYPE_CHECKING:
    from .site import Site

LIMIT = 1 << 30
"""Bytes that all folded results of a model may take."""

Arrays = Sequence[np.ndarray]
Folder = Callable[["Site", Sequence[Any]], np.ndarray | list[np.ndarray]]
FOLDERS: dict[str, Folder] = {}


def folder(*names: str) -> Callable[[Folder], Folder]:
    """Register a function for the operators `names`."""
    def register(function: Folder) -> Folder:
        for name in names:
            FOLDERS[name] = function
        return function
    return register


def fits(site: Site, shape: Sequence[int] | np.ndarray, dtype: np.dtype) -> tuple[int, ...]:
    """`shape` as a tuple of ints, if an array of it may still be made."""
    if len(shape) > HIGHEST_RANK:
        raise ModelError(f"{site.title} gives a constant of {len(shape)} dimensions; tileflow's tensors have up to {HIGHEST_RANK}")
    sizes = tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ModelError(f"{site.title} gives the shape {_shown(sizes)}, and sizes cannot be negative")
    _claim(site, sizes, dtype)
    budget.require(math.prod(sizes) * dtype.itemsize, f"The constant of shape {list(sizes)} that {site.title} gives",
                   "export the model with smaller sizes")
    return sizes


def _claim(site: Site, shape: Sequence[int], dtype: np.dtype) -> None:
    site.scope.folded_bytes += math.prod(shape) * dtype.itemsize
    if site.scope.folded_bytes > LIMIT:
        raise ModelError(f"{site.title} gives a constant of shape {_shown(shape)}; "
                         f"constants that are evaluated at import may take {LIMIT >> 20} MiB in all")


def _shown(shape: Sequence[int]) -> str:
    return one_line(list(shape), SHOWN)


def fold(site: Site, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
    """The node's outputs from its known inputs, or None where it is no operator of shape arithmetic."""
    function = FOLDERS.get(site.op_type)
    if function is None:
        return None
    before = site.scope.folded_bytes
    try:
        with np.errstate(all="ignore"):
            result = function(site, arrays)
    except TileflowError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, np.exceptions.AxisError) as error:
        raise ModelError(f"{site.title} cannot be evaluated ({one_line(error, 200)}); export the model again") from None
    results = [np.asarray(a) for a in (result if isinstance(result, list) else [result])]
    for array in results if site.scope.folded_bytes == before else ():
        if array.flags.owndata or (site.op_type == "Constant" and site.scope.depth):
            _claim(site, array.shape, array.dtype)
    return results


def _elementwise() -> list[str]:
    """The operators that are a scalar expression, but for those that files have in another form."""
    return [name for name, kind in OPS.items() if kind.onnx and issubclass(kind, Elementwise) and not kind.random and name not in REWRITTEN]


REWRITTEN = ("Cast",)
"""Operators whose attributes in files are not the engine's."""
MOVED = ("Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "ScatterElements", "ScatterND", "Slice",
         "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze")
REDUCED = ("ArgMax", "ArgMin", "CumProd", "CumSum", "Einsum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


@folder(*_elementwise(), *MOVED, *REDUCED)
def by_reference(site: Site, a: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """What the engine declares itself."""
    op, operands = site.declared()
    return _referred(site, op, [None if i is None else a[i] for i in operands])


def _referred(site: Site, op: Op, given: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """An operator's inference gives the sizes, which are counted first, its reference the elements."""
    try:
        types = op.infer(*[None if x is None else type_of(x) for x in given])
    except TileflowError as error:
        raise type(error)(f"{site.title}: {error}") from None
    for t in types:
        fits(site, t.shape, t.numpy)
    if site.op_type in ("Div", "Mod") and given[1] is not None and given[1].dtype.kind in "iu" and not np.all(given[1]):
        raise ValueError("integer division by zero")
    if op.halves or not any(x is not None and x.dtype.name in HALVES for x in given):
        return list(op.reference(*given))
    wide = [x.astype(np.float32) if x is not None and x.dtype.name in HALVES else x for x in given]           # rounded once, as the host does
    return [x.astype(t.numpy) for x, t in zip(op.reference(*wide), types, strict=True)]


@folder("Cast")
def cast(site: Site, a: Arrays) -> list[np.ndarray]:
    return _referred(site, Cast(to=site.dtype(site.attrs["to"]), **rounding(site)), a)


@folder("CastLike")
def cast_like(site: Site, a: Arrays) -> list[np.ndarray]:
    return _referred(site, Cast(to=a[1].dtype.name, **rounding(site)), a[:1])


def rounding(site: Site) -> dict[str, Any]:
    """Cast's attributes but for the type."""
    return {"saturate": int(site.attrs.get("saturate", 1)), "round_mode": site.attrs.get("round_mode", "up")}


@folder("Split")
def split(site: Site, a: Sequence[Any]) -> list[np.ndarray]:
    """Without sizes the parts are equal, the last one perhaps smaller."""
    axis, parts = normal_axis(site.attrs.get("axis", 0), a[0].ndim), len(site.outputs)
    sizes = site.attrs.get("split") if len(a) < 2 or a[1] is None else site.listed(1).tolist()
    if sizes is None:
        chunk = -(-a[0].shape[axis] // parts)
        sizes = [max(min(chunk, a[0].shape[axis] - i * chunk), 0) for i in range(parts)]
    return _referred(site, Split(axis=axis, sizes=tuple(int(n) for n in sizes)), a[:1])


@folder("Shape")
def shape(site: Site, a: Sequence[Any]) -> np.ndarray:
    return np.array(a[0].shape[slice(site.attrs.get("start", 0), site.attrs.get("end"))], np.int64)


@folder("Size")
def size(site: Site, a: Sequence[Any]) -> np.ndarray:
    return np.array(math.prod(a[0].shape), np.int64)


@folder("Constant")
def constant(site: Site, a: Arrays) -> np.ndarray:
    """All the forms of Constant: a tensor, a number, a list of numbers."""
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32), ("value_floats", np.float32)):
        if name in site.attrs:
            return np.array(site.attrs[name], dtype)
    if "value" in site.attrs:
        return site.tensor(site.attrs["value"])
    if "sparse_value" in site.attrs:
        return site.scope.converted(sparse_array(site.attrs["sparse_value"], site.scope.model.folders, site.title))
    raise site.unsupported(f"the constant has the form {', '.join(site.attrs) or 'nothing'}; only tensors and numbers are taken")


@folder("ConstantOfShape")
def constant_of_shape(site: Site, a: Arrays) -> np.ndarray:
    value = site.tensor(site.attrs["value"]) if "value" in site.attrs else np.zeros(1, site.float_dtype("float32"))
    return np.full(fits(site, a[0].reshape(-1), value.dtype), value.reshape(-1)[0])


@folder("Range")
def range_(site: Site, a: Arrays) -> np.ndarray:
    start, limit, delta = (np.asarray(site.scalar(i), x.dtype) for i, x in enumerate(a))
    if delta == 0:
        raise ValueError("the step of Range is 0")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    fits(site, (count,), a[0].dtype)
    return start + np.arange(count).astype(a[0].dtype) * delta


@folder("NonZero")
def nonzero(site: Site, a: Arrays) -> np.ndarray:
    return np.array(np.nonzero(a[0]), np.int64).reshape(a[0].ndim, -1)
