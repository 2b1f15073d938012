"""Checks of every kernel family on one CPU path, by whatever runs the leaves: `test_paths.py` has them run emulated and against guarded pages.

`TILEFLOW_PATHS` names the paths (comma-separated; default: all of this CPU). Shapes are odd and small: an emulator runs them.
"""
from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from computed import computed, computed_resized, with_leaves
from evaluate import check_kernel, normal, run_kernel, run_reference
from samples import Case
from test_conv_last import forms
from test_elementwise import EDGES, FUNCTIONS, UNARY, allowed, compute, random_expressions, units
from test_half import halved, in_types
from test_half_gemm import NUMPY as HALVES
from test_half_gemm import run as run_halves
from test_narrow import check as check_narrowed
from test_tabulated import FORMS as quantised_forms

from tileflow.graph import OPS, Op, TensorType, type_of
from tileflow.graph.composite import declares
from tileflow.host.form import channels_last, recorded, takes_halves
from tileflow.host.integer import ByteConv
from tileflow.kernels.conv import winograd
from tileflow.kernels.conv.planar import pointwise
from tileflow.kernels.elementwise import expr as E
from tileflow.kernels.elementwise.expr import Var
from tileflow.kernels.elementwise.guarded import guarded_call
from tileflow.kernels.gemm import GemmProblem
from tileflow.kernels.gemm.half import calls as half_calls
from tileflow.kernels.gemm.micro import copy, dot, outer, transpose
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine import guard
from tileflow.kernels.machine.call import In, Out
from tileflow.kernels.machine.leaf import Leaf
from tileflow.kernels.recurrent.panels import panel_width
from tileflow.ops.cells import GATES
from tileflow.ops.elementwise import Elementwise

Array = np.ndarray
PATHS = os.environ.get("TILEFLOW_PATHS", ",".join(cpu.available())).split(",")
OPERATORS: dict[str, Any] = dict(OPS)


@pytest.fixture(params=PATHS, autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[cpu.Cpu]:
    with cpu.forced(request.param) as current:
        yield current


def test_the_path_is_compiled_for(path: cpu.Cpu) -> None:
    assert path in [cpu.PATHS[name] for name in PATHS]
    assert path.name in cpu.available()


# ---- products -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_micro_kernels(path: cpu.Cpu, dtype: str) -> None:
    """Rows of every operand lie closer than a vector apart; C is a block in the middle of a larger matrix."""
    by_columns, by_dots, move, turn, size = outer(dtype), dot(dtype), copy(dtype), transpose(dtype), int(dtype[1])

    def micro(which, a, b, c, m, n, k, c_row, accumulate):                  # type: ignore[no-untyped-def]
        x, y, z = a.ctypes.data, b.ctypes.data, c.ctypes.data
        if which == 0:
            by_columns(m, n, k, x, k * size, size, y, n * size, z, c_row, accumulate)
        elif which == 1:
            by_columns(m, n, k, x, size, m * size, y, n * size, z, c_row, accumulate)
        elif which == 2:
            by_dots(m, n, k, x, k * size, y, k * size, z, c_row, accumulate)
        elif which == 3:
            move(m, k, x, k * size, z, c_row)
        else:
            turn(k, m, x, m * size, z, c_row)

    leaf = Leaf(micro, f"i8, {dtype}[:], {dtype}[:], {dtype}[:], i8, i8, i8, i8, i8", key=f"{path.name}-{inspect.getsource(test_micro_kernels)}")
    lanes = path.lanes(size)
    for m, n, k in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, 8 * lanes + 3, 5), (13, 2 * lanes, 3), (12, 3 * lanes + 1, 2),
                    (7, 5, 2 * lanes + 3), (lanes + 1, lanes, lanes), (11, 2 * lanes - 1, lanes + 1)):
        a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
        product = a.astype("f8") @ b.astype("f8")
        for which, left, right, wanted in ((0, a, b, product), (1, a.T, b, product), (2, a, b.T, product), (3, a, b, a), (4, a.T, b, a)):
            for accumulate in range(2 if which < 3 else 1):
                c = np.full((m, wanted.shape[1] + 3), 1.5, dtype)
                leaf(which, left.ravel(), right.ravel(), c.ravel()[:max(c.size - 3, 0)], m, n, k, c.shape[1] * size, accumulate)
                np.testing.assert_allclose(c[:, :-3], wanted + 1.5 * accumulate, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps)
                assert (c[:, -3:] == 1.5).all()


@pytest.mark.parametrize("trans", range(4))
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 150, 7), (5, 9, 37), (13, 37, 19), (53, 35, 21), (3, 1, 130)])
def test_products(m: int, n: int, k: int, trans: int) -> None:
    a, b = normal(*((k, m) if trans & 1 else (m, k))), normal(*((n, k) if trans & 2 else (k, n)), seed=1)
    check_kernel(OPERATORS["FusedMatMul"](transA=trans & 1, transB=trans >> 1), a, b, rtol=1e-5, atol=1e-5)


def test_other_products() -> None:
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-13)):
        a, b = normal(2, 1, 7, 18, dtype=dtype), normal(3, 18, 19, dtype=dtype)
        check_kernel(OPERATORS["MatMul"](), a, b, rtol=tolerance, atol=tolerance)
        for bias in ((19,), (53, 1), (53, 19), ()):
            check_kernel(OPERATORS["Gemm"](transB=1, alpha=0.5, beta=-2.0), normal(53, 18, dtype=dtype), normal(19, 18, dtype=dtype),
                         normal(*bias, dtype=dtype), rtol=tolerance, atol=tolerance)
    check_kernel(OPERATORS["MatMul"](), normal(0, 4), normal(4, 3))
    check_kernel(OPERATORS["MatMul"](), normal(5, 0), normal(0, 3))


def test_half_products(path: cpu.Cpu) -> None:
    """Sums in float32 and one rounding, B read by rows or laid out."""
    for dtype, kind in HALVES.items():
        for m, n, k, trans in ((3, 13, 37, 2), (13, 37, 19, 1), (17, 35, 21, 3)):
            p = GemmProblem(m, n, k, bool(trans & 1), bool(trans & 2))
            a, b = normal(*((k, m) if trans & 1 else (m, k))).astype(kind), normal(*((n, k) if trans & 2 else (k, n)), seed=1).astype(kind)
            wanted = (a.T if trans & 1 else a).astype("f8") @ (b.T if trans & 2 else b).astype("f8")
            got = half_product(dtype, p, a, b)
            np.testing.assert_allclose(got.astype("f8"), wanted, rtol=2.0 ** (-10 if dtype == "f2" else -7), atol=1e-4)


@pytest.mark.parametrize("trans", range(4))
def test_half_products_with_float16_partials(path: cpu.Cpu, trans: int) -> None:
    """To the bit, where the CPU rounds each sum to float16: all that happens there is defined."""
    for m, n, k in ((1, 1, 1), (7, 70, 33), (13, 64, 16), (2, 3, 0)):
        p = GemmProblem(m, n, k, bool(trans & 1), bool(trans & 2))
        a, b = (normal(*((k, m) if trans & 1 else (m, k))).astype("f2"), normal(*((n, k) if trans & 2 else (k, n)), seed=1).astype("f2"))
        wide = [x.astype("f8") for x in (a.T if trans & 1 else a, b.T if trans & 2 else b)]
        got, wanted = half_product("f2", p, a, b, partials="f2"), np.zeros((m, n), "f2")
        for at in range(0, k, 16):
            block = np.zeros((m, n), "f8")
            for i in range(at, min(k, at + 16)):
                block = block + wide[0][:, i, None] * wide[1][None, i]
                block = block.astype("f2").astype("f8") if path.multiplies_halves else block
            wanted = (wanted + block).astype("f2")
        if path.multiplies_halves:
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=2.0 ** -9, atol=2.0 ** -9)


def half_product(dtype: str, p: GemmProblem, a: Array, b: Array, **options: Any) -> Array:
    """A @ B of 16-bit numbers, each range in two parts."""
    calls = half_calls(dtype, p, In(0, a.shape), In(1, b.shape), Out(0, (p.m, p.n)), **options)
    return run_halves(calls, [a.view("u2"), b.view("u2")], np.full((p.m, p.n), 7, "u2"), 2).view(HALVES[dtype])


# ---- windows ------------------------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "primes": ((2, 5, 11, 13), (7, 5, 3, 2), dict(pads=(1, 2, 0, 1))),
    "groups and strides": ((1, 10, 13, 17), (10, 5, 3, 3), dict(group=2, strides=(3, 2), pads=(1, 2, 0, 1))),
    "dilation": ((1, 5, 13, 9), (5, 5, 3, 3), dict(strides=(2, 1), dilations=(3, 2), pads=(0, 1, 2, 1))),
    "depthwise": ((1, 5, 7, 19), (5, 1, 3, 3), dict(group=5, pads=(1, 1, 1, 1))),
    "depthwise, stride 2": ((1, 3, 7, 75), (3, 1, 3, 3), dict(group=3, strides=(2, 2), pads=(1, 1, 1, 1))),
    "depthwise, narrow": ((1, 2, 11, 9), (2, 1, 5, 2), dict(group=2, strides=(1, 3), dilations=(2, 1), pads=(2, 0, 1, 3))),
    "pointwise": ((2, 5, 5, 7), (19, 5, 1, 1), {}),
    "line": ((2, 5, 37), (5, 5, 4), dict(pads=(2, 1))),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "no image": ((0, 5, 6, 6), (5, 5, 3, 3), {}),
}


def turned(a: Array) -> Array:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


def check_both(op: Op, *arrays: Array | None, **tolerances: float) -> tuple[Array, ...]:
    """Check an operator and, if it has one, its channels-last form; the plain results."""
    results = check_kernel(op, *arrays, **tolerances)
    check_channels_last(op, arrays, results, **tolerances)
    return results


def check_channels_last(op: Op, arrays: Sequence[Array | None], results: Sequence[Array], **tolerances: float) -> None:
    """The channels-last form of an operator, if it has one, gives these results."""
    types = [None if a is None else type_of(a) for a in arrays]
    if (last := channels_last(op, types, op.infer(*types), cpu.current())) is not None:
        rank = max(a.ndim for a in (*arrays, *results) if a is not None)
        given = [turned(a.reshape((1,) * (rank - a.ndim) + a.shape)) if a is not None and turn else a
                 for a, turn in zip(arrays, last.inputs, strict=False)]
        for plain, other, turn in zip(results, check_kernel(last.op, *given, **tolerances), last.outputs, strict=True):
            np.testing.assert_allclose(other, turned(plain) if turn else plain, **tolerances)


def test_convolutions_in_both_layouts() -> None:
    """The larger ones have a channels-last form."""
    x, w = normal(2, 18, 9, 7), normal(35, 18, 3, 3, seed=1)
    attributes: dict[str, Any] = dict(pads=(1, 1, 1, 1), strides=(2, 1))
    y, = check_both(OPERATORS["Conv"](**attributes), x, w, normal(35), rtol=1e-4, atol=1e-4)
    g = normal(*y.shape, seed=2)
    check_both(OPERATORS["ConvInputGrad"](shape=(9, 7), **attributes), g, w, rtol=1e-4, atol=1e-4)
    check_both(OPERATORS["ConvWeightGrad"](kernel_shape=(3, 3), biased=True, **attributes), x, g, rtol=1e-4, atol=1e-3)
    channelwise: dict[str, Any] = dict(pads=(1, 1, 1, 1), group=35)
    y, = check_both(OPERATORS["Conv"](**channelwise), normal(1, 35, 5, 7), normal(35, 1, 3, 3), rtol=1e-4, atol=1e-4)
    check_both(OPERATORS["ConvInputGrad"](shape=(5, 7), **channelwise), y, normal(35, 1, 3, 3), rtol=1e-4, atol=1e-4)
    check_both(OPERATORS["ConvWeightGrad"](kernel_shape=(3, 3), **channelwise), normal(1, 35, 5, 7), y, rtol=1e-4, atol=1e-3)


def test_convolutions_that_ask_for_large_images_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tileflow.kernels.conv.problem.FAR", 0)
    test_convolutions_in_both_layouts()
    strided: dict[str, Any] = dict(pads=(2, 2, 2, 2), strides=(2, 2), group=35)
    check_both(OPERATORS["Conv"](**strided), normal(1, 35, 11, 13), normal(35, 1, 5, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group", [1, 17])
def test_half_convolutions(path: cpu.Cpu, group: int) -> None:
    """Forward and both gradients of float16 over channels-last images, the one over strides in several phases."""
    x, w, bias = turned(normal(1, 17, 7, 9)).astype("f2"), normal(17, 17 // group, 3, 3, seed=1).astype("f2"), normal(17).astype("f2")
    forward, over_input, over_weights = forms(OPERATORS["Conv"](pads=(1, 1, 1, 1), strides=(2, 1), group=group), (1, 17, 7, 9), w.shape)
    y, = run_kernel(forward, x, w, bias, workers=2)
    for op, arrays in ((forward, (x, w, bias)), (over_input, (y, w)), (over_weights, (x, y))):
        wanted = op.reference(*[a.astype("f8") for a in arrays])
        for got, exact in zip(run_kernel(op, *arrays, workers=2), wanted, strict=True):
            np.testing.assert_allclose(got.astype("f8"), exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_attention(path: cpu.Cpu, dtype: str) -> None:
    """Forward and backward, of an even and an odd number of keys and queries, with and without a mask."""
    for queries, keys, size, masked in ((5, 7, 6, True), (34, 4, 18, False)):
        kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        q, k, v, g = (normal(1, 2, n, size, seed=i).astype(kind) for i, n in enumerate((queries, keys, keys, queries)))
        mask = normal(1, 1, 1, keys).astype(kind) if masked else None
        forward, backward = (OPERATORS[name](scale=0.3) for name in ("FusedAttention", "FusedAttentionGrad"))
        extra, unit = [] if mask is None else [mask], 2.0 ** (-9 if dtype == "float16" else -6)
        exact = run_reference(forward, *(a.astype("f8") for a in (q, k, v, *extra)))
        y, lse = run_kernel(forward, q, k, v, *extra, workers=2)
        wide = [a if a is None else a.astype("f8") for a in (g, q, k, v, mask)]
        pulled = run_kernel(backward, g, q, k, v, mask, y, lse, workers=2)
        wanted = [*exact, *run_reference(backward, *wide, *exact)]
        for got, want in zip([y, lse, *pulled], wanted, strict=True):
            np.testing.assert_allclose(got.astype("f8"), want, rtol=unit, atol=unit * abs(want).max())


def test_pointwise_weight_gradients(path: cpu.Cpu) -> None:
    """A product for each image, the smaller operand laid out anew."""
    for c, filters in ((5, 19), (19, 5)):
        op = OPERATORS["ConvWeightGrad"](kernel_shape=(1, 1))
        assert pointwise.serves_weights(op.problem((2, c, 7, 9), (filters, c, 1, 1)), "f4", path)
        check_kernel(op, normal(2, c, 7, 9), normal(2, filters, 7, 9, seed=1), rtol=1e-4, atol=1e-4)


def test_weight_gradients_of_whole_vectors(path: cpu.Cpu) -> None:
    """Channels of one vector and of a panel, which are read where they lie, and filters that leave some of a block."""
    for c, filters, attributes in ((path.lanes(4), 17, dict(strides=(2, 1))), (2 * path.lanes(4), 8, dict(group=1))):
        given: dict[str, Any] = dict(pads=(1, 1, 1, 1), **attributes)
        forward, _, over_weights = forms(OPERATORS["Conv"](**given), (2, c, 7, 9), (filters, c, 3, 3))
        x = turned(normal(2, c, 7, 9))
        y, = run_kernel(forward, x, normal(filters, c, 3, 3), workers=2)
        check_kernel(over_weights, x, y, rtol=1e-4, atol=1e-3)


def test_convolutions_by_winograd(path: cpu.Cpu) -> None:
    """Forward and by the input, channels last, of sides that are no multiple of its tiles."""
    x, w = normal(2, 37, 15, 17), normal(45, 37, 3, 3, seed=1)
    attributes: dict[str, Any] = dict(pads=(1, 1, 1, 1))
    forward = OPERATORS["Conv"](**attributes)
    assert winograd.serves(forward.problem(x.shape, w.shape), "f4", path) == path.fma
    y, = check_both(forward, x, w, normal(45), rtol=1e-4, atol=1e-3)
    check_both(OPERATORS["ConvInputGrad"](shape=(15, 17), **attributes), normal(*y.shape, seed=2), w, rtol=1e-4, atol=1e-3)


def test_normalisation_in_both_layouts() -> None:
    x, per = normal(2, 19, 5, 7), normal(19)
    _, mean, _, inverse = check_both(OPERATORS["BatchNormalization"](training_mode=1), x, per, per, None, None, rtol=1e-4, atol=1e-4)
    check_both(OPERATORS["BatchNormalizationGrad"](), normal(*x.shape, seed=1), x, per, mean, inverse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    x_shape, w_shape, attributes = CONVOLUTIONS[name]
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    y, = check_kernel(OPERATORS["Conv"](**attributes), x, w, normal(w_shape[0]), rtol=1e-4, atol=1e-4)
    g = normal(*y.shape, seed=2)
    check_kernel(OPERATORS["ConvInputGrad"](shape=x_shape[2:], **attributes), g, w, rtol=1e-4, atol=1e-4)
    check_kernel(OPERATORS["ConvWeightGrad"](kernel_shape=w_shape[2:], biased=True, **attributes), x, g, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("shape", "attributes"), [
    ((2, 3, 7, 35), dict(kernel_shape=(2, 2), strides=(2, 2))),
    ((1, 2, 9, 7), dict(kernel_shape=(3, 2), pads=(1, 1, 0, 0))),
    ((1, 2, 13, 19), dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=1)),
    ((2, 3, 19), dict(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
])
def test_pools(shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x = np.round(normal(*shape) * 2)                   # ties
    x[0, 0, 0], x[-1, -1, -1] = np.nan, -np.inf
    maximum = OPERATORS["MaxPool"](**attributes)
    y, = check_both(maximum, x)
    back = OPERATORS["MaxPoolGrad"](**maximum.same())
    g = normal(*y.shape)
    check_kernel(back, g, x, rtol=1e-6)
    if (record := recorded(back, 1, maximum, [type_of(g), type_of(x)])) is not None:
        _, winners = check_both(record.maker, x)
        check_both(record.reader, g, winners, rtol=1e-6, atol=1e-6)
    average = OPERATORS["AveragePool"](**attributes, count_include_pad=1)
    check_both(average, normal(*shape), rtol=1e-5, atol=1e-6)
    check_both(OPERATORS["AveragePoolGrad"](shape=shape[2:], count_include_pad=1, **average.same()), g, rtol=1e-5, atol=1e-6)


def test_gradients_of_means_over_large_planes() -> None:
    average = OPERATORS["AveragePool"](kernel_shape=(3, 3), strides=(2, 1), pads=(1, 1, 1, 1))
    y, = average.infer(TensorType("float32", (1, 1, 400, 200)))
    check_both(OPERATORS["AveragePoolGrad"](shape=(400, 200), **average.same()), normal(*y.shape), rtol=1e-5, atol=1e-6)


# ---- 8-bit integers -----------------------------------------------------------------------------------------------------

BYTES = ("uint8", "int8")


def whole(dtype: str, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(BYTES, BYTES)))
def test_integer_products(left: str, right: str) -> None:
    for m, n, k in ((1, 1, 1), (5, 7, 3), (13, 37, 18)):
        zeros = whole("int8", m).astype("int32"), whole("int8", n, seed=1).astype("int32")
        check_kernel(OPERATORS["IntegerProduct"](), whole(left, m, k), whole(right, k, n), *zeros)


@pytest.mark.parametrize(("left", "right", "x", "w", "attributes"), [
    ("uint8", "int8", (2, 5, 5, 7), (9, 5, 3, 2), dict(pads=(1, 0, 2, 1), strides=(1, 2))),
    ("int8", "uint8", (1, 3, 4, 19), (3, 1, 2, 7), dict(group=3, pads=(0, 6, 0, 6), dilations=(1, 2))),
    ("int8", "int8", (1, 6, 7), (5, 6, 1), {}),
    ("uint8", "uint8", (1, 4, 9), (6, 2, 3), dict(group=2, strides=(3,), pads=(1, 2)))])
def test_integer_convolutions(left: str, right: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    point, points = np.array(9 if left == "uint8" else -9, np.int32), whole("int8", w[0]).astype(np.int32)
    check_kernel(ByteConv(OPERATORS["ConvInteger"](**attributes)), whole(left, *x), whole(right, *w), point, points)


# ---- elementwise --------------------------------------------------------------------------------------------------------

def test_functions_are_accurate() -> None:
    x = np.concatenate([EDGES, np.random.default_rng(1).integers(0, 2 ** 32, 3000, np.uint32).view("float32"), normal(1000) * 3,
                        np.linspace(-110, 110, 2001).astype("float32"), EDGES])
    for (name, (_, oracle, _)), y in zip(FUNCTIONS.items(), compute([f(Var(0, "float32")) for f, _, _ in FUNCTIONS.values()], x), strict=True):
        with np.errstate(all="ignore"):
            error = units(y, oracle(x.astype("float64")))
        worst = int(error.argmax())
        assert error[worst] <= allowed(name), f"{name}({x[worst]!r}) = {y[worst]!r}: {error[worst]} ulp"


def test_expressions_that_have_one_answer() -> None:
    outputs = random_expressions(40)
    arrays = [normal(7, 35) * 4, normal(35), normal(7, 1), np.random.default_rng(2).integers(-9, 9, (7, 35), "int32")]
    for e, got in zip(outputs, compute(outputs, *arrays), strict=True):
        np.testing.assert_array_equal(got, np.broadcast_to(E.evaluate(e, arrays), got.shape), err_msg=E.key(e))


def test_operators_of_one_operand() -> None:
    """Many operators in one leaf: compiling each takes longer than running all."""
    x = np.concatenate([EDGES, normal(61) * 2])
    ops = [op for op, _ in UNARY if op.expr(Var(0, "float32")).dtype == "float32"]
    for op, got in zip(ops, compute([op.expr(Var(0, "float32")) for op in ops], x), strict=True):
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, op.reference(x)[0], rtol=1e-5, atol=1e-6, err_msg=str(op))


def test_what_follows_from_numbers_of_8_bits() -> None:
    by, values = np.full(1, 0.05, "float32"), np.tile(np.arange(-128, 128, dtype="int8"), 9)[:2051]
    for form in quantised_forms:
        got, want = (compute([form(Var(0, of), of)], values.astype(of), values.astype("float32"), by)[0]
                     for of in ("int8", "int32"))
        assert got.tobytes() == want.astype(got.dtype).tobytes()


def test_half_expressions() -> None:
    for dtype, tolerance in (("float16", 1e-3), (ml_dtypes.bfloat16, 8e-3)):
        x, y = normal(3, 37).astype(dtype), normal(37).astype(dtype)
        a, b = (Var(i, x.dtype.name) for i in range(2))
        op = OPERATORS["Map"](exprs=(E.exp(a) * b, E.maximum(a, b)))
        for got, wanted in zip(run_kernel(op, x, y), run_reference(op, x, y), strict=True):
            np.testing.assert_allclose(got.astype("f4"), wanted.astype("f4"), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shapes", [((3, 4, 5, 7), (4, 1, 1)), ((5, 1), (5, 37)), ((1,), (1, 1)), ((), ()), ((0, 3), (3,))])
def test_broadcasting(shapes: tuple[tuple[int, ...], ...]) -> None:
    check_kernel(OPERATORS["Map"](exprs=(Var(0, "float32") - Var(1, "float32"), Var(1, "float32") * 2)), *[normal(*s) for s in shapes])


# ---- what operators declare ---------------------------------------------------------------------------------------------

@pytest.mark.exhaustive                                # so that they take turns where the test that has them run does
@pytest.mark.parametrize("case", with_leaves(), ids=lambda c: c.name)
def test_samples(case: Case) -> None:
    """Every sample of every operator: its kernels or those of its parts, in other sizes, channels-last, over 16-bit memory."""
    arrays = case.arrays()
    computed(case, arrays, rtol=1e-4, atol=1e-4)
    computed_resized(case)
    if declares(case.op, "kernel"):
        check_channels_last(case.op, arrays, run_kernel(case.op, *arrays), rtol=1e-4, atol=1e-4)
        check_narrowed(case.op, arrays, "bfloat16")
        check_halves(case)


def check_halves(case: Case) -> None:
    """The kernels of an operator that reads and writes float16 itself, or else bfloat16, to the rounding of results and
    of what lies between."""
    op = case.op
    for half, dtype, unit in (("float16", np.dtype("f2"), 2.0 ** -7),
                              ("bfloat16", np.dtype(ml_dtypes.bfloat16), 2.0 ** -5)):
        types = halved(op, list(case.types), half)
        if types is None or isinstance(op, Elementwise) or not takes_halves(op, types, op.infer(*types), cpu.current()):
            continue
        arrays = in_types(case, types)
        exact = run_reference(op, *[a.astype("f8") if a is not None and a.dtype == dtype else a for a in arrays])
        for got, want in zip(run_kernel(op, *arrays, workers=2), exact, strict=True):
            np.testing.assert_allclose(got.astype("f8"), want, rtol=unit, atol=unit / 4)
        return


def test_rows_with_special_values() -> None:
    x = normal(9, 67) * 20
    x[1, 3], x[2, 5], x[3], x[4, 66] = np.nan, -np.inf, -np.inf, np.inf
    for name in ("Softmax", "LogSoftmax"):
        check_kernel(OPERATORS[name](), x, rtol=1e-5, atol=1e-5)
        check_kernel(OPERATORS[name](axis=0), np.ascontiguousarray(x[:, :7]), rtol=1e-5, atol=1e-5)
    for name in ("ReduceMax", "ReduceMin", "ReduceSum"):
        for axes in ((0,), (1,)):
            check_kernel(OPERATORS[name](axes=axes), x, rtol=1e-5, atol=1e-4)


def test_recurrent_steps_shared_out(path: cpu.Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tileflow.ops.recurrence.LEAST", 0.0)
    n = panel_width(1, "f4", path) + 3
    for kind, attributes in (("LSTM", {}), ("GRU", {"linear_before_reset": 1, "direction": "reverse"})):
        wide = GATES[kind] * n
        op, state = OPERATORS["Recurrence"](kind=kind, **attributes), normal(1, 1, n)
        check_kernel(op, normal(1, 2, 1, wide), normal(1, wide, n) / 16, normal(1, 2 * wide), None, state,
                     state if kind == "LSTM" else None, None, rtol=1e-4, atol=2e-5)


def test_losses_of_each_row(path: cpu.Cpu) -> None:
    scores, labels = normal(9, 5), np.arange(9, dtype="int64") % 5
    check_kernel(OPERATORS["SoftmaxCrossEntropyLoss"](reduction="none"), scores, labels, rtol=1e-5, atol=1e-6)
    check_kernel(OPERATORS["SoftmaxCrossEntropyLossGrad"](reduction="none"), normal(9), scores, labels, rtol=1e-5, atol=1e-6)


def test_moves_and_guards(path: cpu.Cpu) -> None:
    x = normal(3, 5, 67)
    for mode in ("edge", "reflect", "wrap"):
        check_kernel(OPERATORS["Pad"](pads=(0, 2, 1, 0, 1, 2), mode=mode), x)
    check_kernel(OPERATORS["Pad"](pads=(0,) * 6, mode="edge"), x)
    for mode in ("reflect", "wrap"):                   # round so often that it goes axis by axis
        check_kernel(OPERATORS["Pad"](pads=(30, 40, 70, 31, 41, 600), mode=mode), x)
    check_kernel(OPERATORS["MaxPool"](kernel_shape=(2,), strides=(2,), indices=True), x)
    words, copied = np.arange(1, 70), np.zeros(69, "i8")
    guard.copy["u8"](words.view("u8"), copied.view("u8"))
    np.testing.assert_array_equal(copied, words)
    guard.clear["u8"](copied.view("u8"))
    assert not copied.any()
    for dtype, kind in (("f4", "f4"), ("f8", "f8"), ("f2", "f2"), ("b2", ml_dtypes.bfloat16)):
        for value, status in ((1.0, 0), (np.nan, 1), (-np.inf, 1)):
            values = normal(67).astype(kind)
            values[41] = value
            assert guard.finite(dtype)(values.view("u2") if values.itemsize == 2 else values) == status


def test_guarded_elementwise_work(path: cpu.Cpu) -> None:
    """The status, and the bits of what is written; 1 / x is infinite in the lanes beyond the end, which do not count."""
    x, y, n = Var(0, "float32"), Var(1, "float32"), 67
    for watched in (y / x, E.cast(x * y, "float16"), E.cast(x, "float64") * E.cast(y, "float64")):
        call = guarded_call([x / y], [watched], [In(0, (n,)), In(1, (1,))], [Out(0, (n,))])
        check = guarded_call([], [watched], [In(0, (n,)), In(1, (1,))], [])
        for place, value in ((0, 1), (0, 3e38), (40, np.nan), (66, -np.inf), (66, 3e38), (66, 0)):
            arrays = [normal(n) + np.float32(5), np.full(1, 3, "f4")]
            arrays[0][place] = value
            status = int(not np.isfinite(E.evaluate(watched, arrays)).all())
            written = np.zeros(n, "f4")
            assert (call.leaf(*arrays, written), check.leaf(*arrays)) == (status, status)
            np.testing.assert_array_equal(written, compute([x / y], *arrays)[0])
            assert check.leaf(*arrays, lo=1 + (place == 40) * 40, n=66) == 0


if "TILEFLOW_TRAP" in os.environ:
    def test_an_access_outside_is_found() -> None:
        """Must fail, or end the process: what runs these checks is awake."""
        def too_far(x, y):                             # type: ignore[no-untyped-def]
            y[0] = x[x.shape[0]]

        Leaf(too_far, "f4[r], f4[r]", key=inspect.getsource(too_far))(normal(5), normal(5))
