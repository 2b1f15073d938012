"""Expressions, vector functions, broadcasting leaves and the elementwise operators."""
from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import paths
import pytest
from evaluate import check_gradient, check_kernel, evaluate, gradient_graph, run_kernel
from onnx.reference import ReferenceEvaluator
from peers import needs

from tileflow.graph import OPS, Builder, Graph, Op, TensorType, type_of
from tileflow.kernels.elementwise import expr as E
from tileflow.kernels.elementwise.expr import Const, Expr, Var, derivative, substitute, times, where
from tileflow.kernels.elementwise.loops import collapse, elementwise_call
from tileflow.kernels.isa import cpu, mathlib
from tileflow.kernels.machine.call import In, Out
from tileflow.ops.elementwise import Elementwise
from tileflow.system.errors import ShapeError, TypeMismatchError

ops = SimpleNamespace(**OPS)
rng = np.random.default_rng(7)
x32, y32, z32 = (Var(i, "float32") for i in range(3))
EDGES = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38], "float32")


@pytest.fixture(params=paths.PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu.forced(request.param):
        yield request.param


def compute(outputs: Sequence[Expr], *arrays: np.ndarray, into: dict[int, int] | None = None) -> list[np.ndarray]:
    """Run `outputs` over arrays; `into` = {output: input whose memory it takes}."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    results = [arrays[into[k]] if into and k in into else np.full(shape, 77).astype(o.dtype) for k, o in enumerate(outputs)]
    call = elementwise_call(outputs, [In(i, a.shape) for i, a in enumerate(arrays)], [Out(k, shape) for k in range(len(outputs))])
    args = [arrays[a.index].reshape(a.shape) if isinstance(a, In) else results[a.index].reshape(a.shape) if isinstance(a, Out) else a
            for a in call.args]
    assert call.leaf(*args, n=call.n) == 0
    return results


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


# ---- expressions --------------------------------------------------------------------------------------------------------

def test_equal_expressions_are_one_object() -> None:
    assert E.exp(x32 + 1) is E.exp(Var(0, "float32") + Const(1, "float32"))
    assert copy.deepcopy(x32 * y32) is x32 * y32
    assert Const(0.0, "float32") is not Const(-0.0, "float32")
    assert Const(math.nan, "float32") is Const(math.nan, "float32")
    assert Const(0.1, "float32") is not Const(0.1, "float64")
    assert Const(0.1, "float32").value == float(np.float32(0.1))
    assert (x32 > 0).dtype == "bool"
    assert E.cast(x32, "float32") is x32


def test_key_names_structure_and_sharing() -> None:
    e = E.exp(x32 - 0.5)
    assert E.key(e * e, e) == ("var 0:float32; const 0x1.0000000000000p-1:float32; sub(0,1):float32; exp(2):float32; "
                               "mul(3,3):float32 -> 4,3")
    deep = x32
    for _ in range(3000):                        # as deep as it likes, and 2^3000 paths
        deep = deep + deep
    assert len(E.postorder([deep])) == 3001
    assert E.flops(deep) == 3000


def test_misuse_is_refused() -> None:
    with pytest.raises(AssertionError, match="several or no element types"):
        x32 + Var(1, "float64")
    with pytest.raises(TypeError, match="no truth value"):
        bool(x32 > 0)


def test_substitute_composes() -> None:
    e = substitute(x32 * y32, {1: E.exp(x32)})
    assert e is x32 * E.exp(x32)


def test_derivatives_are_simple() -> None:
    assert derivative(x32 * y32, 0) is y32
    assert derivative(x32 + 3, 0) is Const(1, "float32")
    assert derivative(y32 * 2, 0) is Const(0, "float32")
    assert derivative(-x32, 0) is Const(-1, "float32")
    assert derivative(E.floor(x32) * y32, 0) is Const(0, "float32")
    assert derivative(E.pow_(x32, 2), 0) is Const(2, "float32") * x32
    assert derivative(E.cast(x32, "float64") * Var(1, "float64"), 0) is Var(1, "float64")


def test_derivative_of_a_branch_not_taken_does_no_harm() -> None:
    e = times(derivative(where(x32 > 0, E.log(x32), 0), 0), y32)
    got = E.evaluate(e, [np.array([-1, 0, 2], "float32"), np.array([np.inf, np.inf, 3], "float32")])
    np.testing.assert_array_equal(got, np.array([0, 0, 1.5], "float32"))


# ---- vector functions ---------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[np.ndarray], Any], float]] = {
    "exp": (E.exp, np.exp, 1.1), "expm1": (E.expm1, np.expm1, 1.6), "log": (E.log, np.log, 1.2), "log1p": (E.log1p, np.log1p, 1.8),
    "tanh": (E.tanh, np.tanh, 1.8), "erf": (E.erf, np.vectorize(math.erf, otypes=["f8"]), 1.9),
    "sin": (E.sin, np.sin, 0.6), "cos": (E.cos, np.cos, 0.6), "sqrt": (E.sqrt, np.sqrt, 0.501),
    "gelu": (E.gelu, np.vectorize(lambda x: -0.0 if x == -np.inf else 0.5 * x * math.erfc(-x * math.sqrt(0.5)), otypes=["f8"]), 2.5),
    "sigmoid": (E.sigmoid, lambda x: np.where(x < 0, np.exp(-abs(x)), 1.0) / (1.0 + np.exp(-abs(x))), 2.0),
}
"""Expression, float64 oracle, largest error in units in the last place of float32."""
UNFUSED = {"gelu": 4.6}
"""Errors where the CPU has no fused multiply-add to find what a product has lost."""


def allowed(name: str) -> float:
    """The largest error of a function on the current path."""
    bound = FUNCTIONS[name][2]
    return bound if cpu.current().fma else UNFUSED.get(name, bound)


def units(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Error of float32 results in units in the last place; 0 where both are NaN or the same infinity."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("float32")
        error = np.abs(got.astype("float64") - exact) / np.spacing(np.abs(rounded)).astype("float64")
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same & ~np.isfinite(rounded), 0.0, np.where(np.isnan(error), np.inf, error))


TURNS = [0.34657, 0.55, 0.6931472, 2 / 3, 1, 4 / 3, 4, 5.5, 9.01, 13, 14.5, 17.3, 20, 87.33, 88.7228, 89, 103.97, 104, 1e5, 1e-4,
         2.0 ** -126, 2.0 ** -127, *(k * math.pi / 2 for k in (*range(1, 20), 1000, 10001, 63661, 63662))]
"""Where the functions change their ways, overflow, vanish or cross zero."""


@functools.cache
def dense() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """2^20 random bit patterns, so every exponent, and all numbers around the turns; every function's values there in float64."""
    bits = np.random.default_rng(3).integers(0, 2 ** 32, 1 << 20, np.uint32)
    near = [np.float32(sign * turn).view(np.uint32) + np.arange(-500, 500, dtype=np.int64) for turn in TURNS for sign in (1, -1)]
    x = np.concatenate([EDGES.view(np.uint32), bits, *near]).astype(np.uint32).view("float32")
    x = np.concatenate([x, normal(20000) * 3, np.linspace(-110, 110, 40001).astype("float32"), EDGES])
    with np.errstate(all="ignore"):
        return x, {name: oracle(x.astype("float64")) for name, (_, oracle, _) in FUNCTIONS.items()}


def test_exp_of_lanes_that_vanish_beside_others(path: str) -> None:
    """As masked scores lie beside those that count: the bits are those of each lane among its equals."""
    beside = np.array([0, -1.5, 88, np.nan, -90, 90, -103.9], "float32")
    gone = np.array([-np.inf, -104.1, -1e4, -3e38], "float32")
    mixed = rng.permutation(np.repeat([*beside, *gone], 60).astype("float32"))
    (got,) = compute([E.exp(x32)], mixed)
    for x in (*beside, *gone):
        (alone,) = compute([E.exp(x32)], np.full(64, x))
        same = mixed == x if x == x else np.isnan(mixed)
        np.testing.assert_array_equal(got[same].view("uint32"), alone.view("uint32")[0])
    assert not got[np.isin(mixed, gone)].view("uint32").any()
    assert got[mixed == np.float32(-103.9)].all()


def test_functions_are_accurate(path: str) -> None:
    x, exact = dense()
    got = compute([f(x32) for f, _, _ in FUNCTIONS.values()], x)
    for name, y in zip(FUNCTIONS, got, strict=True):
        error = units(y, exact[name])
        worst = int(error.argmax())
        assert error[worst] <= allowed(name), f"{name}({x[worst]!r}) = {y[worst]!r}: {error[worst]} ulp"


def test_special_values(path: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 88.73, -104.0, -103.5], "float32")
    exp, log, tanh, erf, sigmoid, log1p, sin = compute([E.exp(x32), E.log(x32), E.tanh(x32), E.erf(x32), E.sigmoid(x32),
                                                        E.log1p(x32), E.sin(x32)], x)
    np.testing.assert_array_equal(exp, np.array([1, 1, np.inf, 0, np.nan, np.inf, 0, 1e-45], "float32"))
    np.testing.assert_array_equal(log[:5], [-np.inf, -np.inf, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(tanh, [0, 0, 1, -1, np.nan, 1, -1, -1])
    np.testing.assert_array_equal(erf, [0, 0, 1, -1, np.nan, 1, -1, -1])
    np.testing.assert_array_equal(sigmoid[:6], [0.5, 0.5, 1, 0, np.nan, 1])
    np.testing.assert_array_equal(log1p[:5], [0, 0, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(sin[:5], [0, 0, np.nan, np.nan, np.nan])
    for y in (tanh, erf, log1p, sin):
        assert list(np.signbit(y[:2])) == [False, True]


def test_pow(path: str) -> None:
    special = np.concatenate([EDGES, np.array([2, -2, 0.5, -0.5, 3, -3, 2.5, 16777217, 1e10], "float32")])
    a, b = (m.ravel().copy() for m in np.meshgrid(special, special))
    a, b = np.concatenate([a, abs(normal(20000)) ** 3]), np.concatenate([b, 20 * normal(20000)])
    got, = compute([E.pow_(x32, y32)], a, b)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype("float64"), b.astype("float64"))
    assert units(got, exact).max() <= 0.51
    known = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(exact[known]))


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "sqrt"])
def test_float64_functions(name: str) -> None:
    f, oracle, _ = FUNCTIONS[name]
    x = np.concatenate([normal(30, dtype="float64") * 3, EDGES.astype("float64")])
    got, = compute([f(Var(0, "float64"))], x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, oracle(x), rtol=1e-15, atol=1e-300)


def test_every_float_function_is_exported_to_lanes() -> None:
    for name in ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos"):
        assert callable(getattr(mathlib, name))
        assert name in E.OPERATIONS


# ---- leaves -------------------------------------------------------------------------------------------------------------

PATTERNS = [
    ((4, 37), (4, 37)), ((4, 37), ()), ((4, 37), (37,)), ((5, 1), (5, 3)), ((3, 4, 5, 7), (4, 1, 1)), ((3, 1, 5, 1), (4, 1, 7)),
    ((2, 3, 2, 3, 17), (3, 1, 3, 1)), ((1,), (1, 1)), ((), ()), ((0, 3), (3,)), ((7, 1), (1, 40)), ((3, 0), (1, 0)), ((1000, 3), (3,)),
]


@pytest.mark.parametrize("shapes", PATTERNS)
def test_broadcasting(path: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (normal(*s) for s in shapes)
    sub = ops.Map(exprs=(x32 - y32, y32 * 2))
    difference, double = check_kernel(sub, x, y)
    np.testing.assert_array_equal(difference, x - y)
    np.testing.assert_array_equal(double, np.broadcast_to(y * np.float32(2), difference.shape))


def test_spaces_are_collapsed() -> None:
    assert collapse((2, 3, 4), [(2, 3, 4), (1,)]).dims == (24,)
    assert collapse((2, 3, 4, 5), [(2, 3, 4, 5), (3, 1, 1)]).dims == (2, 3, 20)
    assert collapse((2, 3, 4, 5), [(2, 3, 4, 5), (3, 1, 1)]).strides == ((60, 20, 1), (0, 1, 0))
    assert collapse((1, 8, 1), [(1, 8, 1), (8, 1)]).dims == (8,)
    assert collapse((), []).dims == (1,)


def test_empty_arrays_of_any_rank(path: str) -> None:
    got, = compute([x32 - y32], normal(2, 0, 3, 0, 5), normal(1, 3, 1, 1))
    assert got.shape == (2, 0, 3, 0, 5)


def test_any_number_of_arguments() -> None:
    arrays = [normal(*[(3, 1, 1), (4, 5), (3, 1, 5), (3, 4, 5)][i % 4]) for i in range(40)]
    total = Var(0, "float32")
    for i in range(1, 40):
        total = total + Var(i, "float32")
    got, = compute([total], *arrays)
    np.testing.assert_allclose(got, sum(a.astype("float64") for a in arrays), rtol=1e-5, atol=1e-5)


def test_sizes_do_not_multiply_leaves() -> None:
    def leaf(*shapes: tuple[int, ...]) -> Any:
        return elementwise_call([x32 * y32], [In(i, s) for i, s in enumerate(shapes)], [Out(0, np.broadcast_shapes(*shapes))]).leaf

    assert leaf((3, 4), (3, 4)) is leaf((50,), (50,))
    assert leaf((2, 3, 4, 5), (3, 1, 1)) is leaf((7, 16, 8, 8), (16, 1, 1))
    assert leaf((8, 5), (5,)) is not leaf((8, 5), (8, 1))


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 63, 100])
def test_sizes(path: str, n: int) -> None:
    x, y = normal(n), normal(n)
    got, = check_kernel(ops.Add(), x, y)
    np.testing.assert_array_equal(got, x + y)


def chain(x: Expr, y: Expr, z: Expr) -> list[Expr]:
    """Steps that a compiler would love to contract: each reads the ones before."""
    a = x * y
    b = a + z
    c = E.exp(b)
    d = c / (1 + c)
    return [a, b, c, d, where(d > 0.5, d - z, E.tanh(d) * z)]


def test_fusion_keeps_every_bit(path: str) -> None:
    arrays = [normal(1003) for _ in range(3)]
    fused = compute(chain(x32, y32, z32), *arrays)
    alone, = compute([chain(x32, y32, z32)[-1]], *arrays)
    x, y, z = arrays
    a, = compute([x32 * y32], x, y)
    b, = compute([x32 + y32], a, z)
    c, = compute([E.exp(x32)], b)
    d, = compute([x32 / (1 + x32)], c)
    t, = compute([E.tanh(x32)], d)
    last, = compute([where(x32 > 0.5, x32 - y32, z32 * y32)], d, z, t)
    for one, other in zip([*fused, alone], [a, b, c, d, last, last], strict=True):
        assert one.tobytes() == other.tobytes()


EXACT: list[Callable[[Expr, Expr, Expr], Expr]] = [
    lambda a, b, c: a + b, lambda a, b, c: a - b, lambda a, b, c: a * b, lambda a, b, c: a / b, lambda a, b, c: -a,
    lambda a, b, c: E.maximum(a, b), lambda a, b, c: E.minimum(b, c), lambda a, b, c: where((a < b) | ~(b >= c), a, c),
    lambda a, b, c: E.sqrt(E.abs_(a)), lambda a, b, c: E.round_(a), lambda a, b, c: E.cast(E.cast(a, "int32"), "float32"),
    lambda a, b, c: E.floor(a) * E.sign(b), lambda a, b, c: E.fmod(a, b),
]
"""Operations that have one right answer."""


def random_expressions(count: int) -> list[Expr]:
    """Random float32 expressions, each built on the ones before."""
    choose = np.random.default_rng(11)
    pool = [x32, y32, z32, Const(1.5, "float32"), E.cast(Var(3, "int32"), "float32")]
    for _ in range(count):
        a, b, c = (pool[i] for i in choose.integers(0, len(pool), 3))
        pool.append(EXACT[choose.integers(len(EXACT))](a, b, c))
    return pool[5:]


def test_random_expressions_match_numpy_exactly(path: str) -> None:
    outputs = random_expressions(60)
    arrays = [normal(7, 35) * 4, normal(35), normal(7, 1), rng.integers(-9, 9, (7, 35), "int32")]
    for e, got in zip(outputs, compute(outputs, *arrays), strict=True):
        np.testing.assert_array_equal(got, np.broadcast_to(E.evaluate(e, arrays), got.shape), err_msg=E.key(e))


def test_vector_and_tail_give_the_same_bits(path: str) -> None:
    x = normal(64) * 3
    outputs = [f(E.abs_(x32)) for f, _, _ in FUNCTIONS.values()]
    whole = compute(outputs, x)
    for lo, hi in ((3, 8), (17, 36)):
        for a, b in zip(whole, compute(outputs, x[lo:hi].copy()), strict=True):
            assert a[lo:hi].tobytes() == b.tobytes()


def adamw(w: Expr, g: Expr, m: Expr, v: Expr) -> list[Expr]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return [w * 0.999 - 0.01 * (m / (E.sqrt(v) + 1e-8)), m, v]


@pytest.mark.parametrize("n", [1, 16, 1003])
def test_in_place(path: str, n: int) -> None:
    w, g, m, v = normal(n), normal(n), normal(n), abs(normal(n))
    update = adamw(*[Var(i, "float32") for i in range(4)])
    apart = compute(update, w, g, m, v)
    together = compute(update, w.copy(), g, m.copy(), v.copy(), into={0: 0, 1: 2, 2: 3})
    for a, b, e in zip(apart, together, update, strict=True):
        assert a.tobytes() == b.tobytes()
        np.testing.assert_array_equal(a, E.evaluate(e, [w, g, m, v]))


def test_mixed_types_in_one_expression(path: str) -> None:
    n = Var(1, "int64")
    flag = (x32 > 0) & (E.cast(n, "float32") < x32 * 10)
    e = where(flag, x32, E.cast(n, "float32")) * E.cast(flag, "float32") - E.cast(E.cast(n, "bool"), "float32")
    x, k = normal(101), rng.integers(-5, 5, 101)
    got, mask = compute([e, flag], x, k)
    np.testing.assert_array_equal(got, E.evaluate(e, [x, k]))
    np.testing.assert_array_equal(mask, E.evaluate(flag, [x, k]))


# ---- operators ----------------------------------------------------------------------------------------------------------

UNARY: list[tuple[Op, dict[str, Any]]] = [
    (ops.Neg(), {}), (ops.Reciprocal(), {}), (ops.Sqrt(), {}), (ops.Exp(), {}), (ops.Log(), {}), (ops.Sin(), {}), (ops.Cos(), {}),
    (ops.Erf(), {}), (ops.Abs(), {}), (ops.Sign(), {}), (ops.Floor(), {}), (ops.Ceil(), {}), (ops.Round(), {}), (ops.Relu(), {}),
    (ops.LeakyRelu(), {}), (ops.LeakyRelu(alpha=0.3), {"alpha": 0.3}), (ops.ThresholdedRelu(alpha=0.5), {"alpha": 0.5}),
    (ops.Elu(alpha=1.5), {"alpha": 1.5}), (ops.Celu(alpha=2.0), {"alpha": 2.0}), (ops.Selu(), {}), (ops.Softplus(), {}),
    (ops.Softsign(), {}), (ops.Sigmoid(), {}), (ops.HardSigmoid(), {}), (ops.HardSigmoid(alpha=0.5, beta=0.6), {"alpha": 0.5, "beta": 0.6}),
    (ops.HardSwish(), {}), (ops.Mish(), {}), (ops.Tanh(), {}), (ops.Gelu(), {}), (ops.Gelu(approximate="tanh"), {"approximate": "tanh"}),
    (ops.Tan(), {}), (ops.Asin(), {}), (ops.Acos(), {}), (ops.Atan(), {}), (ops.Sinh(), {}), (ops.Cosh(), {}), (ops.Asinh(), {}),
    (ops.Acosh(), {}), (ops.Atanh(), {}), (ops.Shrink(lambd=1.0, bias=0.3), {"lambd": 1.0, "bias": 0.3}),
    (ops.IsNaN(), {}), (ops.IsInf(), {}), (ops.IsInf(detect_negative=0), {"detect_negative": 0}),
]
BINARY: list[Op] = [ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Pow(), ops.Max(), ops.Min(), ops.PRelu(),
                    ops.Equal(), ops.Greater(), ops.GreaterOrEqual(), ops.Less(), ops.LessOrEqual()]
NAMES = [str(o) for o, _ in UNARY]


def onnx_run(op: Op, attributes: dict[str, Any], *arrays: np.ndarray) -> np.ndarray:
    """The operator by ONNX's reference implementation."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = onnx.helper.make_node(op.name, names, ["y"], **attributes)
    inputs = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in zip(names, arrays, strict=True)]
    graph = onnx.helper.make_graph([node], "one", inputs, [onnx.helper.make_empty_tensor_value_info("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0])  # type: ignore[index]


UNARY_POINTS = np.concatenate([normal(21, dtype="float64") * 3, np.linspace(-4, 4, 17), EDGES[:7].astype("float64")])
NAN_AT_INFINITY = ("Gelu", "HardSwish", "Mish", "Softsign", "Softplus", "Selu", "Celu")
"""Where ONNX's reference computes Inf - Inf or Inf / Inf and we the limit, or the other way round."""


def check_against_onnx(op: Op, attributes: dict[str, Any], x: np.ndarray, got: np.ndarray) -> None:
    expected = onnx_run(op, attributes, x)
    assert got.dtype == expected.dtype
    known = np.isfinite(x) if op.name in NAN_AT_INFINITY else np.full(x.shape, True)
    np.testing.assert_allclose(got[known], expected[known], rtol=1e-5 if x.dtype == "float32" else 2e-7, atol=1e-6, err_msg=str(op))


@pytest.mark.parametrize(("op", "attributes"), UNARY, ids=NAMES)
def test_unary_operators(op: Op, attributes: dict[str, Any]) -> None:
    x = UNARY_POINTS.astype("float32")
    got, = check_kernel(op, x, rtol=1e-6, atol=1e-6)
    check_against_onnx(op, attributes, x, got)


def together(group: Sequence[Op], *dtypes: str) -> ops.Map:
    """The operators as one leaf with an output each: one compilation instead of many."""
    return ops.Map(exprs=tuple(op.expr(*[Var(i, d) for i, d in enumerate(dtypes)]) for op in group if isinstance(op, Elementwise)))


def test_unary_operators_in_float64() -> None:
    results = check_kernel(together([op for op, _ in UNARY], "float64"), UNARY_POINTS, rtol=1e-13, atol=1e-13)
    for (op, attributes), got in zip(UNARY, results, strict=True):
        check_against_onnx(op, attributes, UNARY_POINTS, got)


def binary_points(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    return (np.concatenate([EDGES[:8], normal(5)]).astype(dtype), np.array([[2], [0], [-1.5], [np.inf], [np.nan], [1]], dtype))


def check_binary(op: Op, a: np.ndarray, b: np.ndarray, got: np.ndarray) -> None:
    known = np.isfinite(a) & np.isfinite(b) if op.name == "PRelu" else np.full(got.shape, True)
    np.testing.assert_allclose(got[known], onnx_run(op, {}, np.broadcast_to(a, got.shape), b)[known], rtol=1e-6, err_msg=str(op))


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_binary_operators(op: Op) -> None:
    a, b = binary_points("float32")
    a = np.broadcast_to(a, (len(b), len(a))).copy()
    got, = check_kernel(op, a, b, rtol=1e-6)
    check_binary(op, a, b, got)


def test_binary_operators_in_float64() -> None:
    a, b = binary_points("float64")
    for op, got in zip(BINARY, check_kernel(together(BINARY, "float64", "float64"), a, b, rtol=1e-14), strict=True):
        check_binary(op, a, b, got)


def test_swish() -> None:
    x = normal(100)
    np.testing.assert_allclose(check_kernel(ops.Swish(alpha=0.7), x, rtol=1e-6)[0], x / (1 + np.exp(-0.7 * x)), rtol=1e-5, atol=1e-6)
    check_gradient(ops.Swish(alpha=0.7), x[:5].astype("float64"))


@pytest.mark.parametrize("op", [ops.Sum(), ops.Mean(), ops.Max(), ops.Min()], ids=str)
def test_variadic_operators(op: Op) -> None:
    for count in (1, 2, 3):
        arrays = [normal(4, 5), normal(5), normal(4, 1)][:count]
        arrays[0][0, 0] = np.nan
        got, = check_kernel(op, *arrays)
        np.testing.assert_allclose(got, onnx_run(op, {}, *arrays), rtol=1e-6)


def test_logic_and_where() -> None:
    a, b = rng.random((3, 50)) < 0.5, rng.random(50) < 0.5
    for op in (ops.And(), ops.Or(), ops.Xor()):
        np.testing.assert_array_equal(check_kernel(op, a, b)[0], onnx_run(op, {}, a, b))
    np.testing.assert_array_equal(check_kernel(ops.Not(), a)[0], ~a)
    np.testing.assert_array_equal(check_kernel(ops.Equal(), a, b)[0], a == b)
    for dtype in ("float32", "float64", "int64", "uint8", "bool"):
        x, y = (normal(3, 1) * 10).astype(dtype), np.asarray(normal() * 10).astype(dtype)
        np.testing.assert_array_equal(check_kernel(ops.Where(), a, x, y)[0], np.where(a, x, y))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_integers(dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([*rng.integers(least, most, 33, dtype, endpoint=True), least, most, 0, most // 3, least], dtype)
    b = np.array([0, *rng.integers(max(least, -9), 9, 36, dtype), -1 if least else 0], dtype)       # the least value by -1
    check_kernel(together([ops.Add(), ops.Sub(), ops.Mul(), ops.Max(), ops.Min(), ops.Less(), ops.GreaterOrEqual(), ops.Equal(),
                           ops.Div()], dtype, dtype), a, b)
    check_kernel(together([ops.Neg(), ops.Abs(), ops.Sign(), ops.Relu(), ops.Clip(min=3, max=9)], dtype), a)
    divisor = np.where(b == 0, 1, b).astype(dtype)
    floored, truncated = check_kernel(together([ops.Mod(), ops.Mod(fmod=1)], dtype, dtype), a, divisor)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(floored, np.mod(a, divisor))
        np.testing.assert_array_equal(truncated, np.fmod(a, divisor))


def test_integer_division_truncates() -> None:
    a, b = np.array([7, -7, 7, -7, 5], "int32"), np.array([2, 2, -2, -2, 0], "int32")
    np.testing.assert_array_equal(run_kernel(ops.Div(), a, b)[0], [3, -3, -3, 3, 0])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integer_powers(dtype: str) -> None:
    a, b = (m.astype(dtype).ravel() for m in np.meshgrid(np.array([0, 1, 2, 3, 7]), np.array([0, 1, 2, 3, 5, 31, 62, 63, 64, 65])))
    if dtype != "uint8":
        a, b = np.concatenate([a, -a, a]), np.concatenate([b, b, -b])
    fits = (b <= 63) | (abs(a.astype("int64")) <= 1)
    with np.errstate(all="ignore"):
        check_kernel(ops.Pow(), a[fits], b[fits])
    np.testing.assert_array_equal(run_kernel(ops.Pow(), np.array([2, 3], "int32"), np.array([1.5, 2.0], "float32"))[0], [2, 9])
    np.testing.assert_array_equal(run_kernel(ops.Pow(), np.array([1.5, 3], "float32"), np.array([2, -1], "int64"))[0],
                                  np.array([2.25, 1 / 3], "float32"))


def test_float_remainders() -> None:
    a, b = (m.ravel().copy() for m in np.meshgrid(np.array([5.3, -5.3, 0, 7, -7, np.inf, 3e38], "float32"),
                                                  np.array([2.1, -2.1, 3.5, np.inf, 0, 1e-3], "float32")))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(check_kernel(ops.Mod(fmod=1), a, b)[0], np.fmod(a, b))
    finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
    np.testing.assert_array_equal(check_kernel(ops.Mod(), a[finite], b[finite])[0], np.mod(a[finite], b[finite]))
    for op in (ops.Mod(), ops.Mod(fmod=1)):
        check_gradient(op, np.array([5.3, -5.3, 2.2]), np.array([2.1, 1.7, -0.9]))


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5])
def test_common_powers_do_not_depend_on_the_neighbours(exponent: float) -> None:
    x = np.concatenate([EDGES, normal(33)])
    alike = np.full(x.shape, exponent, "float32")
    mixed = np.where(np.arange(x.size) % 2, alike, np.float32(1.3))
    one, = check_kernel(ops.Pow(), x, alike, rtol=1e-7)
    other, = check_kernel(ops.Pow(), x, mixed, rtol=1e-7)
    literal, = check_kernel(ops.Map(exprs=(E.pow_(x32, exponent),)), x, rtol=1e-7)
    assert one[1::2].tobytes() == other[1::2].tobytes()
    np.testing.assert_array_equal(one, literal)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_bits(dtype: str) -> None:
    a, b = (rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 50, dtype) for _ in range(2))
    results = check_kernel(together([ops.BitwiseAnd(), ops.BitwiseOr(), ops.BitwiseXor(), ops.BitwiseNot()], dtype, dtype), a, b)
    for got, expected in zip(results, [a & b, a | b, a ^ b, ~a], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_float16_rounds_after_every_operation(path: str) -> None:
    x, y = Var(0, "float16"), Var(1, "float16")
    a, b = normal(101, dtype="float16"), normal(101, dtype="float16")
    got = check_kernel(ops.Map(exprs=((x * y + x) / y, E.maximum(x, y), E.cast(x, "float32"), x > y)), a, b)
    np.testing.assert_array_equal(got[0], (a * b + a) / b)
    np.testing.assert_allclose(check_kernel(ops.Gelu(), a, rtol=2e-3, atol=1e-3)[0], onnx_run(ops.Gelu(), {}, a), rtol=1e-2, atol=2e-3)


def test_clip() -> None:
    x = np.concatenate([normal(20), EDGES])
    for low, high in ((None, None), (-0.5, None), (None, 0.5), (-0.5, 0.5)):
        got, = check_kernel(ops.Clip(min=low, max=high), x)
        np.testing.assert_array_equal(got, np.clip(x, -np.inf if low is None else low, np.inf if high is None else high))


DTYPES = ["float32", "float64", "float16", "int8", "int32", "int64", "uint8", "uint16", "bool"]


@pytest.mark.parametrize("source", DTYPES)
def test_cast(source: str) -> None:
    x = np.concatenate([np.linspace(0, 100, 18), [0.0, 0.5, 1.5, 2.999]]).astype(source)
    if source not in ("bool", "uint8", "uint16"):
        x = np.concatenate([x, -x])
    results = check_kernel(together([ops.Cast(to=t) for t in DTYPES], source), x)
    for target, got in zip(DTYPES, results, strict=True):
        if not (target.startswith("uint") and (x < 0).any()):
            np.testing.assert_array_equal(got, x.astype(target))


def test_cast_out_of_range() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 300.7, -0.9, -1.5, 2.0 ** 31, 255.9], "float32")
    signed, unsigned = run_kernel(together([ops.Cast(to="int32"), ops.Cast(to="uint8")], "float32"), x)
    np.testing.assert_array_equal(signed, [0, 2 ** 31 - 1, -2 ** 31, 2 ** 31 - 1, -2 ** 31, 300, 0, -1, 2 ** 31 - 1, 255])
    np.testing.assert_array_equal(unsigned, [0, 255, 0, 255, 0, 255, 0, 0, 255, 255])
    check_kernel(together([ops.Cast(to=t) for t in ("int32", "uint8", "int64", "uint64", "int8")], "float32"), x)


def test_errors_name_types_and_shapes() -> None:
    f, d, n = TensorType("float32", (2, 3)), TensorType("float64", (2, 3)), TensorType("int32", (2, 3))
    with pytest.raises(ShapeError, match=r"float32\[2, 3\] and float32\[4\] do not broadcast"):
        ops.Add().infer(f, TensorType("float32", (4,)))
    with pytest.raises(TypeMismatchError, match=r"float32\[2, 3\] and float64\[2, 3\]"):
        ops.Add().infer(f, d)
    with pytest.raises(TypeMismatchError, match=r"int32\[2, 3\], which it does not take; cast it to one of: float16"):
        ops.Exp().infer(n)
    with pytest.raises(TypeMismatchError, match="condition must be bool"):
        ops.Where().infer(f, f, f)
    with pytest.raises(ShapeError, match="slope"):
        ops.PRelu().infer(TensorType("float32", (3,)), f)
    with pytest.raises(TypeMismatchError, match="cannot cast to 'float33'"):
        ops.Cast(to="float33").infer(f)


def test_work_counts() -> None:
    t = TensorType("float32", (4, 5))
    work = ops.Add().work([t, TensorType("float32", (5,))], [t])
    assert work.points == 20
    assert work.flops == 20
    exp = ops.Exp().work([t], [t])
    assert exp.flops == 20                       # a function counts as one operation; what it takes follows from its name
    assert exp.functions == (("exp", "float32", 1),)


# ---- gradients ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("op", [o for o, _ in UNARY if not o.name.startswith("Is")], ids=[n for n in NAMES if not n.startswith("Is")])
def test_unary_gradients(op: Op) -> None:
    x = np.array([[0.31, 1.7, 2.9, 0.77, 3.6], [-0.31, -1.7, -2.9, -3.7, -0.9]])
    inside = {"Sqrt": abs(x), "Log": abs(x), "Acosh": 1.1 + abs(x), "Asin": x / 4, "Acos": x / 4, "Atanh": x / 4}
    check_gradient(op, inside.get(op.name, x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("op", BINARY[:8], ids=str)
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 3, 4), (3, 1)), ((3, 4), ())])
def test_binary_gradients(op: Op, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (np.asarray(0.3 + 2 * rng.random(s)) for s in shapes)
    check_gradient(op, x, y, rtol=1e-6, atol=1e-8)
    if op.name not in ("PRelu", "Pow"):
        check_gradient(op, y, x, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("op", [ops.Sum(), ops.Mean(), ops.Max(), ops.Min()], ids=str)
def test_variadic_gradients(op: Op) -> None:
    check_gradient(op, normal(3, 4, dtype="float64"), normal(4, dtype="float64"), normal(3, 1, dtype="float64"))


def test_map_and_cast_gradients() -> None:
    x, y = Var(0, "float64"), Var(1, "float64")
    check_gradient(ops.Map(exprs=(x * E.sin(y), E.cast(x > y, "float64"), x / y)), normal(3, 4, dtype="float64"), 2 + rng.random(4))
    _, _, (g,) = gradient_graph(ops.Cast(to="float64"), [normal(3)])
    assert g is not None
    assert g.dtype == "float32"


def test_where_gradient() -> None:
    c = rng.random((3, 4)) < 0.5
    check_gradient(ops.Where(), c, normal(4, dtype="float64"), normal(3, 1, dtype="float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", [ops.Gelu(), ops.Gelu(approximate="tanh"), ops.Swish(), ops.Sigmoid(), ops.Tanh(),
                                ops.Mish(), ops.Div()], ids=str)
def test_gradients_in_16_bits_round_once(op: Op, dtype: str) -> None:
    """As PyTorch's kernels compute them: within half a unit of what float64 makes of the same numbers, but for
    float32's own error."""
    binary = isinstance(op, ops.Div)
    operands = [x.astype(dtype) for x in ([normal(500), 0.5 + normal(500) ** 2] if binary else [2 * normal(500)])]
    graph, (upper,), made = gradient_graph(op, operands)
    (value, *_,) = op.reference(*operands)
    x, y, g = [Var(i, "float64") for i in range(len(operands))], Var(8, "float64"), Var(9, "float64")
    given = {i: a.astype("float64") for i, a in enumerate(operands)}
    given |= {8: value.astype("float64"), 9: upper.astype("float64")}
    found = evaluate(graph, {f"x{i}": a for i, a in enumerate(operands)})
    for i, v in enumerate(made):
        gradient = op.gradient(i, x, (y,), (g,))                                # type: ignore[attr-defined]
        exact = E.evaluate(gradient, [given.get(k, np.zeros(0)) for k in range(10)])
        assert v is not None
        unit = np.abs(np.spacing(exact.astype("float32"))) * 2.0 ** (13 if dtype == "float16" else 16)
        least = 2.0 ** -24 if dtype == "float16" else 0.0
        assert (np.abs(found[v.name].astype("float64") - exact) <= 0.501 * np.maximum(unit, least) + 4e-6).all()


def test_one_operation_is_differentiated_in_its_own_type() -> None:
    """It rounds once by itself; and operators of a chain round each, as they are written."""
    low, up = Var(0, "bfloat16"), Var(1, "bfloat16")
    assert ops.Mul().gradient(0, (low, up), (low,), (up,)) is up * up
    assert ops.Relu().gradient(0, (low,), (low,), (up,)) is where(low <= 0, 0, up)
    chain = ops.Map(exprs=(E.exp(low) * low,))
    assert all(n.dtype == "bfloat16" for n in E.postorder([chain.gradient(0, (low,), (low,), (up,))]))


KINKS: list[tuple[Op, str]] = [
    (ops.Relu(), "torch.relu(x)"), (ops.Abs(), "x.abs()"), (ops.LeakyRelu(alpha=0.2), "F.leaky_relu(x, 0.2)"), (ops.Elu(), "F.elu(x)"),
    (ops.HardSwish(), "F.hardswish(x)"), (ops.Selu(), "F.selu(x)"),
    (ops.Celu(), "F.celu(x)"), (ops.Softsign(), "F.softsign(x)"), (ops.Sign(), "x.sign()"), (ops.Sqrt(), "x.sqrt()"),
    (ops.Softplus(), "F.softplus(x, threshold=1000)"), (ops.Mish(), "F.mish(x)"), (ops.ThresholdedRelu(alpha=1.0), "F.threshold(x, 1, 0)"),
    (ops.Gelu(), "F.gelu(x)"), (ops.Tanh(), "x.tanh()"), (ops.Sigmoid(), "x.sigmoid()"), (ops.Exp(), "x.exp()"), (ops.Log(), "x.log()"),
]


@pytest.mark.parametrize(("op", "code"), KINKS, ids=[str(o) for o, _ in KINKS])
def test_gradients_at_kinks_follow_torch(op: Op, code: str) -> None:
    torch = needs("torch")
    points = np.array([0.0, 1, -1, 3, -3, 40, -40])
    graph, (upper,), (g,) = gradient_graph(op, [points])
    assert g is not None
    x = torch.tensor(points, requires_grad=True)
    eval(code, {"torch": torch, "F": torch.nn.functional, "x": x}).backward(torch.from_numpy(upper))
    np.testing.assert_allclose(evaluate(graph, {"x0": points})[g.name], x.grad.numpy(), rtol=1e-7, atol=1e-14)


def test_gradients_at_the_bounds_of_clip_follow_torch() -> None:
    """As PyTorch 2.13 has it: 1 at the bounds (2.15 has 0 there, which is a subgradient, too)."""
    torch = needs("torch")
    points = np.array([0.0, 1, -1, 3, -3])
    x = torch.tensor(points, requires_grad=True)
    x.clamp(-1, 1).sum().backward()
    graph, (upper,), (g,) = gradient_graph(ops.Clip(min=-1, max=1), [points])
    assert g is not None
    found = evaluate(graph, {"x0": points})[g.name] / upper
    np.testing.assert_array_equal(found, [1, 1, 1, 0, 0])
    inside = np.abs(points) != 1
    np.testing.assert_array_equal(found[inside], x.grad.numpy()[inside])
    if torch.__version__.startswith("2.13."):
        np.testing.assert_array_equal(found, x.grad.numpy())


def test_ties_of_max_follow_torch() -> None:
    torch = needs("torch")
    a, b = np.array([1.0, 2, 3]), np.array([1.0, 3, 2])
    for op, function in ((ops.Max(), torch.maximum), (ops.Min(), torch.minimum)):
        graph, (upper,), results = gradient_graph(op, [a, b])
        values = evaluate(graph, {"x0": a, "x1": b})
        ta, tb = (torch.tensor(v, requires_grad=True) for v in (a, b))
        function(ta, tb).backward(torch.from_numpy(upper))
        for g, t in zip(results, (ta, tb), strict=True):
            assert g is not None
            np.testing.assert_array_equal(values[g.name], t.grad.numpy())


def power_gradient(exponent: np.ndarray, points: np.ndarray) -> tuple[Graph, np.ndarray]:
    graph = Graph()
    b = Builder(graph)
    x, one = b.input("x", type_of(points)), b.constant(np.ones(points.shape), "g")
    c = b.constant(exponent)
    y = b.Pow(x, c)
    g, none = y.producer.op.vjp(b, [one], [x, c], [y])
    assert none is None
    return graph, evaluate(graph, {"x": points})[g.name]


def test_constant_exponents_make_no_nan() -> None:
    points = np.array([-2.0, -1, 0, 1, 2])
    for exponent, slope in ((2.0, 2 * points), (3.0, 3 * points ** 2), (1.0, np.ones(5)), (0.0, np.zeros(5))):
        graph, got = power_gradient(np.array(exponent), points)
        np.testing.assert_allclose(got, slope)
        assert len(graph.nodes) <= 3
    _, got = power_gradient(np.array([2.0, 3, 0, 1, 2]), points)
    np.testing.assert_allclose(got, [-4, 3, 0, 1, 4])


def test_linear_gradients_need_no_arithmetic() -> None:
    graph, _, results = gradient_graph(ops.Add(), [normal(3, 4), normal(3, 4)])
    assert [n.op.name for n in graph.nodes] == ["Add"]
    assert results[0] is results[1]


def test_constants_get_no_gradient() -> None:
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (3,)))
    y = b.Mul(x, b.scalar(2.0, x))
    grads = y.producer.op.vjp(b, [x], y.producer.inputs, [y])
    assert grads[0] is not None
    assert grads[1] is None
