"""Resize, ConvTranspose, CumSum and GatherND beside what nobody here wrote (PyTorch), and what only they do. The rest follows from their samples."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evaluate import KernelFailed, evaluate, run_kernel
from paths import exhaustive
from peers import needs

from tileflow import compiler
from tileflow.graph import Builder, Graph, TensorType, Value, type_of
from tileflow.ops.conv_transpose import ConvTranspose
from tileflow.ops.gather_nd import GatherND
from tileflow.ops.resize import Resize
from tileflow.passes.autograd import gradients
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.state.session import Session
from tileflow.system.errors import ShapeError

rng = np.random.default_rng(5)


def beside_torch(ours: Callable[..., Value], theirs: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Values and the gradients of all floats, in float64, for a random gradient of the result."""
    torch = needs("torch")
    tensors = [torch.tensor(a, requires_grad=a.dtype == float) for a in arrays]
    y = theirs(*tensors)
    g = rng.standard_normal(tuple(y.shape))
    y.backward(torch.tensor(g))
    graph = Graph()
    b = Builder(graph)
    inputs = [b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    out = ours(b, *inputs)
    loss = b.ReduceSum(b.Mul(out, b.constant(g)), keepdims=0)
    floats = [i for i, a in enumerate(arrays) if a.dtype == float]
    found = gradients(graph, loss, [inputs[i] for i in floats])
    graph.outputs = [out, *found]
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    np.testing.assert_allclose(values[out.name], y.detach().numpy(), rtol=1e-9, atol=1e-9)
    for i, v in zip(floats, found, strict=True):
        np.testing.assert_allclose(values[v.name], tensors[i].grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=f"operand {i}")


@pytest.mark.parametrize(("mode", "named", "scales"), [
    ("bilinear", "linear", (2.0, 2.0)), ("bilinear", "linear", (0.5, 1.5)), ("bicubic", "cubic", (2.0, 2.5)), ("nearest", "nearest", (2.0, 3.0)),
    ("linear", "linear", (2.5,)), ("trilinear", "linear", (2.0, 0.5, 3.0)),
])
@pytest.mark.parametrize("aligned", [False, True])
def test_resize_beside_torch(mode: str, named: str, scales: tuple[float, ...], aligned: bool) -> None:
    torch = needs("torch")
    if mode == "nearest" and aligned:
        return
    x = rng.standard_normal((2, 3, 8, 6, 4)[:2 + len(scales)])
    sizes = tuple(int(n * s) for n, s in zip(x.shape[2:], scales, strict=True))
    where = "align_corners" if aligned else "asymmetric" if mode == "nearest" else "pytorch_half_pixel"
    attributes: dict[str, Any] = dict(axes=tuple(range(2, x.ndim)), sizes=sizes, mode=named, coordinate_transformation_mode=where,
                                      nearest_mode="floor")
    options = {} if mode == "nearest" else {"align_corners": aligned}
    beside_torch(lambda b, v: b.Resize(v, **attributes), lambda t: torch.nn.functional.interpolate(t, size=sizes, mode=mode, **options), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resize_beside_torch(mode: str) -> None:
    """PyTorch leaves out what is outside, and has another coefficient in cubic sums."""
    torch = needs("torch")
    x = rng.standard_normal((1, 2, 9, 12))
    attributes: dict[str, Any] = dict(axes=(2, 3), sizes=(4, 5), mode=mode[2:], antialias=1, exclude_outside=1, cubic_coeff_a=-0.5)
    beside_torch(lambda b, v: b.Resize(v, **attributes),
                 lambda t: torch.nn.functional.interpolate(t, size=(4, 5), mode=mode, antialias=True, align_corners=False), x)


@pytest.mark.parametrize(("spatial", "kernel", "attributes"), [
    ((5, 4), (3, 2), dict(strides=(2, 1), pads=(1, 0, 1, 0))), ((6,), (4,), dict(strides=(3,), output_padding=(1,))),
    ((3, 4), (2, 3), dict(strides=(2, 3), output_padding=(1, 2), dilations=(2, 1))), ((3, 2, 4), (2, 3, 2), dict(strides=(2, 1, 2))),
    ((5, 4), (3, 3), dict(group=2, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))),
])
def test_transposed_convolution_beside_torch(spatial: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any]) -> None:
    torch = needs("torch")
    rank, group = len(spatial), attributes.get("group", 1)
    x, w, bias = rng.standard_normal((2, 4, *spatial)), rng.standard_normal((4, 3, *kernel)), rng.standard_normal(3 * group)
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    pads = attributes.get("pads", (0,) * rank)[:rank]
    beside_torch(lambda b, *v: b.ConvTranspose(*v, **attributes),
                 lambda t, u, v: function(t, u, v, stride=attributes.get("strides", 1), padding=pads, groups=group,
                                          output_padding=attributes.get("output_padding", 0), dilation=attributes.get("dilations", 1)), x, w, bias)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_running_sums_beside_torch(exclusive: int, reverse: int) -> None:
    needs("torch")

    def theirs(t: Any) -> Any:
        t = t.flip(1) if reverse else t
        y = t.cumsum(1) - t * exclusive
        return y.flip(1) if reverse else y
    beside_torch(lambda b, v: b.CumSum(v, axis=1, exclusive=exclusive, reverse=reverse), theirs, rng.standard_normal((3, 7, 2)))


def test_places_picked_twice_add_up_beside_torch() -> None:
    index = np.array([[0, 1], [2, -1], [0, 1], [-3, 1]])
    beside_torch(lambda b, x, i: b.GatherND(x, i), lambda t, i: t[i[:, 0], i[:, 1]], rng.standard_normal((3, 4, 2)), index)


@pytest.mark.parametrize("place", [(0, 4), (3, 0), (-4, 0), (0, -5)])
def test_a_place_out_of_range_is_a_status(place: tuple[int, int]) -> None:
    """Though the row that it would name is there."""
    graph = Graph()
    b = Builder(graph)
    x, index = b.input("x", type_of(np.zeros((3, 4)))), b.input("index", type_of(np.zeros((1, 2), np.int64)))
    GatherND().expand(b, [x, index])
    with pytest.raises(KernelFailed):
        evaluate(graph, {"x": np.zeros((3, 4)), "index": np.array([place])}, run_kernel)


def test_what_is_not_finite_stays_where_it_is() -> None:
    """An element between two others that are far away is theirs, whatever lies beyond."""
    x = np.array([[[np.inf, 1.0, 2.0, np.nan]]])
    y, = Resize(scales=(1.0, 1.0, 2.0), mode="linear", coordinate_transformation_mode="asymmetric").reference(x)
    np.testing.assert_array_equal(np.isfinite(y[0, 0]), [False, False, True, True, True, False, False, False])


@pytest.mark.parametrize(("op", "shapes", "why"), [
    (Resize(scales=(2.0,)), [(2, 3)], "must fit the axes"), (Resize(sizes=(2, 3)), [(0, 3)], "cannot be resized"),
    (Resize(), [(2, 3)], "one of them"), (ConvTranspose(pads=(9, 9, 9, 9)), [(1, 2, 3, 3), (2, 2, 2, 2)], "leave nothing"),
    (ConvTranspose(), [(1, 2, 3, 3), (3, 2, 2, 2)], "do not fit"), (GatherND(), [(2, 3), (4, 3)], "the batch axes must be alike"),
])
def test_what_does_not_fit_is_said(op: Any, shapes: list[tuple[int, ...]], why: str) -> None:
    types = [type_of(np.zeros(s, np.int64 if i and isinstance(op, GatherND) else np.float32)) for i, s in enumerate(shapes)]
    with pytest.raises(ShapeError, match=why):
        op.infer(*types)


@exhaustive
def test_all_of_them_in_one_compiled_graph() -> None:
    """Forward and backward by the engine, beside the references in float64: parts, tables and all."""
    def build(floats: str) -> tuple[Graph, list[str]]:
        graph = Graph()
        b = Builder(graph)
        x = b.input("x", TensorType(floats, (2, 4, 5, 6)))
        w, bias = b.input("w", TensorType(floats, (4, 3, 2, 2))), b.input("bias", TensorType(floats, (3,)))
        index = b.input("index", TensorType("int64", (7, 2)))
        y = b.ConvTranspose(x, w, bias, strides=(2, 2))
        y = b.Add(b.Resize(y, scales=(1.5, 0.7), axes=(2, 3), mode="linear"), b.Resize(y, scales=(1.5, 0.7), axes=(2, 3)))
        y = b.CumSum(b.GatherND(y, index), axis=1, reverse=1)
        loss = b.ReduceSum(b.Mul(y, y), keepdims=0)
        graph.outputs = [y, *gradients(graph, loss, [x, w, bias])]
        return graph, [v.name for v in graph.outputs]

    feeds = {"x": rng.standard_normal((2, 4, 5, 6)), "w": rng.standard_normal((4, 3, 2, 2)), "bias": rng.standard_normal(3)}
    index = {"index": np.array([[0, 0], [1, 2], [-1, 1], [0, -1], [1, 2], [0, 0], [-2, -3]])}
    graph, names = build("float64")
    wanted = evaluate(graph, {**feeds, **index})
    single, names = build("float32")
    engine = make_engine(compiler.inference(single, Batching(1)).program, Session())
    found = engine.run({**{n: a.astype(np.float32) for n, a in feeds.items()}, **index})
    for name, before in zip(names, (v.name for v in graph.outputs), strict=True):
        scale = np.abs(wanted[before]).max()
        np.testing.assert_allclose(found[name][0] / scale, wanted[before] / scale, atol=1e-5, err_msg=name)
