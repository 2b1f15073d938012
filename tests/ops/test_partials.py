"""Sums of float16 products in float16: the host's coarse forms against their twins, and what asks for them."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate import run_kernel, run_reference
from paths import exhaustive

import tileflow
from tileflow import nn
from tileflow.graph import Builder, Graph, Hints, Op, Origin, type_of, verify
from tileflow.host.coarse import CoarseProducts
from tileflow.kernels.isa import cpu
from tileflow.lower.coarse import coarsen
from tileflow.lower.widen import widen
from tileflow.ops.conv import Conv, ConvInputGrad, ConvWeightGrad
from tileflow.ops.matmul import FusedMatMul, Gemm
from tileflow.system.errors import OptionError

Array = np.ndarray
RNG = np.random.default_rng(0)


def half(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float16)


def evaluate(graph: Graph, feeds: dict[str, Array], run: Any = run_reference) -> dict[str, Array]:
    """All values of a lowered graph by name."""
    verify(graph, lowered=True)
    values: dict[Any, Array] = {v: feeds[v.name] for v in graph.inputs}
    for node in graph.nodes:
        values.update(zip(node.outputs, run(node.op, *[None if v is None else values[v] for v in node.inputs]), strict=True))
    return {v.name: a for v, a in values.items()}


def graph_of(op: Op, *arrays: Array, partials: str | None = "float16") -> Graph:
    graph = Graph("one")
    b = Builder(graph, Origin(("layer",), hints=Hints(partials=partials)))
    graph.outputs = [*b.emit(op, *[b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)])]
    return graph


CASES: list[tuple[Op, list[Array]]] = [
    (FusedMatMul(transB=1, alpha=0.5), [half(3, 37), half(5, 37)]), (Gemm(transB=1), [half(7, 100), half(9, 100), half(9)]),
    (Conv(pads=(1, 0, 1, 1), strides=(2, 1)), [half(2, 4, 7, 6), half(6, 4, 3, 2), half(6)]),
    (Conv(group=2, dilations=(2, 1)), [half(2, 8, 9, 6), half(6, 4, 3, 2)]), (Conv(), [half(2, 16, 9), half(6, 16, 3)]),
    (ConvInputGrad(shape=(7, 6), strides=(2, 1), pads=(1, 0, 1, 1)), [half(2, 6, 4, 6), half(6, 4, 3, 2)]),
    (ConvWeightGrad(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), biased=True), [half(2, 4, 7, 6), half(2, 6, 4, 6)])]


@pytest.mark.parametrize(("op", "arrays"), CASES, ids=lambda c: str(c)[:40] if isinstance(c, Op) else "")
def test_coarse_forms_compute_the_operator_with_sums_in_float16(op: Op, arrays: list[Array]) -> None:
    """Kernels as the twins, but for where a rounding tips; both near the exact values, and not those of float32 sums."""
    graph = graph_of(op, *arrays)
    coarse = coarsen(graph)
    assert any(isinstance(node.op, CoarseProducts) for node in coarse.nodes)
    assert coarse.outputs == graph.outputs
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    twin, found = evaluate(coarse, feeds), evaluate(widen(coarse, cpu.current()), feeds, run_kernel)
    exact = op.reference(*[a.astype(np.float64) for a in arrays])
    size = op.reference(*[np.abs(a.astype(np.float64)) for a in arrays])
    for v, want, scale in zip(graph.outputs, exact, size, strict=True):
        np.testing.assert_array_less(np.abs(found[v.name].astype(np.float64) - want), 2.0 ** -9 * (scale + 1))
        np.testing.assert_array_less(np.abs(found[v.name].astype(np.float64) - twin[v.name]), 2.0 ** -9 * (scale + 1))


def test_a_long_sum_of_ones_stops_where_float16_does() -> None:
    """From 4096 on float16's last place is 4, and from 32768 on it is 32: 16 more are lost."""
    n = 1 << 16
    ones = [np.ones((1, n), np.float16), np.ones((n, 1), np.float16)]
    coarse, fine = coarsen(graph_of(FusedMatMul(), *ones)), graph_of(FusedMatMul(alpha=2.0 ** -4), *ones)
    assert float(evaluate(coarse, {"x0": ones[0], "x1": ones[1]}, run_kernel)[coarse.outputs[0].name][0, 0]) == 32768
    assert float(evaluate(fine, {"x0": ones[0], "x1": ones[1]}, run_kernel)[fine.outputs[0].name][0, 0]) == n / 16


def test_only_float16_operands_with_the_hint_become_coarse() -> None:
    for dtype, partials in (("float32", "float16"), ("bfloat16", "float16"), ("float16", None), ("float16", "float32")):
        graph = graph_of(FusedMatMul(), half(3, 20).astype(dtype), half(20, 4).astype(dtype), partials=partials)
        assert coarsen(graph) is graph


def classifier() -> nn.Sequential:
    nn.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


@exhaustive
def test_a_process_that_imports_the_package_alone_has_the_forms() -> None:
    """The long sum of ones, by a compiled model: float32 sums are rounded to infinity at the end, float16's stop before."""
    code = """
import numpy as np, tileflow
from tileflow import nn
class Net(nn.Module):
    def forward(self, x): return x @ np.ones((65536, 1), np.float32)
x = np.ones((2, 65536), np.float16)
for partials in ("float32", "float16"):
    print(float(np.asarray(tileflow.inference_model(Net(), partials=partials)(x)).ravel()[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(tileflow.__file__).parents[1])
    assert done.stdout.split() == ["inf", "32768.0"]


def trained(net: nn.Module, **options: Any) -> tuple[list[float], Any]:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((16, 1, 8, 8)).astype(np.float32), rng.integers(0, 5, 16)
    model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.05), precision="16-true", **options)
    return [float(np.asarray(model(x, y)[-1]).mean()) for _ in range(12)], model


def coarse_nodes(model: Any) -> list[str]:
    """Names of the layers whose products add up in float16, forward and backward."""
    return sorted({name for node in coarsen(model.program.micro).nodes if isinstance(node.op, CoarseProducts) for name in node.origin.sources})


def test_trainings_by_option_pattern_and_layer() -> None:
    fine, model = trained(classifier())
    assert not coarse_nodes(model)
    everything, model = trained(classifier(), partials="float16")
    assert coarse_nodes(model) == ["0", "3"]
    assert everything != fine
    assert everything[-1] < 0.5 * everything[0]
    _, model = trained(classifier(), partials={"3": "float16"})
    assert coarse_nodes(model) == ["3"]
    net = classifier()
    nn.set_partials(net[0], "float16")
    _, model = trained(net)
    assert coarse_nodes(model) == ["0"]
    net = classifier()
    nn.set_partials(net[0], "float32")
    _, model = trained(net, partials="float16")
    assert coarse_nodes(model) == ["3"]


@pytest.mark.parametrize(("options", "sentence"), [
    (dict(partials="float16", precision="32"), "partials has no effect, for nothing is computed in float16"),
    (dict(partials="float16", precision="bf16-true"), "partials has no effect"),
    (dict(partials={"nothing*": "float16"}, precision="16-true"), "the pattern 'nothing\\*' fits no operator")])
def test_what_has_no_effect_is_refused(options: dict[str, Any], sentence: str) -> None:
    model = tileflow.training_model(classifier(), optimizer=tileflow.optim.SGD(lr=0.05), **options)
    with pytest.raises(OptionError, match=sentence):
        model(np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))
    with pytest.raises(OptionError, match="Option partials must be float32 or float16"):
        tileflow.options.options.Options(partials="bfloat16")
    with pytest.raises(OptionError, match="Partial sums are float16 or float32"):
        nn.set_partials(nn.Linear(2, 2), "int8")
