"""Serialized matrix products: same bits from less memory, in the operator, through its gradients, by layer and by node name."""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, run_kernel

from tileflow.graph import OPS, Builder, Graph, TensorType, verify
from tileflow.graph.work import Contraction
from tileflow.kernels.gemm import GemmProblem, Serial, matmul_calls
from tileflow.kernels.gemm.blocking import blocking
from tileflow.kernels.gemm.problem import simplify
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In, Out, Work
from tileflow.ops.matmul import MODES
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.system.errors import OptionError, ShapeError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions

CHANNELS = ("input_channels", "output_channels")


def normal(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def make(name: str, **attributes: Any) -> Any:
    return OPS[name](**attributes)


def scratch_bytes(p: GemmProblem, serial: Serial | None) -> int:
    """Scratch memory of a product, with one worker."""
    calls = matmul_calls("f4", p, In(0, (p.m, p.k)), In(1, (p.k, p.n)), Out(0, (p.m, p.n)), serial=serial)
    works = {arg.name: 4 * int(np.prod(arg.shape)) for call in calls for arg in call.args if isinstance(arg, Work)}
    return sum(works.values())


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_transposition(mode: str, flags: tuple[int, int]) -> None:
    op = make("SerializedGemm", mode=mode, factor=4, transA=flags[0], transB=flags[1], alpha=0.5, beta=3.0)
    plain = make("Gemm", transA=flags[0], transB=flags[1], alpha=0.5, beta=3.0)
    a = normal(*((24, 20) if flags[0] else (20, 24)))
    b = normal(*((36, 24) if flags[1] else (24, 36)))
    for c in (normal(36), normal(20, 1), normal(20, 36)):
        y, = check_kernel(op, a, b, c, rtol=1e-5, atol=1e-5)
        if mode in CHANNELS:
            np.testing.assert_array_equal(y, run_kernel(plain, a, b, c)[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("m", "n", "k", "flags"), [(192, 256, 2048, (0, 1)), (256, 192, 1024, (1, 1)), (64, 512, 1024, (0, 1)),
                                                    (208, 1200, 1024, (0, 0)), (4, 64, 4096, (0, 1)), (256, 1, 1024, (1, 0)), (16, 48, 2048, (0, 0))])
def test_bits_of_large_products(mode: str, m: int, n: int, k: int, flags: tuple[int, int]) -> None:
    """Rows and columns always; sums where a piece is a multiple of the depth after which the plain sums start anew."""
    a, b = normal(*((k, m) if flags[0] else (m, k))), normal(*((n, k) if flags[1] else (k, n)))
    size = {"m": m, "n": n, "k": k}[MODES[mode]]
    factor = 4 if size % 4 == 0 else 1
    attributes = dict(transA=flags[0], transB=flags[1])
    plain, = run_kernel(make("Gemm", **attributes), a, b)
    got, = run_kernel(make("SerializedGemm", **attributes, mode=mode, factor=factor), a, b, workers=2)
    plan = blocking(simplify(GemmProblem(m, n, k, bool(flags[0]), bool(flags[1]))), "f4", cpu.current())
    if mode in CHANNELS or k // factor % plan.depth == 0:
        np.testing.assert_array_equal(got, plain)
    else:
        np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("mode", MODES)
def test_every_cpu_path(path: str, mode: str) -> None:
    """Three blocks of sums of 512 terms, packed: the bits of the plain product in every mode."""
    a, b = normal(60, 1536), normal(64, 1536)
    with cpu.forced(path):
        plain, = run_kernel(make("Gemm", transB=1), a, b)
        got, = run_kernel(make("SerializedGemm", transB=1, mode=mode, factor=3 if mode != "output_channels" else 4), a, b)
    np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("mode", MODES)
def test_batches(mode: str) -> None:
    op = make("SerializedMatMul", mode=mode, factor=3, transB=1, alpha=0.25)
    a, b = normal(2, 1, 6, 12, dtype="f8"), normal(5, 9, 12, dtype="f8")
    y, = check_kernel(op, a, b, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(y, 0.25 * a @ b.swapaxes(1, 2), atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
def test_scratch_memory_shrinks_with_the_factor(mode: str) -> None:
    p = GemmProblem(512, 2048, 1024, trans_b=True)
    plain = scratch_bytes(p, None)
    sizes = [scratch_bytes(p, Serial(MODES[mode], factor)) for factor in (1, 2, 4, 8)]
    assert sizes[0] == plain >= 4 * 2048 * 1024
    assert all(small < 0.6 * large for large, small in itertools.pairwise(sizes)), sizes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gradients(mode: str, flags: tuple[int, int]) -> None:
    op = make("SerializedGemm", mode=mode, factor=2, transA=flags[0], transB=flags[1], alpha=0.5)
    x, y = normal(*((4, 6) if flags[0] else (6, 4)), dtype="f8"), normal(*((2, 4) if flags[1] else (4, 2)), dtype="f8")
    check_gradient(op, x, y)
    check_gradient_kernels(op, x, y, rtol=1e-12, atol=1e-12)
    batched = make("SerializedMatMul", mode=mode, factor=2, transA=flags[0], transB=flags[1])
    check_gradient(batched, np.stack([x, x + 1]), np.stack([y, 2 * y]))


@pytest.mark.parametrize(("mode", "of_x", "of_w"), [("input_channels", "input_channels", "reducing_dim"),
                                                    ("reducing_dim", "output_channels", "input_channels"),
                                                    ("output_channels", "reducing_dim", "output_channels")])
def test_gradients_are_serialized_along_the_same_axis(mode: str, of_x: str, of_w: str) -> None:
    """The table of the modes: grad of LHS and of RHS are pieces concatenated (channels) or added (reducing_dim)."""
    graph = Graph()
    b = Builder(graph)
    x, w, g = (b.input(n, TensorType("float32", s)) for n, s in (("x", (8, 12)), ("w", (12, 20)), ("g", (8, 20))))
    op = make("SerializedGemm", mode=mode, factor=4)
    y = b.emit(op, x, w)
    found = op.vjp(b, [g], [x, w], y)
    verify(graph)
    assert [v.producer.op.mode for v in found] == [of_x, of_w]
    assert all(v.producer.op.factor == 4 for v in found)


@pytest.mark.parametrize("mode", MODES)
def test_the_work_says_what_is_serial(mode: str) -> None:
    op = make("SerializedGemm", mode=mode, factor=2)
    types = [TensorType("float32", (4, 6)), TensorType("float32", (6, 8))]
    work = op.work(types, op.infer(*types))
    assert isinstance(work, Contraction)
    assert work.serial == ((MODES[mode], 2),)
    assert work.flops == 2 * 4 * 6 * 8


def test_errors() -> None:
    a, b = TensorType("float32", (6, 8)), TensorType("float32", (8, 10))
    with pytest.raises(ShapeError, match=r"input_channels cuts the 6 rows of A; the factor 4 does not divide 6"):
        make("SerializedGemm", mode="input_channels", factor=4).infer(a, b)
    with pytest.raises(ShapeError, match=r"reducing_dim cuts the 8 .* factor 3"):
        make("SerializedMatMul", mode="reducing_dim", factor=3).infer(a, b)
    with pytest.raises(OptionError, match="mode 'rows' is unknown"):
        make("SerializedGemm", mode="rows", factor=2).infer(a, b)


def test_kept_precision_plans_float32_partials() -> None:
    """In 16.16 the sums of a serialized product that keeps its precision are planned in float32."""
    def partials(keep: bool) -> set[str]:
        graph = Graph()
        b = Builder(graph)
        x, w = (b.input(name, TensorType("float32", (256, 256))) for name in "xw")
        graph.outputs.append(b.SerializedMatMul(x, w, mode="reducing_dim", factor=4, keep_precision=keep))
        tiled = analyze(Program.of(graph, Batching(256)), chip("gc200").variant(tiles=16), TileOptions(precision="16.16"))
        return {step.plan.partials for step in tiled.steps if step.node.op.name == "SerializedMatMul"}

    assert partials(True) == {"float32"}
    assert partials(False) == {"float16"}
