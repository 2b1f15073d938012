"""Epilogues of products: the bits of an elementwise pass afterwards, over blocks of any size, in place."""
from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import call_leaf, run_kernel

from tileflow.graph import TensorType
from tileflow.host.form import Pooled, pooling
from tileflow.host.hosted import hosted
from tileflow.kernels.elementwise.epilogue import Along, Epilogue, arguments, finisher
from tileflow.kernels.elementwise.expr import Expr, Var, cast, erf, maximum, where
from tileflow.kernels.elementwise.loops import elementwise_call
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Address, Call, In, Out
from tileflow.kernels.machine.called import CALLED
from tileflow.kernels.machine.leaf import Leaf
from tileflow.ops.conv import Conv
from tileflow.ops.integer import ByteProduct
from tileflow.ops.pool import MaxPool

ROWS, COLS = 3, 5
"""The blocks of the toy product."""
CODES = {"float32": "f4", "float64": "f8"}


@functools.cache
def outer_product(dtype: str, channels: str, path: str) -> Leaf:
    """A product in blocks: C[i, j] = a[i] * b[j], each block finished while it is in cache. A unit is a block."""
    finish, down_channels = finisher(), channels == "columns"

    def product(a, b, c, m, n, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        down = (m + ROWS - 1) // ROWS
        for unit in range(lo, hi):
            i, j = unit % down * ROWS, unit // down * COLS
            rows, cols = min(ROWS, m - i), min(COLS, n - j)
            for p in range(rows):
                for q in range(cols):
                    c[i + p, j + q] = a[i + p] * b[j + q]
            finish(epilogue, rest, rows, cols, c.ctypes.data, i * n + j, n, j if down_channels else i)

    return Leaf(product, f"{dtype}[:], {dtype}[:], {dtype}[:,:], i8, i8, lo, hi{CALLED}", key=f"{channels} {path}")


def product_call(m: int, n: int, dtype: str, epilogue: Epilogue | None, channels: str = "columns") -> Call:
    leaf = outer_product(CODES[dtype], channels, cpu.current().name)
    args = [In(0, (m,)), In(1, (n,)), Out(0, (m, n)), m, n, *arguments(epilogue, channels)]
    return Call(leaf, args, -(-m // ROWS) * -(-n // COLS))


def run(call: Call, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], cuts: Sequence[int] = ()) -> None:
    """Run a call over its range, cut at these places, the last piece first."""
    values: list[Any] = []
    for arg in call.args:
        array = inputs[arg.index] if isinstance(arg, In) else outputs[arg.index] if isinstance(arg, Out) else None
        values.append(arg if array is None else array.reshape(arg.shape))
    places = [0, *cuts, call.n]
    for lo, hi in reversed(list(itertools.pairwise(places))):
        assert call_leaf(call.leaf, values, lo, hi, 0) == 0


def residual(dtype: str) -> tuple[Expr, ...]:
    """What follows a convolution: bias per channel, residual, activation; the sum before the activation is a result too."""
    x, bias, skip, slope = (Var(i, dtype) for i in range(4))
    total = x + bias + skip * 0.7
    return maximum(total, 0.3) + slope * erf(total), total


KINDS = ("channel", "full", "scalar")


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("channels", ["columns", "rows"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 13), (3, 64), (31, 5), (2, 97), (0, 4)])
@pytest.mark.parametrize("path", paths.PATHS)
def test_bits_are_those_of_a_pass_afterwards(dtype: str, channels: str, m: int, n: int, path: str):
    rng = np.random.default_rng(m * n)
    wide = n if channels == "columns" else m
    a, b, bias, skip, slope = (rng.standard_normal(s).astype(dtype) for s in ((m,), (n,), (wide,), (m, n), (1,)))
    if m * n > 6:
        skip[0, :2] = np.nan, -np.inf
    operands = tuple(Along(In(2 + i, v.shape), kind) for i, (v, kind) in enumerate(zip((bias, skip, slope), KINDS, strict=True)))
    epilogue = Epilogue(residual(dtype), operands, m * n)
    inputs = [a, b, bias, skip, slope]
    with cpu.forced(path):
        product = np.zeros((m, n), dtype)
        run(product_call(m, n, dtype, None), inputs, [product])
        wanted = [product.copy(), np.zeros((m, n), dtype)]
        if m:
            run(epilogue.after((m, n), 1 if channels == "columns" else 0), inputs, wanted)
        together = product_call(m, n, dtype, epilogue, channels)
        for cuts in ((), (1, max(1, together.n // 2))):
            got = [np.full((m, n), 7, dtype), np.full((m, n), 8, dtype)]
            run(together, inputs, got, cuts if together.n > 2 else ())
            assert [g.tobytes() for g in got] == [w.tobytes() for w in wanted]
    per = bias if channels == "columns" else bias[:, None]
    total = np.outer(a, b) + per + skip * np.array(0.7, dtype)
    np.testing.assert_array_equal(got[1], total)


@pytest.mark.parametrize("path", paths.PATHS)
def test_operands_and_outputs_of_other_types(path: str):
    """A mask chooses, a second output is float64; rows that abut are one when there is no channel."""
    x, keep = Var(0, "float32"), Var(1, "bool")
    exprs = (where(keep, x * 2, 0), cast(x, "float64"))
    rng = np.random.default_rng(0)
    m, n = 6, COLS
    a, b = rng.standard_normal(m).astype("f4"), rng.standard_normal(n).astype("f4")
    mask = rng.standard_normal((m, n)) > 0
    got = [np.zeros((m, n), "f4"), np.zeros((m, n), "f8")]
    with cpu.forced(path):
        run(product_call(m, n, "float32", Epilogue(exprs, (Along(In(2, (m, n)), "full"),), m * n)), [a, b, mask], got)
    np.testing.assert_array_equal(got[0], np.where(mask, np.outer(a, b) * np.float32(2), 0))
    np.testing.assert_array_equal(got[1], np.outer(a, b).astype("f8"))


def test_other_numbers_are_no_other_form():
    x, bias = Var(0, "bfloat16"), Var(1, "bfloat16")

    def epilogue(slope: float, bound: float) -> Epilogue:
        total = x + bias
        exprs = (maximum(where(total < 0, slope * total, total), bound),)
        return Epilogue(exprs, (Along(In(2, (5,)), "channel"),), 10)
    assert epilogue(0.1, 0.3).form == epilogue(0.2, -1.5).form
    assert epilogue(0.1, 0.3).form != epilogue(0.1, 0.0).form, "zero shapes code"
    assert epilogue(0.1, 0.3).args[1:] != epilogue(0.2, -1.5).args[1:]
    assert epilogue(0.1, 0.3).form.signature == "b2[:], f4, f4"


def test_a_pass_afterwards_is_an_elementwise_call():
    x, bias = Var(0, "float32"), Var(1, "float32")
    epilogue = Epilogue((maximum(x + bias, 0),), (Along(In(2, (5,)), "channel"),), 2 * 5 * 7)
    planar = epilogue.after((2, 5, 7), 1)
    same = elementwise_call(epilogue.exprs, [Out(0, (2, 5, 7)), In(2, (5, 1))], [Out(0, (2, 5, 7))])
    assert planar.leaf is same.leaf
    assert planar.args == same.args


def test_a_product_is_one_kernel_whatever_follows():
    x, slope = Var(0, "float32"), Along(In(2, (1,)), "scalar")
    epilogues = [None, Epilogue((maximum(x, 0),), (), 15), Epilogue((x * Var(1, "float32"),), (slope,), 15)]
    calls = [product_call(3, 5, "float32", epilogue) for epilogue in epilogues]
    assert len({call.leaf for call in calls}) == 1
    none, relu, scaled = ([arg for arg in call.args if isinstance(arg, Address)] for call in calls)
    assert none == [Address()]
    assert relu != scaled
    assert relu == [arg for arg in product_call(7, 5, "float32", epilogues[1]).args if isinstance(arg, Address)]
    assert [len(call.leaf.takes(call.args)) for call in calls] == [6, 6, 7]


def test_an_argument_of_an_epilogue_is_checked_as_the_products_own():
    x, slope = Var(0, "float32"), Along(In(2, (1,)), "scalar")
    call = product_call(1, 1, "float32", Epilogue((x * Var(1, "float32"),), (slope,), 1))
    arrays = [np.ones(1, "f4"), np.ones(1, "f4"), np.zeros((1, 1), "f4")]
    with pytest.raises(TypeError, match="got float64"):
        call.leaf.block(*arrays, *call.args[3:6], np.ones(1, "f8"))
    assert call.leaf.block(*arrays, *call.args[3:6], np.ones(1, "f4")).size == 2 + 2 + 3 + 3 + 2


def test_an_epilogue_reads_the_product_and_every_operand():
    x, y = Var(0, "float32"), Var(1, "float32")
    for exprs, operands in (((y,), 1), ((x,), 1), ((cast(x, "float64"),), 0)):
        with pytest.raises(AssertionError):
            Epilogue(exprs, (Along(In(0, (1,)), "scalar"),) * operands, 1)


@pytest.mark.parametrize("path", paths.PATHS)
def test_sums_of_bytes_become_numbers(path: str):
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (7, 9)).astype("u1"), rng.integers(-128, 128, (9, 33)).astype("i1")
    scale = rng.random(33).astype("f4")
    made = cast(Var(0, "int32"), "float32") * Var(1, "float32")
    along = [(TensorType("float32", (33,)), "channel")]
    op = hosted(ByteProduct()).then((made,), 2, [TensorType("float32", (7, 33))], along)
    with cpu.forced(path):
        got, = run_kernel(op, a, b, scale)
    np.testing.assert_array_equal(got, (a.astype("i4") @ b.astype("i4")).astype("f4") * scale)


@pytest.mark.parametrize("path", paths.PATHS)
def test_planes_are_pooled_where_they_are_made(path: str):
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 8)).astype("f4")
    w = np.random.default_rng(3).standard_normal((5, 3, 2, 2)).astype("f4")
    conv, pool, shape = Conv(), MaxPool(kernel_shape=(2, 2), strides=(2, 2)), TensorType("float32", (2, 5, 8, 7))
    how = pooling(pool, [shape], pool.infer(shape)[:1])
    assert how is not None
    with cpu.forced(path):
        whole, (got, *_) = run_kernel(conv, x, w)[0], run_kernel(hosted(conv).also(pooled=Pooled(pool, how)), x, w)
    np.testing.assert_array_equal(got, whole[..., :6].reshape(2, 5, 4, 2, 3, 2).max((3, 5)))
