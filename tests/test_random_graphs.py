"""Random graphs of the operators' samples: values after the whole street are the reference's, gradients those of differences in float64.

A seed names a graph: `python -m pytest "tests/test_random_graphs.py::test_many_values[137]"`.
"""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import evaluate
from lowered import host_passes, run
from random_graphs import Array, Recipe, random_recipe, sum_of

from tileflow import compiler
from tileflow.autograd import gradients
from tileflow.graph import Builder, Graph, Value
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program import Batching
from tileflow.runtime.executable import make_engine
from tileflow.state.session import Session

FEW, MANY, COMPILED = 60, 3000, 150
STEP = 1e-5


def recipe(seed: int, smooth: bool = False) -> Recipe:
    rng = np.random.default_rng(seed)
    return random_recipe(rng, int(rng.integers(2, 9)), smooth)


def references(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return evaluate(graph, feeds)


def close(graph: Graph, found: dict[str, Array], single: dict[str, Array], double: dict[str, Array], names: list[str] | None = None) -> None:
    """Results of float32 against those of float64, within what the references in float32 are away from them."""
    for name in names or [v.name for v in graph.outputs]:
        got, wanted = found[name], double[name]
        assert got.dtype == single[name].dtype
        if got.dtype.kind != "f":
            np.testing.assert_array_equal(got, single[name], err_msg=name)
            continue
        wide = np.asarray(wanted, np.float64)
        narrow = single[name].astype(np.float64)
        known = np.isfinite(narrow) == np.isfinite(wide)               # elsewhere float32 itself meets a pole that float64 misses
        got, narrow, wide = got.astype(np.float64)[known], narrow[known], wide[known]
        finite = np.isfinite(wide)
        off = float(np.max(np.abs(narrow[finite] - wide[finite]), initial=0.0))
        scale = float(np.max(np.abs(wide[finite]), initial=1.0))
        np.testing.assert_allclose(got, wide, rtol=0, atol=20 * off + 2e-5 * scale, err_msg=f"{name}\n{graph.nodes}")


def check_values(seed: int) -> None:
    """After folding and all of the host's passes, computed by what these say."""
    made = recipe(seed)
    graph, feeds = made.build()
    single, double = references(graph, feeds), references(*made.build("float64"))
    plain, _ = made.build()
    cse(fold(plain))
    lowered = host_passes(plain)
    with np.errstate(all="ignore"):
        values = run(lowered, feeds)
    close(graph, {v.name: values[v] for v in lowered.outputs}, single, double)


def check_engine(seed: int) -> None:
    """By the compiled engine."""
    made = recipe(seed)
    graph, feeds = made.build()
    single, double = references(graph, feeds), references(*made.build("float64"))
    again, _ = made.build()
    engine = make_engine(compiler.inference(again, Batching(1)).program, Session())
    results = engine.run(feeds)
    close(graph, {name: results[name][0] for name in (v.name for v in graph.outputs)}, single, double)


def differentiated(made: Recipe, floats: str) -> tuple[Graph, dict[str, Array], Value, list[Value]]:
    graph, feeds = made.build(floats, smooth=True)
    inputs = [v for v in graph.inputs if v.type.is_float]
    b = Builder(graph)
    loss = sum_of(b, graph.outputs, lambda v: np.random.default_rng(v.type.size).standard_normal(v.shape).astype(floats))
    graph.outputs = [loss, *gradients(graph, loss, inputs)]
    return graph, feeds, loss, inputs


def check_gradients(seed: int) -> None:
    """The slope along a random direction, and the lowered gradients beside the reference's."""
    made = recipe(seed, smooth=True)
    graph, feeds, loss, inputs = differentiated(made, "float64")
    double = references(graph, feeds)
    rng = np.random.default_rng(seed + 1)
    direction = {v.name: rng.standard_normal(v.shape) for v in inputs}

    def value(step: float) -> float:
        moved = {name: a + step * direction[name] if name in direction else a for name, a in feeds.items()}
        return float(references(graph, moved)[loss.name])

    def slope(step: float) -> float:
        return (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)

    found = sum(float(np.sum(double[g.name] * direction[v.name])) for v, g in zip(inputs, graph.outputs[1:], strict=True))
    size = sum(float(np.sum(np.abs(double[g.name] * direction[v.name]))) for v, g in zip(inputs, graph.outputs[1:], strict=True))
    wanted, again, allowed = slope(STEP), slope(STEP / 3), 1e-6 * size + 1e-8
    if abs(wanted - again) <= allowed:                             # no step or corner is near
        assert abs(found - wanted) <= allowed, f"{found} against {wanted}\n{graph.nodes}"
    narrow, narrow_feeds, *_ = differentiated(made, "float32")
    single = references(narrow, narrow_feeds)
    names = [v.name for v in narrow.outputs]
    lowered = host_passes(cse(fold(narrow)))
    with np.errstate(all="ignore"):
        values = run(lowered, narrow_feeds)
    by_name = dict(zip(names, (v.name for v in graph.outputs), strict=True))
    close(narrow, {n: values[v] for n, v in zip(names, lowered.outputs, strict=True)}, single, {n: double[o] for n, o in by_name.items()}, names)


def test_the_graphs_use_every_kind_of_operator() -> None:
    used = {op.name for seed in range(FEW) for op, _, _ in recipe(seed).steps}
    assert len(used) > 60, sorted(used)


@pytest.mark.parametrize("seed", range(FEW))
def test_values(seed: int) -> None:
    check_values(seed)


@pytest.mark.parametrize("seed", range(FEW))
def test_gradients(seed: int) -> None:
    check_gradients(seed)


@pytest.mark.parametrize("seed", range(3))
def test_values_of_the_engine(seed: int) -> None:
    check_engine(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(FEW, MANY, 20))
def test_many(seed: int) -> None:
    for number in range(seed, seed + 20):
        check_values(number)
        check_gradients(number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(FEW, FEW + COMPILED))
def test_many_of_the_engine(seed: int) -> None:
    check_engine(seed)
