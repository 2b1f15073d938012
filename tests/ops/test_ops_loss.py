"""Losses against references, torch and onnx.reference; labels out of range; gradients."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluate import KernelFailed, check_gradient, check_gradient_kernels, check_kernel, run_kernel
from peers import needs

from tileflow.graph import Op, TensorType
from tileflow.kernels.machine.status import LABEL_OUT_OF_RANGE
from tileflow.ops.loss import (
    BCEWithLogitsLoss,
    IdentityLoss,
    L1Loss,
    MSELoss,
    NegativeLogLikelihoodLoss,
    NegativeLogLikelihoodLossGrad,
    SoftmaxCrossEntropyLoss,
    SoftmaxCrossEntropyLossGrad,
)
from tileflow.system.errors import DataError, OptionError, ShapeError, TypeMismatchError

rng = np.random.default_rng(4)
REDUCTIONS = ["none", "sum", "mean"]
LABEL_LOSSES = [SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss]


def scores_and_labels(*shape: int, dtype: str = "float32", label: str = "int64") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores [N, C, d…], labels [N, d…], class weights [C]."""
    scores = (rng.standard_normal(shape) * 3).astype(dtype)
    labels = rng.integers(0, shape[1], shape[:1] + shape[2:]).astype(label)
    return scores, labels, rng.random(shape[1]).astype(dtype)


@pytest.mark.parametrize("kind", LABEL_LOSSES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "label"), [((40, 10), "int64"), ((5, 1), "int32"), ((3, 4, 5, 2), "int64"), ((2, 700), "int32")])
def test_label_losses(kind: Any, reduction: str, shape: tuple[int, ...], label: str) -> None:
    scores, labels, weights = scores_and_labels(*shape, label=label)
    ignored = labels.copy()
    ignored.flat[0] = -100
    for op, arrays in ((kind(reduction=reduction), (scores, labels)), (kind(reduction=reduction), (scores, labels, weights)),
                       (kind(reduction=reduction, ignore_index=-100), (scores, ignored, weights))):
        check_kernel(op, *arrays, rtol=1e-6, atol=1e-6)
        grad = {SoftmaxCrossEntropyLoss: SoftmaxCrossEntropyLossGrad, NegativeLogLikelihoodLoss: NegativeLogLikelihoodLossGrad}[kind]
        g = rng.standard_normal(labels.shape if reduction == "none" else ()).astype("float32")
        check_kernel(grad(**op.attributes() if kind is NegativeLogLikelihoodLoss else
                          {"reduction": reduction, "ignore_index": op.ignore_index}), g, *arrays, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 4)])
def test_against_torch(reduction: str, shape: tuple[int, ...]) -> None:
    torch = needs("torch")
    scores, labels, weights = scores_and_labels(*shape)
    labels.flat[1] = -100
    for function, kind in zip((torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss), LABEL_LOSSES, strict=True):
        x = torch.tensor(scores, requires_grad=True)
        loss = function(x, torch.tensor(labels), torch.tensor(weights), reduction=reduction, ignore_index=-100)
        y, = run_kernel(kind(reduction=reduction, ignore_index=-100), scores, labels, weights)
        np.testing.assert_allclose(y, loss.detach().numpy(), rtol=1e-5, atol=1e-6)
        loss.sum().backward()
        grad = SoftmaxCrossEntropyLossGrad if kind is SoftmaxCrossEntropyLoss else NegativeLogLikelihoodLossGrad
        dx, = run_kernel(grad(reduction=reduction, ignore_index=-100), np.ones(y.shape, "float32"), scores, labels, weights)
        np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_against_onnx_reference() -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator
    scores, labels, weights = scores_and_labels(4, 5, 3)
    helper, float_, int_ = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "t", "w"], ["y", "p"], reduction="mean", ignore_index=2)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(*v) for v in (("x", float_, [4, 5, 3]), ("t", int_, [4, 3]),
                                                                                       ("w", float_, [5]))],
                              [helper.make_tensor_value_info("y", float_, []), helper.make_tensor_value_info("p", float_, [4, 5, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    wanted = ReferenceEvaluator(model).run(None, {"x": scores, "t": labels, "w": weights})
    got = check_kernel(SoftmaxCrossEntropyLoss(ignore_index=2, log_prob=1), scores, labels, weights, rtol=1e-5, atol=1e-6)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LABEL_LOSSES)
def test_label_gradients(kind: Any) -> None:
    for shape, ignore in (((3, 4), None), ((2, 3, 2), 1)):
        scores, labels, weights = scores_and_labels(*shape, dtype="float64")
        for reduction in REDUCTIONS:
            op = kind(reduction=reduction, ignore_index=ignore)
            check_gradient(op, scores, labels)
            check_gradient(op, scores, labels, weights, wrt=[0])
            check_gradient_kernels(op, scores.astype("float32"), labels, weights.astype("float32"))
    check_gradient(SoftmaxCrossEntropyLoss(log_prob=1), scores, labels)
    check_gradient(SoftmaxCrossEntropyLoss(log_prob=1), scores, labels, outputs=[1])


@pytest.mark.parametrize("label", [10, -1, 2 ** 40, -2 ** 63])
@pytest.mark.parametrize("kind", LABEL_LOSSES)
def test_labels_out_of_range(kind: Any, label: int) -> None:
    scores, labels, _ = scores_and_labels(40, 10)
    labels[17] = label
    op = kind()
    with pytest.raises(DataError, match=f"Label {label} of row 17"):
        op.reference(scores, labels)
    grad = SoftmaxCrossEntropyLossGrad if kind is SoftmaxCrossEntropyLoss else NegativeLogLikelihoodLossGrad
    for reduction in REDUCTIONS:
        for failing, arrays in ((kind(reduction=reduction), (scores, labels)),
                                (grad(reduction=reduction), (np.ones(40 if reduction == "none" else (), "float32"), scores, labels))):
            with pytest.raises(KernelFailed) as failure:
                run_kernel(failing, *arrays)
            assert failure.value.status == LABEL_OUT_OF_RANGE
    assert np.isfinite(run_kernel(kind(ignore_index=label), scores, labels)[0])


def test_everything_ignored_is_nan_and_special_scores_stay() -> None:
    scores, labels, _ = scores_and_labels(5, 4)
    labels[:] = 3
    assert np.isnan(check_kernel(SoftmaxCrossEntropyLoss(ignore_index=3), scores, labels)[0])
    assert check_kernel(SoftmaxCrossEntropyLoss(ignore_index=3, reduction="sum"), scores, labels)[0] == 0
    scores[0, 1], scores[1, 2], scores[2, 3] = np.nan, -np.inf, -np.inf
    y, = check_kernel(SoftmaxCrossEntropyLoss(reduction="none"), scores, labels, rtol=1e-6, atol=2.5e-7)     # two ulp of a score
    assert np.isnan(y[0])
    assert np.isfinite(y[1])
    assert y[2] == np.inf
    g = np.ones(5, "float32")
    check_kernel(SoftmaxCrossEntropyLossGrad(reduction="none"), g, scores, labels, rtol=1e-5, atol=1e-6)
    empty, none, _ = np.zeros((0, 3), "float32"), np.zeros(0, "int64"), None
    assert np.isnan(check_kernel(SoftmaxCrossEntropyLoss(), empty, none)[0])


ELEMENTWISE = {"mse_loss": MSELoss, "l1_loss": L1Loss, "binary_cross_entropy_with_logits": BCEWithLogitsLoss}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elementwise_losses(name: str, reduction: str) -> None:
    torch = needs("torch")
    op = ELEMENTWISE[name](reduction=reduction)
    x, t = (rng.standard_normal((37, 53)) * 20).astype("float32"), rng.random((37, 53)).astype("float32")
    y, = check_kernel(op, x, t, rtol=2e-6)
    theirs = getattr(torch.nn.functional, name)(torch.tensor(x), torch.tensor(t), reduction=reduction).numpy()
    cancels = np.spacing(abs(x)) if (name, reduction) == ("binary_cross_entropy_with_logits", "none") else 0          # x - x t where t is near 1
    assert (abs(y - theirs) <= 1e-6 + 3e-6 * abs(theirs) + cancels).all()
    check_gradient(op, x[:3, :4].astype("float64"), t[:3, :4].astype("float64"))
    check_gradient_kernels(op, x[:3, :5], t[:3, :5])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_identity_loss(reduction: str) -> None:
    for shape in ((5, 7), (), (100_000,), (0,)):
        check_kernel(IdentityLoss(reduction=reduction), rng.random(shape).astype("float32"), rtol=1e-6)
    check_gradient(IdentityLoss(reduction=reduction), rng.standard_normal((3, 2)))
    check_gradient(IdentityLoss(reduction=reduction), rng.standard_normal(()))


@pytest.mark.parametrize(("op", "types", "error", "message"), [
    (SoftmaxCrossEntropyLoss(), (("float32", (4, 3)), ("int64", (5,))), ShapeError, r"scores \[4, 3\] and labels \[5\]"),
    (SoftmaxCrossEntropyLoss(), (("float32", (4, 3)), ("float32", (4,))), TypeMismatchError, "class numbers"),
    (SoftmaxCrossEntropyLoss(), (("float32", (4, 3)), ("int64", (4,)), ("float32", (4,))), ShapeError, "class weights"),
    (SoftmaxCrossEntropyLoss(reduction="avg"), (("float32", (4, 3)), ("int64", (4,))), OptionError, "avg"),
    (MSELoss(), (("float32", (4,)), ("float32", (4, 1))), ShapeError, "one type and shape"),
    (IdentityLoss(), (("int32", ()),), TypeMismatchError, "int32"),
])
def test_errors(op: Op, types: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        op.infer(*[TensorType(*t) for t in types])


def test_work() -> None:
    x, t = TensorType("float32", (4, 3)), TensorType("int64", (4,))
    assert SoftmaxCrossEntropyLoss().work([x, t], [x.with_shape(())]).points == 12
    assert MSELoss().work([x, x], [x.with_shape(())]).outputs[0].dims == ()
    assert SoftmaxCrossEntropyLossGrad().work([x.with_shape(()), x, t], [x]).outputs[0].dims == ("a", "b")
