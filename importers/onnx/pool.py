"""Pooling in ONNX's forms that the engine's operators do not have: three spatial axes, whole numbers, the places of the maxima."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileflow.graph import Value
from tileflow.ops.pool_volume import average_pool, max_pool

from .site import Site
from .versions import form


@form("MaxPool", "AveragePool")
def pool(site: Site) -> Sequence[Value] | None:
    """Three axes are pooled one after the other, whole numbers as floats."""
    x, places = site.value(0), site.wants(1)
    if site.op_type == "AveragePool" and _covers(site, x):
        return site.finish("GlobalAveragePool", x)
    if x.type.rank == 5 and x.type.is_float:
        return _pooled(site, x)
    if site.op_type == "MaxPool" and x.dtype in ("int8", "uint8"):     # float32 holds them exactly
        maxima, *rest = _pooled(site, site.emit("Cast", x, to="float32"))
        return site.finish("Cast", maxima, to=x.dtype, names=site.outputs[:1])[0], *rest
    return site.generic(indices=True) if places else None


def _covers(site: Site, x: Value) -> bool:
    """One window that reaches past the end of every axis, as ceil_mode lets it: the mean of what is there (transformers' EfficientNet)."""
    given, size = site.given, x.shape[2:]
    kernel, strides = given.get("kernel_shape", []), given.get("strides", [1] * len(size))
    plain = not any(given.get("pads", ())) and given.get("auto_pad", "NOTSET") == "NOTSET" and all(d == 1 for d in given.get("dilations", ()))
    return bool(given.get("ceil_mode") and plain and len(kernel) == len(strides) == len(size)
                and all(n <= k < n + s for n, k, s in zip(size, kernel, strides, strict=True)))


def _attributes(site: Site) -> dict[str, Any]:
    """Those of the node, lists as tuples; opsets until 7 have no `dilations`, and all defaults are the operators' own."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in site.given.items()}


def _pooled(site: Site, x: Value) -> tuple[Value, ...]:
    """The pool and, where the node wants them, the places of its maxima."""
    if site.op_type == "MaxPool":
        return max_pool(site.builder, x, _attributes(site), site.wants(1))
    return (average_pool(site.builder, x, _attributes(site)),)
