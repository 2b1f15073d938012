"""Arrays that a caller gives, as a model takes them: of its element types, in row-major order."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..feed.items import array_of
from ..memory import budget
from ..memory.tensor import kind_of
from ..memory.types import CODES, TensorType
from ..system.errors import DataError, ShapeError, TypeMismatchError

if TYPE_CHECKING:
    from ..program.program import Program


def as_array(value: Any, dtype: str | None, what: str) -> np.ndarray:
    """An input as a C-contiguous array of `dtype` (None: its own).

    Raises:
        TypeMismatchError: not numeric, or a conversion that would lose more than precision.
    """
    array = array_of(value)
    if array.dtype.name not in CODES:
        raise TypeMismatchError(f"{what} has element type {array.dtype}; give numbers or booleans.")
    target = np.dtype(dtype) if dtype is not None else array.dtype
    if array.dtype != target:
        if kind_of(array.dtype) != kind_of(target) and not (array.dtype.kind in "iu" and target.kind in "iu"):
            raise TypeMismatchError(f"Data type mismatch for {what}: expected {target} but got {array.dtype}.")
        budget.require(array.size * target.itemsize, f"The conversion of {what} to {target}",
                       f"give it as {target}, or give fewer rows")
        if array.dtype.kind in "iu" and not np.can_cast(array.dtype, target):
            _check_whole(array, target, what)
        narrowed = kind_of(target) == "f" and target.itemsize < array.dtype.itemsize
        with np.errstate(over="ignore"):
            given, array = array, array.astype(target)
        if narrowed:
            _check_reach(given, array, what)
    if not array.flags.c_contiguous:
        budget.require(array.nbytes, f"A copy of {what} in row-major order",
                       "give it in row-major order (np.ascontiguousarray), or give fewer rows")
    return np.ascontiguousarray(array).reshape(array.shape)


def _check_whole(given: np.ndarray, target: np.dtype, what: str) -> None:
    """Raise TypeMismatchError where a whole number is none of `target`."""
    bounds = np.iinfo(target)
    beyond = (given < bounds.min) | (given > bounds.max)
    if beyond.any():
        raise TypeMismatchError(f"{what} holds {given[beyond].flat[0]}, which is beyond the reach of {target}.")


def _check_reach(given: np.ndarray, made: np.ndarray, what: str) -> None:
    """Raise TypeMismatchError where numbers became infinite by the conversion of `given`."""
    beyond = np.isinf(made) & np.isfinite(given)
    if beyond.any():
        other = ", or choose the precision bf16-true or 16-mixed" if made.dtype.itemsize == 2 else ""
        raise TypeMismatchError(f"{what} holds {given[beyond].flat[0]:.6g}, which is beyond the reach of {made.dtype}; "
                                f"scale it (options scale, mean and std){other}.")


def check_inputs(program: Program, micro: tuple[TensorType, ...]) -> None:
    """The graph's inputs are what the arrays give, in number, type and shape."""
    wanted = program.inputs
    if len(wanted) != len(micro):
        names = ", ".join(v.name for v in wanted)
        raise DataError(f"The model takes {len(wanted)} inputs ({names}) and got {len(micro)} arrays.")
    for v, t in zip(wanted, micro, strict=True):
        if v.type.dtype != t.dtype:
            raise TypeMismatchError(f"Data type mismatch for {v.name}: expected {v.dtype} but got {t.dtype}.")
        if v.shape != t.shape:
            raise ShapeError(f"Shape mismatch for {v.name}: a micro-batch must be {list(v.shape)} but is "
                             f"{list(t.shape)}.")
