"""The stem: convolutions of few planar channels with channels-last results."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import check_kernel, normal, run_kernel
from peers import needs

from tileflow.graph import Builder, Graph, TensorType, type_of
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.isa import cpu
from tileflow.lower.layout import arrange
from tileflow.lower.pack import Pack
from tileflow.ops.conv import Conv

Array = np.ndarray

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "7 x 7, stride 2": ((2, 3, 37, 29), (20, 3, 7, 7), dict(strides=(2, 2), pads=(3, 3, 3, 3))),
    "one channel, padding of its own on each side": ((2, 1, 13, 17), (5, 1, 3, 2), dict(strides=(1, 3), pads=(1, 2, 0, 1))),
    "padding beyond the kernel": ((1, 4, 5, 3), (17, 4, 2, 2), dict(pads=(3, 4, 3, 4))),
    "what lies beyond the last tap": ((1, 3, 11, 12), (7, 3, 3, 3), dict(strides=(5, 4), dilations=(3, 1))),
    "line": ((2, 2, 30), (8, 2, 4), dict(strides=(2,), pads=(3, 1))),
    "volume": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), dict(pads=(1, 1, 1, 0, 1, 0))),
    "no image": ((0, 3, 6, 6), (5, 3, 3, 3), {}),
}


@pytest.mark.parametrize(("path", "name"), [paths.on(path, name) for path in cpu.available() for name in CASES
                                            if path == paths.FASTEST or name == "7 x 7, stride 2"])
def test_kernels(path: str, name: str) -> None:
    x, w, attributes = CASES[name]
    with cpu.forced(path):
        stem = hosting.stem(Conv(**attributes))
        check_kernel(stem, normal(*x), normal(*w, seed=1), normal(w[0], seed=2), rtol=2e-5, atol=1e-4)


def test_as_torch_in_double() -> None:
    torch = needs("torch")
    x, w, bias = normal(2, 3, 37, 29, dtype="float64"), normal(20, 3, 7, 7, dtype="float64", seed=1), normal(20, dtype="float64")
    wanted = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), torch.tensor(bias), stride=2, padding=3)
    y, = run_kernel(hosting.stem(Conv(strides=(2, 2), pads=(3, 3, 3, 3))), x, w, bias)
    np.testing.assert_allclose(y, np.moveaxis(wanted.numpy(), 1, -1), rtol=1e-10, atol=1e-11)


def test_nan_and_infinity_stay_where_they_belong() -> None:
    x, w, attributes = CASES["7 x 7, stride 2"]
    image, stem = normal(*x), hosting.stem(Conv(**attributes))
    image[0, 2, 5, 28], image[1, 0, 36, 0] = np.nan, np.inf
    got, = run_kernel(stem, image, normal(*w, seed=1))
    with np.errstate(invalid="ignore"):
        wanted, = stem.reference(image, normal(*w, seed=1))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


def test_weights_laid_out_beforehand_and_epilogue() -> None:
    x, w, attributes = CASES["7 x 7, stride 2"]
    stem, arrays = hosting.stem(Conv(**attributes)), (normal(*x), normal(*w, seed=1), normal(w[0]))
    types = [type_of(a) for a in arrays]
    y, = stem.infer(*types)
    found, reading = hosting.packed(stem, types)
    assert found is not None
    laid, = run_kernel(Pack(found), arrays[1])
    exprs, plain = (maximum(Var(0, "float32"), 0),), run_kernel(stem, *arrays)[0]
    for weights, op in ((arrays[1], stem), (laid, reading)):
        got, = run_kernel(hosting.finished(op, 3, y, exprs, ()), arrays[0], weights, arrays[2], workers=3)
        assert got.tobytes() == np.maximum(plain, 0).tobytes()


def test_a_network_begins_with_it() -> None:
    """Its image is not turned, and neither is its result; a convolution of one channel to a few stays planar."""
    def kinds(x: tuple[int, ...], w: tuple[int, ...], v: tuple[int, ...]) -> list[set[str]]:
        graph = Graph("stem")
        b = Builder(graph)
        y = b.Conv(b.input("x", TensorType("float32", x)), b.input("w", TensorType("float32", w)), strides=(2, 2))
        graph.outputs.append(b.GlobalAveragePool(b.Conv(y, b.input("v", TensorType("float32", v)))))
        return [hosting.added(node.op) for node in arrange(graph, cpu.current()).nodes]
    found = kinds((1, 3, 65, 65), (64, 3, 7, 7), (64, 64, 3, 3))
    assert found[:2] == [{"stem"}, {"channels last"}]
    assert {"stem"} not in kinds((1, 1, 28, 28), (10, 1, 5, 5), (20, 10, 3, 3))
