"""Winograd's convolution of 3 x 3 kernels and its input gradient: against torch in float64, the direct kernels and the definition."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import pytest
from evaluate import check_kernel, normal, run_kernel
from peers import needs, torch_has_avx512

from tileflow.graph import type_of
from tileflow.host.hosted import Hosted
from tileflow.kernels import conv as kernels
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.isa import cpu
from tileflow.lower.pack import Pack
from tileflow.ops.conv import Conv, ConvInputGrad

Array = np.ndarray
pytestmark = pytest.mark.skipif(not cpu.current().fma, reason="needs a CPU with fused multiply-add: only there does it pay")

CASES = {
    "odd sides": ((2, 37, 15, 17), 45, (1, 1, 1, 1)),
    "blocks of tiles": ((5, 40, 28, 13), 33, (1, 1, 1, 1)),
    "no padding": ((3, 32, 20, 15), 64, (0, 0, 0, 0)),
    "padding of its own on each side": ((2, 33, 19, 18), 35, (2, 0, 1, 3)),
}


def last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def forms(x: tuple[int, ...], pads: tuple[int, ...]) -> tuple[Hosted, Hosted]:
    return hosting.channels_last(Conv(pads=pads)), hosting.channels_last(ConvInputGrad(shape=x[2:], pads=pads))


def by_torch(x: Array, w: Array, g: Array | None, pads: tuple[int, ...], dtype: str) -> list[Array]:
    """The output and the gradient of the input, channels last."""
    torch = needs("torch")
    tx, tw = torch.tensor(x.astype(dtype), requires_grad=True), torch.tensor(w.astype(dtype))
    y = torch.nn.functional.conv2d(torch.nn.functional.pad(tx, (pads[1], pads[3], pads[0], pads[2])), tw)
    y.backward(torch.tensor((normal(*y.shape, seed=2) if g is None else g).astype(dtype)))
    return [last(y.detach().numpy()), last(tx.grad.numpy())]


@pytest.mark.parametrize("name", list(CASES))
def test_as_torch_and_as_accurate(name: str) -> None:
    """Errors of one class: in the mean 0.7 to 1.15 of PyTorch's where oneDNN runs its AVX2 kernels, 1.0 to 1.35 with its AVX-512 ones."""
    shape, o, pads = CASES[name]
    x, w = normal(*shape), normal(o, shape[1], 3, 3, seed=1)
    exact, theirs = by_torch(x, w, None, pads, "float64"), by_torch(x, w, None, pads, "float32")
    forward, over_input = forms(shape, pads)
    problem = Conv(pads=pads).problem(shape, w.shape)
    assert kernels.winograd.serves(problem, "f4", cpu.current())
    assert kernels.winograd.serves(problem.turn, "f4", cpu.current())
    g = np.ascontiguousarray(np.moveaxis(normal(*exact[0].shape[:1], o, *exact[0].shape[1:3], seed=2), 1, -1))
    ours = [check_kernel(forward, last(x), w, rtol=2e-5, atol=1e-4)[0], check_kernel(over_input, g, w, rtol=2e-5, atol=1e-4)[0]]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert np.abs(mine - right).mean() < (1.6 if torch_has_avx512() else 1.3) * np.abs(other - right).mean()
        assert np.abs(mine - right).max() < 2.5 * np.abs(other - right).max()


@pytest.mark.parametrize("path", ["avx512", "avx2"])
@pytest.mark.parametrize(("channels", "side"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_a_single_image_of_resnet_is_worth_it(channels: int, side: int, path: str) -> None:
    """By measured times, with weights from memory: 0.53 to 0.62 of the direct way's, where they are the most."""
    problem = Conv(pads=(1, 1, 1, 1)).problem((1, channels, side, side), (channels, channels, 3, 3))
    assert kernels.choose(problem, "f4", cpu.PATHS[path]).name == "winograd"
    strided = Conv(pads=(1, 1, 1, 1), strides=(2, 2)).problem((1, channels, side, side), (channels, channels, 3, 3))
    assert kernels.choose(strided, "f4", cpu.PATHS[path]).name == "direct"


def test_served_problems() -> None:
    def pays(x: tuple[int, ...], w: tuple[int, ...], code: str = "f4", gradient: bool = False, **attributes: Any) -> bool:
        problem = Conv(**attributes).problem(x, w)
        return kernels.winograd.serves(problem.turn if gradient else problem, code, cpu.current())

    x, w, pads = (1, 64, 28, 28), (64, 64, 3, 3), (1, 1, 1, 1)
    assert pays(x, w, pads=pads)
    assert pays(x, w, pads=pads, gradient=True)
    assert not pays(x, w, strides=(2, 2))
    assert not pays(x, w, dilations=(2, 2))
    assert not pays(x, w, "f8")
    assert not pays(x, (64, 32, 3, 3), group=2)
    assert not pays((1, 8, 28, 28), (64, 8, 3, 3))
    assert not pays(x, (64, 64, 3, 2))
    assert not pays((1, 64, 1, 28, 28), (64, 64, 3, 3, 3), pads=(1,) * 6)
    assert pays((1, 64, 7, 7), w, pads=pads)
    assert not pays((1, 64, 7, 7), w, pads=pads, gradient=True)


def test_nan_and_infinity_keep_their_meaning() -> None:
    shape, o, pads = CASES["odd sides"]
    x, w, bias = last(normal(*shape)), normal(o, shape[1], 3, 3, seed=1), normal(o)
    w[3] = 0
    x[0, 4, 7, 1], x[1, 2, 16, 0], x[1, 14, 3, 9], x[1, 14, 4, 9] = np.nan, np.inf, -np.inf, np.inf
    bias[5] = np.inf
    forward, over_input = forms(shape, pads)
    with np.errstate(invalid="ignore"):
        for form, arrays in ((forward, (x, w, bias)), (over_input, (normal(2, 15, 17, o), w))):
            if form is over_input:
                arrays[0][0, 0, 0, 1], arrays[0][1, 14, 16, 2] = np.nan, -np.inf
            got, = run_kernel(form, *arrays)
            wanted, = form.reference(*arrays)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            np.testing.assert_array_equal(np.sign(got[np.isinf(got)]), np.sign(wanted[np.isinf(wanted)]))
            np.testing.assert_allclose(got[np.isfinite(got)], wanted[np.isfinite(wanted)], rtol=2e-5, atol=2e-4)


def test_what_overflows_only_on_the_way_is_finite() -> None:
    shape, o, pads = CASES["odd sides"]
    x, w = np.full((2, 15, 17, 37), 2e38, np.float32), np.zeros((o, 37, 3, 3), np.float32)
    w[:, 4, 1, 1] = 1.5
    got, = run_kernel(forms(shape, pads)[0], x, w)
    assert got.tobytes() == np.full((2, 15, 17, o), 3e38, np.float32).tobytes()


@pytest.mark.parametrize("biased", [True, False])
def test_weights_laid_out_beforehand_and_epilogue(biased: bool) -> None:
    """They stay an input, for what is not finite; an epilogue's operands come after them."""
    shape, o, pads = CASES["blocks of tiles"]
    forward, _ = forms(shape, pads)
    x, w, bias = last(normal(*shape)), normal(o, shape[1], 3, 3, seed=1), normal(o)
    x[2, 3, 4, 5] = np.inf
    own = (x, w, bias) if biased else (x, w)
    types = [type_of(a) for a in own]
    y, = forward.infer(*types)
    found, reading = hosting.packed(forward, types)
    assert found is not None
    assert found.keeps
    laid, = run_kernel(Pack(found), w)
    product, skip = Var(0, "float32"), Var(1, "float32")
    exprs, kinds = (maximum(product + skip, 0),), ("full",)
    skipped = normal(*y.shape, seed=4)
    plain, = run_kernel(forward, *own)
    for inputs, op in ((own, forward), ((x, laid, *own[2:], w), reading)):
        got, = run_kernel(hosting.finished(op, len(inputs), y, exprs, kinds), *inputs, skipped, workers=3)
        assert got.tobytes() == np.maximum(plain + skipped, 0).tobytes()
