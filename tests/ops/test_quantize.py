"""Quantised operators: exact products on every CPU path, epilogues, straight-through gradients, and ONNX Runtime's own operators."""
from __future__ import annotations

import itertools
from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import check_kernel, evaluate
from lowered import host_passes
from onnx import TensorProto
from onnx_models import imported, model_of, node, port, run
from paths import PATHS
from peers import needs, onnx_runtime

from tileflow.graph import OPS, Builder, Graph, TensorType
from tileflow.kernels.isa import cpu
from tileflow.onnx_backend import Backend
from tileflow.passes.autograd import gradients
from tileflow.system.errors import ShapeError, TypeMismatchError

Array = np.ndarray
KINDS = [("uint8", "int8"), ("int8", "int8"), *(paths.rare(*kinds) for kinds in (("uint8", "uint8"), ("int8", "uint8")))]


def numbers(dtype: str, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("a", "b"), KINDS)
def test_products_are_exact_on_every_path(a: str, b: str, path: str) -> None:
    with cpu.forced(path):
        for m, n, k in ((1, 1, 1), (5, 7, 3), (13, 33, 18), (37, 70, 65), (3, 130, 0), (100, 40, 5)):
            x, y = numbers(a, m, k), numbers(b, k, n)
            za, zb = numbers("int8", m).astype(np.int32), numbers("int8", n, seed=1).astype(np.int32)
            check_kernel(OPS["ByteProduct"](), x, y)
            check_kernel(OPS["IntegerProduct"](), x, y, za, zb)
        check_kernel(OPS["IntegerProduct"](), numbers(a, 2, 3, 5, 9), numbers(b, 3, 9, 4), np.int32(7) * np.ones((), np.int32))
        info_a, info_b = np.iinfo(a), np.iinfo(b)
        for left, right in itertools.product((info_a.min, info_a.max), (info_b.min, info_b.max)):       # where sums of pairs would saturate
            found, = check_kernel(OPS["ByteProduct"](), np.full((2, 1000), left, a), np.full((1000, 3), right, b))
            assert (found == 1000 * left * right).all()


@pytest.mark.parametrize("packed", [False, True])
def test_what_follows_a_product_is_done_to_its_blocks(packed: bool) -> None:
    """Scale and bias of columns, and another element type."""
    x, w = numbers("uint8", 13, 40), numbers("int8", 40, 21)
    scale, bias = np.linspace(0.01, 0.2, 21, dtype=np.float32), np.linspace(-3, 3, 21, dtype=np.float32)
    nodes = [node("MatMulInteger", ["x", "w", "zero"], ["s"]), node("Cast", ["s"], ["f"], to=TensorProto.FLOAT), node("Mul", ["f", "scale"], ["m"]),
             node("Add", ["m", "bias"], ["a"]), node("Relu", ["a"], ["r"]), node("QuantizeLinear", ["r", "one", "point"], ["y"])]
    weights: dict[str, Any] = {"zero": np.uint8(9), "scale": scale, "bias": bias, "one": np.float32(4), "point": np.uint8(3)}
    model = model_of(nodes, [port("x", (13, 40), "uint8"), *([] if packed else [port("w", (40, 21), "int8")])], [port("y", (13, 21), "uint8")],
                     {**weights, **({"w": w} if packed else {})}, opset=21, ir_version=10)
    graph = host_passes(imported(model).graph)
    added = [hosting.added(n.op) for n in graph.nodes if n.op.name not in ("Map", "Cast")]
    assert added == [{"epilogue"}], [n.op for n in graph.nodes]
    sums = (x.astype(np.float32) - 9) @ w.astype(np.float32)
    wanted = np.clip(np.rint(np.maximum(sums * scale + bias, 0) / 4) + 3, 0, 255).astype(np.uint8)
    found, = Backend.prepare(model).run([x] if packed else [x, w])
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert (found != wanted).mean() < 0.02


def test_zero_points_have_shapes_that_fit() -> None:
    a, b = TensorType("uint8", (2, 3, 4)), TensorType("int8", (4, 5))
    with pytest.raises(ShapeError, match="zero point"):
        OPS["MatMulInteger"]().infer(a, b, TensorType("uint8", (2,)))
    with pytest.raises(TypeMismatchError, match="one element type"):
        OPS["MatMulInteger"]().infer(a, b, TensorType("int8", ()))
    with pytest.raises(TypeMismatchError, match="int8 or uint8"):
        OPS["MatMulInteger"]().infer(a.with_dtype("int32"), b)
    with pytest.raises(ShapeError, match="blocks of 3"):
        OPS["QuantizeLinear"](block_size=3).infer(TensorType("float32", (2, 6)), TensorType("float32", (2, 3)))


def test_fake_quantisation_passes_gradients_straight_through() -> None:
    torch = needs("torch")
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32) * 3
    graph = Graph("fake")
    b = Builder(graph)
    given = b.input("x", TensorType("float32", x.shape))
    y = b.FakeQuantize(given, b.constant(np.float32(0.02) * np.ones((), np.float32)), b.constant(np.uint8(100) * np.ones((), np.uint8)))
    weights = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    loss = b.ReduceSum(b.Mul(y, b.constant(weights)), keepdims=0)
    graph.outputs = [y, *gradients(graph, loss, [given])]
    values = evaluate(graph, {"x": x})
    t = torch.tensor(x, requires_grad=True)
    wanted = torch.fake_quantize_per_tensor_affine(t, 0.02, 100, 0, 255)
    (wanted * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(values[graph.outputs[0].name], wanted.detach().numpy(), rtol=1e-6)
    assert np.array_equal(values[graph.outputs[1].name], t.grad.numpy())
    assert 0.1 < (t.grad.numpy() == 0).mean() < 0.9


@pytest.mark.parametrize("training", [False, True])
def test_models_in_training_have_fake_quantisation(training: bool) -> None:
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
             node("MatMul", ["d", "w"], ["y"])]
    model = model_of(nodes, [port("x", (3, 4))], [port("y", (3, 2))],
                     {"s": np.float32(0.1), "z": np.uint8(8), "w": np.ones((4, 2), np.float32)}, opset=21,
                     ir_version=10)
    names = [n.op.name for n in imported(model, training=training).graph.nodes]
    assert ("FakeQuantize" in names) == training
    assert ("QuantizeLinear" in names) != training


# ---- com.microsoft

U, S, F = numbers("uint8", 4, 6), numbers("int8", 6, 5), np.float32
SCALES = {"sa": F(0.05), "za": np.uint8(120)}


def same(op: str, feeds: dict[str, Any], result: str = "uint8", weights: tuple[str, ...] = (), tolerance: float = 1e-4, **attributes: Any) -> None:
    """The node gives what ONNX Runtime's gives: quantised numbers up to one step. Scales and zero points are initializers, and `weights`."""
    given = {n: np.asarray(a) for n, a in feeds.items() if a is not None}
    stored = {n: a for n, a in given.items() if n in weights or n[0] in "sz"}
    fed = {n: a for n, a in given.items() if n not in stored}
    model = model_of([node(op, [n if n in given else "" for n in feeds], ["y"], "it", domain="com.microsoft", **attributes)],
                     [port(n, a.shape, a.dtype.name) for n, a in fed.items()], [port("y", None, result)], stored, domains=["com.microsoft"])
    session = onnx_runtime(model.SerializeToString())
    (found,), (wanted,) = run(imported(model), fed), session.run(None, fed)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    step = 1 if result == "uint8" else tolerance
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0 if result == "uint8" else tolerance, atol=step)
    assert found.dtype != np.uint8 or (found != wanted).mean() < 0.1


def test_elementwise_of_com_microsoft() -> None:
    b = numbers("uint8", 4, 6, seed=1)
    for op in ("QLinearAdd", "QLinearMul"):
        same(op, {"a": U, **SCALES, "b": b, "sb": F(0.03), "zb": np.uint8(7), "sc": F(0.2), "zc": np.uint8(99)})
    same("QLinearSigmoid", {"a": U, **SCALES, "sy": F(1 / 256), "zy": np.uint8(0)})
    same("QLinearLeakyRelu", {"a": U, **SCALES, "sy": F(0.04), "zy": np.uint8(90)}, alpha=0.2)
    same("QLinearConcat", {"sy": F(0.07), "zy": np.uint8(100), "a": U, **SCALES, "b": b, "sb": F(0.03), "zb": np.uint8(7)}, axis=1)


def test_pools_of_com_microsoft() -> None:
    x = numbers("uint8", 1, 3, 6, 5)
    ends = {"sy": F(0.02), "zy": np.uint8(120)}
    same("QLinearGlobalAveragePool", {"x": x, **SCALES, **ends})
    same("QLinearAveragePool", {"x": x, **SCALES, **ends}, kernel_shape=[2, 3], strides=[2, 1])


def test_products_of_com_microsoft() -> None:
    x = np.random.default_rng(5).normal(size=(4, 6)).astype(F)
    scales, zeros, bias = np.linspace(0.01, 0.03, 5, dtype=F), np.zeros(5, np.int8), np.linspace(-1, 1, 5, dtype=F)
    same("DynamicQuantizeMatMul", {"a": x, "b": S, "sb": scales, "zb": zeros, "bias": bias}, "float32", ("b",))
    same("MatMulIntegerToFloat", {"a": U, "b": S, "sa": F(0.05), "sb": scales, "za": np.uint8(7), "zb": zeros, "bias": bias}, "float32", ("b",))
    same("QGemm", {"a": U, **SCALES, "b": S, "sb": scales, "zb": zeros, "c": np.arange(5, dtype=np.int32)}, "float32", ("b", "c"), alpha=0.5)
    ends = {"sy": F(0.3), "zy": np.uint8(90)}
    same("QGemm", {"a": U, **SCALES, "b": S, "sb": F(0.02), "zb": np.int8(0), "c": np.arange(5, dtype=np.int32), **ends}, weights=("b", "c"))


@pytest.mark.parametrize("points", [False, True])
def test_weights_of_four_bits(points: bool) -> None:
    n, k, block = 5, 40, 16
    blocks = -(-k // block)
    x = np.random.default_rng(6).normal(size=(3, k)).astype(F)
    feeds = {"x": x, "b": numbers("uint8", n, blocks, block // 2), "s": np.random.default_rng(7).uniform(0.01, 0.1, n * blocks).astype(F),
             "z": numbers("uint8", n * -(-blocks // 2)) if points else None}
    same("MatMulNBits", feeds, "float32", ("b",), tolerance=1e-3, K=k, N=n, bits=4, block_size=block)


def test_convolutions_are_exact() -> None:
    """Against ONNX Runtime, which computes the same sums."""
    x, w, depthwise = numbers("uint8", 2, 6, 9, 8), numbers("uint8", 4, 3, 3, 2), numbers("uint8", 6, 1, 3, 3)
    for weights, group, more in ((w, 2, {"pads": [1, 0, 2, 1], "strides": [2, 1]}), (depthwise, 6, {"dilations": [2, 1], "pads": [2, 1, 2, 1]})):
        model = model_of([node("ConvInteger", ["x", "w", "z"], ["y"], group=group, **more)], [port("x", x.shape, "uint8")],
                         [port("y", None, "int32")], {"w": weights, "z": np.uint8(31)})
        session = onnx_runtime(model.SerializeToString())
        wanted = session.run(None, {"x": x})[0]
        assert np.array_equal(run(imported(model), {"x": x})[0], wanted)
        assert np.array_equal(Backend.prepare(model).run([x])[0], wanted)
