"""Arguments and results of a module of PyTorch's, taken apart: its tensors, as arrays and back, and the form around
them (`system.nested`)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..system.errors import DataError, TypeMismatchError
from ..system.nested import Form, Results, named, positional

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's elements as an array: the same memory where it is a plain row-major tensor of this computer's."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):                       # another type or place, lazy signs, a gradient
        tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.cpu().contiguous().view(torch.int16).numpy().view(BFLOAT16)
    try:
        return tensor.numpy(force=True)
    except (TypeError, RuntimeError):
        raise TypeMismatchError(
            f"A tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}) has no array; give floats, integers or "
            "booleans of this computer."
        ) from None


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same memory."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def result_of(array: Any) -> torch.Tensor:
    """What a call gave, as a tensor that nobody else writes."""
    array = np.asarray(array)
    return tensor_of(array if array.flags.writeable and array.flags.c_contiguous else np.array(array, order="C"))


def flattened(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Sequence[str]
) -> tuple[Form, list[torch.Tensor]]:
    """A call's form and its tensors; arrays become tensors. `parameters`: what `forward` calls its arguments, in order.

    Raises:
        DataError: there is a tensor within an object that is not known to hold any.
    """
    args, kwargs = positional(args, kwargs, parameters)
    paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    names, constants, places, tensors = [], [], [], []
    for i, (path, leaf) in enumerate(paths):
        if isinstance(leaf, np.ndarray):
            leaf = tensor_of(np.ascontiguousarray(leaf).reshape(leaf.shape))
        if isinstance(leaf, torch.Tensor):
            names.append(named(_keys(path), parameters))
            places.append(i)
            tensors.append(leaf.detach())
        else:
            if is_dataclass(leaf) and any(isinstance(getattr(leaf, f.name), torch.Tensor) for f in fields(leaf)):
                raise DataError(f"The argument {named(_keys(path), parameters)} is a {type(leaf).__name__}, whose "
                                "tensors are not seen: torch.export.register_dataclass says what is in it; "
                                "or pass a tuple or a dict.")
            constants.append((i, leaf))
    return Form(spec, tuple(names), tuple(constants), tuple(places)), tensors


def _keys(path: Sequence[Any]) -> list[Any]:
    """A path of PyTorch's as plain keys."""
    return [getattr(key, "idx", getattr(key, "key", getattr(key, "name", ""))) for key in path]


def results_of(returned: Any) -> tuple[Results, list[torch.Tensor]]:
    """The form of what `forward` returned, and the tensors in it, each once."""
    leaves, spec = pytree.tree_flatten(returned)
    tensors: list[torch.Tensor] = []
    places: list[int | None] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            places.append(None)
            continue
        known = next((i for i, t in enumerate(tensors) if t is leaf), None)
        if known is None:
            tensors.append(leaf)
        places.append(len(tensors) - 1 if known is None else known)
    constants = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Results(spec, tuple(places), constants), tensors


def mapped(call: Callable[[torch.Tensor], Any], nested: Any) -> Any:
    """The same with every tensor replaced."""
    return pytree.tree_map(lambda leaf: call(leaf) if isinstance(leaf, torch.Tensor) else leaf, nested)
