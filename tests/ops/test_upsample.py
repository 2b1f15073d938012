"""Repeated elements and their sums, and transposed convolutions whose kernels are as large as their strides: every way of the kernels."""
from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_kernel, normal, run_kernel

from tileflow.compiler import inference
from tileflow.graph import Builder, Graph
from tileflow.graph.op import OPS
from tileflow.kernels.conv import PLANAR, choose
from tileflow.kernels.isa import cpu
from tileflow.memory.types import TensorType
from tileflow.ops.conv import ConvInputGrad
from tileflow.ops.resize import Repeat, RepeatGrad
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session

REPEATS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "pairs": ((3, 5, 37), dict(axis=2, times=2, rows=2)),
    "pairs of a line shorter than a vector": ((3, 5, 7), dict(axis=2, times=2, rows=2)),
    "one element a line": ((4, 3, 1), dict(axis=2, times=2, rows=3)),
    "seven": ((2, 3, 19), dict(axis=2, times=7)),
    "more than are shuffled": ((2, 3, 5), dict(axis=2, times=21, rows=2)),
    "channels last": ((2, 3, 4, 19), dict(axis=2, times=2, rows=2)),
    "few channels last": ((2, 3, 4, 3), dict(axis=2, times=3, rows=2)),
}


@pytest.mark.parametrize(("path", "name"), [paths.on(path, name) for path in cpu.available() for name in REPEATS])
def test_repeat(path: str, name: str) -> None:
    """What is not finite stays in its place; the gradient's sums spread it to their element alone."""
    shape, attributes = REPEATS[name]
    x = normal(*shape)
    x.flat[[0, x.size // 2, -1]] = np.nan, np.inf, -np.inf
    with cpu.forced(path):
        y, = check_kernel(Repeat(**attributes), x, rtol=0, atol=0)
        g = normal(*y.shape, seed=1)
        g.flat[[0, g.size // 2]] = np.nan, np.inf
        check_kernel(RepeatGrad(**attributes), g, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
@pytest.mark.parametrize("name", ["pairs", "seven", "channels last"])
def test_repeat_of_other_widths(name: str, dtype: str) -> None:
    shape, attributes = REPEATS[name]
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    check_kernel(Repeat(**attributes), x, rtol=0, atol=0)
    if dtype == "float64":
        check_kernel(RepeatGrad(**attributes), check_kernel(Repeat(**attributes), x)[0], rtol=1e-12, atol=1e-12)


BLOCKS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pairs": ((2, 5, 9, 11), (5, 6, 2, 2), {}),
    "pixels laid into strips": ((1, 70, 33, 40), (70, 13, 2, 2), {}),
    "lines of several units": ((1, 3, 130, 7), (3, 40, 2, 2), {}),
    "filters of several units": ((1, 300, 4, 4), (300, 90, 2, 2), {}),
    "other taps": ((2, 4, 5, 3), (4, 3, 3, 5), {}),
    "more taps than are shuffled": ((2, 4, 13), (4, 3, 11), {}),
    "groups": ((2, 6, 5, 18), (6, 4, 2, 3), dict(group=2)),
    "volume": ((2, 3, 2, 3, 5), (3, 4, 2, 1, 3), {}),
}


QUICK = ("groups", "lines of several units", "other taps")


@pytest.mark.parametrize(("path", "name"), [
    (paths.on if name in QUICK else paths.rare)(path, name) for path in cpu.available() for name in BLOCKS])
def test_blocks(path: str, name: str) -> None:
    """Against the reference, with an epilogue and weights in rows as a model has them; an infinite weight or a NaN goes where it belongs."""
    x_shape, w_shape, attributes = BLOCKS[name]
    kernel = w_shape[2:]
    op = ConvInputGrad(shape=tuple(n * k for n, k in zip(x_shape[2:], kernel, strict=True)), strides=kernel, **attributes)
    x, w, bias = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[1] * attributes.get("group", 1), seed=2)
    x.flat[x.size // 2], w.flat[w.size // 3] = np.nan, np.inf
    with cpu.forced(path), np.errstate(invalid="ignore"):
        assert choose(op.problem((x_shape[0], len(bias), *op.shape), w_shape), "f4", cpu.current(), PLANAR).name == "blocks"
        exact, = check_kernel(op, x, w, rtol=2e-5, atol=1e-4)
        graph = Graph("blocks")
        b = Builder(graph)
        operands = [b.input(k, TensorType("float32", a.shape)) for k, a in zip("xwb", (x, w, bias), strict=True)]
        y = b.Relu(b.Add(b.emit(op, *operands[:2])[0], b.Reshape(operands[2], shape=(len(bias), *[1] * len(kernel)))))
        graph.outputs = [y]
        engine = make_engine(inference(graph, Batching(1, 1, 1)).program, Session(), {}, Host(2))
        found = engine.run({v.name: a for v, a in zip(operands, (x, w, bias), strict=True)})[engine.outputs[0].name][0]
        plain, = run_kernel(op, x, w)
        np.testing.assert_array_equal(found, np.maximum(plain + bias.reshape(-1, *[1] * len(kernel)), 0))
        assert np.isnan(exact).any()


def test_gradient_of_nearest_is_one_operator() -> None:
    graph = Graph("nearest")
    b = Builder(graph)
    x, g = b.input("x", TensorType("float32", (2, 3, 4, 5))), b.input("g", TensorType("float32", (2, 3, 8, 10)))
    op = OPS["Repeat"](axis=3, times=2, rows=2)
    y = b.emit(op, x)
    dx, = op.vjp(b, [g], [x], y)
    assert dx is not None
    assert (graph.nodes[-1].op.name, dx.shape) == ("RepeatGrad", x.shape)
