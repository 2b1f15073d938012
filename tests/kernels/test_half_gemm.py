"""Products of float16 and bfloat16, and their conversions, on every path: against NumPy, ml_dtypes and float64."""
from __future__ import annotations

import functools
import platform
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import paths
import pytest
from llvmlite import binding, ir
from test_amx import EMULATED, PATHS
from test_gemm import at_edge, exact

from tileflow.kernels.elementwise.epilogue import Along, Epilogue
from tileflow.kernels.elementwise.expr import Var, cast, gelu
from tileflow.kernels.gemm import Bias, GemmProblem, Serial, half_fma, matmul_calls, pairs, panels
from tileflow.kernels.gemm.half import calls as half_calls
from tileflow.kernels.isa import cpu
from tileflow.kernels.isa.half import narrow_rows, round_rows, widen_rows, widen_turned
from tileflow.kernels.isa.vector import define
from tileflow.kernels.machine.call import Call, In, Out
from tileflow.kernels.machine.leaf import Leaf

NUMPY = {"f2": np.float16, "b2": ml_dtypes.bfloat16}
VECTOR_PATHS = [cpu.PATHS[name] for name in cpu.available() if name != "amx"]
ALL = [*([] if EMULATED else VECTOR_PATHS), *PATHS]


@functools.cache
def converter(path: str, dtype: str) -> Leaf:
    """The conversions of a path behind one leaf over arrays of rows: (which, bits, numbers)."""
    widen, turn, narrow, coarse = widen_rows(dtype), widen_turned(dtype), narrow_rows(dtype), round_rows(dtype)

    def convert(which, bits, numbers):
        m, n = bits.shape
        x, y = bits.ctypes.data, numbers.ctypes.data
        if which == 0:
            widen(m, n, x, n * 2, y, n * 4)
        elif which == 1:
            turn(m, n, x, n * 2, y, m * 4)
        elif which == 2:
            narrow(m, n, y, n * 4, x, n * 2)
        else:
            coarse(m, n, y, n * 4, y, n * 4)

    return Leaf(convert, f"i8, {dtype}[:,:], f4[:,:]", key=path)


@pytest.mark.skipif(EMULATED, reason="compares too many numbers")
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("path", [paths.entry(path) for path in VECTOR_PATHS])
def test_conversions_of_every_bit_pattern(path, dtype):
    with cpu.forced(path):
        leaf = converter(path.name, dtype)
        leaf.compile()
    bits = np.arange(65536, dtype=np.uint16).reshape(1, -1)
    wanted = bits.view(NUMPY[dtype]).astype("f4")
    got = np.zeros_like(wanted)
    leaf(0, bits, got)
    np.testing.assert_array_equal(got, wanted)                           # NaN equals NaN
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
    square = bits[:, :37 * 21].reshape(37, 21).copy()
    turned = np.zeros((21, 37), "f4")
    leaf(1, square, turned.reshape(37, 21))
    np.testing.assert_array_equal(turned, square.view(NUMPY[dtype]).astype("f4").T)
    rng = np.random.default_rng(0)
    near = got[np.isfinite(got)].view(np.uint32)                         # every number, its neighbours, every tie and its neighbours
    half = 1 << (12 if dtype == "f2" else 15)
    words = np.concatenate([near + d for d in (0, 1, half - 1, half, half + 1)] + [rng.integers(0, 1 << 32, 100_000, np.uint32)]).astype(np.uint32)
    numbers = np.concatenate([words.view("f4"), np.array([np.inf, -np.inf, np.nan, 65519, 65520, 1e-8, -1e-45], "f4")]).reshape(1, -1)
    with np.errstate(all="ignore"):
        wanted = numbers.astype(NUMPY[dtype])
    narrowed = np.zeros(numbers.shape, np.uint16)
    leaf(2, narrowed, numbers)
    nan = np.isnan(numbers)
    np.testing.assert_array_equal(narrowed[~nan], wanted.view(np.uint16)[~nan])
    assert np.isnan(narrowed.view(NUMPY[dtype])[nan].astype("f4")).all()
    rounded = numbers.copy()
    leaf(3, narrowed, rounded)
    np.testing.assert_array_equal(rounded, wanted.astype("f4"))


@pytest.mark.parametrize("path", [paths.entry(path) for path in ALL if path.pairs])
def test_the_cpus_own_rounding_to_bfloat16_keeps_denormals(path):
    """The instruction makes zeros of them: a vector that has one, between two without, goes the way of integers."""
    plain = np.array([1, -1.00390625, 1.01171875, 3e38, 3.4e38, -np.inf, np.nan, 0, -0.0, 2.0 ** -126, 1e-20, 7, 9, 11,
                      0.1, -0.3], "f4")
    tiny = plain.copy()
    tiny[5::3] = [1e-40, -1.1754942e-38, 1e-45, 4.6e-41]        # below, up to the smallest normal one, to zero, to even
    numbers = np.concatenate([plain, tiny, plain]).reshape(1, -1)
    with cpu.forced(path):
        leaf = converter(path.name, "b2")
        leaf.compile()
    bits = np.zeros(numbers.shape, np.uint16)
    leaf(2, bits, numbers)
    with np.errstate(all="ignore"):
        wanted = numbers.astype(NUMPY["b2"])
    assert (np.abs(wanted.astype("f4")) < 2.0 ** -126).sum() > 7
    np.testing.assert_array_equal(bits.view(NUMPY["b2"]).astype("f4"), wanted.astype("f4"))
    np.testing.assert_array_equal(bits[~np.isnan(numbers)], wanted.view(np.uint16)[~np.isnan(numbers)])


def run(calls: list[Call], arrays: list[np.ndarray], c: np.ndarray, cuts: int = 1) -> np.ndarray:
    """Run calls over arrays of bits, each range in `cuts` parts, last part first."""
    run_all(calls, arrays, [c], cuts)
    return c


def run_all(calls: list[Call], arrays: list[np.ndarray], outputs: list[np.ndarray], cuts: int = 1) -> None:
    """Likewise with several outputs."""
    works: dict[str, np.ndarray] = {}
    for call in calls:
        values = []
        for parameter, arg in zip(call.leaf.takes(call.args), call.args, strict=True):
            if isinstance(arg, In):
                values.append(arrays[arg.index].reshape(arg.shape))
            elif isinstance(arg, Out):
                values.append(outputs[arg.index].reshape(arg.shape))
            elif parameter.is_array:
                shape = (cuts, *arg.shape) if parameter.cut == "w" else arg.shape
                values.append(works.setdefault(arg.name, np.full(shape, np.nan, arg.dtype)))
            else:
                values.append(arg)
        for w in reversed(range(cuts)):
            assert call.leaf(*values, lo=call.n * w // cuts, n=call.n * (w + 1) // cuts, worker=w) == 0


def matmul(dtype: str, p: GemmProblem, a: np.ndarray, b: np.ndarray, addend: np.ndarray | None = None, cuts: int = 1,
           **options) -> np.ndarray:
    calls = half_calls(dtype, p, In(0, a.shape), In(1, b.shape), Out(0, (*p.batch, p.m, p.n)), tiles=cpu.current().amx, **options)
    arrays = [x.view(np.uint16) for x in (a, b, addend) if x is not None]
    return run(calls, arrays, np.full((*p.batch, p.m, p.n), 7, np.uint16), cuts).view(NUMPY[dtype])


def draw(rng: np.random.Generator, p: GemmProblem, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = rng.standard_normal((p.k, p.m) if p.trans_a else (p.m, p.k)), rng.standard_normal((p.n, p.k) if p.trans_b else (p.k, p.n))
    return a.astype(NUMPY[dtype]), b.astype(NUMPY[dtype])


def check(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> None:
    """At most one rounding of the result and float32's error of the sum away."""
    ulp = 2.0 ** -11 if got.dtype == np.float16 else 2.0 ** -8
    assert (np.abs(got.astype("f8") - wanted) <= ulp * np.abs(wanted) * (1 + ulp) + 12 * 2.0 ** -24 * bound + 2.0 ** -25).all()


@pytest.fixture(params=[paths.entry(path, quick=path.tiles != "software") for path in ALL])
def path(request):
    with cpu.forced(request.param) as path:
        yield path


@pytest.mark.parametrize("dtype", NUMPY)
def test_every_form_of_operands_and_odd_sizes(path, dtype):
    rng = np.random.default_rng(1)
    for m, n, k in ((1, 1, 1), (3, 5, 0), (16, 16, 31), (17, 33, 32), (40, 70, 100), (5, 3, 7), (100, 280, 530), (30, 40, 2051)):
        if EMULATED and m * n * k > 300_000:
            continue
        for trans in range(4):
            p = GemmProblem(m, n, k, bool(trans & 1), bool(trans & 2))
            a, b = draw(rng, p, dtype)
            got = matmul(dtype, p, a, b)
            check(got, exact(p, a, b), exact(p, np.abs(a), np.abs(b)))
            np.testing.assert_array_equal(matmul(dtype, p, a, b, cuts=3).view("u2"), got.view("u2"))


@pytest.mark.parametrize("dtype", NUMPY)
def test_bias_batches_pieces_and_packed_weights(path, dtype):
    rng = np.random.default_rng(2)
    p = GemmProblem(27, 45, 70)
    a, b = draw(rng, p, dtype)
    for shape, row, column in (((45,), 0, 1), ((27, 1), 1, 0), ((1, 1), 0, 0), ((27, 45), 45, 1)):
        addend = rng.standard_normal(shape).astype(NUMPY[dtype])
        got = matmul(dtype, p, a, b, addend, bias=Bias(In(2, shape), row, column), alpha=0.5, beta=-2.0)
        check(got, 0.5 * exact(p, a, b) - 2.0 * addend.astype("f8"), exact(p, np.abs(a), np.abs(b)) + 4)
    whole = matmul(dtype, p, a, b)
    for axis in ("m", "n", "k"):
        np.testing.assert_array_equal(matmul(dtype, p, a, b, serial=Serial(axis, 2)).view("u2"), whole.view("u2"))
    laid = panels(dtype, GemmProblem(80, 90, 70))
    assert laid is not None
    x, w = draw(rng, GemmProblem(80, 90, 70), dtype)
    out = np.zeros(laid.elements, "f4")
    run(list(laid.calls), [w.view(np.uint16)], out)
    calls = matmul_calls(dtype, GemmProblem(80, 90, 70), In(0, x.shape), In(1, out.shape), Out(0, (80, 90)),
                         packed=True)
    got = run(calls, [x.view(np.uint16), out], np.zeros((80, 90), np.uint16))
    plain = run(matmul_calls(dtype, GemmProblem(80, 90, 70), In(0, x.shape), In(1, w.shape), Out(0, (80, 90))),
                [x.view(np.uint16), w.view(np.uint16)], np.zeros((80, 90), np.uint16))
    np.testing.assert_array_equal(got, plain)
    many = GemmProblem(20, 45, 33, batch=(2, 3), a_step=(3 * 20 * 33, 20 * 33), b_step=(0, 33 * 45))
    a, b = rng.standard_normal((2, 3, 20, 33)).astype(NUMPY[dtype]), rng.standard_normal((3, 33, 45)).astype(NUMPY[dtype])
    got = matmul(dtype, many, a, b)
    check(got, a.astype("f8") @ b.astype("f8"), np.abs(a).astype("f8") @ np.abs(b).astype("f8"))
    np.testing.assert_array_equal(matmul(dtype, many, a, b, cuts=5).view("u2"), got.view("u2"))


@pytest.mark.parametrize("dtype", NUMPY)
def test_few_rows_and_a_transposed_right_operand(path, dtype):
    rng = np.random.default_rng(6)
    for m, n, k in ((1, 37, 50), (1, 8, 16), (3, 13, 4), (8, 21, 35), (1, 11, 4501)):
        if EMULATED and k > 4500:
            continue
        p = GemmProblem(m, n, k, False, True)
        a, b = draw(rng, p, dtype)
        addend = rng.standard_normal(n).astype(NUMPY[dtype])
        a, b = at_edge("a", a.view("u2")).view(NUMPY[dtype]), at_edge("b", b.view("u2")).view(NUMPY[dtype])
        got = matmul(dtype, p, a, b, addend, bias=Bias(In(2, (n,)), 0, 1), alpha=0.5, beta=2.0)
        check(got, 0.5 * exact(p, a, b) + 2.0 * addend.astype("f8"), exact(p, np.abs(a), np.abs(b)) + 4)
        whole = matmul(dtype, p, a, b)
        for options in (dict(cuts=3), dict(serial=Serial("n", 3))):
            np.testing.assert_array_equal(matmul(dtype, p, a, b, **options).view("u2"), whole.view("u2"))
        b = b.copy()
        b[n // 2, k - 1], b[n - 1, 0] = np.nan, np.inf
        assert (np.isfinite(matmul(dtype, p, a, b).astype("f4")).all(axis=0) == np.isfinite(b.astype("f4")).all(axis=1)).all()
    many = GemmProblem(3, 19, 33, False, True, batch=(2, 3), a_step=(3 * 3 * 33, 3 * 33), b_step=(0, 33 * 19))
    a, b = rng.standard_normal((2, 3, 3, 33)).astype(NUMPY[dtype]), rng.standard_normal((3, 19, 33)).astype(NUMPY[dtype])
    got = matmul(dtype, many, a, b, cuts=2)
    swapped = b.swapaxes(-1, -2)
    check(got, a.astype("f8") @ swapped.astype("f8"), np.abs(a).astype("f8") @ np.abs(swapped).astype("f8"))


@pytest.mark.parametrize("dtype", NUMPY)
def test_special_values_and_the_ends_of_the_range(path, dtype):
    rng = np.random.default_rng(3)
    p = GemmProblem(40, 70, 100)
    for value in (np.inf, -np.inf, np.nan, ml_dtypes.finfo(NUMPY[dtype]).max, ml_dtypes.finfo(NUMPY[dtype]).smallest_normal):
        for side, place in ((0, (3, 5)), (1, (99, 69)), (1, (2, 31))):
            a, b = draw(rng, p, dtype)
            (a, b)[side][place] = value
            with np.errstate(all="ignore"):
                wanted = exact(p, a, b)
                shown = wanted.astype(NUMPY[dtype]).astype("f8")
            got = matmul(dtype, p, a, b).astype("f8")
            np.testing.assert_array_equal(np.isnan(got), np.isnan(shown))
            np.testing.assert_array_equal(np.isinf(got), np.isinf(shown))
            ok = np.isfinite(shown)
            np.testing.assert_allclose(got[ok], wanted[ok], rtol=2.0 ** -10 if dtype == "f2" else 2.0 ** -7, atol=1e-4)
    if dtype == "f2":                                          # the smallest float16, a denormal, is an exact operand
        a, b = np.full((20, 50), 2.0 ** -24, "f2"), np.full((50, 30), 2.0 ** 10, "f2")
        np.testing.assert_array_equal(matmul(dtype, GemmProblem(20, 30, 50), a, b),
                                      np.full((20, 30), 50 * 2.0 ** -14, "f2"))


@pytest.mark.parametrize("path", [paths.entry(path) for path in VECTOR_PATHS])
def test_float16_partials_are_rounded_after_every_sixteen_products(path):
    rng = np.random.default_rng(4)
    p = GemmProblem(20, 37, 150)
    a, b = draw(rng, p, "f2")
    sums = np.zeros((20, 37), "f4")
    native = path.multiplies_halves                            # those are checked to the bit in path_checks.py
    for k in range(0, 150, 16):
        sums = (sums + a[:, k:k + 16].astype("f8") @ b[k:k + 16].astype("f8")).astype("f4").astype("f2").astype("f4")
    with cpu.forced(path):
        got = run(matmul_calls("f2", p, In(0, a.shape), In(1, b.shape), Out(0, (20, 37)), partials="f2"),
                  [a.view(np.uint16), b.view(np.uint16)], np.zeros((20, 37), np.uint16)).view("f2")
    apart = np.abs(got.astype("f8") - sums)
    assert (apart <= 2.0 ** -10 * np.maximum(np.abs(sums), 16) * (4 if native else 1)).all()
    assert native or (apart == 0).mean() > 0.9                           # float32 sums of 16 differ from exact ones in the last place at times


@pytest.mark.parametrize("path", [paths.entry(path) for path in ALL if path.pairs])
def test_pairs_are_summed_as_their_instruction_says(path):
    """To the bit: the high product, then the low one, each sum rounded, in chains that are added to C."""
    rng = np.random.default_rng(7)
    m, n, k = (5, 20, 301) if EMULATED else (15, 32, 601)
    with cpu.forced(path):
        kernel, weave = pairs.outer(path), pairs.weave(path)

        def product(a, b, left, right, c, m, n, k):
            weave(k, m, a.ctypes.data, 2 * m, left.ctypes.data, 4 * m + 64)
            weave(k, n, b.ctypes.data, 2 * n, right.ctypes.data, pairs.STEP)
            kernel(m, (k + 1) // 2, left.ctypes.data, 4, 4 * m + 64, right.ctypes.data, c.ctypes.data, 128, 0)

        leaf = Leaf(product, "b2[:,:], b2[:,:], u4[:,:], u4[:,:], f4[:,:], i8, i8, i8", key=path.name)
        leaf.compile()
    a, b = rng.standard_normal((k, m)).astype(NUMPY["b2"]), rng.standard_normal((k, n)).astype(NUMPY["b2"])
    half, c = (k + 1) // 2, np.full((m, 32), 7, "f4")
    leaf(a.view("u2"), b.view("u2"), np.full((half, m + 16), 0x7FC07FC0, "u4"), np.zeros((half, 32), "u4"), c, m, n, k)
    wanted = np.zeros((m, n), "f4")
    for at in range(0, k, 256):
        chain = np.zeros((m, n), "f4")
        for p in range(at, min(k, at + 256), 2):
            for i in (p + 1, p):
                if i < k:                                      # the product is exact in float32, the sum in float64
                    chain = (chain.astype("f8") + a[i, :, None].astype("f8") * b[i].astype("f8")).astype("f4")
        wanted = wanted + chain
    np.testing.assert_array_equal(c[:, :n], wanted)


@pytest.mark.parametrize("dtype", ["f2", paths.rare("b2")])
def test_epilogues_have_the_bits_of_a_pass_afterwards(path, dtype):
    rng = np.random.default_rng(8)
    name = "float16" if dtype == "f2" else "bfloat16"
    for m, n, k in ((30, 70, 40), (5, 33, 20)):
        p = GemmProblem(m, n, k, trans_b=True)
        a, b = draw(rng, p, dtype)
        bias, skip = rng.standard_normal(n).astype(NUMPY[dtype]), rng.standard_normal((m, n)).astype("f4")
        plain = matmul(dtype, p, a, b)
        total = cast(Var(0, name) + Var(1, name), "float32") + Var(2, "float32")
        epilogue = Epilogue((cast(gelu(total), name), total), (Along(In(2, (n,)), "channel"), Along(In(3, (m, n)), "full")), m * n)
        calls = half_calls(dtype, p, In(0, a.shape), In(1, b.shape), Out(0, (m, n)), epilogue=epilogue)
        for made in (calls, [epilogue.after((m, n), -1)]):
            first, second = plain.view("u2").copy(), np.zeros((m, n), "f4")
            run_all(made, [a.view("u2"), b.view("u2"), bias.view("u2"), skip], [first, second])
            if made is calls:
                kept = first, second
        np.testing.assert_array_equal(first, kept[0])
        np.testing.assert_array_equal(second, kept[1])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for an x86 processor")
def test_float16_multiply_adds_become_the_processors_own():
    """Whether it computes right is for the emulator to say (path_checks.py)."""
    module = ir.Module()
    module.triple = "x86_64-unknown-linux-gnu"
    define(module, "block", 7, cpu.PATHS["fp16"], half_fma.register_block(half_fma.ROWS))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(module.triple).create_target_machine(cpu="sapphirerapids", opt=3)
    code = machine.emit_assembly(binding.parse_assembly(str(module)))
    assert len(re.findall(r"\bvfmadd\d+ph\b.*zmm", code)) == half_fma.ROWS * half_fma.VECTORS, code
    assert not re.search(r"\bcall|zmm.*\(%rsp\)|\(%rsp\).*zmm", code), "nothing is called or spilled"


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("path", [VECTOR_PATHS[0], paths.rare(replace(PATHS[-1]))], ids=["vectors", "tiles"])
def test_error_is_that_of_one_rounding(path, dtype):
    """As accurate as a product in float64 rounded once, up to rare ties: torch's own error is the same."""
    rng = np.random.default_rng(5)
    p = GemmProblem(64, 64, 1000)
    a, b = draw(rng, p, dtype)
    with cpu.forced(path):
        got = matmul(dtype, p, a, b)
    assert (got.view("u2") == exact(p, a, b).astype(NUMPY[dtype]).view("u2")).mean() > 0.99
