"""Channels-last convolution by bfloat16 tiles: against torch in double precision, the vector kernels' error, and itself in pieces."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_kernel, run_kernel
from peers import needs
from test_amx import EMULATED, PATHS, UNIT, VECTORS
from test_conv_last import check_laid_out, forms, last, normal

from tileflow.graph import Op, type_of
from tileflow.kernels.conv import tiles as conv_tiles
from tileflow.kernels.conv import tiles_weights
from tileflow.kernels.conv.algorithms import saved
from tileflow.kernels.elementwise.epilogue import Along, Epilogue
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.gemm import tiles
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In
from tileflow.ops.conv import Conv

Array = np.ndarray

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "primes": ((2, 19, 11, 7), (37, 19, 3, 2), dict(pads=(1, 2, 0, 1))),
    "strides": ((1, 21, 13, 17), (18, 21, 3, 3), dict(strides=(3, 2), pads=(1, 2, 0, 1))),
    "strides beyond the kernel": ((1, 17, 15, 9), (35, 17, 2, 1), dict(strides=(5, 2))),
    "strides in groups, a factor shared": ((2, 34, 9, 8), (38, 17, 3, 2), dict(group=2, strides=(2, 4), dilations=(2, 2), pads=(2, 1, 2, 1))),
    "dilation in groups": ((1, 34, 13, 11), (46, 17, 3, 3), dict(group=2, dilations=(3, 2), pads=(0, 1, 2, 1))),
    "pointwise": ((2, 75, 5, 10), (33, 75, 1, 1), {}),
    "pointwise in groups": ((1, 70, 5, 7), (66, 35, 1, 1), dict(group=2)),
    "pointwise, padding": ((1, 33, 5, 4), (17, 33, 1, 1), dict(pads=(1, 0, 0, 2))),
    "line": ((2, 16, 57), (40, 16, 4), dict(pads=(2, 1))),
    "volume": ((1, 16, 4, 5, 6), (20, 16, 2, 2, 3), dict(pads=(1, 0, 1, 1, 1, 0))),
    "runs of taps": ((1, 80, 7, 7), (35, 80, 3, 3), dict(pads=(1, 1, 1, 1))),
    "runs of channels": ((1, 1100, 3, 4), (17, 1100, 1, 1), {}),
    "blocks of pixels": ((1, 16, 15, 14), (16, 16, 3, 3), dict(pads=(1, 1, 1, 1))),
}
"""Shapes are planar, as ONNX has them."""
QUICK = ("primes", "strides", "pointwise in groups")
"""What is run emulated."""


@pytest.fixture(params=PATHS, ids=lambda path: path.label)
def path(request: pytest.FixtureRequest) -> Iterator[cpu.Cpu]:
    with cpu.forced(request.param) as path:
        yield path


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for problems that are too small for them, too."""
    monkeypatch.setattr(tiles, "pays", lambda *_args: True)


def leaves(op: Any, *arrays: Array) -> list[str]:
    types = [type_of(a) for a in arrays]
    return [call.leaf.name for call in op.kernel(types, op.infer(*types), cpu.current())]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", QUICK if EMULATED else [paths.rare(name) for name in CASES])
def test_kernels(path: cpu.Cpu, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, over_weights = forms(Conv(**attributes), x_shape, w_shape)
    x, w, bias = last(normal(*x_shape)), normal(*w_shape, seed=1), normal(w_shape[0])
    scale = 2e-5 * float(np.sqrt(w[0].size))
    assert "conv_tiles" in leaves(forward, x, w, bias)
    y, = check_kernel(forward, x, w, bias, rtol=2e-5, atol=scale)
    run_kernel(forward, x, w)
    g = normal(*y.shape, seed=2)
    assert "conv_tiles" in leaves(over_input, g, w)
    check_kernel(over_input, g, w, rtol=2e-5, atol=scale)
    assert "conv_tiles_weights" in leaves(over_weights, x, g)
    check_kernel(over_weights, x, g, rtol=2e-5, atol=2e-5 * float(np.sqrt(g[..., 0].size)))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", [paths.rare("dilation in groups"), "pointwise in groups"])
def test_weights_laid_out_beforehand(path: cpu.Cpu, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, _ = forms(Conv(**attributes), x_shape, w_shape)
    x, w, bias = last(normal(*x_shape)), normal(*w_shape, seed=1), normal(w_shape[0])
    y, = run_kernel(forward, x, w)
    for op, arrays in ((forward, (x, w, bias)), (over_input, (y, w))):
        check_laid_out(op, *arrays)


@pytest.mark.usefixtures("always")
def test_epilogue_on_finished_blocks(path: cpu.Cpu) -> None:
    x, w, bias = last(normal(2, 19, 6, 7)), normal(37, 19, 3, 3, seed=1), normal(37)
    forward, _, _ = forms(Conv(pads=(1, 1, 1, 1)), (2, 19, 6, 7), w.shape)
    y, = run_kernel(forward, x, w, bias)
    v = [Var(i, "float32") for i in range(3)]
    scale, other = normal(37, seed=3), normal(*y.shape, seed=4)
    epilogue = Epilogue((maximum(v[0] * v[1] + v[2], v[0]),), (Along(In(3, (37,)), "channel"), Along(In(4, y.shape), "full")), y.size)

    class Fused(Op):
        def infer(self, *_types: Any) -> Any:
            return (type_of(y),)

        def kernel(self, inputs: Any, outputs: Any, cpu: Any) -> Any:
            return forward.also(epilogue=epilogue).kernel(inputs, outputs, cpu)

    got, = run_kernel(Fused(), x, w, bias, scale, other, workers=3)
    np.testing.assert_allclose(got, np.maximum(y * scale + other, y), rtol=1e-6, atol=1e-6)


def torch_in_double(op: Conv, x: Array, w: Array, g: Array) -> list[Array]:
    """y, dx and dw over planar images, without padding of different sizes."""
    torch = needs("torch")
    tensors = [torch.tensor(a.astype("f8"), requires_grad=True) for a in (x, w)]
    rank = len(op.pads) // 2
    y = torch.nn.functional.conv2d(*tensors, padding=op.pads[:rank], stride=op.strides, dilation=op.dilations, groups=op.group)
    y.backward(torch.tensor(g.astype("f8")))
    return [y.detach().numpy(), tensors[0].grad.numpy(), tensors[1].grad.numpy()]


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_as_accurate_as_the_vector_kernels(path: cpu.Cpu, kind: str) -> None:
    """At a size at which tiles are chosen."""
    needs("torch")
    op = Conv(pads=(1, 1, 1, 1), strides=(1, 1), dilations=(1, 1))
    x, w = normal(2, 96, 14, 13), normal(80, 96, 3, 3, seed=1)
    if kind == "positive":
        x, w = abs(x), abs(w)
    elif kind == "wide":
        x = x * (10.0 ** np.random.default_rng(3).uniform(-12, 6, x.shape)).astype("f4")
    g = normal(2, 80, 14, 13, seed=2)
    forward, over_input, over_weights = forms(op, x.shape, w.shape)
    arrays: list[tuple[Any, Any]] = [(forward, (last(x), w)), (over_input, (last(g), w)), (over_weights, (last(x), last(g)))]
    got = []
    for op_, given in arrays:
        assert {"conv_tiles", "conv_tiles_weights"} & set(leaves(op_, *given))
        got.append(run_kernel(op_, *given)[0])
    with cpu.forced(VECTORS):
        plain = [run_kernel(op_, *given)[0] for op_, given in arrays]
    scales = torch_in_double(op, abs(x), abs(w), abs(g))
    for i, (tiled, vectors, wanted, scale) in enumerate(zip(got, plain, torch_in_double(op, x, w, g), scales, strict=True)):
        order = last if i < 2 else np.ascontiguousarray
        errors = [np.abs(a.astype("f8") - order(wanted)) / order(scale) / UNIT for a in (tiled, vectors)]
        most, mean = (2.0, 1.6) if kind == "wide" else (1.0, 1.0)
        assert errors[0].max() <= most * errors[1].max(), [e.max() for e in errors]
        assert errors[0].mean() <= mean * errors[1].mean(), [e.mean() for e in errors]


@pytest.mark.usefixtures("always")
def test_infinity_nan_and_magnitudes_that_cannot_be_split(path: cpu.Cpu) -> None:
    """As the vector kernels have them, in the image and in the weights; pixels of other blocks do not change."""
    op = Conv(pads=(1, 1, 1, 1))
    x, w = last(normal(1, 17, 13, 11)), normal(35, 17, 3, 3, seed=1)
    forward, _, _ = forms(op, (1, 17, 13, 11), w.shape)
    plain, = run_kernel(forward, x, w)
    for value in (np.inf, np.nan, -np.finfo("f4").max, 2.0 ** 103)[:1 if EMULATED else 4]:
        for side, place in ((0, (0, 3, 5, 16)), (1, (34, 3, 2, 0))):
            a, b = x.copy(), w.copy()
            (a, b)[side][place] = value
            got, = run_kernel(forward, a, b)
            with np.errstate(all="ignore"):
                wanted, = forward.reference(a.astype("f8"), b.astype("f8"))
                wanted = wanted.astype("f4")
                scale, = forward.reference(np.where(np.isfinite(a), abs(a), 0).astype("f8"), np.where(np.isfinite(b), abs(b), 0).astype("f8"))
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
            finite = np.isfinite(wanted)
            assert (np.abs(got[finite] - wanted[finite]) <= 8 * UNIT * scale[finite]).all()
            if side == 0:
                np.testing.assert_array_equal(got[0, 12:], plain[0, 12:])


@paths.exhaustive
@pytest.mark.usefixtures("always")
def test_infinity_and_nan_in_the_weight_gradient(path: cpu.Cpu) -> None:
    x, g = last(normal(1, 17, 9, 7)), last(normal(1, 35, 9, 7, seed=1))
    _, _, over_weights = forms(Conv(pads=(1, 1, 1, 1)), (1, 17, 9, 7), (35, 17, 3, 3))
    for side, value in ((0, np.inf), (1, -np.inf), (1, np.nan))[:1 if EMULATED else 3]:
        (a, b) = x.copy(), g.copy()
        (a, b)[side][0, 3, 5, 16] = value
        with np.errstate(all="ignore"):
            wanted = over_weights.reference(a.astype("f8"), b.astype("f8"))
        for got, exact in zip(run_kernel(over_weights, a, b), wanted, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)


def test_way_is_chosen_by_sizes(path: cpu.Cpu) -> None:
    def served(x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> bool:
        s = Conv(**attributes).problem(x, w)
        return conv_tiles.serves(s, "f4", path) or conv_tiles.serves(s.turn, "f4", path)

    wide, filters = (8, 64, 28, 28), (64, 64, 3, 3)
    assert served(wide, filters, pads=(1, 1, 1, 1))
    assert not served((8, 3, 224, 224), (64, 3, 7, 7), strides=(2, 2))
    assert not served((8, 64, 28, 28), (64, 1, 3, 3), group=64)
    assert not served((1, 64, 3, 3), filters)
    s = Conv(pads=(1, 1, 1, 1)).problem(wide, filters)
    assert tiles_weights.serves(s, "f4", path)
    for problem, of_weights in ((s, False), (s.turn, False), (s, True)):
        rates = cpu.PATHS["amx"].rates                       # of processors that have tiles
        in_tiles, in_vectors = (saved(problem, "f4", replace(on, rates=rates), of_weights=of_weights) for on in (path, cpu.PATHS[VECTORS]))
        assert in_tiles > in_vectors > 0
    assert not conv_tiles.serves(s, "f8", path)
    assert not conv_tiles.serves(s, "f4", cpu.PATHS[VECTORS])
