"""Random graphs of the operators' samples: values after the whole street are the reference's, gradients those of differences in float64.

A seed names a graph: `python -m pytest "tests/graph/test_random_graphs.py::test_many_values[137]"`.
"""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import evaluate
from lowered import host_parts, host_passes, run, run_parts
from random_graphs import Array, Recipe, random_recipe, sum_of
from random_strategies import CLASSES, Images, Tokens

from tileflow import compiler, optim
from tileflow.graph import Builder, Graph, Value, type_of
from tileflow.loss import find
from tileflow.nn.module import record
from tileflow.passes.autograd import gradients
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program.batching import Batching
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
    program, parts = host_parts(compiler.inference(plain, Batching(1)).program)
    with np.errstate(all="ignore"):
        values = run_parts(program, parts, feeds)
    close(graph, {v.name: values[v] for v in program.outputs}, single, double)


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


@pytest.mark.parametrize("optimizer",
                         [optim.SGD(lr=0.1, momentum=0.9), optim.LAMB(lr=0.1, max_grad_norm=0.5), optim.AdamW(lr=0.1)],
                         ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("network", [Images, Tokens])
@pytest.mark.parametrize("checkpoints", [0, 2], ids=["kept", "rematerialised"])
def test_whole_updates(network: type[Images] | type[Tokens], optimizer: optim.Optimizer, checkpoints: int) -> None:
    """The last micro-batch of an update, its fold and the update: as the host has them they give the states that they
    give as they were written."""
    rng = np.random.default_rng(1)
    x, labels = network.rows(rng, 2), rng.integers(0, CLASSES, 2)
    graph = record(network(), [("x", type_of(x))], training=True, dtype="float32")
    options = compiler.CompileOptions(checkpoints=network.layers[:checkpoints])
    program = compiler.training(graph, find("cross_entropy"), optimizer, Batching(2, 2), options).program
    feeds = dict(zip((v.name for v in program.inputs), (x, labels), strict=True))
    states = {s.name: (0.5 + rng.random(s.input.shape)).astype(s.input.dtype) for s in program.states.values()}
    wanted, got = dict(states), dict(states)
    run_parts(program, dict(program.running), feeds, wanted)
    host, parts = host_parts(program)
    assert any(node.op.name == "Guarded" or node.op.name == "Fused" for node in parts["update"].nodes)
    run_parts(host, parts, feeds, got)
    changed = 0
    for name, array in wanted.items():
        changed += not np.array_equal(array, states[name])
        np.testing.assert_allclose(got[name].astype("f8"), array.astype("f8"), rtol=2e-4, atol=2e-5, err_msg=name)
    assert changed > len(program.micro.parameters)


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
