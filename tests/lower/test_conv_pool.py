"""Max pooling on a convolution's finished planes: bits of the separate kernels, and where the host lowering does it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import run_kernel
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.graph import Builder, Graph, Value, type_of, verify
from tileflow.host.pool import WinningMaxPool
from tileflow.kernels.conv import pools
from tileflow.kernels.isa import cpu
from tileflow.lower import passes
from tileflow.lower.epilogues import fuse_epilogues
from tileflow.lower.fuse import fuse
from tileflow.lower.plan import Plan
from tileflow.lower.pool_fusion import fuse_pools
from tileflow.ops.conv import Conv
from tileflow.ops.pool import MaxPool

Array = np.ndarray
CASES = {
    "tutorial 1": ((9, 1, 20, 20), (10, 1, 5, 5), {}),
    "tutorial 2": ((8, 10, 12, 12), (20, 10, 5, 5), {}),
    "odd": ((8, 3, 13, 11), (7, 3, 3, 3), {}),
    "groups": ((4, 6, 9, 8), (10, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "stride": ((8, 2, 11, 20), (5, 2, 3, 4), {"strides": (1, 2), "pads": (0, 2, 1, 1), "dilations": (2, 1)}),
    "images together": ((33, 400, 4, 4), (24, 400, 3, 3), {"pads": (1, 1, 1, 1)}),
    "few units": ((2, 4, 8, 2), (40, 4, 3, 1), {}),
    "smallest": ((8, 1, 2, 2), (1, 1, 1, 1), {}),
}


def draw(name: str, dtype: str) -> tuple[list[Array], dict[str, Any]]:
    """x, weights and bias; among x are NaN, infinities and many equal numbers."""
    rng = np.random.default_rng(len(name))
    x, w, attributes = CASES[name]
    given = [rng.integers(-2, 3, s).astype(dtype) for s in (x, w, w[:1])]
    given[0].flat[rng.integers(0, given[0].size, 5)] = [np.nan, np.inf, -np.inf, -0.0, np.nan]
    return given, attributes


def build(name: str, dtype: str, winners: bool, before: bool, after: bool, **pool: Any) -> tuple[Graph, list[Array]]:
    """Convolution, perhaps elementwise work, max pooling, perhaps elementwise work."""
    given, attributes = draw(name, dtype)
    rng = np.random.default_rng(1)
    graph = Graph("pooled")
    b = Builder(graph)

    def also(shape: Sequence[int]) -> Value:
        given.append(rng.standard_normal(tuple(shape)).astype(dtype))
        return b.input(f"also {len(given)}", type_of(given[-1]))

    y = b.Conv(*[b.input(f"x{i}", type_of(a)) for i, a in enumerate(given)], **attributes)
    if before:
        y = b.LeakyRelu(b.Add(b.Mul(y, also((y.shape[1], 1, 1))), also(y.shape)), alpha=0.3)
    kind = WinningMaxPool if winners else MaxPool
    made = b.emit(kind(**{"kernel_shape": (2, 2), "strides": (2, 2), **pool}), y)
    graph.outputs = list(made)
    if after:
        p = made[0]
        total = b.Add(b.Mul(p, also((p.shape[1], 1, 1))), also(p.shape))
        graph.outputs = [b.LeakyRelu(total, alpha=0.1), *made[1:], total]
    return verify(graph), given


def run(graph: Graph, given: Sequence[Array], workers: int) -> list[Array]:
    """The outputs by the kernels."""
    values = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        made = run_kernel(node.op, *[None if v is None else values[v] for v in node.inputs], workers=workers)
        values.update(zip(node.outputs, made, strict=True))
    return [values[v] for v in graph.outputs]


def pooled(graph: Graph) -> Graph:
    """As the lowering does it."""
    return fuse_epilogues(fuse_pools(fuse_epilogues(fuse(graph)), cpu.current()))


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize(("name", "dtype", "winners", "before", "after"), [
    ("tutorial 1", "float32", True, False, True), paths.rare("tutorial 2", "float32", False, False, True),
    ("odd", "float32", True, True, True), paths.rare("groups", "float32", True, True, False),
    paths.rare("stride", "float64", True, True, True), paths.rare("few units", "float32", False, True, True),
    paths.rare("images together", "float32", True, False, True),
    paths.rare("smallest", "float64", True, False, False)])
def test_bits_are_those_of_separate_kernels(name: str, dtype: str, winners: bool, before: bool, after: bool, path: str):
    with cpu.forced(path):
        graph, given = build(name, dtype, winners, before, after)
        joined = pooled(graph)
        assert len(joined.nodes) == 1
        wanted = run(fuse(graph), given, 1)
        for workers in (1, 2, 5):
            found = run(joined, given, workers)
            assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted], workers


@pytest.mark.parametrize(("name", "dtype"), [("tutorial 1", "float32"), ("odd", "float64")])
def test_maxima_are_those_of_torch(name: str, dtype: str):
    torch = needs("torch")
    graph, given = build(name, dtype, False, False, False)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(a.shape).astype(dtype) for a in given]
    given[0].flat[3] = np.nan
    found, = run(pooled(graph), given, 2)
    how = CASES[name][2]
    x, w, bias = map(torch.from_numpy, given)
    top, left, bottom, right = how.get("pads", (0, 0, 0, 0))
    y = torch.nn.functional.conv2d(torch.nn.functional.pad(x, (left, right, top, bottom)), w, bias, how.get("strides", 1), 0,
                                   how.get("dilations", 1), how.get("group", 1))
    wanted = torch.nn.functional.max_pool2d(y, 2).numpy()
    assert np.isnan(found).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("pool", [{"kernel_shape": (3, 3)}, {"strides": (1, 1)}, {"pads": (1, 1, 1, 1)}, {"ceil_mode": 1, "pads": (0, 0, 1, 1)}])
def test_other_windows_stay_apart(pool: dict[str, Any]):
    graph, _ = build("odd", "float32", True, False, False, **pool)
    assert fuse_pools(graph, cpu.current()) is graph


def test_a_product_that_others_read_or_want_is_kept():
    graph, _ = build("odd", "float32", False, False, False)
    y = graph.nodes[0].outputs[0]
    assert fuse_pools(graph, cpu.current(), [y]) is graph
    graph.outputs.append(Builder(graph).Relu(y))
    assert fuse_pools(graph, cpu.current()) is graph


def test_only_planes_that_stay_in_the_cache_are_pooled_there():
    path = cpu.current()
    assert pools(Conv(group=10).problem((16, 10, 12, 12), (20, 1, 5, 5)), "f4", path)
    assert pools(Conv().problem((16, 1, 20, 20), (10, 1, 5, 5)), "f4", path)
    assert not pools(Conv().problem((16, 1, 28, 28), (10, 1, 5, 5)), "f4", path)                       # 23 KB
    assert not pools(Conv(pads=(1, 1, 1, 1)).problem((16, 3, 64, 64), (64, 3, 3, 3)), "f4", path)      # 1 MiB a unit
    assert not pools(Conv().problem((1, 1, 28, 28), (10, 1, 5, 5)), "f4", path)                        # cut into rows for the workers


# ---- models

class Net(nn.Module):
    """The MNIST tutorial's network on small images."""

    def __init__(self) -> None:
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Linear(20, 10)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.pool(self.conv1(x)).relu()
        return self.fc(self.pool(self.conv2(x)).relu().flatten())


def pooled_nodes(plan: Plan) -> int:
    """How many rows compute a convolution and its pooling in one."""
    ops = [row.node.op for row in plan.micro.rows if row.node is not None and row.leaf.name == "conv_forward"]
    return sum("pooled" in hosting.added(op) for op in ops)


def trained() -> tuple[dict[str, Array], Plan]:
    nn.manual_seed(0)
    net = Net()
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.05))
    rng = np.random.default_rng(2)
    for _ in range(3):
        model(rng.standard_normal((8, 1, 16, 16)).astype(np.float32), rng.integers(0, 10, 8))
    return net.state_dict(), model.plan


def inferred() -> tuple[Array, Plan]:
    nn.manual_seed(0)
    model = tileflow.inference_model(Net())
    found = model(np.random.default_rng(2).standard_normal((8, 1, 16, 16)).astype(np.float32))
    return np.asarray(found), model.plan


def test_training_pools_in_the_convolutions_with_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    joined, plan = trained()
    assert pooled_nodes(plan) == 2
    assert not [row for row in plan.micro.rows if row.leaf.name.startswith("max_halves")]
    monkeypatch.setattr(passes, "fuse_pools", lambda graph, cpu, keep: graph)
    apart, plan = trained()
    assert pooled_nodes(plan) == 0
    assert {n: a.tobytes() for n, a in joined.items()} == {n: a.tobytes() for n, a in apart.items()}


def test_inference_pools_in_the_convolutions_with_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    joined, plan = inferred()
    assert pooled_nodes(plan) == 2
    assert [row.leaf.name for row in plan.micro.rows].count("conv_forward") == 2
    assert not [row for row in plan.micro.rows if row.leaf.name.startswith(("max_halves", "elementwise"))]
    monkeypatch.setattr(passes, "fuse_pools", lambda graph, cpu, keep: graph)
    apart, _ = inferred()
    assert joined.tobytes() == apart.tobytes()
