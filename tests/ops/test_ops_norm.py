"""Batch and layer normalisation against references and torch; statistics far from zero; gradients."""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, run_kernel
from paths import rare
from peers import needs

from tileflow.graph import Builder, Graph, TensorType
from tileflow.ops.groups import GroupNormalization, GroupNormalizationGrad, GroupNormalizationTraining, InstanceNormalization
from tileflow.ops.norm import BatchNormalization, BatchNormalizationGrad, LayerNormalization, LayerNormalizationGrad
from tileflow.system.errors import ShapeError, TypeMismatchError, UnsupportedError

rng = np.random.default_rng(6)
Array = np.ndarray


def batch(shape: tuple[int, ...], dtype: str = "float32", offset: float = 0.0) -> list[Array]:
    """x, scale, B, mean, var."""
    c = shape[1]
    x, shift, mean = rng.standard_normal(shape) * 2 + offset, rng.standard_normal(c), rng.standard_normal(c)
    arrays = [x, rng.random(c) + 0.5, shift, mean, rng.random(c) + 0.1]
    return [a.astype(dtype) for a in arrays]


SHAPES = [(4, 3, 5, 7), (40, 10), (9, 130), (2, 1, 1000), (1, 3, 1), (3, 5, 1, 1)]


@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (0, 3, 4), (2, 0, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), rare("float64", 1e-12)])
def test_batch_norm(shape: tuple[int, ...], dtype: str, tolerance: float) -> None:
    arrays = batch(shape, dtype)
    check_kernel(BatchNormalization(), *arrays, rtol=tolerance, atol=tolerance)
    train = BatchNormalization(training_mode=1)
    y, mean, _, inverse = check_kernel(train, *arrays[:3], None, None, rtol=tolerance, atol=tolerance)
    g = rng.standard_normal(shape).astype(dtype)
    check_kernel(BatchNormalizationGrad(), g, *arrays[:2], mean, inverse, rtol=10 * tolerance, atol=10 * tolerance)
    assert y.shape == shape


@pytest.mark.parametrize("shape", [(8, 3, 5, 7), (40, 10)])
def test_batch_norm_against_torch(shape: tuple[int, ...]) -> None:
    torch = needs("torch")
    arrays = batch(shape)
    t = [torch.tensor(a, requires_grad=i < 3) for i, a in enumerate(arrays)]
    wanted = torch.nn.functional.batch_norm(t[0], None, None, t[1], t[2], training=True, eps=1e-3)
    y, mean, _, inverse = run_kernel(BatchNormalization(training_mode=1, epsilon=1e-3), *arrays)
    np.testing.assert_allclose(y, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    g = rng.standard_normal(shape).astype("float32")
    wanted.backward(torch.tensor(g))
    for a, b in zip(run_kernel(BatchNormalizationGrad(), g, *arrays[:2], mean, inverse), t, strict=False):
        np.testing.assert_allclose(a, b.grad.numpy(), rtol=1e-4, atol=2e-5)
    wanted = torch.nn.functional.batch_norm(t[0], t[3], t[4], t[1], t[2], training=False)
    np.testing.assert_allclose(run_kernel(BatchNormalization(), *arrays)[0], wanted.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 3, 20, 20), (2000, 5)])
def test_statistics_of_data_far_from_zero(shape: tuple[int, ...]) -> None:
    arrays = batch(shape, offset=3000.0)
    y, mean, var, _ = run_kernel(BatchNormalization(training_mode=1), *arrays)
    axes = (0, *range(2, len(shape)))
    wide = arrays[0].astype("float64")
    np.testing.assert_allclose(mean, wide.mean(axes), rtol=1e-7)
    np.testing.assert_allclose(var, wide.var(axes), rtol=1e-5)
    np.testing.assert_allclose(y, BatchNormalization(training_mode=1).reference(*[a.astype("float64") for a in arrays])[0], atol=1e-3)


def test_batch_norm_gradients() -> None:
    for shape in ((3, 2, 2, 3), (6, 3)):
        arrays = batch(shape, "float64")
        check_gradient(BatchNormalization(), *arrays, wrt=[0, 1, 2])
        train = BatchNormalization(training_mode=1)
        check_gradient(train, *arrays[:3], outputs=[0], rtol=1e-5)
        check_gradient_kernels(train, *[a.astype("float32") for a in arrays], outputs=[0], rtol=1e-4, atol=1e-5)
        check_gradient_kernels(BatchNormalization(), *[a.astype("float32") for a in arrays], rtol=1e-4, atol=1e-5)


def test_special_values_stay_in_their_channel() -> None:
    for shape in ((4, 3, 6), (8, 3)):
        arrays = batch(shape)
        arrays[0][1, 2], arrays[0][0, 0] = np.nan, np.inf
        y, = check_kernel(BatchNormalization(), *arrays, rtol=1e-5, atol=1e-5)
        y = run_kernel(BatchNormalization(training_mode=1), *arrays)[0]
        assert np.isnan(y[:, 2]).all()
        assert np.isnan(y[:, 0]).all()
        assert np.isfinite(y[:, 1]).all()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2, 7), (4, 3), (0, 3, 2)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    x, scale, shift = batch(shape)[:3]
    y, = check_kernel(InstanceNormalization(), x, scale, shift, rtol=1e-5, atol=1e-5)
    if len(shape) > 2 and x.size:
        torch = needs("torch")
        wanted = torch.nn.functional.instance_norm(*map(torch.tensor, (x,)), weight=torch.tensor(scale), bias=torch.tensor(shift))
        np.testing.assert_allclose(y, wanted.numpy(), rtol=1e-5, atol=1e-5)
        check_gradient(InstanceNormalization(), *[a.astype("float64") for a in (x, scale, shift)], rtol=1e-5)


GROUPS = [((3, 6, 5, 7), 2), ((2, 8, 3), 8), ((2, 8, 49), 1), ((5, 70), 2), ((2, 96, 1, 1), 3), ((1, 4, 2, 3, 2), 2)]


@pytest.mark.parametrize(("shape", "groups"), [*GROUPS, ((0, 4, 3), 2), ((2, 4, 0), 2), ((4, 3), 3)])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
        x, scale, shift = batch(shape, dtype)[:3]
        check_kernel(GroupNormalization(num_groups=groups), x, scale, shift, rtol=tolerance, atol=tolerance)
        _, mean, inverse = check_kernel(GroupNormalizationTraining(num_groups=groups), x, scale, shift, rtol=tolerance, atol=tolerance)
        g = rng.standard_normal(shape).astype(dtype)
        if x.size > len(x) * groups:                        # the gradient of one number's own norm is a rounding error
            check_kernel(GroupNormalizationGrad(num_groups=groups), g, x, scale, mean, inverse, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(("shape", "groups"), GROUPS)
def test_group_norm_against_torch(shape: tuple[int, ...], groups: int) -> None:
    """Against its float64: how far float32 is off depends on how close the numbers of a group lie, so PyTorch's own error is the measure."""
    torch = needs("torch")
    x, scale, shift = batch(shape, offset=50.0)[:3]
    g = rng.standard_normal(shape).astype("float32")

    def torchs(dtype: str) -> list[np.ndarray]:
        t = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, scale, shift)]
        y = torch.nn.functional.group_norm(t[0], groups, t[1], t[2], eps=1e-3)
        y.backward(torch.tensor(g.astype(dtype)))
        return [y.detach().numpy(), *(a.grad.numpy() for a in t)]

    y, mean, inverse = run_kernel(GroupNormalizationTraining(num_groups=groups, epsilon=1e-3), x, scale, shift)
    ours = [y, *run_kernel(GroupNormalizationGrad(num_groups=groups), g, x, scale, mean, inverse)]
    for a, theirs, wanted in zip(ours, torchs("float32"), torchs("float64"), strict=True):
        np.testing.assert_allclose(a, wanted, rtol=1e-5, atol=2e-5 + 1.5 * np.abs(theirs - wanted).max())


def test_group_norm_is_as_exact_as_torch_far_from_zero() -> None:
    """Against float64: no more than PyTorch is off."""
    torch = needs("torch")
    x, scale, shift = batch((4, 8, 40, 40), offset=3000.0)[:3]
    wanted = GroupNormalization(num_groups=2).reference(*[a.astype("float64") for a in (x, scale, shift)])[0]
    ours = np.abs(run_kernel(GroupNormalization(num_groups=2), x, scale, shift)[0] - wanted).max()
    theirs = np.abs(torch.nn.functional.group_norm(*map(torch.tensor, (x,)), 2, torch.tensor(scale), torch.tensor(shift)).numpy() - wanted).max()
    assert ours <= max(1.5 * theirs, 1e-3)


def test_group_norm_gradients() -> None:
    for shape, groups in (((2, 4, 2, 3), 2), ((3, 6), 2), ((2, 2, 4), 2)):
        arrays = batch(shape, "float64")[:3]
        check_gradient(GroupNormalization(num_groups=groups), *arrays, rtol=1e-5)
        check_gradient_kernels(GroupNormalization(num_groups=groups), *[a.astype("float32") for a in arrays], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4, 6), (3, 4)])
def test_what_is_not_finite_stays_in_its_group(shape: tuple[int, ...]) -> None:
    x, scale, shift = batch(shape)[:3]
    x[0, 0], x[1, 3], shift[2] = np.nan, np.inf, np.inf
    y, mean, inverse = check_kernel(GroupNormalizationTraining(num_groups=2), x, scale, shift, rtol=1e-5, atol=1e-5)
    assert np.isnan(y[0, :2]).all()
    assert np.isnan(y[1, 2:]).all()
    assert np.isinf(y[0, 2]).all()
    assert np.isfinite(y[0, 3]).all()
    assert np.isfinite(y[1:, :2]).all()
    g = rng.standard_normal(shape).astype("float32")
    dx, dscale, dshift = check_kernel(GroupNormalizationGrad(num_groups=2), g, x, scale, mean, inverse, rtol=1e-4, atol=1e-4)
    assert np.isnan(dx[0, :2]).all()
    assert np.isfinite(dx[1:, :2]).all()
    assert np.isnan(dscale[:2]).all()
    assert np.isfinite(dshift).all()


@pytest.mark.parametrize(("shape", "axis"), [
    ((7, 33), -1), ((2, 3, 4, 5), 2), ((5,), 0), ((3, 1000), 1), ((0, 4), 1), ((3, 0), 1), ((4, 1), -1),
])
def test_layer_norm(shape: tuple[int, ...], axis: int) -> None:
    for dtype, tolerance in (("float32", 2e-5), ("float64", 1e-12)):
        x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
        scale, shift = (rng.standard_normal(shape[axis:]).astype(dtype) for _ in range(2))
        op = LayerNormalization(axis=axis)
        _, mean, inverse = check_kernel(op, x, scale, shift, rtol=tolerance, atol=tolerance)
        check_kernel(op, x, scale, None, rtol=tolerance, atol=tolerance)
        if min(shape) != 1:
            check_kernel(LayerNormalizationGrad(axis=axis), g, x, scale, mean, inverse, rtol=10 * tolerance, atol=10 * tolerance)


def test_layer_norm_against_torch() -> None:
    torch = needs("torch")
    x = (rng.standard_normal((6, 4, 50)) + 100).astype("float32")
    scale, shift, g = rng.random(50).astype("float32"), rng.random(50).astype("float32"), rng.standard_normal(x.shape).astype("float32")
    t = [torch.tensor(a, requires_grad=True) for a in (x, scale, shift)]
    wanted = torch.nn.functional.layer_norm(t[0], (50,), t[1], t[2])
    y, mean, inverse = run_kernel(LayerNormalization(), x, scale, shift)
    np.testing.assert_allclose(y, wanted.detach().numpy(), atol=2e-5)
    wanted.backward(torch.tensor(g))
    for a, b in zip(run_kernel(LayerNormalizationGrad(), g, x, scale, mean, inverse), t, strict=True):
        np.testing.assert_allclose(a, b.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_layer_norm_gradients() -> None:
    x, scale, shift = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 4)), rng.standard_normal((2, 4))
    check_gradient(LayerNormalization(axis=1), x, scale, shift, outputs=[0])
    check_gradient(LayerNormalization(axis=1), x, scale, None, outputs=[0])
    check_gradient_kernels(LayerNormalization(axis=1), *[a.astype("float32") for a in (x, scale, shift)], outputs=[0], rtol=1e-4, atol=1e-5)


def test_errors() -> None:
    x, c = TensorType("float32", (4, 3, 5)), TensorType("float32", (3,))
    with pytest.raises(ShapeError, match=r"scale is float32\[4\]"):
        BatchNormalization().infer(x, TensorType("float32", (4,)), c, c, c)
    with pytest.raises(ShapeError, match="2 groups do not divide them"):
        GroupNormalization(num_groups=2).infer(x, c, c)
    with pytest.raises(ShapeError, match="0 groups do not divide them"):
        GroupNormalization(num_groups=0).infer(x, c, c)
    with pytest.raises(TypeMismatchError, match=r"must be float32\[4, 3\]"):
        GroupNormalizationGrad(num_groups=3).infer(x, x, c, c, c)
    with pytest.raises(ShapeError, match="mean is absent"):
        BatchNormalization().infer(x, c, c, None, c)
    with pytest.raises(ShapeError, match="two dimensions"):
        BatchNormalization().infer(c, c, c, c, c)
    with pytest.raises(TypeMismatchError, match="int32"):
        LayerNormalization().infer(x.with_dtype("int32"), c)
    with pytest.raises(ShapeError, match="scale"):
        LayerNormalization().infer(x, c)
    b = Builder(Graph())
    made = b.emit(BatchNormalization(training_mode=1), *[b.input("x", t) for t in (x, c, c, c, c)])
    node = made[0].producer
    assert node is not None
    with pytest.raises(UnsupportedError, match="statistics"):
        node.op.vjp(b, [None, made[1], None, None], node.inputs, made)


def test_work() -> None:
    x, c = TensorType("float32", (4, 3, 5)), TensorType("float32", (3,))
    work = BatchNormalization(training_mode=1).work([x, c, c, None, None], [x, c, c, c])
    assert [a.kind for a in work.axes] == ["reduce", "parallel", "reduce"]
    assert {a.kind for a in BatchNormalization().work([x, c, c, c, c], [x]).axes} == {"parallel"}
