"""Products that a file writes in several operators: scaled operands and turned results become one product, and near
misses stay as they are."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evaluate import evaluate
from lowered import run

from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.graph.rules import FOLDED
from tileflow.host.rewrite import rewrite
from tileflow.passes.autograd import gradients
from tileflow.passes.gather import gather


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {v.name: rng.standard_normal(v.shape).astype(v.type.numpy) for v in graph.inputs}


def exported(b: Builder, batch: int, heads: int, queries: int, keys: int, d: int) -> list[Value]:
    """Attention as PyTorch's exporter writes it, over [batch, positions, heads, size]: q, k, v and what it makes of
    them."""
    inputs = [b.input(n, TensorType("float64", (batch, t, heads, d)))
              for n, t in (("q", queries), ("k", keys), ("v", keys))]
    q, k, v = (b.Transpose(x, perm=(0, 2, 1, 3)) for x in inputs)
    root = b.constant(np.array([d ** -0.25]))
    flat = b.Transpose(b.Reshape(k, shape=(batch * heads, keys, d)), perm=(0, 2, 1))
    scores = b.MatMul(b.Mul(q, root), b.Mul(b.Reshape(flat, shape=(batch, heads, d, keys)), root))
    seen = b.MatMul(b.Softmax(b.Add(scores, b.constant(np.triu(np.full((queries, keys), -np.inf), 1))), axis=-1), v)
    return [*inputs, b.Transpose(seen, perm=(0, 2, 1, 3))]


@pytest.mark.parametrize("sizes", [(2, 3, 5, 5, 4), (1, 1, 3, 3, 3), (3, 2, 1, 1, 2), (1, 4, 7, 9, 7)], ids=str)
def test_attention_of_pytorch_is_found_forwards_and_backwards(sizes: tuple[int, int, int, int, int]) -> None:
    def made(found: bool) -> Graph:
        graph = Graph("attention")
        b = Builder(graph)
        *inputs, y = exported(b, *sizes)
        graph.outputs.append(y)
        if found:
            gather(graph, FOLDED)
            assert names(graph).count("FusedMatMul") == 1
            assert not {"Mul", "Reshape"} & set(names(graph))
        graph.outputs += gradients(graph, Builder(graph).ReduceSum(Builder(graph).Mul(y, y), keepdims=0), inputs)
        graph.prune()
        return graph

    plain, graph = made(False), made(True)
    fused = rewrite(graph)
    assert (names(fused).count("FusedAttention"), names(fused).count("FusedAttentionGrad"),
            names(fused).count("Softmax")) == (1, 1, 0)
    given = feeds(plain)
    wanted, got = evaluate(plain, given), run(fused, given)
    for a, v in zip(plain.outputs, fused.outputs, strict=True):
        np.testing.assert_allclose(got[v], wanted[a.name], rtol=1e-9, atol=1e-11)


def scaled(change: Callable[[Builder, Value, Value], tuple[Value, Value]], dtype: str = "float64",
           lead: tuple[int, ...] = (2, 3)) -> Graph:
    """A product of what `change` makes of x [*lead, 4, 5] and y [*lead, 5, 4]."""
    graph = Graph("scaled")
    b = Builder(graph)
    x, y = (b.input(n, TensorType(dtype, (*lead, *s))) for n, s in (("x", (4, 5)), ("y", (5, 4))))
    graph.outputs.append(b.MatMul(*change(b, x, y)))
    return graph


def number(b: Builder, x: Value, value: Any) -> Value:
    return b.constant(np.array([value], x.type.numpy))


def seen_and_turned(b: Builder, x: Value, middle: tuple[int, ...], perm: tuple[int, ...],
                    last: tuple[int, ...]) -> Value:
    return b.Mul(b.Reshape(b.Transpose(b.Reshape(x, shape=middle), perm=perm), shape=last), number(b, x, 0.5))


@pytest.mark.parametrize(("change", "flags"), [
    (lambda b, x, y: (b.Mul(x, number(b, x, 0.5)), y), (0.5, 0, 0)),
    (lambda b, x, y: (x, b.Mul(number(b, x, -3.0), y)), (-3.0, 0, 0)),
    (lambda b, x, y: (b.Mul(x, number(b, x, 0.5)), b.Mul(y, number(b, x, 4.0))), (2.0, 0, 0)),
    (lambda b, x, y: (x, b.Mul(b.Transpose(x, perm=(0, 1, 3, 2)), number(b, x, 0.5))), (0.5, 0, 1)),
    (lambda b, x, y: (b.Mul(b.Transpose(y, perm=(0, 1, 3, 2)), number(b, x, 0.5)), y), (0.5, 1, 0)),
    (lambda b, x, y: (x, seen_and_turned(b, x, (6, 4, 5), (0, 2, 1), (2, 3, 5, 4))), (0.5, 0, 1)),
])
def test_scaled_operands_become_the_factor(change: Any, flags: tuple[float, int, int]) -> None:
    graph, plain = scaled(change), scaled(change)
    gather(graph, FOLDED)
    node, = graph.nodes
    assert (node.op.alpha, node.op.transA, node.op.transB) == flags
    given = feeds(plain)
    np.testing.assert_allclose(evaluate(graph, given)[graph.outputs[0].name],
                               evaluate(plain, given)[plain.outputs[0].name], rtol=1e-12, atol=1e-13)


def read_twice(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    z = b.Mul(x, number(b, x, 0.5))
    b.graph.outputs.append(z)
    return z, y


def asked_alone(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    z = b.Mul(x, number(b, x, 0.5))
    assert z.producer is not None
    z.producer.ask(type(z.producer.origin.hints)(available_memory_proportion=0.3))
    return z, y


@pytest.mark.parametrize("change", [
    lambda b, x, y: (b.Mul(x, b.constant(np.full((4, 1), 0.5))), y),  # a number for each row
    lambda b, x, y: (b.Mul(x, b.ReduceMax(y, axes=(0, 1, 2, 3), keepdims=0)), y),  # none that is known
    lambda b, x, y: (b.Mul(x, number(b, x, 0.0)), y), lambda b, x, y: (b.Mul(x, number(b, x, np.nan)), y),
    lambda b, x, y: (b.Mul(x, number(b, x, 1e30)), b.Mul(y, number(b, x, 1e-30))),
    lambda b, x, y: (b.Mul(x, number(b, x, np.inf)), y), lambda b, x, y: (b.Add(x, number(b, x, 0.5)), y),
    read_twice, asked_alone])
def test_what_is_no_scaled_product_stays(change: Any) -> None:
    graph = scaled(change)
    before = list(map(repr, graph.nodes))
    gather(graph, FOLDED)
    assert list(map(repr, graph.nodes)) == before


# rows that are no positions
@pytest.mark.parametrize(("middle", "perm", "last"), [((6, 5, 4), (0, 2, 1), (2, 3, 4, 5)),
                                                      # the first axes move, too
                                                      ((3, 2, 4, 5), (1, 0, 3, 2), (2, 3, 5, 4)),
                                                      ((6, 4, 5), (0, 2, 1), (3, 2, 5, 4))], ids=str)  # other heads
def test_other_turns_stay(middle: tuple[int, ...], perm: tuple[int, ...], last: tuple[int, ...]) -> None:
    def change(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        turned = seen_and_turned(b, x, middle, perm, last)
        left = turned.shape[-1]
        return b.input("z", TensorType("float64", (*turned.shape[:2], 3, turned.shape[-2]))) if left else x, turned
    graph, plain = scaled(change), scaled(change)
    gather(graph, FOLDED)
    assert names(graph).count("Transpose") == 1
    given = feeds(plain)
    np.testing.assert_allclose(evaluate(graph, given)[graph.outputs[0].name],
                               evaluate(plain, given)[plain.outputs[0].name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("dtype", "lead", "done"),
                         [("float32", (2, 3), True), ("float16", (2, 3), False), ("bfloat16", (2, 3), True),
                                                     ("float32", (), False)])
def test_float16_and_matrices_stay(dtype: str, lead: tuple[int, ...], done: bool) -> None:
    graph = scaled(lambda b, x, y: (b.Mul(x, number(b, x, 0.5)), y), dtype, lead)
    gather(graph, FOLDED)
    assert ("FusedMatMul" in names(graph)) is done


# ---- turned results

def turned(trans_a: int, trans_b: int, biased: bool = False, twice: bool = False) -> Graph:
    graph = Graph("turned")
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (7, 5) if trans_a else (5, 7)))
    y = b.input("y", TensorType("float64", (6, 7) if trans_b else (7, 6)))
    product = b.Gemm(x, y, *([b.input("c", TensorType("float64", (6,)))] if biased else []), transA=trans_a,
                     transB=trans_b, alpha=0.5)
    graph.outputs += [b.Transpose(product, perm=(1, 0)), *([product] if twice else [])]
    return graph


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_turned_product_is_the_product_of_turned_operands(trans_a: int, trans_b: int) -> None:
    graph = turned(trans_a, trans_b)
    made, given = rewrite(graph), feeds(graph)
    assert names(made) == ["Gemm"]
    assert (made.nodes[0].op.transA, made.nodes[0].op.transB) == (1 - trans_b, 1 - trans_a)
    np.testing.assert_allclose(run(made, given)[made.outputs[0]], evaluate(graph, given)[graph.outputs[0].name],
                               rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("other", [dict(biased=True), dict(twice=True)], ids=str)
def test_products_with_more_to_them_are_not_turned(other: dict[str, bool]) -> None:
    graph = turned(1, 0, **other)
    assert rewrite(graph) is graph


# ---- turned operands of one row

def of_a_turned(rows: int = 1, length: int = 32, dtype: str = "float32", perm: tuple[int, int] = (1, 0),
                twice: bool = False) -> Graph:
    graph = Graph("of a turned")
    b = Builder(graph)
    x = b.input("x", TensorType(dtype, (rows, length)))
    y = b.Transpose(b.input("y", TensorType(dtype, (5, length)[::1 if perm == (1, 0) else -1])), perm=perm)
    graph.outputs += [b.MatMul(x, y), *([y] if twice else [])]
    return graph


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_reads_what_is_turned_as_it_lies(dtype: str) -> None:
    graph = of_a_turned(dtype=dtype)
    made, given = rewrite(graph), feeds(graph)
    assert names(made) == ["Gemm"]
    np.testing.assert_allclose(run(made, given)[made.outputs[0]], evaluate(graph, given)[graph.outputs[0].name],
                               rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", [dict(rows=2), dict(length=31), dict(dtype="bfloat16"), dict(perm=(0, 1)),
                                   dict(twice=True)], ids=str)
def test_other_operands_are_turned_first(other: dict[str, Any]) -> None:
    graph = of_a_turned(**other)
    assert rewrite(graph) is graph
