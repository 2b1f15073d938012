"""Random operators: the distributions that they draw from, the same bits however work is cut, and what seeds do. Limits are five standard errors."""
from __future__ import annotations

import math

import numpy as np
import pytest
from evaluate import evaluate, run_kernel, run_reference
from onnx import helper, numpy_helper

from tileflow.graph import Builder, Graph, Op, type_of
from tileflow.graph.composite import declares, expanded
from tileflow.onnx_backend import Backend
from tileflow.ops.random import Bernoulli, Multinomial, RandomBits, RandomNormal, RandomUniform

N = 200_000


def drawn(op: Op, *arrays: np.ndarray) -> np.ndarray:
    """By kernels."""
    graph = Graph("random")
    b = Builder(graph)
    inputs = [b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    y, = b.emit(op, *inputs)
    graph.outputs = [y]
    whole = expanded(graph, lambda node: not declares(node.op, "kernel"))
    for node in whole.nodes:
        for v in node.outputs:
            v.producer = node
    return evaluate(whole, {f"x{i}": a for i, a in enumerate(arrays)}, run_kernel)[y.name]


def distance(x: np.ndarray, distribution: object) -> float:
    """Kolmogorov and Smirnov's distance times the root of the count: above 2.2 with a probability of 1 in 8,000."""
    x = np.sort(x.astype(np.float64))
    f = distribution(x)                                   # type: ignore[operator]
    steps = np.arange(len(x) + 1) / len(x)
    return float(max(np.max(f - steps[:-1]), np.max(steps[1:] - f)) * math.sqrt(len(x)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers(dtype: str) -> None:
    x = drawn(RandomUniform(shape=(N,), low=-1.0, high=3.0, dtype=dtype))
    assert x.dtype.name == dtype
    assert x.min() >= -1
    assert x.max() < 3
    assert abs(x.mean(dtype=np.float64) - 1) < 5 * math.sqrt(16 / 12 / N)
    assert abs(x.var(dtype=np.float64) - 16 / 12) < 5 * 16 * math.sqrt(1 / 180 / N)
    assert distance(x, lambda v: (v + 1) / 4) < 2.2
    near = np.corrcoef(x[:-1], x[1:])[0, 1]
    assert abs(near) < 5 / math.sqrt(N)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 1 - 2.0 ** -11), ("bfloat16", 1 - 2.0 ** -8)])
def test_narrow_uniform_numbers_stay_below_one(dtype: str, largest: float) -> None:
    x = drawn(RandomUniform(shape=(N,), dtype=dtype)).astype(np.float64)
    assert x.min() >= 0
    assert x.max() == largest
    assert abs(x.mean() - 0.5) < 0.005


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers(dtype: str) -> None:
    x = drawn(RandomNormal(shape=(N,), mean=2.0, scale=3.0, dtype=dtype)).astype(np.float64)
    assert abs(x.mean() - 2) < 5 * 3 / math.sqrt(N)
    assert abs(x.var() / 9 - 1) < 5 * math.sqrt(2 / N)
    z = (x - 2) / 3
    assert abs((z ** 3).mean()) < 5 * math.sqrt(15 / N)
    assert abs((z ** 4).mean() - 3) < 5 * math.sqrt(96 / N)
    assert distance(z, lambda v: 0.5 * (1 + np.vectorize(math.erf)(v / math.sqrt(2)))) < 2.2
    assert 4 < np.abs(z).max() < 6.8


def test_bernoulli_by_probability() -> None:
    p = np.repeat(np.array([0.0, 0.1, 0.5, 0.9, 1.0], np.float32), N // 5)
    x = drawn(Bernoulli(), p).reshape(5, -1)
    assert set(np.unique(x)) == {0, 1}
    shares = x.mean(1)
    assert shares[0] == 0
    assert shares[4] == 1
    np.testing.assert_allclose(shares[1:4], [0.1, 0.5, 0.9], atol=5 * 0.5 / math.sqrt(N / 5))


def test_multinomial_by_logarithms() -> None:
    p = np.array([[0.1, 0.0, 0.6, 0.3], [1.0, 0.0, 0.0, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        x = drawn(Multinomial(sample_size=N // 4, dtype="int64"), np.log(p) + 5)
    assert x.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=4) for row in x]) / (N // 4)
    np.testing.assert_allclose(shares, p, atol=5 * 0.5 / math.sqrt(N / 4))
    assert shares[0, 1] == 0


def test_bits_do_not_depend_on_how_work_is_cut() -> None:
    op = RandomBits(shape=(1000,), stream=2)
    one, = run_kernel(op, seed=5, micro=3)
    for workers in (2, 3, 7):
        assert np.array_equal(one, run_kernel(op, workers=workers, seed=5, micro=3)[0])
    assert np.array_equal(one, run_reference(op, seed=5, micro=3)[0])
    assert not np.array_equal(one, run_kernel(op, seed=6, micro=3)[0])
    assert not np.array_equal(one, run_kernel(op, seed=5, micro=4)[0])


def test_nodes_with_one_seed_draw_the_same_and_others_their_own() -> None:
    nodes = [helper.make_node("RandomNormal", [], [f"y{i}"], shape=[50], **seed) for i, seed in enumerate([{}, {}, {"seed": 1.5}, {"seed": 1.5}])]
    like = helper.make_node("RandomUniformLike", ["x"], ["y4"], low=2.0, high=5.0, dtype=11)
    graph = helper.make_graph([*nodes, like], "g", [helper.make_tensor_value_info("x", 1, [6])],
                              [helper.make_tensor_value_info(f"y{i}", 11 if i == 4 else 1, None) for i in range(5)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    results = [Backend.prepare(model, threads=n).run([np.zeros(6, np.float32)]) for n in (1, 2)]
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)
    y = results[0]
    assert not np.array_equal(y[0], y[1])
    assert np.array_equal(y[2], y[3])
    assert y[4].dtype == np.float64
    assert np.all((y[4] >= 2) & (y[4] < 5))


def test_a_known_condition_and_a_diagonal_are_constants() -> None:
    condition = numpy_helper.from_array(np.array([False, True, True]), "c")
    graph = helper.make_graph([helper.make_node("Compress", ["x", "c"], ["y"], axis=1), helper.make_node("EyeLike", ["x"], ["e"], k=1, dtype=7)], "g",
                              [helper.make_tensor_value_info("x", 1, [2, 4])],
                              [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_value_info("e", 7, None)], [condition])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    y, e = Backend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])).run([x])
    assert np.array_equal(y, x[:, 1:3])
    assert np.array_equal(e, np.eye(2, 4, 1, dtype=np.int64))
