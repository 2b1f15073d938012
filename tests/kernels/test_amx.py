"""Products in tiles of bfloat16 and of bytes: by the tiles of this CPU if it has them, else by the same arithmetic in vectors."""
from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import numpy as np
import paths
import pytest
from evaluate import check_kernel, run_kernel
from onnx_models import model_of, node, port
from test_gemm import exact, operands, run

from tileflow.graph import OPS
from tileflow.kernels.gemm import Bias, GemmProblem, tiles
from tileflow.kernels.gemm.blocking import Blocking, blocking
from tileflow.kernels.gemm.problem import simplify
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.call import In
from tileflow.kernels.quantized import tiles as byte_tiles
from tileflow.kernels.quantized.dots import way_of
from tileflow.onnx_backend import Backend

EMULATED = "emulator.plugin" in sys.modules
VECTORS = next(name for name in cpu.available() if cpu.PATHS[name].label == cpu.PATHS[name].name)
SOFTWARE = replace(cpu.PATHS[VECTORS], tiles="software", rates=cpu.PATHS["amx"].rates)
TILES = [cpu.PATHS["amx"]] if EMULATED or "amx" in cpu.available() else []
PATHS = TILES if EMULATED else [*TILES, SOFTWARE]
BYTE_PATHS = [p for p in PATHS if p.byte_tiles and p.vnni]
if not EMULATED and "vnni" in cpu.available():
    BYTE_PATHS.append(replace(cpu.PATHS["vnni"], tiles="software"))
SMALL = Blocking("tiles", 32, 64, tiles.DEPTH)
UNIT = 2.0 ** -24


@pytest.fixture(params=PATHS, ids=lambda path: path.tiles)
def path(request):
    with cpu.forced(request.param) as path:
        yield path


def error(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Largest and mean error against float64, relative to |A| |B|, in units of 2^-24."""
    scale = np.abs(a).astype("f8") @ np.abs(b).astype("f8")
    errors = np.abs(got.astype("f8") - a.astype("f8") @ b.astype("f8")) / np.where(scale == 0, 1, scale) / UNIT
    return float(errors.max()), float(errors.mean())


@pytest.mark.parametrize("sizes", [((1, 1, 1), (17, 33, 32), (40, 70, 100)), paths.rare(((16, 16, 31), (5, 3, 7), (64, 130, 530)))],
                         ids=["small", "others"])
def test_every_form_of_operands_and_odd_sizes(path, sizes):
    rng = np.random.default_rng(0)
    for m, n, k in sizes:
        for trans in range(4) if k < 500 else (1, 2):          # tiles in software take a second for each of the largest
            p = GemmProblem(m, n, k, bool(trans & 1), bool(trans & 2))
            a, b = operands(rng, p, "f4")
            got = run(p, a, b, force=SMALL)
            assert (np.abs(got - exact(p, a, b)) <= 6 * UNIT * exact(p, np.abs(a), np.abs(b))).all(), p
            np.testing.assert_array_equal(run(p, a, b, force=SMALL, cuts=3), got)


def test_batches_broadcast_and_bias(path):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 3, 20, 70)).astype("f4"), rng.standard_normal((3, 70, 45)).astype("f4")
    p = GemmProblem(20, 45, 70, batch=(2, 3), a_step=(3 * 20 * 70, 20 * 70), b_step=(0, 70 * 45))
    got = run(p, a, b, force=SMALL)
    np.testing.assert_allclose(got, a.astype("f8") @ b.astype("f8"), atol=2e-5)
    np.testing.assert_array_equal(run(p, a, b, force=SMALL, cuts=5), got)
    p = GemmProblem(27, 45, 70)
    for shape, row, column in (((45,), 0, 1), ((27, 1), 1, 0), ((27, 45), 45, 1)):
        addend = rng.standard_normal(shape).astype("f4")
        x, y = operands(rng, p, "f4")
        got = run(p, x, y, bias=Bias(In(2, shape), row, column), addend=addend, alpha=0.5, beta=-2.0, force=SMALL)
        np.testing.assert_allclose(got, 0.5 * exact(p, x, y) - 2.0 * addend, atol=2e-5)


def data(kind: str, rng: np.random.Generator, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "positive":
        a, b = abs(a), abs(b)
    elif kind == "near one":
        a, b = 1 + 1e-3 * a, 1 + 1e-3 * b
    elif kind == "wide":
        a, b = a * 10 ** rng.uniform(-16, 8, a.shape), b * 10 ** rng.uniform(-16, 8, b.shape)
    elif kind == "rows":
        a, b = a * 10 ** rng.uniform(-16, 8, (m, 1)), b * 10 ** rng.uniform(-16, 8, (1, n))
    elif kind == "tiny":
        a, b = a * 1e-36, b * 1e10
    elif kind == "tiny results":
        a, b = a * 1e-18, b * 1e-18
    return a.astype("f4"), b.astype("f4")


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
@pytest.mark.parametrize("k", [256, 2048])
@pytest.mark.parametrize("kind", ["normal", "positive", "near one", "wide", "rows", "tiny", "tiny results"])
def test_highest_precision_is_as_accurate_as_float32(path, kind, k):
    """Against the error of the plain vector kernels, which sum float32 products in chains of 128 terms (PyTorch's error is about the same)."""
    rng = np.random.default_rng(2)
    a, b = data(kind, rng, 64, 64, k)
    p = GemmProblem(64, 64, k)
    got = error(run(p, a, b, force=SMALL), a, b)
    with cpu.forced(VECTORS):
        plain = error(run(p, a, b), a, b)
    most, mean = (2.0, 1.6) if kind == "wide" else (1.25, 1.15)
    assert got[0] <= most * plain[0], f"{kind}: {got} against {plain}"
    assert got[1] <= mean * plain[1], f"{kind}: {got} against {plain}"


@paths.exhaustive
def test_lower_precisions_use_fewer_products():
    rng = np.random.default_rng(3)
    a, b = data("normal", rng, 40, 50, 300)
    errors = {}
    for name in cpu.PRECISIONS:
        with cpu.forced(PATHS[-1]), cpu.precision(name):
            assert cpu.current().precision == name
            errors[name] = error(run(GemmProblem(40, 50, 300), a, b, force=SMALL), a, b)[0]
    assert errors["highest"] < 3 < errors["high"] < 200 < errors["medium"] < 2.0 ** 16
    with cpu.forced(VECTORS), cpu.precision("medium"):
        assert cpu.current() == cpu.PATHS[VECTORS]


def test_infinity_nan_and_magnitudes_that_cannot_be_split(path):
    """As NumPy has them, wherever they stand, and the other blocks as if nothing were."""
    rng = np.random.default_rng(4)
    clean = operands(rng, GemmProblem(70, 100, 600), "f4")
    p = GemmProblem(70, 100, 600)
    plain = run(p, *clean, force=SMALL)
    for value in (np.inf, -np.inf, np.nan, np.finfo("f4").max, 2.0 ** 103, 2.0 ** 102):
        for side, place in ((0, (3, 5)), (0, (69, 599)), (1, (550, 99)), (1, (2, 31))):
            a, b = clean[0].copy(), clean[1].copy()
            (a, b)[side][place] = value
            with np.errstate(all="ignore"):
                wanted = exact(p, a, b).astype("f4")
                bound = exact(p, np.abs(a), np.abs(b))
            got = run(p, a, b, force=SMALL, cuts=2)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
            finite = np.isfinite(wanted)
            assert (np.abs(got[finite] - wanted[finite]) <= 8 * UNIT * bound[finite]).all()
            untouched = got[32:64] if side == 0 else got[:, 64:96] if place[1] == 31 else got[:, :64]
            np.testing.assert_array_equal(untouched, plain[32:64] if side == 0 else plain[:, 64:96] if place[1] == 31 else plain[:, :64])
        if EMULATED:
            break


def test_products_too_large_for_the_scaled_sums(path):
    """Each operand could be split, their products would overflow in the tiles."""
    p = GemmProblem(20, 40, 100)
    a, b = np.full((20, 100), 2.0 ** 60, "f4"), np.full((100, 40), 2.0 ** 50, "f4")
    np.testing.assert_array_equal(run(p, a, b, force=SMALL), np.full((20, 40), 100 * 2.0 ** 110, "f4"))
    np.testing.assert_array_equal(run(p, a * 4, b * 4096, force=SMALL), np.full((20, 40), np.inf, "f4"))


def test_denormal_operands_and_results(path):
    p = GemmProblem(20, 40, 64)
    rng = np.random.default_rng(5)
    a = (rng.integers(-50, 50, (20, 64)) * 2.0 ** -149).astype("f4")
    b = rng.integers(-50, 50, (64, 40)).astype("f4")
    np.testing.assert_array_equal(run(p, a, b, force=SMALL), exact(p, a, b).astype("f4"))
    a, b = np.full((20, 64), 1e-20, "f4"), np.full((64, 40), 1e-20, "f4")
    np.testing.assert_allclose(run(p, a, b, force=SMALL), exact(p, a, b), atol=2.0 ** -149)


def test_way_is_chosen_by_sizes(path):
    assert blocking(simplify(GemmProblem(512, 512, 512)), "f4", path).way == "tiles"
    assert blocking(simplify(GemmProblem(512, 3072, 768, trans_b=True)), "f4", path).way == "tiles"
    assert blocking(simplify(GemmProblem(512, 512, 512)), "f8", path).way != "tiles"
    assert blocking(simplify(GemmProblem(512, 512, 512)), "f4", cpu.PATHS[VECTORS]).way != "tiles"
    for small in (GemmProblem(40, 10, 256, trans_b=True), GemmProblem(4, 1024, 1024), GemmProblem(32, 32, 32),
                  GemmProblem(512, 512, 8)):
        assert blocking(simplify(small), "f4", path).way != "tiles"


@pytest.mark.skipif(EMULATED, reason="too long to emulate")
def test_chosen_blocks_give_the_same_bits_for_any_cut(path):
    rng = np.random.default_rng(6)
    p = GemmProblem(150, 200, 100, trans_b=True)
    a, b = operands(rng, p, "f4")
    got = run(p, a, b)
    np.testing.assert_allclose(got, exact(p, a, b), atol=2e-5)
    for cuts in (2, 3, 7):
        np.testing.assert_array_equal(run(p, a, b, cuts=cuts), got)


# ---- bytes --------------------------------------------------------------------------------------------------------------

PAIRS = [("uint8", "int8"), paths.rare("int8", "int8"), paths.rare("uint8", "uint8"), paths.rare("int8", "uint8")]
"""Element types of both sides: as quantised files have them, and others."""


@pytest.fixture(params=BYTE_PATHS, ids=lambda path: path.tiles)
def byte_path(request):
    with cpu.forced(request.param) as path:
        yield path


def in_byte_tiles(path: cpu.Cpu, m: int, n: int, k: int) -> bool:
    return isinstance(byte_tiles.chosen(way_of(path), m, n, k), byte_tiles.Tiles)


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_tiles_of_bytes_are_exact(byte_path, left, right):
    """With zero points; terms, rows and columns that fill their last tiles or do not, one block and several."""
    for m, n, k in [(43, 37, 131), (16, 64, 64), *([] if EMULATED else [(8, 130, 65), (33, 45, 200), (150, 600, 67)])]:
        assert in_byte_tiles(byte_path, m, n, k)
        zeros = numbers("int8", m).astype("i4"), numbers("int8", n, seed=1).astype("i4")
        check_kernel(OPS["IntegerProduct"](), numbers(left, m, k), numbers(right, k, n), *zeros)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_tiles_of_bytes_saturate_nowhere(byte_path, left, right):
    m, n, k = 17, 33, 130
    assert in_byte_tiles(byte_path, m, n, k)
    for x, y in itertools.product(*[(np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in (left, right)]):
        found, = run_kernel(OPS["IntegerProduct"](), np.full((m, k), x, left), np.full((k, n), y, right), np.array(-128, "i4"), np.array(255, "i4"))
        assert (found == k * (x + 128) * (y - 255)).all()


@paths.exhaustive
def test_tiles_of_bytes_in_batches(byte_path):
    """Of which B is broadcast, and A; and rows of a batch that make one product."""
    a, b = numbers("int8", 2, 2, 19, 70), numbers("uint8", 2, 70, 50)
    assert in_byte_tiles(byte_path, 19, 50, 70)
    check_kernel(OPS["IntegerProduct"](), a, b, np.array([3], "i4"), np.arange(50, dtype="i4"))
    check_kernel(OPS["ByteProduct"](), a[0, 0], b)
    check_kernel(OPS["ByteProduct"](), a, b[0])


@paths.exhaustive
@pytest.mark.skipif(EMULATED, reason="runs more than leaves")
def test_weights_laid_out_once_serve_tiles_and_vectors(byte_path):
    """What lays weights out does not know the rows; what follows a product is done to blocks of tiles, too: a layer at two batch sizes."""
    with cpu.forced(replace(byte_path, tiles="")):
        wanted = [layer(rows) for rows in (3, 70)]
    found = [layer(rows) for rows in (3, 70)]
    assert [in_byte_tiles(byte_path, rows, 53, 100) for rows in (3, 70)] == [False, True]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


def layer(rows: int) -> np.ndarray:
    """A quantised layer of constant weights, computed on the current path."""
    constants = {"w": numbers("int8", 100, 53), "s": np.float32(0.02), "z": np.uint8(131), "t": np.linspace(0.01, 0.03, 53, dtype="f4"),
                 "o": np.zeros(53, "i1"), "u": np.float32(0.5)}
    model = model_of([node("QLinearMatMul", ["x", "s", "z", "w", "t", "o", "u", "z"], ["y"])], [port("x", (rows, 100), "uint8")],
                     [port("y", (rows, 53), "uint8")], constants, opset=21, ir_version=10)
    found, = Backend.prepare(model).run([numbers("uint8", rows, 100)])
    assert np.ptp(found.astype("i4")) > 20
    return found


def test_bytes_go_to_tiles_by_sizes_and_by_what_the_processor_has(byte_path):
    assert in_byte_tiles(byte_path, 64, 64, 64)
    for small in ((7, 1000, 1000), (1000, 7, 1000), (1000, 1000, 63), (8, 8, 64)):
        assert not in_byte_tiles(byte_path, *small)
    for without in (replace(byte_path, tiles=""), replace(byte_path, vnni=False), cpu.PATHS["vnni"], cpu.PATHS["avx2"]):
        assert not in_byte_tiles(without, 64, 64, 64)
