"""Convolutions of float16 and bfloat16 and their gradients on 16-bit memory: against float64 and torch, on every path and in tiles."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hosting
import ml_dtypes
import numpy as np
import paths
import pytest
from evaluate import run_kernel
from peers import needs
from test_amx import EMULATED, PATHS
from test_conv_last import check_laid_out, forms, last
from test_conv_tiles import leaves

from tileflow.graph import Builder, Graph, TensorType, type_of
from tileflow.host.form import takes_halves
from tileflow.kernels.conv import ConvAxis, ConvProblem, algorithms, winograd
from tileflow.kernels.conv.indirection import fill_table, phase_pixels
from tileflow.kernels.elementwise.expr import Var, maximum
from tileflow.kernels.gemm import tiles
from tileflow.kernels.isa import cpu
from tileflow.lower.layout import arrange
from tileflow.lower.widen import widen
from tileflow.ops.conv import Conv, ConvInputGrad, ConvWeightGrad

Array = np.ndarray
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
VECTOR_PATHS = [cpu.PATHS[name] for name in cpu.available() if name != "amx"]
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "primes": ((2, 19, 11, 7), (37, 19, 3, 2), dict(pads=(1, 2, 0, 1))),
    "strides in groups": ((1, 34, 13, 17), (38, 17, 3, 3), dict(group=2, strides=(3, 2), pads=(1, 2, 0, 1))),
    "stride beyond the kernel, dilation": ((1, 17, 15, 9), (35, 17, 2, 2), dict(strides=(5, 2), dilations=(1, 2))),
    "pointwise": ((2, 75, 5, 10), (33, 75, 1, 1), {}),
    "line": ((2, 16, 57), (40, 16, 4), dict(pads=(2, 1))),
    "volume": ((1, 16, 4, 5, 6), (20, 16, 2, 2, 3), dict(pads=(1, 0, 1, 1, 1, 0))),
    "runs": ((1, 80, 7, 7), (35, 80, 3, 3), dict(pads=(1, 1, 1, 1))),
    "depthwise": ((2, 19, 9, 10), (19, 1, 3, 3), dict(group=19, strides=(2, 1), pads=(1, 1, 1, 1))),
    "pairs in groups": ((2, 36, 11, 7), (44, 18, 3, 2), dict(group=2, strides=(2, 1), pads=(1, 2, 0, 1))),
    "few channels, odd pixels": ((1, 16, 15, 15), (12, 16, 3, 3), dict(pads=(1, 1, 1, 1))),
    "long sums": ((1, 418, 5, 5), (34, 418, 3, 3), dict(pads=(1, 1, 1, 1))),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "no image": ((0, 16, 6, 6), (5, 16, 3, 3), {}),
}
"""Shapes are planar, as ONNX has them."""
QUICK = ("primes", "strides in groups", "depthwise")
"""What every path runs, and bfloat16."""
PAIRS = ("pairs in groups", "few channels, odd pixels", "long sums")
"""What a path runs that multiplies pairs of bfloat16."""


@pytest.fixture(params=[paths.entry(path, quick=path.tiles != "software") for path in dict.fromkeys([*([] if EMULATED else VECTOR_PATHS), *PATHS])])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[cpu.Cpu]:
    """Tiles, where a path has them, for problems too small for them as well."""
    monkeypatch.setattr(tiles, "pays", lambda *_args: True)
    with cpu.forced(request.param) as path:
        yield path


def test_no_unit_reaches_beyond_its_scratch() -> None:
    """The bound on what some outputs in a row meet, against the addresses themselves, for random convolutions and their gradients."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        axes = []
        for _axis in range(3):
            taps, dilation = int(rng.integers(1, 4)), int(rng.integers(1, 4))
            out, step, pad = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(0, 4))
            size = (out - 1) * step + (taps - 1) * dilation + 1 - 2 * pad + int(rng.integers(0, step))
            axes.append(ConvAxis(max(1, size), out, taps, step, 1, -pad, dilation))
        for s in (ConvProblem(2, 1, 1, 1, (axes[0], axes[1], axes[2])),
                  ConvProblem(2, 1, 1, 1, (axes[0], axes[1], axes[2])).turn):
            numbers, pixels = np.array([n for axis in s.axes for n in axis.numbers]), int(rng.integers(1, 40))
            for phase in range(s.phases):
                total = s.n * int(phase_pixels(numbers, phase))
                for first in range(0, total, pixels):
                    count = min(pixels, total - first)
                    table = np.zeros((1 + s.taps) * count, "i8")
                    fill_table(numbers, phase, first, count, 1, 1, 0, 0, 0, 0, table, count)
                    met = table[count:][table[count:] != 0]
                    assert met.size == 0 or met.max() - met.min() < s.reach(pixels), (s, pixels, phase)


def draw(dtype: str, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])


def check(op: Any, *arrays: Array) -> Array:
    """One rounding of the sum in float64, up to float32's error of it: bits are the same however the range is cut."""
    got = run_kernel(op, *arrays)
    for workers in (2, 5):
        for a, b in zip(got, run_kernel(op, *arrays, workers=workers), strict=True):
            assert a.tobytes() == b.tobytes()
    wanted = op.reference(*[a.astype("f8") for a in arrays])
    bound = op.reference(*[abs(a.astype("f8")) for a in arrays])
    unit = 2.0 ** (-11 if arrays[0].dtype == np.float16 else -8)
    for y, exact, most in zip(got, wanted, bound, strict=True):
        assert y.dtype == arrays[0].dtype
        assert (np.abs(y.astype("f8") - exact) <= unit * np.abs(exact) * (1 + unit) + 12 * 2.0 ** -24 * most + 2.0 ** -25).all()
    return got[0]


def runs() -> Iterator[Any]:
    """Paths, types and cases: one path in vectors and one in tiles run everything, the others what is quick."""
    for path in dict.fromkeys([*([] if EMULATED else VECTOR_PATHS), *PATHS]):
        everything = not EMULATED and path in (VECTOR_PATHS[0], PATHS[-1])
        for dtype in NUMPY:
            for name in CASES:
                pairs = dtype == "bfloat16" and path.pairs and name in PAIRS
                if name in QUICK or (dtype == "float16" and everything) or pairs:
                    quick = (dtype == "float16"
                             and (name == QUICK[0] or not path.amx)) or (dtype == "bfloat16" and name == PAIRS[0]
                                                                         and not path.amx)
                    yield paths.entry(path, dtype, name, quick=quick and path.tiles != "software")


@pytest.mark.parametrize(("path", "dtype", "name"), list(runs()), indirect=["path"])
def test_kernels(path: cpu.Cpu, dtype: str, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, over_weights = forms(Conv(**attributes), x_shape, w_shape)
    x, w, bias = last(draw(dtype, *x_shape)), draw(dtype, *w_shape, seed=1), draw(dtype, w_shape[0])
    y = check(forward, x, w, bias)
    g = draw(dtype, *y.shape, seed=2)
    check(over_input, g, w)
    check(over_weights, x, g)
    if path.pairs and not path.amx and dtype == "bfloat16" and name in PAIRS:
        assert "half_pack" in leaves(forward, x, w), "products of pairs read woven weights"
    if path.amx and min(w_shape[:2]) >= 16 and x_shape[0]:
        found = [*leaves(forward, x, w), *leaves(over_input, g, w), *leaves(over_weights, x, g)]
        assert found.count("tile_pack") >= 3, found


@pytest.mark.parametrize("name", ["primes", "strides in groups"])
def test_weights_laid_out_beforehand(path: cpu.Cpu, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    forward, over_input, _ = forms(Conv(**attributes), x_shape, w_shape)
    x, w, bias = last(draw("float16", *x_shape)), draw("float16", *w_shape, seed=1), draw("float16", w_shape[0])
    y, = run_kernel(forward, x, w)
    for op, arrays in ((forward, (x, w, bias)), (over_input, (y, w))):
        check_laid_out(op, *arrays)


@paths.exhaustive
def test_epilogues_read_the_rounded_result(path: cpu.Cpu) -> None:
    """The bits of the product and an elementwise pass after it."""
    x, w, bias = last(draw("float16", 2, 19, 6, 7)), draw("float16", 37, 19, 3, 3, seed=1), draw("float16", 37)
    forward, _, _ = forms(Conv(pads=(1, 1, 1, 1)), (2, 19, 6, 7), w.shape)
    y, = run_kernel(forward, x, w, bias)
    v = [Var(i, "float16") for i in range(3)]
    exprs, kinds = (maximum(v[0] * v[1] + v[2], 0),), ("channel", "full")
    scale, other = draw("float16", 37, seed=3), draw("float16", *y.shape, seed=4)
    got, = run_kernel(hosting.finished(forward, 3, type_of(y), exprs, kinds), x, w, bias, scale, other, workers=3)
    np.testing.assert_array_equal(got, np.maximum(y * scale + other, 0))


@pytest.mark.parametrize("dtype", ["float16", paths.rare("bfloat16")])
def test_infinity_nan_and_the_ends_of_the_range(path: cpu.Cpu, dtype: str) -> None:
    op = Conv(pads=(1, 1, 1, 1))
    x, w = last(draw(dtype, 1, 17, 9, 7)), draw(dtype, 35, 17, 3, 3, seed=1)
    forward, over_input, over_weights = forms(op, (1, 17, 9, 7), w.shape)
    largest = ml_dtypes.finfo(NUMPY[dtype]).max
    for value in (np.inf, np.nan, largest)[:1 if EMULATED else 3]:
        a, b, g = x.copy(), w.copy(), last(draw(dtype, 1, 35, 9, 7))
        c = g.copy()
        a[0, 3, 5, 16], b[34, 3, 2, 0], c[0, 3, 5, 34] = value, -value, value
        for form, arrays in ((forward, (a, w)), (forward, (x, b)), (over_input, (c, w)), (over_weights, (a, g))):
            with np.errstate(all="ignore"):
                wanted = [y.astype(NUMPY[dtype]).astype("f4") for y in form.reference(*[v.astype("f8") for v in arrays])]
            for got, want in zip(run_kernel(form, *arrays), wanted, strict=True):
                np.testing.assert_array_equal(np.isnan(got.astype("f4")), np.isnan(want))
                np.testing.assert_array_equal(np.isinf(got.astype("f4")), np.isinf(want))


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
@pytest.mark.parametrize("dtype", NUMPY)
def test_no_less_accurate_than_torch(dtype: str) -> None:
    torch = needs("torch")
    x, w, g = draw(dtype, 2, 64, 12, 12), draw(dtype, 48, 64, 3, 3, seed=1), draw(dtype, 2, 48, 12, 12, seed=2)
    forward, over_input, over_weights = forms(Conv(pads=(1, 1, 1, 1)), x.shape, w.shape)

    def by_torch(kind: Any) -> list[Array]:
        tensors = [torch.tensor(a.astype("f4")).to(kind).requires_grad_() for a in (x, w)]
        y = torch.nn.functional.conv2d(*tensors, padding=1)
        y.backward(torch.tensor(g.astype("f4")).to(kind))
        return [last(y.detach().double().numpy()), last(tensors[0].grad.double().numpy()), tensors[1].grad.double().numpy()]

    exact, theirs = by_torch(torch.float64), by_torch(getattr(torch, dtype))
    ours = [run_kernel(forward, last(x), w)[0], run_kernel(over_input, last(g), w)[0], run_kernel(over_weights, last(x), last(g))[0]]
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert np.abs(mine.astype("f8") - right).mean() <= 1.01 * np.abs(other - right).mean()


@pytest.mark.skipif(EMULATED, reason="checks no kernel that is not checked above")
def test_the_host_computes_them_on_sixteen_bits_in_one_region_of_channels_last() -> None:
    """Two convolutions and what lies between; those of few channels are widened, and those for which float32 knows a faster way."""
    graph = Graph("halves")
    b = Builder(graph)
    x = b.input("x", TensorType("float16", (2, 32, 8, 8)))
    w1, w2 = (b.constant(draw("float16", 48, c, 5, 5), f"w{c}") for c in (32, 48))
    y = b.Relu(b.Conv(b.Relu(b.Conv(x, w1, pads=(2, 2, 2, 2))), w2, pads=(2, 2, 2, 2)))
    graph.outputs = [y]
    nodes = arrange(widen(graph, cpu.current()), cpu.current()).nodes
    names = [node.op.name for node in nodes]
    assert [node.op.name for node in nodes if hosting.added(node.op) == {"channels last"}] == ["Conv", "Conv"]
    assert names.count("TurnChannels") == 2
    assert "Rounded" not in names

    def taken(x: tuple[int, ...], w: tuple[int, ...], dtype: str = "bfloat16", **attributes: Any) -> bool:
        op = Conv(**attributes)
        types = [TensorType(dtype, s) for s in (x, w)]
        return takes_halves(op, types, op.infer(*types), cpu.current())

    assert taken((2, 64, 8, 8), (64, 64, 5, 5))
    with cpu.forced(VECTOR_PATHS[0]):
        fewer = winograd.serves(Conv().problem((8, 64, 28, 28), (64, 64, 3, 3)), "f4", cpu.current())
        assert taken((8, 64, 28, 28), (64, 64, 3, 3), "float16") != fewer
        assert taken((8, 64, 28, 28), (64, 64, 3, 3)) != (fewer and not cpu.current().pairs)
        pairs = cpu.current().pairs  # of few channels they fill no vectors, whichever side has them
        assert [taken((2, c, 12, 12), (oc, c, 5, 5))
                for c, oc in ((10, 20), (20, 10), (16, 16))] == [False, False, pairs]
        for c, gradients in ((3, False), (10, False), (16, True), (64, True)):
            assert algorithms.takes_halves(Conv().problem((2, c, 8, 8), (64, c, 3, 3)), "b2", cpu.current(),
                                           of_weights=True) == gradients
    assert not taken((2, 3, 8, 8), (64, 3, 3, 3))
    assert taken((2, 64, 8, 8), (64, 1, 3, 3), group=64)


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
def test_planar_images_are_turned() -> None:
    x, w = draw("float16", 2, 19, 6, 7), draw("float16", 37, 19, 3, 3, seed=1)
    attributes: dict[str, Any] = dict(pads=(1, 1, 1, 1), strides=(2, 1))
    y = check(Conv(**attributes), x, w)
    check(ConvInputGrad(shape=(6, 7), **attributes), y, w)
    check(ConvWeightGrad(kernel_shape=(3, 3), **attributes), x, y)
