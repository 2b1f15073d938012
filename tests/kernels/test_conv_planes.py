"""Depthwise convolution over planes: its kernels against references, torch in float64, and what is not finite."""
from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_kernel, run_kernel
from peers import needs
from test_conv import gradients_of, normal

from tileflow.kernels.conv.planar import depthwise
from tileflow.kernels.isa import cpu
from tileflow.ops.conv import Conv

Array = np.ndarray

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "same": ((2, 5, 19, 23), (3, 3), dict(pads=(1, 1, 1, 1))),
    "narrower than a vector": ((3, 3, 11, 3), (3, 3), dict(pads=(1, 1, 1, 1))),
    "stride 2": ((2, 3, 21, 35), (3, 3), dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    "stride 3, dilation": ((1, 2, 29, 41), (3, 2), dict(strides=(2, 3), dilations=(2, 3), pads=(2, 0, 1, 3))),
    "valid, five taps": ((2, 4, 14, 14), (5, 5), {}),
    "many taps in a row": ((2, 2, 4, 30), (1, 13), dict(pads=(0, 6, 0, 6))),
    "line": ((2, 3, 57), (4,), dict(pads=(2, 1))),
    "bands": ((1, 2, 300, 310), (3, 3), dict(pads=(1, 1, 1, 1))),
    "bands, stride 2": ((2, 2, 301, 311), (3, 3), dict(strides=(2, 2), pads=(1, 0, 1, 2))),
    "pixel": ((2, 3, 1, 1), (3, 3), dict(pads=(1, 1, 1, 1))),
}
EVERYWHERE = ("same", "stride 2")
OFTEN = (*EVERYWHERE, "narrower than a vector", "bands", "pixel")


def operator(x: tuple[int, ...], attributes: dict[str, Any]) -> Conv:
    return Conv(group=x[1], **attributes)


@pytest.mark.parametrize(("path", "name"), [(paths.on if name in OFTEN else paths.rare)(path, name) for path in cpu.available()
                                            for name in CASES if path == paths.FASTEST or name in EVERYWHERE])
def test_kernels(path: str, name: str) -> None:
    x_shape, kernel, attributes = CASES[name]
    op, c = operator(x_shape, attributes), x_shape[1]
    x, w = normal(*x_shape), normal(c, 1, *kernel, seed=1)
    with cpu.forced(path):
        y, = check_kernel(op, x, w, normal(c), rtol=2e-5, atol=1e-4)
        g = normal(*y.shape, seed=2)
        over_input, over_weights = gradients_of(op, x_shape, w.shape)
        check_kernel(over_input, g, w, rtol=2e-5, atol=1e-4)
        check_kernel(over_weights, x, g, rtol=2e-5, atol=2e-5 * float(np.sqrt(g[:, 0].size)) + 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_as_torch_in_double(name: str) -> None:
    torch = needs("torch")
    x_shape, kernel, attributes = CASES[name]
    op, c = operator(x_shape, attributes), x_shape[1]
    arrays = normal(*x_shape, dtype="float64"), normal(c, 1, *kernel, dtype="float64", seed=1), normal(c, dtype="float64")
    x, w, bias = (torch.tensor(a, requires_grad=True) for a in arrays)
    win = op.windows(x_shape, arrays[1].shape)
    pads = [p for pair in zip(win.begin[::-1], win.end[::-1], strict=True) for p in pair]
    convolve = torch.nn.functional.conv1d if x.ndim == 3 else torch.nn.functional.conv2d
    y = convolve(torch.nn.functional.pad(x, pads), w, bias, stride=win.strides, dilation=win.dilations, groups=c)
    g = normal(*y.shape, dtype="float64", seed=2)
    y.backward(torch.tensor(g))
    over_input, over_weights = gradients_of(op, x_shape, arrays[1].shape)
    np.testing.assert_allclose(run_kernel(op, *arrays)[0], y.detach().numpy(), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(run_kernel(over_input, g, arrays[1])[0], x.grad.numpy(), rtol=1e-10, atol=1e-11)
    dw, db = run_kernel(over_weights, arrays[0], g)
    np.testing.assert_allclose(dw, w.grad.numpy(), rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(db, bias.grad.numpy(), rtol=1e-10, atol=1e-9)


POINTWISE = {"more filters": (3, 5, 18, 17, 13), "more channels": (2, 19, 6, 17, 13), "one image": (1, 7, 7, 16, 16)}
"""Images, channels, filters, height, width."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, dtype: str) -> None:
    torch = needs("torch")
    n, c, o, h, width = POINTWISE[name]
    arrays = [normal(n, c, h, width, dtype=dtype), normal(o, c, 1, 1, dtype=dtype, seed=1), normal(o, dtype=dtype, seed=2)]
    x, w, bias = (torch.tensor(a.astype("float64"), requires_grad=True) for a in arrays)
    y = torch.nn.functional.conv2d(x, w, bias)
    g = normal(n, o, h, width, dtype=dtype, seed=3)
    y.backward(torch.tensor(g.astype("float64")))
    tolerance = 2e-5 if dtype == "float32" else 1e-11
    over_input, over_weights = gradients_of(Conv(), arrays[0].shape, arrays[1].shape, biased=False)
    got = [check_kernel(op, *given, rtol=tolerance, atol=20 * tolerance)[0] for op, given in
           ((Conv(), arrays), (over_input, [g, arrays[1]]), (over_weights, [arrays[0], g]))]
    for result, wanted in zip(got, (y.detach(), x.grad, w.grad), strict=True):
        np.testing.assert_allclose(result, wanted.numpy(), rtol=tolerance, atol=20 * tolerance)


def test_long_sums_are_as_accurate_as_pairwise_ones() -> None:
    """The weight gradient over many images of values that do not cancel: an error of a few roundings, not of their number."""
    op = operator((24, 2, 40, 40), dict(pads=(1, 1, 1, 1)))
    x, g = (np.random.default_rng(i).random((24, 2, 40, 40)).astype("float32") for i in range(2))
    over_weights = gradients_of(op, x.shape, (2, 1, 3, 3), biased=False)[1]
    exact, = over_weights.reference(x.astype("float64"), g.astype("float64"))
    np.testing.assert_allclose(run_kernel(over_weights, x, g)[0], exact, rtol=3e-6)


@pytest.mark.parametrize("width", [5, 21])
def test_what_is_not_finite_stays_where_it_belongs(width: int) -> None:
    """Frames and masked ends must not carry NaN or infinity to neighbours, other planes or taps that do not meet it."""
    op = operator((2, 3, 9, width), dict(pads=(1, 1, 1, 1)))
    x, w = normal(2, 3, 9, width), normal(3, 1, 3, 3, seed=1)
    x[0, 1, 4, 0], x[1, 2, 8, width - 1] = np.nan, np.inf
    y, = check_kernel(op, x, w, rtol=2e-5, atol=1e-5)
    assert np.isnan(y).sum() == 6
    assert np.isinf(y).sum() == 4
    over_weights = gradients_of(op, x.shape, w.shape, biased=False)[1]
    g = normal(*y.shape, seed=2)
    dw, = run_kernel(over_weights, x, g)
    finite = np.isfinite(dw[:, 0])
    assert finite[0].all()
    assert (finite[1] == [[False, False, True]] * 3).all()        # a column at the left edge meets no right tap
    assert (finite[2] == [[True] * 3, [True, False, False], [True, False, False]]).all()


def test_the_unit_of_range_depends_on_sizes_alone() -> None:
    tall = depthwise.Frame(1000, 1000, 1000, 1000, 3, 3, 1, 1, 1, 1, 1, 1)
    band, rows = tall.blocks(4)
    assert band < 1000
    assert rows <= depthwise.ROWS
    assert tall.depth(band) * tall.pitch * 4 <= depthwise.FRAME
