"""Convolution over framed planes: against the reference on every path, where it is chosen, and that its frames hold what it reads."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import check_kernel, run_kernel
from test_conv_last import Afterwards

from tileflow.graph import type_of
from tileflow.host.hosted import hosted
from tileflow.kernels.conv import PLANAR, choose
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.isa import cpu
from tileflow.ops.conv import Conv

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "wide kernel": ((1, 8, 10, 40), (8, 8, 3, 39), dict(pads=(1, 19, 1, 19))),
    "one row, stride": ((1, 1, 1, 400), (1, 1, 1, 256), dict(strides=(1, 2))),
    "a batch": ((2, 3, 7, 40), (5, 3, 5, 5), dict(pads=(2, 2, 2, 2))),
    "one filter": ((1, 33, 20, 88), (1, 33, 3, 3), dict(pads=(1, 1, 1, 1))),
    "groups, dilations": ((1, 4, 20, 90), (6, 2, 3, 4), dict(group=2, strides=(2, 3), dilations=(2, 1), pads=(2, 1, 0, 3))),
    "one axis": ((1, 2, 400), (3, 2, 7), dict(strides=(2,), pads=(3, 2))),
    "sums in parts": ((1, 250, 5, 30), (3, 250, 3, 3), dict()),
}


def operands(x: tuple[int, ...], w: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in (x, w, w[:1]))         # type: ignore[return-value]


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("name", [paths.rare(name) if name in ("groups, dilations", "one filter") else name for name in CASES])
def test_values(name: str, path: str) -> None:
    x, w, attributes = CASES[name]
    with cpu.forced(path) as current:
        op = Conv(**attributes)
        assert choose(op.problem(x, w), "f4", current, PLANAR).name == "framed"
        check_kernel(op, *operands(x, w), rtol=1e-4, atol=1e-3)


def test_where_it_is_chosen() -> None:
    def chosen(x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> str:
        return choose(Conv(**attributes).problem(x, w), "f4", cpu.current(), PLANAR).name

    assert chosen((1, 64, 56, 56), (64, 64, 3, 3)) == "unfolded"                  # many uses of what is unfolded
    assert chosen((1, 8, 56, 20), (8, 8, 3, 3)) == "unfolded"                     # short rows
    assert chosen((1, 1, 20, 20), (4, 1, 5, 5)) == "unfolded"                     # whole planes may be pooled
    assert chosen((1, 8, 56, 56), (8, 1, 3, 3), group=8) == "depthwise planes"
    assert chosen((1, 8, 56, 56), (8, 8, 1, 1)) == "pointwise"


def test_what_is_not_finite_stays_within_its_window() -> None:
    x, w, attributes = CASES["a batch"]
    image, weights, bias = operands(x, w)
    image[0, 1, 3, 20] = np.inf
    with np.errstate(invalid="ignore"):
        check_kernel(Conv(**attributes), image, weights, bias, rtol=1e-4, atol=1e-3)


def test_an_epilogue_finishes_its_rows() -> None:
    shapes, op = CASES["groups, dilations"][:2], hosted(Conv(**CASES["groups, dilations"][2]))
    x, w, bias = operands(*shapes)
    y, = op.infer(type_of(x), type_of(w))
    product, factor = Var(0, "float32"), Var(1, "float32")
    exprs, kinds, factors = (maximum(product * factor, 0),), ("channel",), np.arange(6, dtype=np.float32)
    fused, apart = (run_kernel(hosting.finished(o, 3, y, exprs, kinds), x, w, bias, factors)[0]
                    for o in (op, Afterwards(op)))
    assert fused.tobytes() == apart.tobytes()
