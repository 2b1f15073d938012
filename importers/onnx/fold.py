"""Shape arithmetic at import time: operators whose inputs are all known are evaluated with NumPy, so that chains such as
Shape -> Gather -> Concat -> Reshape vanish from the graph. The functions are called as the operators; sizes are checked
before memory is taken."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tileflow import memory
from tileflow.errors import ModelError, TileflowError
from tileflow.graph import HIGHEST_RANK
from tileflow.text import one_line

from .tensors import SHOWN

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


def fits(site: Site, shape: Sequence[int], dtype: np.dtype) -> tuple[int, ...]:
    """`shape` as a tuple of ints, if an array of it may still be made."""
    sizes = tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ModelError(f"{site.title} gives the shape {_shown(sizes)}, and sizes cannot be negative")
    if len(sizes) > HIGHEST_RANK:
        raise ModelError(f"{site.title} gives a constant of {len(sizes)} dimensions; tileflow's tensors have up to {HIGHEST_RANK}")
    _claim(site, sizes, dtype)
    memory.require(math.prod(sizes) * dtype.itemsize, f"The constant of shape {list(sizes)} that {site.title} gives",
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


BINARY: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Pow": np.power, "Min": np.minimum, "Max": np.maximum, "Equal": np.equal,
    "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal, "And": np.logical_and,
    "Or": np.logical_or, "Xor": np.logical_xor,
}
UNARY: dict[str, Callable[..., np.ndarray]] = {
    "Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log,
    "Not": np.logical_not, "Sign": np.sign, "Reciprocal": np.reciprocal, "IsNaN": np.isnan,
}


@folder(*BINARY)
def binary(site: Site, a: Arrays) -> np.ndarray:
    result = a[0]
    for other in a[1:]:
        fits(site, np.broadcast_shapes(result.shape, other.shape), np.result_type(result, other))
        result = BINARY[site.op_type](result, other)
    return result if result.dtype == bool else result.astype(a[0].dtype)


@folder(*UNARY)
def unary(site: Site, a: Arrays) -> np.ndarray:
    return np.asarray(UNARY[site.op_type](a[0]))


@folder("Div")
def div(site: Site, a: Arrays) -> np.ndarray:
    """Integers are divided towards zero, as in C."""
    fits(site, np.broadcast_shapes(a[0].shape, a[1].shape), a[0].dtype)
    if a[0].dtype.kind == "f":
        return a[0] / a[1]
    if not np.all(a[1]):
        raise ValueError("integer division by zero")
    quotient = np.floor_divide(a[0], a[1])
    return quotient + ((np.remainder(a[0], a[1]) != 0) & ((a[0] < 0) != (a[1] < 0))).astype(quotient.dtype)


@folder("Mod")
def mod(site: Site, a: Arrays) -> np.ndarray:
    return np.fmod(a[0], a[1]) if site.attrs.get("fmod") else np.mod(a[0], a[1])


@folder("Shape")
def shape(site: Site, a: Sequence[Any]) -> np.ndarray:
    return np.array(a[0].shape[slice(site.attrs.get("start", 0), site.attrs.get("end"))], np.int64)


@folder("Size")
def size(site: Site, a: Sequence[Any]) -> np.ndarray:
    return np.array(math.prod(a[0].shape), np.int64)


@folder("Identity")
def identity(site: Site, a: Arrays) -> np.ndarray:
    return a[0]


@folder("Cast")
def cast(site: Site, a: Arrays) -> np.ndarray:
    return a[0].astype(site.dtype(site.attrs["to"]))


@folder("CastLike")
def cast_like(site: Site, a: Arrays) -> np.ndarray:
    return a[0].astype(a[1].dtype)


@folder("Constant")
def constant(site: Site, a: Arrays) -> np.ndarray:
    """All the forms of Constant: a tensor, a number, a list of numbers."""
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32), ("value_floats", np.float32)):
        if name in site.attrs:
            return np.array(site.attrs[name], dtype)
    if "value" in site.attrs:
        return site.tensor(site.attrs["value"])
    raise site.unsupported(f"the constant has the form {', '.join(site.attrs) or 'nothing'}; only tensors and numbers are taken")


@folder("ConstantOfShape")
def constant_of_shape(site: Site, a: Arrays) -> np.ndarray:
    value = site.tensor(site.attrs["value"]) if "value" in site.attrs else np.zeros(1, site.float_dtype("float32"))
    return np.full(fits(site, a[0].tolist(), value.dtype), value.reshape(-1)[0])


@folder("Range")
def range_(site: Site, a: Arrays) -> np.ndarray:
    start, limit, delta = (x.reshape(-1)[0] for x in a)
    if delta == 0:
        raise ValueError("the step of Range is 0")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    fits(site, (count,), a[0].dtype)
    return start + np.arange(count).astype(a[0].dtype) * delta


@folder("Gather")
def gather(site: Site, a: Arrays) -> np.ndarray:
    fits(site, (a[1].size, a[0].size), a[0].dtype)
    return np.take(a[0], a[1], axis=site.attrs.get("axis", 0))


@folder("Concat")
def concat(site: Site, a: Arrays) -> np.ndarray:
    fits(site, (sum(x.size for x in a),), a[0].dtype)
    return np.concatenate(list(a), axis=site.attrs["axis"])


@folder("Unsqueeze")
def unsqueeze(site: Site, a: Arrays) -> np.ndarray:
    return np.expand_dims(a[0], tuple(site.axes(a) or ()))


@folder("Squeeze")
def squeeze(site: Site, a: Arrays) -> np.ndarray:
    axes = site.axes(a)
    return np.squeeze(a[0], axis=None if axes is None else tuple(axes))


@folder("Slice")
def slice_(site: Site, a: Sequence[Any]) -> np.ndarray:
    data = a[0]
    given: list[Any] = [None if x is None else x.tolist() for x in a[1:]]
    if not given:
        given = [site.attrs.get(name) for name in ("starts", "ends", "axes")]
    starts, ends, axes, steps = (*given, *(None,) * (4 - len(given)))
    index = [slice(None)] * data.ndim
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[k]
        end = ends[k]
        if step < 0 and end < -data.shape[axis]:
            end = None
        index[axis] = slice(max(starts[k], -data.shape[axis]) if step < 0 else starts[k], end, step)
    return data[tuple(index)]


@folder("Split")
def split(site: Site, a: Sequence[Any]) -> list[np.ndarray]:
    axis, parts = site.attrs.get("axis", 0), len(site.outputs)
    sizes = site.attrs.get("split") if len(a) < 2 or a[1] is None else a[1].tolist()
    if sizes is None:
        chunk = -(-a[0].shape[axis] // parts)
        sizes = [min(chunk, a[0].shape[axis] - i * chunk) for i in range(parts)]
    return np.split(a[0], np.cumsum(sizes)[:-1], axis=axis)


@folder("Reshape")
def reshape(site: Site, a: Arrays) -> np.ndarray:
    target = [int(n) for n in a[1]]
    if not site.attrs.get("allowzero"):
        target = [a[0].shape[i] if n == 0 else n for i, n in enumerate(target)]
    return a[0].reshape(target)


@folder("Flatten")
def flatten(site: Site, a: Arrays) -> np.ndarray:
    return a[0].reshape(math.prod(a[0].shape[:site.attrs.get("axis", 1)]), -1)


@folder("Transpose")
def transpose(site: Site, a: Arrays) -> np.ndarray:
    return np.transpose(a[0], site.attrs.get("perm"))


@folder("Expand")
def expand(site: Site, a: Arrays) -> np.ndarray:
    return np.broadcast_to(a[0], fits(site, np.broadcast_shapes(a[0].shape, fits(site, a[1].tolist(), a[0].dtype)), a[0].dtype))


@folder("Tile")
def tile(site: Site, a: Arrays) -> np.ndarray:
    fits(site, [n * int(k) for n, k in zip(a[0].shape, a[1], strict=True)], a[0].dtype)
    return np.tile(a[0], a[1])


@folder("Where")
def where(site: Site, a: Arrays) -> np.ndarray:
    fits(site, np.broadcast_shapes(*(x.shape for x in a)), a[1].dtype)
    return np.where(*a)


@folder("NonZero")
def nonzero(site: Site, a: Arrays) -> np.ndarray:
    return np.array(np.nonzero(a[0]), np.int64).reshape(a[0].ndim, -1)


@folder("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def reduce(site: Site, a: Arrays) -> np.ndarray:
    axes = site.axes(a)
    if not axes and site.attrs.get("noop_with_empty_axes"):
        return a[0]
    functions: dict[str, Callable[..., Any]] = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}
    result = functions[site.op_type](a[0], axis=tuple(axes) if axes else None, keepdims=bool(site.attrs.get("keepdims", 1)))
    return np.asarray(result).astype(a[0].dtype)


@folder("ScatterND")
def scatter_nd(site: Site, a: Arrays) -> np.ndarray:
    if site.attrs.get("reduction", "none") != "none":
        raise site.unsupported(f"reduction={site.attrs['reduction']} on a value that is needed at import")
    result = a[0].copy()
    result[tuple(np.moveaxis(a[1], -1, 0))] = a[2]
    return result


@folder("Trilu")
def trilu(site: Site, a: Sequence[Any]) -> np.ndarray:
    k = int(a[1].reshape(-1)[0]) if len(a) > 1 and a[1] is not None else 0
    return np.triu(a[0], k) if site.attrs.get("upper", 1) else np.tril(a[0], k)


@folder("GatherElements")
def gather_elements(site: Site, a: Arrays) -> np.ndarray:
    """Indices may span less of the other axes than the data."""
    axis = site.attrs.get("axis", 0) % max(a[0].ndim, 1)
    fits(site, a[1].shape, a[0].dtype)
    data = a[0][tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(a[1].shape))]
    return np.take_along_axis(data, a[1], axis)


@folder("GatherND")
def gather_nd(site: Site, a: Arrays) -> np.ndarray:
    if site.attrs.get("batch_dims"):
        raise site.unsupported(f"batch_dims={site.attrs['batch_dims']} on a value that is needed at import")
    depth = a[1].shape[-1]
    fits(site, (*a[1].shape[:-1], *a[0].shape[depth:]), a[0].dtype)
    return a[0][tuple(np.moveaxis(a[1], -1, 0))]


@folder("CumSum")
def cumsum(site: Site, a: Arrays) -> np.ndarray:
    axis = int(a[1].reshape(-1)[0])
    data = np.flip(a[0], axis) if site.attrs.get("reverse") else a[0]
    result = np.cumsum(data, axis, dtype=data.dtype)
    if site.attrs.get("exclusive"):
        result = result - data
    return np.flip(result, axis) if site.attrs.get("reverse") else result
