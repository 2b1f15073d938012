"""Attributes of ai.onnx.ml's operators as arrays."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tileflow.graph import Value
from tileflow.system.errors import ModelError

from ...site import Site
from ...tensors import tensor_array

DOMAIN = "ai.onnx.ml"


def integers(site: Site, name: str, count: int | None = None) -> np.ndarray:
    """A list of integers; `count`: how many there must be, zeros where the attribute is absent."""
    return _list(site, name, site.attrs.get(name), np.int64, count)


def numbers(site: Site, name: str, count: int | None = None) -> np.ndarray:
    """A list of numbers: float32 as the attribute `name`, or a tensor as `name`_as_tensor."""
    tensor = site.attrs.get(f"{name}_as_tensor")
    if isinstance(tensor, TensorProto):
        if site.attrs.get(name):
            raise ModelError(f"{site.title} has both {name} and {name}_as_tensor; export the model again")
        return _list(site, name, tensor_array(tensor, site.scope.model.folders, site.scope.model.where).reshape(-1), None, count)
    return _list(site, name, site.attrs.get(name), np.float32, count)


def _list(site: Site, name: str, given: Any, dtype: Any, count: int | None) -> np.ndarray:
    array = np.asarray([] if given is None else given, dtype)
    if not array.size and count:
        return np.zeros(count, array.dtype)
    if count is not None and array.size != count:
        raise ModelError(f"{site.title} has {array.size} {name} where {count} are needed; export the model again")
    return array


def one_of(site: Site, name: str, known: Sequence[str], default: str) -> str:
    """A word, or its number, among those that are known."""
    given = site.attrs.get(name, default)
    if isinstance(given, int) and 0 <= given < len(known):
        return known[given]
    if given not in known:
        raise site.unsupported(f"the attribute {name}={given!r}"[:120])
    return str(given)


def features(site: Site, dtype: str) -> Value:
    """Input 0 as [rows, features] of a floating type; one row may come without its axis."""
    x = site.value(0)
    if x.dtype != dtype:
        x = site.emit("Cast", x, to=dtype)
    if x.type.rank == 1:
        x = site.emit("Reshape", x, shape=(1, x.shape[0]), allowzero=1)
    if x.type.rank != 2:
        raise ModelError(f"{site.title}: its input is {x.type}; it must have two dimensions, rows and features")
    return x
