"""Constants as arguments: other numbers run the same kernels, with the bits of kernels that hold the numbers."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import call_leaf

from tileflow import compiler
from tileflow.graph import OPS, Builder, Graph, Op, TensorType
from tileflow.kernels.elementwise import loops
from tileflow.kernels.elementwise.coefficients import Lifted, coefficients, lift
from tileflow.kernels.elementwise.expr import (
    Const,
    Expr,
    Var,
    cast,
    exp,
    fmod,
    maximum,
    minimum,
    pow_,
    shift_left,
    sqrt,
    where,
)
from tileflow.kernels.elementwise.guarded import guarded_call
from tileflow.kernels.elementwise.loops import elementwise_call
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import Call, In, Out
from tileflow.kernels.machine.status import NOT_FINITE, OK
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.state.session import Session

DTYPES = ["float16", "bfloat16", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))]
x, n, b = Var(0, "float32"), Var(0, "int32"), Var(0, "uint8")


def call_of(*exprs: Expr, size: int = 7) -> Call:
    return elementwise_call(exprs, [In(i, (size,)) for i in range(2)], [Out(k, (size,)) for k in range(len(exprs))])


def run(call: Call, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> int:
    def value(a: Any) -> Any:
        return (arrays if isinstance(a, In) else results)[a.index].reshape(a.shape) if isinstance(a, In | Out) else a
    return call_leaf(call.leaf, [value(a) for a in call.args], 0, call.n, 0)


# ---- which constants are arguments

SAME = [
    (x * 0.1, x * 0.2), (x + 3, x + 1e30), (7 - x, -7 - x), (x / 3, x / 7), (x / 4, x * 0.3), (3 / x, 5 / x),
    (pow_(0.9, x), pow_(0.99, x)), (maximum(x, -0.7), maximum(x, 5)),
    (minimum(maximum(x, 3), 6), minimum(maximum(x, -3), 5.5)),
    (where(x < 0.25, x * 0.01, x), where(x < 0.75, x * 0.3, x)), (x * 0.1 + 0.1, x * 0.1 + 0.2),
    (x * cast(Const(0.25, "float64"), "float32"), x * 0.3), (n + 3, n + 500),
    (where(n < 0, n + 9, n), where(n < 0, n + 31, n)), (n * 3, n * 5), (maximum(b, 3), maximum(b, 200)),
    (1000 / n, 77 / n), (exp(-0.3 * x), exp(-0.7 * x)),
]
OTHER = [
    (x * 2, x * 3), (x * 0.5, x * 0.3), (x + 0, x + 1), (x * -1, x * 3), (x * 0.0, x * -0.0),
    (maximum(x, 0), maximum(x, 6)), (pow_(x, 3), pow_(x, 5)), (maximum(x, math.nan), maximum(x, 3)),
    (minimum(x, math.inf), minimum(x, 3)), (x + math.inf, x + -math.inf), (n / 3, n / 5), (n * 4, n * 8),
    (shift_left(n, 3), shift_left(n, 5)), (n & 12, n & 13), (fmod(n, 3), fmod(n, 5)), (pow_(n, 3), pow_(n, 5)),
    (pow_(3, n), pow_(5, n)), (where(x < 3, Const(True, "bool"), x < 0), where(x < 3, Const(False, "bool"), x < 0)),
    (cast(Const(0.1, "float64"), "float32") * x, cast(Const(0.3, "float64"), "float32") * x),
    (x * 0.1 + x * 0.1, x * 0.1 + x * 0.2),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_other_numbers_run_the_same_kernel(one: Expr, other: Expr) -> None:
    assert call_of(one).leaf is call_of(other).leaf
    assert call_of(one).args != call_of(other).args
    first, second = (guarded_call([e], [e] if e.is_float else [], [In(0, (7,))], [Out(0, (7,))]) for e in (one, other))
    assert first.leaf is second.leaf
    assert first.args != second.args


@pytest.mark.parametrize(("one", "other"), OTHER, ids=str)
def test_what_shapes_code_makes_another_kernel(one: Expr, other: Expr) -> None:
    assert call_of(one).leaf is not call_of(other).leaf


def test_equal_numbers_are_arguments_of_their_own() -> None:
    """Two models share a kernel in which one has the same number twice."""
    assert lift((x * 0.1 + 0.1, x - 0.1)).values == (np.float32(0.1),) * 3
    assert lift((x * 0.1 + 0.1, x - 0.1)).exprs == lift((x * 0.3 + 0.7, x - 0.9)).exprs
    shared = x * 0.3
    assert len(lift((shared + shared,)).values) == 1, "what is computed once has its numbers once"


def test_numbers_travel_as_registers_hold_them() -> None:
    half, wide = Var(0, "bfloat16"), Var(1, "int64")
    lifted = lift((half * 0.3, wide + (2 ** 53 + 1)))
    assert coefficients(*lifted.exprs) == ("bfloat16", "int64")
    assert [p.dtype for p in call_of(half * 0.3, wide + (2 ** 53 + 1)).leaf.parameters[4:]] == ["f4", "i8"]
    assert lifted.values[1] == 2 ** 53 + 1


def test_a_result_that_is_a_number_is_an_argument() -> None:
    def filled(number: float) -> Call:
        return elementwise_call([Const(number, "float32")], [], [Out(0, (9,))])
    assert filled(3.0).leaf is filled(-1.5).leaf
    assert filled(0.0).leaf is not filled(3.0).leaf
    result = np.zeros(9, "f4")
    assert run(filled(-1.5), [], [result]) == 0
    assert (result == -1.5).all()


# ---- bits

def values(dtype: str) -> np.ndarray:
    draw = np.random.default_rng(5)
    if "float" in dtype:
        found = [0.0, -0.0, 1, -1, 3, 0.1, np.inf, -np.inf, np.nan, 1e-45, -6e-8, 6e4, -3e38, *draw.standard_normal(60)]
        with np.errstate(over="ignore"):
            return np.array(found).astype(dtype)
    info = np.iinfo(dtype)
    edges = [info.min, info.max, 0, 1, info.max - 1, info.min + 1]
    return np.array([*edges, *draw.integers(info.min, info.max, 60, dtype)], dtype)


def expressions(dtype: str) -> list[Expr]:
    """Every way in which an operation takes a number, and chains of several."""
    v = Var(0, dtype)
    most = 6e4 if "float" in dtype else int(np.iinfo(dtype).max)
    numbers: list[Any] = [0.1, -3.7, 1e-7, most, 4.0, 0.25] if "float" in dtype else [3, 100, most, most - 2]
    found = [e for k in numbers for e in (v + k, k - v, v * k, v / k, k / v, maximum(v, k), minimum(v, k),
                                          maximum(k, v), where(v < k, v, k), where(v >= k, k, v))]
    if "float" in dtype:
        found += [minimum(maximum(v * 0.37 + 1.7, -0.7), 5.5), sqrt(v * v + 1e-5) / 3 - 0.3, exp(v * 1.3) * 0.7]
        found += [pow_(0.9, v), v / 2]
    return found


def bits(call: Call, arrays: Sequence[np.ndarray], results: Sequence[Expr]) -> list[bytes]:
    made = [np.zeros(arrays[0].size, r.dtype) for r in results]
    assert run(call, arrays, made) == 0
    return [np.where(m == m, m, np.abs(m)).tobytes() for m in made]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", paths.PATHS)
def test_an_argument_has_the_bits_of_a_constant(monkeypatch: pytest.MonkeyPatch, dtype: str, path: str) -> None:
    exprs, array = expressions(dtype), values(dtype)
    with cpu.forced(path):
        call = call_of(*exprs, size=array.size)
        found = bits(call, [array], exprs)
        monkeypatch.setattr(loops, "lift", lambda exprs: Lifted(exprs, ()))
        baked = call_of(*exprs, size=array.size)
        assert len(baked.args) < len(call.args)
        assert found == bits(baked, [array], exprs)


@pytest.mark.parametrize("path", paths.PATHS)
def test_rows_of_several_dimensions_and_guards_read_their_numbers(path: str) -> None:
    draw = np.random.default_rng(1)
    a, row, column = (draw.standard_normal(s).astype("f4") for s in ((5, 37), (37,), (5, 1)))
    y, z = Var(1, "float32"), Var(2, "float32")
    operands = [In(i, v.shape) for i, v in enumerate((a, row, column))]
    with cpu.forced(path):
        call = elementwise_call([x * 0.3 + y * 1.7, z - 0.9], operands, [Out(k, a.shape) for k in range(2)])
        got = [np.zeros_like(a), np.zeros_like(a)]
        assert run(call, [a, row, column], got) == 0
        np.testing.assert_array_equal(got[0], a * np.float32(0.3) + row * np.float32(1.7))
        np.testing.assert_array_equal(got[1], np.broadcast_to(column - np.float32(0.9), a.shape))
        for factor, status in ((3.0, OK), (7.0, NOT_FINITE)):
            call = guarded_call([x * 0.3], [x * factor], [In(0, (37,))], [Out(0, (37,))])
            assert run(call, [np.full(37, 1e38, "f4")], got[0][:1]) == status
            assert (got[0][0] == np.float32(1e38) * np.float32(0.3)).all()


# ---- operators

PAIRS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LeakyRelu", {"alpha": 0.1}, {"alpha": 0.2}), ("Elu", {"alpha": 1.5}, {"alpha": 0.7}),
    ("ThresholdedRelu", {"alpha": 3.0}, {"alpha": 0.7}),
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.3}, {"alpha": 0.1, "beta": 0.7}), ("Celu", {"alpha": 1.5}, {"alpha": 3.0}),
    ("Swish", {"alpha": 1.5}, {"alpha": 3.0}),
]


@pytest.mark.parametrize(("name", "one", "other"), PAIRS, ids=[p[0] for p in PAIRS])
def test_other_attributes_run_the_same_kernel(name: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    kind = TensorType("float32", (33,))
    array = np.linspace(-4, 4, 33).astype("f4")
    leaves, results = [], []
    for attributes in (one, other):
        op: Op = OPS[name](**attributes)
        call, = op.kernel([kind], [kind], cpu.current())
        result = np.zeros(33, "f4")
        assert run(call, [array], [result]) == 0
        np.testing.assert_allclose(result, op.reference(array)[0], rtol=1e-5, atol=1e-6)
        results.append(result)
        leaves.append(call.leaf)
    assert leaves[0] is leaves[1]
    assert (results[0] != results[1]).any()


def chain(scale: float, shift: float, slope: float, low: float) -> Graph:
    graph = Graph("chain")
    builder = Builder(graph)
    v = builder.input("x", TensorType("float32", (4, 9)))
    for number, name in ((scale, "Mul"), (shift, "Add")):
        v = getattr(builder, name)(v, builder.scalar(number, v))
    v = builder.LeakyRelu(v, alpha=slope)
    graph.outputs = [builder.Max(v, builder.scalar(low, v))]
    return graph


def test_a_fused_chain_with_other_numbers_runs_the_same_kernels() -> None:
    array = np.linspace(-4, 4, 36).reshape(4, 9).astype("f4")
    engines = [make_engine(compiler.inference(chain(*numbers), Batching(1)).program, Session())
               for numbers in ((0.3, 0.7, 0.1, -0.9), (0.7, -1.3, 0.01, -0.6))]
    (first,), (second,) = (e.run({"x": array}).values() for e in engines)
    assert engines[0].image.kernels == engines[1].image.kernels
    assert (first != second).any()
    v = array * np.float32(0.7) + np.float32(-1.3)
    np.testing.assert_array_equal(second[0], np.maximum(np.where(v < 0, v * np.float32(0.01), v), np.float32(-0.6)))
