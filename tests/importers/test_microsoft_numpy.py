"""Operators of com.microsoft that ONNX Runtime has on GPUs only, or declares and has nowhere, by their formulas in NumPy."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from evaluate import evaluate
from microsoft import DOMAIN, by_runtime, f4, fused, whole
from onnx import ModelProto
from onnx_models import imported, model_of, node, port, run

from tileflow.graph import Builder
from tileflow.onnx_backend import Backend
from tileflow.passes.autograd import gradients
from tileflow.system.errors import ShapeError, UnsupportedError

X, BIAS = f4(2, 3, 8), f4(8)


def close(proto: ModelProto, feeds: dict[str, np.ndarray], *wanted: np.ndarray, tolerance: float = 2e-5) -> None:
    for got, right in zip(run(imported(proto), feeds), wanted, strict=True):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance)


def gelu(x: np.ndarray) -> np.ndarray:
    return (0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32)


def by_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))), np.float32)


# ---- biases and activations

def test_a_bias_and_a_skip_connection() -> None:
    feeds = {"x": X, "b": BIAS, "s": f4(2, 3, 8, seed=1)}
    close(fused("BiasAdd", feeds), feeds, X + BIAS + feeds["s"])


def test_one_half_of_the_channels_gates_the_other() -> None:
    feeds, total = {"x": X, "b": BIAS}, X + BIAS
    close(fused("BiasSplitGelu", feeds), feeds, total[..., :4] * gelu(total[..., 4:]))
    with pytest.raises(ShapeError, match=r"halves the last dimension of float32.*which is odd"):
        imported(fused("BiasSplitGelu", {"x": f4(2, 3, 7), "b": f4(7)}))


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_and_gelu_by_tanh(bias: bool) -> None:
    feeds = {"x": X, "w": f4(8, 5), **({"b": f4(5)} if bias else {})}
    close(fused("GemmFastGelu", feeds), feeds, by_tanh(X @ feeds["w"] + (feeds["b"] if bias else 0)))


@pytest.mark.parametrize(("name", "function", "numbers"), [
    ("Relu", lambda y: np.maximum(y, 0), {}), ("Tanh", np.tanh, {}), ("LeakyRelu", lambda y: np.where(y > 0, y, 0.3 * y), {"activation_alpha": 0.3}),
    ("HardSigmoid", lambda y: np.clip(0.1 * y + 0.4, 0, 1), {"activation_alpha": 0.1, "activation_beta": 0.4})])
def test_a_product_and_an_activation(name: str, function: Any, numbers: dict[str, float]) -> None:
    feeds = {"a": f4(3, 4), "b": f4(5, 4)}
    proto = fused("FusedMatMulActivation", feeds, activation=name, transB=1, alpha=0.5, **numbers)
    close(proto, feeds, function(0.5 * feeds["a"] @ feeds["b"].T).astype(np.float32))
    with pytest.raises(UnsupportedError, match="activation_gamma"):
        imported(fused("FusedMatMulActivation", feeds, activation=name, transB=1, activation_gamma=1.0))


@pytest.mark.parametrize("residual", [False, True])
def test_dropout_behind_a_bias(residual: bool) -> None:
    """Off in inference; on in training, where what is left is scaled and the share that goes is about the ratio."""
    feeds: dict[str, Any] = {"x": f4(40, 50, seed=3), "b": f4(50), "r": f4(40, 50, seed=4) if residual else None,
                             "p": np.asarray(np.float32(0.25)), "t": np.asarray(True)}
    rest = feeds["r"] if residual else np.float32(0)
    given = {n: a for n, a in feeds.items() if a is not None and n not in "pt"}
    proto = fused("BiasDropout", feeds, ("float32", "bool"), ("p", "t"))
    total = feeds["x"] + feeds["b"]
    found, mask = run(imported(proto, training=False), given)
    np.testing.assert_allclose(found, total + rest, rtol=1e-6)
    assert mask.all()
    found, mask = run(imported(proto, training=True), given)
    np.testing.assert_allclose(found, np.where(mask, total / 0.75, 0) + rest, rtol=1e-5, atol=1e-6)
    assert 0.7 < mask.mean() < 0.8


def test_products_with_a_transposed_matrix() -> None:
    """The older name, which ONNX Runtime still has."""
    feeds = {"a": f4(4, 3), "b": f4(4, 5)}
    proto = fused("TransposeMatMul", feeds, transA=1, alpha=2.0)
    close(proto, feeds, 2 * feeds["a"].T @ feeds["b"])
    close(proto, feeds, *by_runtime(proto, feeds))


# ---- complex numbers, tables

@pytest.mark.parametrize("op", ["ComplexMul", "ComplexMulConj"])
def test_products_of_complex_numbers(op: str) -> None:
    feeds = {"a": f4(3, 5, 2), "b": f4(3, 5, 2, seed=1)}
    a, b = (v[..., 0] + 1j * v[..., 1] for v in feeds.values())
    wanted = a * (b if op == "ComplexMul" else b.conj())
    close(fused(op, feeds), feeds, np.stack([wanted.real, wanted.imag], -1).astype(np.float32))


def test_rows_of_a_table() -> None:
    feeds: dict[str, np.ndarray] = {"w": f4(7, 4), "i": np.array([[1, 6], [0, 1]])}
    close(fused("TorchEmbedding", feeds), feeds, feeds["w"][feeds["i"]])
    padded = fused("TorchEmbedding", {**feeds, "p": np.asarray(1)}, weights=("p",))
    close(padded, feeds, feeds["w"][feeds["i"]])
    with pytest.raises(UnsupportedError, match="padding_idx and scale_grad_by_freq in training"):
        imported(padded, training=True)


# ---- images with their channels last

def convolved(x: np.ndarray, w: np.ndarray, group: int, strides: tuple[int, int], pads: tuple[int, int, int, int]) -> np.ndarray:
    """x [n, height, width, c], w [outputs, kernel height, kernel width, c / group], tap by tap."""
    x = np.pad(x.astype(np.float64), ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    rows, columns = ((x.shape[i + 1] - w.shape[i + 1]) // strides[i] + 1 for i in range(2))
    y = np.zeros((x.shape[0], rows, columns, w.shape[0]))
    per, out = w.shape[3], w.shape[0] // group
    for i, j, g in np.ndindex(w.shape[1], w.shape[2], group):
        part = x[:, i:i + (rows - 1) * strides[0] + 1:strides[0], j:j + (columns - 1) * strides[1] + 1:strides[1], g * per:(g + 1) * per]
        y[..., g * out:(g + 1) * out] += part @ w[g * out:(g + 1) * out, i, j].T
    return y.astype(np.float32)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_with_their_channels_last(group: int, bias: bool) -> None:
    """NhwcConv's weights have their channels last, too, as the optimizer for transformers writes them; those of NhwcFusedConv, which a session's
    optimizer makes of a Conv, stay where ONNX has them."""
    x, w, b = f4(2, 7, 6, 4), f4(6, 3, 2, 4 // group), f4(6)
    attributes: dict[str, Any] = {"group": group, "strides": [2, 1], "pads": [1, 0, 1, 1]}
    wanted = convolved(x, w, group, (2, 1), (1, 0, 1, 1)) + (b if bias else np.float32(0))
    feeds = {"x": x, "w": w, **({"b": b} if bias else {})}
    close(fused("NhwcConv", feeds, kernel_shape=[3, 2], **attributes), feeds, wanted)
    z = f4(*wanted.shape, seed=2)
    given: dict[str, Any] = {"x": x, "w": np.ascontiguousarray(w.transpose(0, 3, 1, 2)), "b": b if bias else None, "z": z}
    feeds = {n: a for n, a in given.items() if a is not None}
    close(fused("NhwcFusedConv", given, activation="Relu", **attributes), feeds, np.maximum(wanted + z, 0))


def test_a_file_of_the_optimizer_for_transformers_gives_the_convolution_and_its_gradients() -> None:
    """What FusionNhwcConv writes: Transposes around NhwcConv; gradients by the input and by the weights, whose channels are last."""
    x, w, b = f4(2, 4, 7, 6), f4(6, 4, 3, 3), f4(6)
    plain = model_of([node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)], [port("x", x.shape)], ["y"], {"w": w, "b": b})
    last = model_of([node("Transpose", ["x"], ["xt"], perm=[0, 2, 3, 1]), node("NhwcConv", ["xt", "wt", "b"], ["yt"], pads=[1] * 4, domain=DOMAIN),
                     node("Transpose", ["yt"], ["y"], perm=[0, 3, 1, 2])], [port("x", x.shape)], ["y"],
                    {"wt": np.ascontiguousarray(w.transpose(0, 2, 3, 1)), "b": b}, domains=[DOMAIN])
    found = []
    for proto in (plain, last):
        made = imported(proto, training=True)
        graph, builder = made.graph, Builder(made.graph)
        y = graph.outputs[0]
        loss = builder.ReduceSum(builder.Mul(y, builder.constant(f4(*y.shape, seed=5))), keepdims=0)
        states = sorted(graph.parameters, key=lambda s: s.name)
        assert len(states) == 2
        results = [y, *gradients(graph, loss, [graph.inputs[0], *(s.input for s in states)])]
        values = evaluate(graph, {**made.weights, "x": x})
        found.append([values[v.name] for v in results])
    found[0][-1] = found[0][-1].transpose(0, 2, 3, 1)
    for got, wanted in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


# ---- padding, and what follows from data

def test_padding_goes_and_comes_back() -> None:
    x, counts = f4(3, 4, 2), np.array([3, 0, 4], np.int32)
    kept = np.arange(4)[None] < counts[:, None]
    places = np.concatenate([np.flatnonzero(kept), np.flatnonzero(~kept)]).reshape(3, 4).astype(np.int32)
    types = ("float32", "int32", "int32", "int32")
    stored = fused("RemovePadding", {"x": x, "n": counts}, types, ("n",))
    wanted = [x[kept], places, np.array([0, 3, 3, 7], np.int32), np.array([4], np.int32)]
    close(stored, {"x": x}, *wanted)
    restored = fused("RestorePadding", {"t": x[kept], "o": places})
    close(restored, {"t": x[kept], "o": places}, np.where(kept[..., None], x, 0))
    for one, right in zip(Backend.prepare(fused("RemovePadding", {"x": x, "n": counts}, types)).run([x, counts]), wanted, strict=True):
        assert np.array_equal(one, right), "counts that are an input are compiled in"
    with pytest.raises(ShapeError, match="do not fit float32"):
        imported(fused("RemovePadding", {"x": x, "n": np.array([3, 5, 0], np.int32)}, types, ("n",)))
    with pytest.raises(ShapeError, match="do not fit the offsets"):
        imported(fused("RestorePadding", {"t": f4(13, 2), "o": places}))


def test_gradients_pass_the_removal_of_padding() -> None:
    x, counts = f4(2, 3, 2), np.array([1, 3], np.int32)
    nodes = [node("RemovePadding", ["x", "n"], ["t", "o", "c", "m"], domain=DOMAIN), node("Mul", ["t", "t"], ["u"]),
             node("RestorePadding", ["u", "o"], ["y"], domain=DOMAIN)]
    made = imported(model_of(nodes, [port("x", x.shape)], ["y"], {"n": counts}, domains=[DOMAIN]))
    graph = made.graph
    loss = Builder(graph).ReduceSum(graph.outputs[0], keepdims=0)
    g, = gradients(graph, loss, graph.inputs)
    values = evaluate(graph, {"x": x})
    kept = (np.arange(3)[None] < counts[:, None])[..., None]
    np.testing.assert_allclose(values[graph.outputs[0].name], np.where(kept, x * x, 0), rtol=1e-6)
    np.testing.assert_allclose(values[g.name], np.where(kept, 2 * x, 0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_elements_once_each_in_the_order_of_their_first_places(dtype: str) -> None:
    x = (whole("uint8", 40) % 7).astype(dtype)
    proto = fused("Unique", {"x": x}, (dtype, "int64", "int64"))
    found = Backend.prepare(proto).run([x])
    if dtype == "float32":                                            # the only type that ONNX Runtime has it for
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(found, by_runtime(proto, {"x": x}), strict=True))
    assert np.array_equal(found[0], list(dict.fromkeys(x.tolist())))
    assert np.array_equal(found[0][found[1]], x)
    assert np.array_equal(found[2], [(x == v).sum() for v in found[0]])
    with pytest.raises(ShapeError, match="takes one dimension"):
        Backend.prepare(fused("Unique", {"x": x[None]}, (dtype, "int64", "int64"))).run([x[None]])
