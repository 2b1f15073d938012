"""Bits that every path with fused multiply-adds has: kernels, networks and files computed on the widest and the
narrowest."""
from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bits
import numpy as np
import pytest
from computed import refused, with_leaves
from evaluate import Array, KernelFailed, run_kernel
from samples import Case, variants

import tileflow
from tileflow.graph import OPS, Op
from tileflow.graph.composite import declares
from tileflow.kernels.isa import cpu
from tileflow.kernels.isa.paths import portable
from tileflow.options.options import Options
from tileflow.runtime.host import Host
from tileflow.system.errors import OptionError, UnsupportedError

FUSED = [name for name in cpu.available() if cpu.PATHS[name].fma]
BOTH = pytest.mark.skipif(len({portable(cpu.PATHS[name]) for name in FUSED}) < 2,
                          reason="this CPU has one such path only")
WIDEST, NARROWEST = (FUSED[0], FUSED[-1]) if FUSED else ("", "")


def on(path: str, work: Callable[[], Any]) -> Any:
    """What is computed as on another CPU, with portable bits."""
    with cpu.forced(portable(cpu.PATHS[path])):
        return work()


def same(op: Op, arrays: Sequence[Array | None]) -> bool:
    wide, narrow = (on(path, lambda: run_kernel(op, *arrays)) for path in (WIDEST, NARROWEST))
    one, other = (bits.digest([(str(i), a) for i, a in enumerate(arrays)]) for arrays in (wide, narrow))
    return one == other


SUMS = ("SoftmaxGrad-0", "ConvWeightGrad-0", "BatchNormalization-1", "LayerNormalization-0", "GroupNormalizationGrad-0",
        "FusedMatMul-0", "SoftmaxCrossEntropyLoss-2")
"""Of each family that sums across lanes a sample: on their own paths these have other bits."""


CASES = [pytest.param(case, id=case.name, marks=() if case.name in SUMS else pytest.mark.exhaustive)
         for case in with_leaves()
         if declares(case.op, "kernel")]


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_every_operator_has_the_same_bits(case: Case) -> None:
    for variant in (case, *variants(case)):
        arrays = variant.arrays()
        if refused(variant, arrays):
            continue
        try:
            assert same(variant.op, arrays), variant
        except KernelFailed:
            continue


def test_own_bits_differ_where_lanes_are_summed() -> None:
    """Else the tests above say nothing."""
    if len(FUSED) < 2 or cpu.PATHS[WIDEST].vector_bytes == cpu.PATHS[NARROWEST].vector_bytes:
        pytest.skip("this CPU has vectors of one length only")
    case = next(c for c in with_leaves() if c.name == "BatchNormalization-1")
    found = []
    for path in (WIDEST, NARROWEST):
        with cpu.forced(path):
            found.append(bits.digest([(str(i), a) for i, a in enumerate(run_kernel(case.op, *case.arrays()))]))
    assert found[0] != found[1]


def drawn(seed: int) -> tuple[Op, list[tuple[int, ...]]]:
    """A product, a convolution or one of its gradients, by number: sizes of real networks."""
    r = random.Random(f"portable {seed}")
    if r.random() < 0.4:
        m, n, k = (r.choice((1, 2, 5, 8, 16, 40, 64, 200, 256, 320)) for _ in range(3))
        left, right = r.randrange(2), r.randrange(2)
        k *= r.choice((1, 4, 8))
        return OPS["Gemm"](transA=left, transB=right), [(k, m) if left else (m, k), (n, k) if right else (k, n)]
    batch, groups = r.choice((1, 2, 8)), 1
    c, oc = r.choice((1, 3, 8, 17, 32, 64, 96, 128)), r.choice((8, 16, 24, 33, 64, 96, 128))
    if r.random() < 0.4:
        groups = r.choice((2, 4, c))
        c, oc = (c, c) if groups == c else (c * groups, oc * groups)
    taps, h, step = r.choice((1, 1, 3, 3, 5)), r.choice((5, 7, 8, 14, 16, 28)), r.choice((1, 1, 2))
    out = (h + 2 * (taps // 2) - taps) // step + 1
    x, w, y = (batch, c, h, h), (oc, c // groups, taps, taps), (batch, oc, out, out)
    shared = {"strides": (step, step), "pads": (taps // 2,) * 4, "group": groups}
    kind = r.randrange(3)
    if kind == 0:
        return OPS["Conv"](kernel_shape=(taps, taps), **shared), [x, w]
    if kind == 1:
        return OPS["ConvWeightGrad"](kernel_shape=(taps, taps), **shared), [x, y]
    return OPS["ConvInputGrad"](shape=(h, h), **shared), [y, w]


FEW = 12


@BOTH
@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 300, FEW))
def test_products_and_convolutions_are_cut_alike(first: int) -> None:
    for seed in range(first, first + FEW):
        op, shapes = drawn(seed)
        rng = np.random.default_rng(seed)
        assert same(op, [rng.random(shape, np.float32) - np.float32(0.5) for shape in shapes]), (op, shapes)


NETWORKS = bits.networks()


@BOTH
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_learn_the_same_bits(name: str) -> None:
    found = [on(path, lambda: bits.digest(NETWORKS[name]())) for path in (WIDEST, NARROWEST)]
    assert found[0] == found[1]


@BOTH
@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_two_computers_write_one_hash(threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 40)
    told = {}
    for path in (WIDEST, NARROWEST):
        with cpu.forced(path):
            for kind in ("portable", "path"):
                out = tmp_path / f"{path}-{kind}"
                tileflow.train("digits_cnn.onnx", data=(x, y), epochs=1, micro_batch_size=8, optimizer="adamw",
                               learning_rate=0.01, seed=1, threads=threads, bits=kind, out=str(out), progress=False)
                told[path, kind] = json.loads((out / "metrics.json").read_text())["weights_sha256"]
    assert told[WIDEST, "portable"] == told[NARROWEST, "portable"]
    assert told[WIDEST, "path"] != told[NARROWEST, "path"]


# ---- refusals -------------------------------------------------------------------------------------------------------------------

def test_a_cpu_without_fused_multiply_adds_is_told() -> None:
    with cpu.forced("generic"):
        wanted = r"Option bits 'portable' needs fused multiply-adds, and of this CPU only the generic kernels"
        with pytest.raises(UnsupportedError, match=wanted):
            Host.of(Options(bits="portable"))
        assert Host.of(Options(bits="path")).arithmetic == "highest"


def test_a_precision_of_tiles_is_none_without_tiles() -> None:
    with pytest.raises(OptionError, match="Option matmul_precision 'medium' is for products in tiles, which bits "
                                          "'portable' does without"):
        Options(bits="portable", matmul_precision="medium")
    assert Host.of(Options(bits="path", matmul_precision="medium")).arithmetic == "medium"


def test_a_file_of_other_bits_is_not_resumed_from(tmp_path: Path) -> None:
    x, y = np.zeros((8, 1, 8, 8), np.float32), np.zeros(8, np.int64)
    given: dict[str, Any] = {"data": (x, y), "micro_batch_size": 8, "out": str(tmp_path / "run"), "progress": False}
    tileflow.train("digits_cnn.onnx", epochs=1, **given)
    with pytest.raises(tileflow.TileflowError, match="bits"):
        tileflow.train("digits_cnn.onnx", epochs=2, resume=True, bits="portable", **given)
    tileflow.train("digits_cnn.onnx", epochs=2, resume=True, bits="path", **given)
