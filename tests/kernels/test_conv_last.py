"""Channels-last convolution and its gradients, and convolutions over three axes: against their references and torch."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import paths
import pytest
from evaluate import check_kernel, normal, run_kernel
from peers import needs, torch_has_avx512

from tileflow.graph import TensorType, type_of
from tileflow.host.form import Blockwise, HostForm, HostOp, blockwise, calls, channels_last
from tileflow.host.hosted import Hosted, hosted
from tileflow.kernels.conv import depthwise, weights
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call
from tileflow.lower.pack import Pack
from tileflow.ops.conv import Conv, ConvInputGrad, ConvWeightGrad
from tileflow.ops.window import windows

Array = np.ndarray

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "primes": ((2, 5, 11, 13), (7, 5, 3, 2), dict(pads=(1, 2, 0, 1))),
    "strides": ((2, 10, 13, 17), (10, 5, 3, 3), dict(group=2, strides=(3, 2), pads=(1, 2, 0, 1))),
    "dilation": ((1, 5, 13, 17), (40, 5, 3, 3), dict(strides=(2, 1), dilations=(3, 2), pads=(0, 1, 2, 1))),
    "stride and dilation share a factor": ((1, 3, 15, 14), (5, 3, 3, 2), dict(strides=(2, 4), dilations=(2, 2), pads=(2, 1, 2, 1))),
    "pointwise": ((2, 37, 5, 10), (20, 37, 1, 1), {}),
    "pointwise, stride 2": ((1, 16, 13, 14), (32, 16, 1, 1), dict(strides=(2, 2))),
    "stride beyond kernel": ((1, 5, 33, 9), (5, 5, 2, 1), dict(strides=(5, 2))),
    "all ones": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "padding beyond the kernel": ((1, 2, 3, 3), (3, 2, 2, 2), dict(pads=(3, 4, 3, 4))),
    "line": ((2, 5, 57), (5, 5, 4), dict(pads=(2, 1))),
    "volume": ((2, 3, 6, 5, 7), (5, 3, 3, 2, 3), dict(strides=(1, 2, 1), pads=(1, 0, 1, 1, 1, 0))),
    "volume in groups": ((1, 6, 5, 6, 4), (4, 3, 2, 3, 1), dict(group=2, dilations=(2, 1, 1), strides=(1, 1, 2))),
    "sums in blocks of taps": ((5, 150, 4, 4), (70, 150, 3, 3), dict(pads=(1, 1, 1, 1))),
    "sums in blocks of channels": ((1, 1300, 3, 4), (17, 1300, 1, 1), {}),
    "many pixels": ((3, 4, 40, 40), (6, 4, 3, 3), dict(pads=(1, 1, 1, 1))),
    "depthwise": ((2, 70, 9, 10), (70, 1, 3, 3), dict(group=70, pads=(1, 1, 1, 1))),
    "depthwise, stride 2": ((1, 5, 13, 9), (5, 1, 5, 2), dict(group=5, strides=(2, 3), dilations=(1, 2), pads=(2, 0, 1, 2))),
    "depthwise line": ((3, 33, 40), (33, 1, 4), dict(group=33, pads=(3, 0))),
    "depthwise lines, stride 2": ((2, 37, 8, 21), (37, 1, 5, 5), dict(group=37, strides=(1, 2), pads=(2, 2, 2, 2))),
    "depthwise lines, three taps, stride 2": ((3, 40, 9, 11), (40, 1, 3, 3),
                                              dict(group=40, strides=(2, 2), dilations=(2, 1), pads=(1, 1, 1, 1))),
    "depthwise lines, seven taps": ((1, 70, 6, 13), (70, 1, 2, 7), dict(group=70, pads=(0, 3, 1, 5))),
    "two filters to a channel": ((2, 5, 6, 7), (10, 1, 3, 3), dict(group=5, pads=(1, 1, 1, 1))),
    "whole vectors of channels": ((2, 16, 9, 11), (20, 16, 3, 3), dict(pads=(1, 1, 1, 1), strides=(2, 1))),
    "whole vectors in groups": ((2, 96, 5, 6), (28, 48, 3, 2), dict(group=2, pads=(1, 0, 1, 1))),
    "no image": ((0, 5, 6, 6), (5, 5, 3, 3), {}),
}
"""Shapes are planar, as ONNX has them."""
EVERYWHERE = ("primes", "strides", "whole vectors of channels", "depthwise, stride 2", "depthwise lines, stride 2")
"""Cases that every path runs."""
OFTEN = (*EVERYWHERE, "two filters to a channel", "no image")


def last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def forms(op: Conv, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[Hosted, Hosted, Hosted]:
    """The channels-last forms of `op` and its gradients."""
    win = windows(x[2:], w[2:], op.strides, op.pads, op.dilations, op.auto_pad)
    shared: dict[str, Any] = dict(strides=win.strides, pads=win.pads, dilations=win.dilations, group=op.group)
    gradients = ConvInputGrad(shape=x[2:], **shared), ConvWeightGrad(kernel_shape=w[2:], biased=True, **shared)
    return hosting.channels_last(op), hosting.channels_last(gradients[0]), hosting.channels_last(gradients[1])


@pytest.mark.parametrize(("path", "name"), [(paths.on if name in OFTEN else paths.rare)(path, name) for path in cpu.available() for name in CASES
                                            if path == paths.FASTEST or name in EVERYWHERE])
def test_kernels(path: str, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, over_weights = forms(Conv(**attributes), x_shape, w_shape)
    x, w = last(normal(*x_shape)), normal(*w_shape, seed=1)
    scale = 2e-5 * float(np.sqrt(w[0].size))
    with cpu.forced(path):
        y, = check_kernel(forward, x, w, normal(w_shape[0]), rtol=2e-5, atol=scale)
        run_kernel(forward, x, w)
        g = normal(*y.shape, seed=2)
        check_kernel(over_input, g, w, rtol=2e-5, atol=scale)
        check_kernel(over_weights, x, g, rtol=2e-5, atol=scale * float(np.sqrt(g[..., 0].size + 1)))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("depthwise")])
def test_lines_have_the_bits_of_single_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that share what they read add it up as each alone does, also where lines end within a block, and
    backwards."""
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, _ = forms(Conv(**attributes), x_shape, w_shape)
    x, w, bias = last(normal(*x_shape)), normal(*w_shape, seed=1), normal(w_shape[0], seed=2)
    x[0, 0, ..., 1] = np.nan
    y, = run_kernel(forward, x, w, bias)
    g = normal(*y.shape, seed=3)
    dx, = run_kernel(over_input, g, w)
    monkeypatch.setattr(depthwise, "ALONG", {})
    np.testing.assert_array_equal(run_kernel(forward, x, w, bias)[0], y)
    np.testing.assert_array_equal(run_kernel(over_input, g, w)[0], dx)


@pytest.mark.parametrize("c", [32, 64, 160])
def test_weight_gradients_are_the_same_gathered_or_read_where_they_lie(c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whatever the rows of a register block: the sums of one weight go over the pixels in one order."""
    shape = (3, c, 13, 17)
    _, _, over_weights = forms(Conv(pads=(1, 1, 1, 1)), shape, (33, c, 3, 3))
    x, g = last(normal(*shape)), last(normal(3, 33, 13, 17, seed=1))
    wanted = run_kernel(over_weights, x, g, workers=3)
    for name, value in (("NEAR", 0), ("BESIDE", 100)):
        monkeypatch.setattr(weights, name, value)
        for got, want in zip(run_kernel(over_weights, x, g), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["primes", "strides", "volume", "depthwise, stride 2"])
def test_as_torch_in_double(name: str) -> None:
    torch = needs("torch")
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    win = windows(x_shape[2:], w_shape[2:], op.strides, op.pads, op.dilations)
    x, w, bias = normal(*x_shape, dtype="float64"), normal(*w_shape, dtype="float64", seed=1), normal(w_shape[0], dtype="float64")
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, w, bias)]
    pads = [p for pair in zip(win.begin[::-1], win.end[::-1], strict=True) for p in pair]
    convolve = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}[x.ndim]
    wanted = convolve(torch.nn.functional.pad(tensors[0], pads), *tensors[1:], stride=win.strides, dilation=win.dilations, groups=op.group)
    g = normal(*wanted.shape, dtype="float64", seed=2)
    wanted.backward(torch.tensor(g))
    forward, over_input, over_weights = forms(op, x_shape, w_shape)
    y, = run_kernel(forward, last(x), w, bias)
    dx, = run_kernel(over_input, last(g), w)
    dw, db = run_kernel(over_weights, last(x), last(g))
    for got, tensor in ((y, wanted.detach()), (dx, tensors[0].grad)):
        np.testing.assert_allclose(got, last(tensor.numpy()), rtol=1e-10, atol=1e-11)
    for got, tensor in ((dw, tensors[1].grad), (db, tensors[2].grad)):
        np.testing.assert_allclose(got, tensor.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["volume", "volume in groups"])
def test_planar_volumes(name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    _, over_input, over_weights = forms(op, x_shape, w_shape)
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    y, = check_kernel(op, x, w, normal(w_shape[0]), rtol=2e-5, atol=1e-4)
    g = normal(*y.shape, seed=2)
    check_kernel(over_input.op, g, w, rtol=2e-5, atol=1e-4)
    check_kernel(over_weights.op, x, g, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("taps", [1, 3])
def test_pixels_that_fill_no_block_have_the_bits_of_those_that_do(path: str, taps: int) -> None:
    """However many pixels there are, up to two blocks and one: each is summed as among many."""
    with cpu.forced(path):
        most = 2 * cpu.current().tile.rows + 1
        x, w = last(normal(1, 37, most + taps - 1)), normal(41, 37, taps, seed=1)

        def found(pixels: int) -> Array:
            given = np.ascontiguousarray(x[:, :pixels + taps - 1])
            forward = forms(Conv(), (1, 37, pixels + taps - 1), w.shape)[0]
            return run_kernel(forward, given, w)[0]
        whole = found(most)
        for pixels in range(1, most):
            np.testing.assert_array_equal(found(pixels), whole[:, :pixels])



def test_as_accurate_as_torch() -> None:
    """Mean errors of one class: 0.6 to 1.1 of PyTorch's where oneDNN runs its AVX2 kernels, up to 1.5 with its AVX-512 ones, of shorter sums."""
    torch = needs("torch")
    x, w = normal(4, 96, 14, 14), normal(80, 96, 3, 3, seed=1)
    op = Conv(pads=(1, 1, 1, 1))
    forward, over_input, over_weights = forms(op, x.shape, w.shape)

    def by_torch(dtype: str) -> list[Array]:
        tensors = [torch.tensor(a.astype(dtype), requires_grad=True) for a in (x, w)]
        y = torch.nn.functional.conv2d(*tensors, padding=1)
        y.backward(torch.tensor(normal(*y.shape, seed=2).astype(dtype)))
        return [last(y.detach().numpy()), last(tensors[0].grad.numpy()), tensors[1].grad.numpy()]

    exact, theirs = by_torch("float64"), by_torch("float32")
    g = last(normal(4, 80, 14, 14, seed=2))
    ours = [run_kernel(forward, last(x), w)[0], run_kernel(over_input, g, w)[0], run_kernel(over_weights, last(x), g)[0]]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert np.abs(mine - right).mean() < (2 if torch_has_avx512() else 1.5) * np.abs(other - right).mean()


def test_nan_and_infinity_stay_where_they_belong() -> None:
    x, w = last(normal(2, 5, 8, 20)), normal(5, 5, 3, 3, seed=1)
    x[0, 4, 7, 1], x[1, 2, 18, 0] = np.nan, np.inf
    forward, over_input, over_weights = forms(Conv(pads=(1, 1, 1, 1)), (2, 5, 8, 20), w.shape)
    y, = run_kernel(forward, x, w)
    with np.errstate(invalid="ignore"):
        wanted, = forward.reference(x, w)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(wanted))
    g = normal(*y.shape, seed=2)
    g[1, 3, 5, 2] = np.nan
    np.testing.assert_array_equal(np.isnan(run_kernel(over_input, g, w)[0]), np.isnan(over_input.reference(g, w)[0]))
    np.testing.assert_array_equal(np.isnan(run_kernel(over_weights, x, g)[0]), np.isnan(over_weights.reference(x, g)[0]))


class Afterwards(HostOp):
    """An operator whose epilogue runs as a pass of its own."""

    name = "Afterwards"

    def __init__(self, op: Hosted) -> None:
        self.op = op

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*types)


@blockwise.register(Afterwards)
def _(op: Afterwards, form: HostForm) -> Blockwise | None:
    return op.op.blockwise


@calls.register(Afterwards)
def _(op: Afterwards, form: HostForm, inputs: Any, outputs: Any, cpu: Any) -> list[Call]:
    assert op.op.blockwise is not None
    assert form.epilogue is not None
    return [*op.op.kernel(inputs, outputs, cpu), form.epilogue.after(outputs[0].shape, op.op.blockwise.channels)]


@pytest.mark.parametrize(("name", "turned"), [("primes", True), paths.rare("primes", False), paths.rare("strides", True),
                                              paths.rare("strides", False), paths.rare("sums in blocks of taps", True),
                                              paths.rare("volume", False), ("depthwise", True)])
def test_epilogues(name: str, turned: bool) -> None:
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    product, factor, skip = (Var(i, "float32") for i in range(3))
    exprs, kinds = (maximum(product * factor + skip, 0),), ("channel", "full")
    x, w, bias, scale = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0]), normal(w_shape[0], seed=3)
    chosen = hosting.channels_last(op) if turned else hosted(op)
    x = last(x) if turned else x
    y, = chosen.infer(type_of(x), type_of(w))
    arrays = (x, w, bias, scale, normal(*y.shape, seed=4))
    fused, apart = (run_kernel(hosting.finished(o, 3, y, exprs, kinds), *arrays)[0]
                    for o in (chosen, Afterwards(chosen)))
    assert fused.tobytes() == apart.tobytes()
    split, = run_kernel(hosting.finished(chosen, 3, y, exprs, kinds), *arrays, workers=3)
    assert split.tobytes() == apart.tobytes()
    plain, = run_kernel(chosen, x, w, bias)
    wide = [1] * y.rank
    wide[-1 if turned else 1] = -1
    np.testing.assert_allclose(fused, np.maximum(plain * scale.reshape(wide) + arrays[-1], 0), rtol=1e-5, atol=1e-5)


def test_layouts_are_chosen_by_size() -> None:
    """Wide convolutions save time with channels last; those of one channel do not."""
    def gain(op: Any, *shapes: tuple[int, ...]) -> float:
        types = [TensorType("float32", s) for s in shapes]
        form = channels_last(op, types, op.infer(*types), cpu.current())
        assert form is not None
        assert len(form.inputs) == len(shapes)
        return float(form.gain)

    wide, narrow = ((2, 64, 14, 14), (64, 64, 3, 3)), ((2, 1, 28, 28), (10, 1, 5, 5))
    assert gain(Conv(pads=(1, 1, 1, 1)), *wide) > 0 > gain(Conv(), *narrow, (10,))
    assert gain(ConvInputGrad(shape=(14, 14), pads=(1, 1, 1, 1)), *wide) > 0 > gain(ConvInputGrad(shape=(28, 28)), (2, 10, 24, 24), narrow[1])
    assert gain(ConvWeightGrad(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), wide[0], wide[0]) > 0
    assert gain(ConvWeightGrad(kernel_shape=(5, 5)), narrow[0], (2, 10, 24, 24)) < 0


def check_laid_out(op: Any, *arrays: np.ndarray) -> None:
    """With its weights (operand 1) laid out beforehand an operator has the same bits."""
    types = [type_of(a) for a in arrays]
    (found, reading), (again, _) = hosting.packed(op, types), hosting.packed(op, types)
    assert found is not None
    assert again is not None
    assert found.calls == again.calls
    laid, = run_kernel(Pack(found), arrays[1])
    got, = run_kernel(reading, arrays[0], laid, *arrays[2:])
    assert got.tobytes() == run_kernel(op, *arrays)[0].tobytes()


@pytest.mark.parametrize("name", ["strides", "primes", "depthwise", "pointwise"])
def test_weights_laid_out_beforehand(name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    forward, over_input, _ = forms(op, x_shape, w_shape)
    x, w, bias = normal(*x_shape), normal(*w_shape, seed=1), normal(w_shape[0])
    y, = op.reference(x, w)
    for chosen, arrays in ((op, (x, w, bias)), (forward, (last(x), w, bias)), (over_input.op, (y, w)), (over_input, (last(y), w))):
        types = [type_of(a) for a in arrays]
        lies = name in ("depthwise", "pointwise") and chosen in (op, over_input.op)
        if lies and hosting.packed(chosen, types)[0] is None:                      # read where they lie
            continue
        check_laid_out(chosen, *arrays)
