"""Convolutions of 8-bit integers: exact sums on every CPU path, of every layout and with all zero points; other convolutions are left alone."""
from __future__ import annotations

from typing import Any

import hosting
import numpy as np
import pytest
from evaluate import check_kernel
from lowered import host_passes
from onnx_models import imported, model_of, node, port, run
from paths import FASTEST, on, rare

from tileflow.graph import Builder, Graph, TensorType
from tileflow.host.integer import ByteConv
from tileflow.host.rewrite import COMPOSITES, rewrite
from tileflow.kernels.isa import cpu
from tileflow.kernels.quantized import conv
from tileflow.ops.integer import ConvInteger

Array = np.ndarray
CASES: list[tuple[str, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("uint8", "int8", (2, 4, 7, 6), (6, 4, 3, 2), dict(pads=(1, 0, 2, 1), strides=(1, 2))),
    ("int8", "int8", (1, 3, 9, 9), (5, 3, 3, 3), dict(pads=(1, 1, 1, 1), strides=(2, 2))),
    ("uint8", "uint8", (2, 6, 5, 8), (6, 1, 3, 3), dict(group=6, pads=(1, 1, 1, 1))),
    ("int8", "int8", (1, 6, 9, 40), (12, 1, 5, 7), dict(group=6, pads=(2, 3, 2, 3), strides=(2, 3), dilations=(1, 2))),
    ("int8", "uint8", (2, 8, 5, 6), (9, 8, 1, 1), {}),
    ("uint8", "int8", (2, 8, 5, 7), (9, 8, 1, 1), dict(strides=(2, 2))),
    ("uint8", "uint8", (2, 10, 13), (8, 5, 3), dict(group=2, pads=(1, 2))),
    ("uint8", "int8", (1, 8, 21), (8, 1, 29), dict(group=8, pads=(28, 28), dilations=(2,))),
    ("uint8", "int8", (1, 64, 20, 20), (33, 64, 3, 3), dict(pads=(1, 1, 1, 1))),
    ("uint8", "int8", (1, 2, 1, 3), (1, 2, 2, 2), dict(pads=(5, 5, 5, 5), strides=(4, 17)))]


AT_EVERY_CHANGE = (0,)
"""With strides. The others take the same ways with other sizes; each compiles register blocks of its own."""


def numbers(dtype: str, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize(("path", "case"), [rare(path, case) if path == FASTEST and case not in AT_EVERY_CHANGE else on(path, case)
                                            for path in cpu.available() for case in range(len(CASES))])
def test_convolutions_are_exact_on_every_path(path: str, case: int) -> None:
    left, right, x_shape, w_shape, attributes = CASES[case]
    with cpu.forced(path):
        x, w, conv_of = numbers(left, *x_shape), numbers(right, *w_shape), ByteConv(ConvInteger(**attributes))
        check_kernel(conv_of, x, w)
        check_kernel(conv_of, x, w, np.array(9 if left == "uint8" else -9, np.int32), numbers("int8", w_shape[0]).astype(np.int32))
        check_kernel(conv_of, x, w, None, np.array(5, np.int32))


def test_the_largest_sums_do_not_saturate() -> None:
    """Products of byte pairs that are added in 16 bits would."""
    for left, right in ((255, -128), (255, 127), (0, -128)):
        x, w = np.full((1, 200, 3, 3), left, np.uint8), np.full((2, 200, 3, 3), right, np.int8)
        found, = check_kernel(ByteConv(ConvInteger()), x, w)
        assert (found == 1800 * left * right).all()


def test_weights_laid_out_beforehand_and_what_follows_are_one_kernel() -> None:
    x, w = numbers("uint8", 1, 8, 6, 7), numbers("int8", 5, 8, 3, 3)
    scales = np.linspace(0.01, 0.02, 5, dtype=np.float32)
    stored = {"sx": np.float32(0.02), "zx": np.uint8(100), "w": w, "sw": scales, "zw": np.zeros(5, np.int8), "sy": np.float32(3), "zy": np.uint8(128),
              "b": np.arange(5, dtype=np.int32) * 1000}
    model = model_of([node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], pads=[1, 1, 1, 1])],
                     [port("x", x.shape, "uint8")], [port("y", (1, 5, 6, 7), "uint8")], stored)
    nodes = host_passes(imported(model).graph).nodes
    names = [n.op.name for n in nodes]
    assert [n.op.name for n in nodes if "epilogue" in hosting.added(n.op)] == ["ByteConv"]
    assert not {"ByteProduct", "IntegerProduct", "Concat", "Slice"} & set(names), names
    framed = np.pad(x.astype(np.int64) - 100, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(framed[0], (3, 3), axis=(1, 2))
    sums = np.einsum("cyxij,ocij->oyx", windows, w.astype(np.int64)) + stored["b"][:, None, None]
    wanted = np.clip(np.rint(sums * (np.float64(np.float32(0.02)) * scales[:, None, None] / 3)) + 128, 0, 255)
    found, = run(imported(model), {"x": x})
    assert np.abs(found[0].astype(int) - wanted).max() <= 1
    assert (found[0] != wanted).mean() < 0.01


@pytest.mark.parametrize(("shape", "kernel", "pads"), [((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), ()), ((0, 2, 5, 5), (3, 2, 2, 2), ())])
def test_other_convolutions_are_left_alone(shape: tuple[int, ...], kernel: tuple[int, ...], pads: tuple[int, ...]) -> None:
    """Three axes, and no images."""
    graph = Graph("left")
    b = Builder(graph)
    graph.outputs = [b.ConvInteger(*(b.input(name, TensorType("uint8", s)) for name, s in (("x", shape), ("w", kernel))), pads=pads)]
    assert rewrite(graph, (), COMPOSITES) is graph


def test_layouts() -> None:
    """A pixel's channels stand together where there are several, else a row's taps; strides are taken apart; 1x1 convolutions see one row."""
    way = conv.way_of(cpu.current())
    line = conv.ByteConvAxis(10, 5, 3, 2, 1, 1)
    many, one = conv.ByteConvProblem(1, 1, 8, 4, line, line), conv.ByteConvProblem(1, 8, 1, 1, line, line)
    dense, single = conv.layout(many, way), conv.layout(one, way)
    assert (dense.along, single.along) == ("channels", "taps")
    assert dense.planes == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert (len(dense.steps), len(single.steps)) == (9 * -(-8 // way.group), 3 * -(-3 // way.group))
    whole = conv.ByteConvAxis(6, 6, 1)
    assert conv.simplify(conv.ByteConvProblem(1, 1, 8, 4, whole, whole)).x == conv.ByteConvAxis(36, 36, 1)
