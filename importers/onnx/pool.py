"""Pooling in ONNX's forms that the engine's operators do not have: three spatial axes, whole numbers, the places of the maxima."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileflow.graph import Value

from .site import Site
from .versions import form

PLACED = ("kernel_shape", "strides", "dilations")
"""Attributes with one number for each spatial axis; `pads` has two."""


@form("MaxPool", "AveragePool")
def pool(site: Site) -> Sequence[Value] | None:
    """Pools over three axes go over the last two of them, then over the first: maxima and means of means are the same."""
    x, places = site.value(0), site.wants(1)
    if site.op_type == "AveragePool" and _covers(site, x):
        return site.finish("GlobalAveragePool", x)
    if x.type.rank == 5 and not places:
        return _three_axes(site, x)
    if site.op_type == "MaxPool" and x.dtype in ("int8", "uint8"):     # float32 holds them exactly
        maxima, *rest = _emit(site, site.emit("Cast", x, to="float32"), _attributes(site), indices=places)
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


def _emit(site: Site, x: Value, attributes: dict[str, Any], **more: Any) -> tuple[Value, ...]:
    made = getattr(site.builder, site.op_type)(x, **attributes, **more)
    return made if isinstance(made, tuple) else (made,)


def _three_axes(site: Site, x: Value) -> Sequence[Value]:
    given = _attributes(site)
    pads = given.get("pads", (0,) * 6)
    others = {name: value for name, value in given.items() if name not in PLACED and name != "pads"}
    within = {name: given[name][1:] for name in PLACED if name in given}
    across = {name: (given[name][0], 1) for name in PLACED if name in given}
    n, c, depth = x.shape[:3]
    planes = site.emit("Reshape", x, shape=(n, c * depth, *x.shape[3:]), allowzero=1)
    y, = _emit(site, planes, {**others, **within, "pads": (*pads[1:3], *pads[4:])})
    height, width = y.shape[2:]
    columns = site.emit("Reshape", y, shape=(n, c, depth, height * width), allowzero=1)
    y, = _emit(site, columns, {**others, **across, "pads": (pads[0], 0, pads[3], 0)})
    return site.finish("Reshape", y, shape=(n, c, y.shape[2], height, width), allowzero=1)
