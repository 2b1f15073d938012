"""Fused attention: kernels against float64 and PyTorch, special values, gradients; where the host finds it in a graph."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluate import check_gradient, check_kernel, evaluate, run_kernel

from tileflow import nn
from tileflow.autograd import gradients
from tileflow.errors import ShapeError, TypeMismatchError
from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.graph.rewrite import rewrite
from tileflow.kernels import cpu
from tileflow.kernels.attention import KEYS, QUERIES, scratch_elements
from tileflow.nn.module import record
from tileflow.ops.attention import FusedAttention, FusedAttentionGrad
from tileflow.ops.attention_fusion import causal_reach

rng = np.random.default_rng(11)
NONE = (False, False, False, False)


def operands(batch: int, heads: int, key_heads: int, queries: int, keys: int, d: int, e: int, inside: tuple[bool, ...] = NONE,
             dtype: str = "float32") -> list[np.ndarray]:
    """q, k, v and a gradient of the result."""
    shapes = [(batch, heads, queries, d), (batch, key_heads, keys, d), (batch, key_heads, keys, e), (batch, heads, queries, e)]
    return [rng.standard_normal([s[0], s[2], s[1], s[3]] if i else s).astype(dtype) for s, i in zip(shapes, inside, strict=True)]


def check(op: FusedAttention, q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, mask: np.ndarray | None = None,
          tolerance: float = 3e-6) -> None:
    """Forward and backward kernels against the references in float64."""
    extra = [] if mask is None else [mask]
    y, lse = check_kernel(op, q, k, v, *extra, rtol=1e-4, atol=1e-5)
    wide = [np.float64(a) for a in (q, k, v, *extra)]
    wanted, wanted_lse = op.reference(*wide)
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse, wanted_lse, rtol=tolerance, atol=tolerance)
    gradient = FusedAttentionGrad(**op.attributes())
    found = check_kernel(gradient, g, q, k, v, mask, y, lse, rtol=1e-3, atol=1e-4)
    wanted = gradient.reference(np.float64(g), *wide[:3], wide[3] if extra else None, wanted, wanted_lse)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=5 * tolerance * max(1, abs(b).max(initial=0)))


@pytest.mark.parametrize("path", cpu.available())
@pytest.mark.parametrize(("sizes", "reach", "inside", "masked"), [
    ((1, 1, 1, 1, 1, 1, 1), None, NONE, None), ((2, 3, 3, 7, 5, 13, 4), None, NONE, (2, 1, 1, 5)),
    ((1, 4, 2, QUERIES + 3, KEYS + 17, 16, 16), 0, NONE, None),
    ((2, 2, 1, 31, 2 * KEYS + 1, 5, 9), 240, (True, False, True, True), (1, 2, 31, 2 * KEYS + 1)),
    ((1, 2, 2, 2 * QUERIES, 3, 8, 8), None, (False, True, False, False), (1, 1, 1, 3)), ((2, 1, 1, 37, 149, 64, 64), 3, (True,) * 4, (2, 1, 37, 149)),
])
def test_kernels(path: str, sizes: Any, reach: int | None, inside: tuple[bool, bool, bool, bool], masked: tuple[int, ...] | None) -> None:
    with cpu.forced(path):
        mask = None if masked is None else rng.standard_normal(masked).astype("float32")
        check(FusedAttention(scale=sizes[5] ** -0.5, reach=reach, inside=inside), *operands(*sizes, inside), mask)


def test_float64() -> None:
    q, k, v, g = operands(2, 2, 1, 19, 140, 6, 3, dtype="float64")
    check(FusedAttention(scale=0.4, reach=100), q, k, v, g, tolerance=1e-12)


@pytest.mark.parametrize("shape", [(0, 2, 2, 3, 4, 5, 6), (2, 2, 2, 0, 4, 5, 6), (2, 2, 2, 3, 0, 5, 6)])
def test_nothing_to_see(shape: Any) -> None:
    q, k, v, g = operands(*shape)
    y, lse = check_kernel(FusedAttention(), q, k, v)
    assert not y.any()
    check_kernel(FusedAttentionGrad(), g, q, k, v, None, y, lse)


@pytest.mark.parametrize(("causal", "key_heads", "masked"), [(False, 4, False), (True, 4, False), (False, 2, True), (True, 1, False)])
def test_against_torch(causal: bool, key_heads: int, masked: bool) -> None:
    torch = pytest.importorskip("torch")
    q, k, v, g = operands(2, 4, key_heads, 150, 150, 24, 24)
    mask = np.where(rng.random((2, 1, 150, 150)) < 0.3, -np.inf, 0).astype("float32") if masked else None
    there = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*there, None if mask is None else torch.tensor(mask), is_causal=causal,
                                                              enable_gqa=True)
    wanted.backward(torch.tensor(g))
    op = FusedAttention(scale=24 ** -0.5, reach=0 if causal else None)
    y, lse = run_kernel(op, q, k, v, *([] if mask is None else [mask]))
    np.testing.assert_allclose(y, wanted.detach(), rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(run_kernel(FusedAttentionGrad(**op.attributes()), g, q, k, v, mask, y, lse), there, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=2e-5)


def test_special_values() -> None:
    """NaN and +inf scores spoil their query alone; -inf hides a key, in whole blocks, too; a query without keys gets NaN."""
    q, k, v, _ = operands(1, 1, 1, 20, 2 * KEYS + 9, 8, 8)
    mask = np.zeros((1, 1, 20, k.shape[2]), "float32")
    mask[..., 1, :], mask[..., 2, :KEYS], mask[..., 3, KEYS:] = -np.inf, -np.inf, -np.inf
    mask[..., 4, 5], mask[..., 5, 200], mask[..., 6, 3] = np.nan, np.inf, -np.inf
    y, lse = check_kernel(FusedAttention(scale=0.3), q, k, v, mask, rtol=1e-4, atol=1e-6)
    assert np.isnan(y[0, 0, [1, 4, 5]]).all()
    assert np.isfinite(np.delete(y[0, 0], [1, 4, 5], 0)).all()
    assert np.isneginf(lse[0, 0, 1])
    big = check_kernel(FusedAttention(), q * 1e4, k * 1e4, v, rtol=1e-3, atol=1e-3)[0]
    assert np.isfinite(big).all()


def test_gradient_of_the_reference() -> None:
    for inside, reach in ((NONE, None), ((True, False, True, True), 1)):
        q, k, v, _ = operands(2, 4, 2, 3, 4, 3, 2, inside, "float64")
        check_gradient(FusedAttention(scale=0.7, reach=reach, inside=inside), q, k, v, rng.standard_normal((1, 4, 1, 4)), wrt=(0, 1, 2), outputs=(0,))


def test_scratch_is_not_quadratic() -> None:
    assert scratch_elements(8192, 8192, 64, 64, "f4", True) == scratch_elements(QUERIES, KEYS, 64, 64, "f4", True) < 100_000


def test_errors() -> None:
    q, k = TensorType("float32", (2, 4, 3, 5)), TensorType("float32", (2, 3, 6, 5))
    with pytest.raises(ShapeError, match="the key heads divide the heads"):
        FusedAttention().infer(q, k, k)
    with pytest.raises(ShapeError, match=r"the mask is float32\[3, 6\]; it must have the 6 keys"):
        FusedAttention().infer(q, q.with_shape((2, 4, 6, 5)), q.with_shape((2, 4, 6, 5)), q.with_shape((3, 6)))
    with pytest.raises(TypeMismatchError, match="all must be float32 or all float64"):
        FusedAttention().infer(q, q.with_dtype("float64"), q)


# ---- where the host finds it

def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of a rewritten graph by kernels. Its values are those of the graph it came from, so `verify` does not hold for them."""
    values: dict[Value, np.ndarray] = {**graph.constants, **{v: feeds[v.name] for v in graph.inputs}}
    for node in graph.nodes:
        values.update(zip(node.outputs, run_kernel(node.op, *[None if v is None else values[v] for v in node.inputs]), strict=True))
    return {v.name: a for v, a in values.items()}


def built(form: str, b: Builder, x: list[Value]) -> Value:
    """Attention as an exporter may write it, from q, k, v and a mask."""
    q, k, v, mask = x
    if form == "transposed":               # [batch, positions, heads, size]
        q, v = b.Transpose(q, perm=(0, 2, 1, 3)), b.Transpose(v, perm=(0, 2, 1, 3))
        scores = b.Div(b.MatMul(q, b.Transpose(k, perm=(0, 2, 3, 1))), b.scalar(3 ** 0.5, q))
        y = b.MatMul(b.Softmax(b.Add(scores, mask), axis=-1), v)
        return b.Transpose(y, perm=(0, 2, 1, 3))
    if form == "twice transposed":
        q, k, v = (b.Transpose(z, perm=(0, 2, 1, 3)) for z in (q, k, v))
        scores = b.Mul(b.scalar(0.5, q), b.MatMul(q, b.Transpose(k, perm=(0, 1, 3, 2))))
        return b.MatMul(b.Softmax(b.Add(mask, scores), axis=3), v)
    if form == "grouped":                  # [batch, key heads, group, positions, size]
        scores = b.FusedMatMul(q, k, transB=1, alpha=0.5)
        return b.MatMul(b.Softmax(b.Add(scores, mask), axis=-1), v)
    return b.MatMul(b.Softmax(b.Add(b.FusedMatMul(q, k, transB=1, alpha=0.5), mask), axis=-1), v)


FORMS = {"transposed": [(2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 4), (2, 1, 1, 6)], "plain": [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), (1, 3, 5, 6)],
         "twice transposed": [(2, 5, 3, 4), (2, 6, 3, 4), (2, 6, 3, 4), (5, 6)], "three": [(3, 5, 4), (3, 6, 4), (3, 6, 4), (3, 1, 6)],
         "grouped": [(2, 2, 3, 5, 4), (2, 2, 1, 6, 4), (2, 2, 1, 6, 4), (2, 1, 1, 5, 6)],
         "shared": [(2, 3, 5, 4), (2, 1, 6, 4), (2, 1, 6, 4), (5, 6)]}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_found_and_equal(form: str, training: bool) -> None:
    graph = Graph(form)
    b = Builder(graph)
    x = [b.input(name, TensorType("float64", shape)) for name, shape in zip("qkvm", FORMS[form], strict=True)]
    y = built(form, b, x)
    graph.outputs.append(y)
    if training:
        loss = b.ReduceSum(b.Mul(y, b.constant(rng.standard_normal(y.shape))), keepdims=0)
        graph.outputs += gradients(graph, loss, x[:3])
    graph.prune()
    before = list(map(repr, graph.nodes))
    fused = rewrite(graph)
    assert list(map(repr, graph.nodes)) == before, "the graph itself was changed"
    assert names(fused).count("FusedAttention") == 1
    assert names(fused).count("FusedAttentionGrad") == int(training)
    assert not {"Softmax", "SoftmaxGrad", "Transpose", "FusedMatMul"} & set(names(fused))
    feeds = {v.name: rng.standard_normal(v.shape) for v in x}
    wanted, got = evaluate(graph, feeds), run(fused, feeds)
    for v in graph.outputs:
        np.testing.assert_allclose(got[v.name], wanted[v.name], rtol=1e-9, atol=1e-11)


def test_causal_mask_is_recognised() -> None:
    for fill in (-np.inf, np.finfo(np.float32).min):
        mask = np.triu(np.full((5, 7), fill, np.float32), 3)
        assert causal_reach(mask) == 2
        graph = Graph("causal")
        b = Builder(graph)
        q, k = (b.input(name, TensorType("float32", (2, 3, n, 4))) for name, n in (("q", 5), ("k", 7)))
        graph.outputs.append(b.MatMul(b.Softmax(b.Add(b.FusedMatMul(q, k, transB=1), b.constant(mask)), axis=-1), k))
        node, = rewrite(graph).nodes
        assert node.op == FusedAttention(reach=2)
        feeds = {"q": rng.standard_normal((2, 3, 5, 4)).astype("float32"), "k": rng.standard_normal((2, 3, 7, 4)).astype("float32")}
        name = graph.outputs[0].name
        np.testing.assert_allclose(run(rewrite(graph), feeds)[name], evaluate(graph, feeds)[name], rtol=1e-5, atol=1e-6)
    assert causal_reach(np.zeros((2, 2), np.float32)) == 1
    assert causal_reach(np.array([[0, 0], [-np.inf, 0]], np.float32)) is None
    assert causal_reach(np.array([[0, -1e4], [0, 0]], np.float32)) is None


@pytest.mark.parametrize("why", ["dropout", "mask gradient", "weights wanted", "other axis", "scaled mask"])
def test_left_alone(why: str) -> None:
    graph = Graph(why)
    b = Builder(graph)
    q, k, v, mask = (b.input(name, TensorType("float32", shape)) for name, shape in zip("qkvm", FORMS["plain"], strict=True))
    scores = b.Add(b.FusedMatMul(q, k, transB=1), mask)
    if why == "scaled mask":
        scores = b.Mul(scores, b.scalar(0.5, scores))
    weights = b.Softmax(scores, axis=2 if why == "other axis" else -1)
    y = b.MatMul(b.Dropout(weights, ratio=0.1, training_mode=1) if why == "dropout" else weights, v)
    graph.outputs += [y, *([weights] if why == "weights wanted" else [])]
    if why == "mask gradient":
        graph.outputs += gradients(graph, b.ReduceSum(y, keepdims=0), [q, mask])
    assert rewrite(graph) is graph


def test_layer_of_a_training_graph_is_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: nn.Tensor) -> nn.Tensor:      # type: ignore[override]
            return self.attention(x).sum()
    graph = record(Net(), [("x", TensorType("float32", (2, 4, 8)))], training=True, dtype="float32")
    gradients(graph, graph.outputs[0], [s.input for s in graph.states])
    assert names(rewrite(graph)).count("FusedAttention") == 1


# ---- ONNX

@pytest.mark.parametrize(("attributes", "shapes", "mask"), [
    ({"is_causal": 1}, [(2, 3, 9, 8), (2, 3, 9, 8), (2, 3, 9, 5)], None),
    ({"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.3}, [(2, 5, 24), (2, 7, 12), (2, 7, 12)], ("bool", (2, 1, 5, 7))),
    ({"is_causal": 1}, [(1, 4, 5, 8), (1, 2, 3, 8), (1, 2, 3, 8), None, (1, 2, 6, 8), (1, 2, 6, 8)], ("float32", (5, 9))),
])
def test_onnx_attention(attributes: dict[str, Any], shapes: list[Any], mask: Any) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from tileflow.onnx_backend import Backend
    arrays = {f"x{i}": rng.standard_normal(s).astype("float32") for i, s in enumerate(shapes) if s}
    if mask:
        drawn = rng.random(mask[1]) < 0.6
        drawn[..., 0, :] = False           # a query that sees nothing gives zeros
        arrays["x3"] = drawn if mask[0] == "bool" else np.where(drawn, rng.standard_normal(mask[1]), -np.inf).astype("float32")
    names_in = [f"x{i}" if f"x{i}" in arrays else "" for i in range(max(len(shapes), 4))]
    outputs = ["y", "k", "v"] if len(shapes) > 3 else ["y"]
    types = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()]
    node = onnx.helper.make_node("Attention", names_in, outputs, **attributes)
    graph = onnx.helper.make_graph([node], "attention", types, [onnx.helper.make_tensor_value_info(n, 1, None) for n in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    prepared = Backend.prepare(model)
    for ours, theirs in zip(prepared.run(arrays), ReferenceEvaluator(model).run(None, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    engine, = prepared._engines.values()
    assert any(row.node is not None and row.node.op.name == "FusedAttention" for row in engine.plan.micro.rows)
