"""Root-mean-square normalisation against its reference, PyTorch and ONNX."""
from __future__ import annotations

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_kernel, run_kernel
from onnx_models import compare, imported, model_of, node, port, tensor
from peers import needs

from tileflow.graph import TensorType
from tileflow.kernels.isa import cpu
from tileflow.ops.rms import RMSNormalization, RMSNormalizationGrad
from tileflow.system.errors import ShapeError, TypeMismatchError

rng = np.random.default_rng(8)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize(("shape", "axis"), [((7, 33), -1), ((2, 3, 4, 5), 2), ((5,), 0), ((3, 1000), 1), ((0, 4), 1), ((3, 0), 1), ((4, 1), -1)])
def test_kernels(shape: tuple[int, ...], axis: int, path: str) -> None:
    with cpu.forced(path):
        for dtype, tolerance in (("float32", 2e-6), ("float64", 1e-14)):
            x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
            scale = rng.standard_normal(shape[axis:]).astype(dtype)
            _, inverse = check_kernel(RMSNormalization(axis=axis), x, scale, rtol=tolerance, atol=tolerance)
            check_kernel(RMSNormalizationGrad(axis=axis), g, x, scale, inverse, rtol=20 * tolerance, atol=20 * tolerance)


def test_special_values() -> None:
    x = rng.standard_normal((5, 40)).astype("float32")
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, 0
    y, _ = check_kernel(RMSNormalization(), x, np.ones(40, "float32"), rtol=1e-5, atol=1e-6)
    assert np.isnan(y[1]).all()
    assert not y[3].any()


def test_gradients() -> None:
    check_gradient(RMSNormalization(axis=1), rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 4)), outputs=[0])


def test_against_torch() -> None:
    torch = needs("torch")
    x, g = (rng.standard_normal((6, 4, 50)).astype("float32") for _ in range(2))
    scale = rng.random(50).astype("float32")
    t = [torch.tensor(a, requires_grad=True) for a in (x, scale)]
    wanted = torch.nn.functional.rms_norm(t[0], (50,), t[1], 1e-5)
    wanted.backward(torch.tensor(g))
    y, inverse = run_kernel(RMSNormalization(), x, scale)
    np.testing.assert_allclose(y, wanted.detach(), atol=2e-6)
    for a, b in zip(run_kernel(RMSNormalizationGrad(), g, x, scale, inverse), t, strict=True):
        np.testing.assert_allclose(a, b.grad, rtol=1e-4, atol=1e-5)


def test_onnx() -> None:
    from onnx.reference import ReferenceEvaluator

    from tileflow.onnx_backend import Backend
    x = rng.standard_normal((2, 3, 4)).astype("float32")
    for scale in (rng.random((3, 4)).astype("float32"), rng.random(4).astype("float32"), rng.random((2, 1, 4)).astype("float32")):
        proto = model_of([node("RMSNormalization", ["x", "s"], ["y"], axis=1, epsilon=1e-3)], [port("x", [2, 3, 4]), port("s", list(scale.shape))],
                         ["y"], opset=23)
        np.testing.assert_allclose(Backend.prepare(proto).run([x, scale])[0], ReferenceEvaluator(proto).run(None, {"x": x, "s": scale})[0], rtol=1e-5)


def test_a_layer_without_a_scale() -> None:
    """PyTorch's newer exporter writes ones as large as the input for it: the operator itself, whatever the batch."""
    one = tensor("", np.ones(1, "float32"))
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["ones"], value=one), node("RMSNormalization", ["x", "ones"], ["y"])]
    proto = model_of(nodes, [port("x", ["N", 3, 4])], ["y"], opset=23)
    for rows in (2, 5):
        found = compare(proto, {"x": rng.standard_normal((rows, 3, 4)).astype("float32")}, batch=rows)
        assert [n.op.name for n in found.graph.nodes] == ["RMSNormalization"]


def test_a_scale_that_fits_nowhere() -> None:
    proto = model_of([node("RMSNormalization", ["x", "s"], ["y"])], [port("x", [2, 3, 4]), port("s", [5, 4])], ["y"], opset=23)
    with pytest.raises(ShapeError, match=r"the scale float32\[5, 4\] does not broadcast to the input float32\[2, 3, 4\]"):
        imported(proto)


def test_errors() -> None:
    x = TensorType("float32", (4, 3, 5))
    with pytest.raises(ShapeError, match=r"scale is float32\[3\]; for the input float32\[4, 3, 5\] and axis -1"):
        RMSNormalization().infer(x, x.with_shape((3,)))
    with pytest.raises(TypeMismatchError, match="int32"):
        RMSNormalization().infer(x.with_dtype("int32"), x)
