"""Operators that draw random numbers: each node of a file has a stream of its own; one with a `seed` draws the same numbers as any other with it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileflow.graph import Value
from tileflow.ops.random import OWN, seed_number

from .site import Site
from .versions import form


def _stream(site: Site) -> dict[str, Any]:
    """Stream and seed."""
    if "seed" in site.given:
        return dict(stream=OWN, seed=seed_number(site.given["seed"]))
    return dict(stream=site.scope.next_stream())


def _dtype(site: Site, otherwise: str) -> str:
    return site.dtype(site.attrs["dtype"]) if "dtype" in site.attrs else otherwise


def _drawn(site: Site, shape: Sequence[int], dtype: str) -> Sequence[Value]:
    operator = site.op_type.removesuffix("Like")
    names = ("low", "high") if operator == "RandomUniform" else ("mean", "scale")
    numbers: dict[str, Any] = {name: float(site.attrs[name]) for name in names}
    return site.finish(operator, shape=tuple(int(n) for n in shape), dtype=dtype, **numbers, **_stream(site))


@form("RandomUniform", "RandomNormal")
def drawn(site: Site) -> Sequence[Value]:
    return _drawn(site, site.attrs["shape"], _dtype(site, "float32"))


@form("RandomUniformLike", "RandomNormalLike")
def drawn_like(site: Site) -> Sequence[Value]:
    like = site.type(0)
    return _drawn(site, like.shape, _dtype(site, like.dtype))


@form("Bernoulli")
def bernoulli(site: Site) -> Sequence[Value]:
    return site.finish("Bernoulli", site.value(0), dtype=_dtype(site, ""), **_stream(site))


@form("Multinomial")
def multinomial(site: Site) -> Sequence[Value]:
    return site.finish("Multinomial", site.value(0), sample_size=int(site.attrs["sample_size"]), dtype=_dtype(site, "int32"), **_stream(site))
