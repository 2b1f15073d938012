"""Moves against NumPy (references), gradients, and what the errors say."""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import KernelFailed, check_gradient, check_gradient_kernels, check_kernel, run_kernel

from tileflow.graph import Op, TensorType
from tileflow.kernels.machine.status import INDEX_OUT_OF_RANGE
from tileflow.ops.index import Gather, GatherGrad, Slice, SliceGrad
from tileflow.ops.pad import Pad
from tileflow.ops.shape import Concat, Expand, Flatten, Identity, Reshape, Split, Squeeze, Tile, Transpose, Unsqueeze
from tileflow.system.errors import ShapeError, TypeMismatchError

rng = np.random.default_rng(1)


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Random values; integers use their whole range."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("op", "shape", "wanted"), [
    (Reshape(shape=(3, -1)), (2, 6), (3, 4)),
    (Reshape(shape=(0, 0, -1)), (2, 3, 4, 5), (2, 3, 20)),
    (Reshape(shape=()), (1, 1), ()),
    (Reshape(shape=(0, 7), allowzero=1), (3, 0), (0, 7)),
    (Flatten(), (2, 3, 4), (2, 12)),
    (Flatten(axis=-1), (2, 3, 4), (6, 4)),
    (Flatten(axis=0), (2, 3), (1, 6)),
    (Squeeze(), (1, 3, 1), (3,)),
    (Squeeze(axes=(-1,)), (1, 3, 1), (1, 3)),
    (Unsqueeze(axes=(0, -1)), (3,), (1, 3, 1)),
    (Identity(), (4, 5), (4, 5)),
])
def test_views(op: Op, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    assert op.alias == 0
    y, = check_kernel(op, array(*shape))
    assert y.shape == wanted
    check_gradient(op, array(*shape, dtype="float64"))


@pytest.mark.parametrize(("op", "shape", "message"), [
    (Reshape(shape=(-1, -1)), (4,), "one -1"),
    (Reshape(shape=(3, -1)), (4,), "does not divide"),
    (Reshape(shape=(3,)), (4,), "4 elements, shape .3. has 3"),
    (Reshape(shape=(2, 0)), (2,), "only 1"),
    (Squeeze(axes=(0,)), (2, 1), "cannot be squeezed"),
    (Unsqueeze(axes=(0, 0)), (2,), "twice"),
    (Transpose(perm=(0, 0)), (2, 3), "not an order"),
    (Expand(shape=(3, 2)), (4,), "does not broadcast"),
    (Split(axis=0, sizes=(1, 2)), (4,), "do not add up"),
    (Flatten(axis=3), (2, 2), "axis 3"),
    (Slice(starts=(0,), ends=(1,), steps=(0,)), (4,), "no step may be 0"),
    (Pad(pads=(-3, 0)), (2,), "cut more"),
])
def test_errors_name_the_values(op: Op, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(TensorType("float32", shape))


@pytest.mark.parametrize(("shape", "perm"), [
    ((5, 7), (1, 0)), ((33, 65), (1, 0)), ((2, 17, 3, 5), (0, 2, 1, 3)), ((2, 3, 18, 19), (0, 2, 3, 1)), ((4, 3, 20), (1, 2, 0)),
    ((2, 3, 2, 2, 3, 2, 2, 3), (7, 5, 3, 1, 6, 4, 2, 0)), ((2, 3, 4, 5, 6), (4, 3, 2, 1, 0)), ((3, 0, 2), (2, 1, 0)), ((), ()),
    ((1, 6, 1), (2, 0, 1)), ((10000,), (0,)),
])
def test_transpose(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    check_kernel(Transpose(perm=perm), array(*shape))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int32", "float64", "int64"])
def test_moves_take_every_type(dtype: str) -> None:
    check_kernel(Transpose(), array(9, 20, dtype=dtype))
    check_kernel(Pad(pads=(1, 0), value=1), array(9, dtype=dtype))
    check_kernel(Gather(), array(9, 3, dtype=dtype), np.array([3, 1]))


@pytest.mark.parametrize(("shapes", "axis"), [
    ([(2, 3), (2, 5)], 1), ([(2, 3), (4, 3)], 0), ([(2, 3, 4), (2, 0, 4), (2, 1, 4)], -2), ([(3,)], 0), ([(0, 2), (0, 3)], 1),
])
def test_concat_and_split(shapes: list[tuple[int, ...]], axis: int) -> None:
    op = Concat(axis=axis)
    y, = check_kernel(op, *[array(*s) for s in shapes])
    check_gradient(op, *[array(*s, dtype="float64") for s in shapes])
    split = Split(axis=axis, sizes=tuple(s[axis] for s in shapes))
    check_kernel(split, y)
    check_gradient(split, y.astype("float64"))
    if len(shapes) > 1:
        check_gradient(split, y.astype("float64"), outputs=[1])


def test_concat_needs_equal_shapes_and_types() -> None:
    with pytest.raises(ShapeError, match="differ only along axis 1"):
        Concat(axis=1).infer(TensorType("float32", (2, 3)), TensorType("float32", (3, 3)))
    with pytest.raises(TypeMismatchError, match="input 1 int32"):
        Concat().infer(TensorType("float32", (2,)), TensorType("int32", (2,)))


FAR = 2 ** 63 - 1


@pytest.mark.parametrize(("op", "shape"), [
    (Slice(starts=(1,), ends=(FAR,)), (5, 3)),
    (Slice(starts=(-3, 1), ends=(-1, FAR), axes=(1, 0), steps=(1, 2)), (5, 6)),
    (Slice(starts=(FAR, FAR), ends=(-FAR - 1, 0), axes=(-1, 0), steps=(-1, -2)), (5, 6)),
    (Slice(starts=(4,), ends=(2,)), (5, 3)),
    (Slice(starts=(-2,), ends=(-FAR,), axes=(1,), steps=(-3,)), (2, 9, 2)),
    (Slice(), (4, 2)),
])
def test_slice(op: Slice, shape: tuple[int, ...]) -> None:
    x = array(*shape)
    y, = check_kernel(op, x)
    grad = SliceGrad(shape=shape, **op.attributes())
    check_kernel(grad, y)
    check_gradient(op, x.astype("float64"))
    check_gradient(grad, y.astype("float64"))


@pytest.mark.parametrize(("shape", "to"), [
    ((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 5)), ((2, 1, 4), (3, 2, 5, 1)), ((1, 3), (0, 3)), ((2, 3), (1,)), ((1,), (20000,)),
])
def test_expand(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    check_kernel(Expand(shape=to), array(*shape))
    if len(to) < 4 and 20000 not in to:
        check_gradient(Expand(shape=to), array(*shape, dtype="float64"))


@pytest.mark.parametrize(("shape", "axis", "index"), [
    ((5, 3), 0, [[4, 0], [-1, 4]]), ((2, 5, 300), 1, [0, 0, 3]), ((2, 5), -1, 3), ((4, 2), 0, []), ((3, 0), 0, [1]),
])
def test_gather(shape: tuple[int, ...], axis: int, index: list[int]) -> None:
    for dtype in ("int32", "int64"):
        i = np.array(index, dtype)
        y, = check_kernel(Gather(axis=axis), array(*shape), i)
        check_kernel(GatherGrad(axis=axis % len(shape), shape=shape), y, i, rtol=1e-6, atol=1e-6)
    if max(shape) < 10:
        check_gradient(Gather(axis=axis), array(*shape, dtype="float64"), i)
        check_gradient(GatherGrad(axis=axis % len(shape), shape=shape), y.astype("float64"), i)


@pytest.mark.parametrize("index", [5, -6, 2 ** 31 - 1])
def test_gather_reports_an_index_out_of_range(index: int) -> None:
    i = np.array([0, index], "int64")
    for op, x in ((Gather(), array(5, 3)), (GatherGrad(shape=(5, 3)), array(2, 3))):
        with pytest.raises(KernelFailed) as failure:
            run_kernel(op, x, i)
        assert failure.value.status == INDEX_OUT_OF_RANGE
    with pytest.raises(TypeMismatchError, match="int32 or int64"):
        Gather().infer(TensorType("float32", (2,)), TensorType("uint8", (2,)))


@pytest.mark.parametrize(("shape", "pads"), [
    ((3, 4), (1, 2, 0, 3)), ((3, 4), (-1, 2, 1, -2)), ((3,), (0, 0)), ((0, 2), (1, 0, 1, 0)), ((2, 3), (-2, 0, 0, 0)), ((3,), (-5, 4)),
])
def test_pad(shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    check_kernel(Pad(pads=pads, value=-1.5), array(*shape))
    check_gradient(Pad(pads=pads, value=2.0), array(*shape, dtype="float64"))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(("shape", "pads"), [
    ((5, 6), (2, 3, 1, 0)), ((3, 4, 5), (0, -1, 2, 0, 2, -1)), ((4,), (9, 7)), ((1, 3), (2, 0, 2, 0)), ((3,), (0, 0)), ((2, 0), (1, 0, 0, 0)),
])
def test_pad_with_elements(mode: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    x = array(*shape)
    y, = check_kernel(Pad(pads=pads, mode=mode), x)
    if min(pads) >= 0 and x.size:
        np.testing.assert_array_equal(y, np.pad(x, list(zip(pads[:x.ndim], pads[x.ndim:], strict=True)), mode))      # type: ignore[call-overload]
    check_gradient(Pad(pads=pads, mode=mode), array(*shape, dtype="float64"))


@pytest.mark.parametrize(("shape", "repeats"), [((2, 3), (3, 2)), ((4,), (1,)), ((2, 3), (0, 2)), ((3, 1, 2), (1, 4, 1))])
def test_tile(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    check_kernel(Tile(repeats=repeats), array(*shape))
    check_gradient(Tile(repeats=repeats), array(*shape, dtype="float64"))


def test_bits_survive_moves() -> None:
    """NaN payloads and signed zeros are copied as bits."""
    x = np.array([0x7FC12345, 0x80000000, 0x7F800001, 0xFF800000], "u4").view("float32").reshape(2, 2)
    y, = run_kernel(Transpose(), x)
    assert y.tobytes() == np.ascontiguousarray(x.T).tobytes()


def test_gradient_graphs_run_on_kernels() -> None:
    check_gradient_kernels(Slice(starts=(1, 0), ends=(4, 5), steps=(2, 1)), array(5, 6))
    check_gradient_kernels(Gather(axis=1), array(3, 4, 5), np.array([1, 1, 0]))


def test_work_counts_elements() -> None:
    t = TensorType("float32", (2, 3, 4))
    for op in (Transpose(), Slice(starts=(0,), ends=(2,)), Reshape(shape=(6, 4)), Expand(shape=(2, 3, 4)), Pad(pads=(0,) * 6)):
        assert op.work([t], op.infer(t)).points == 24
        assert op.work([t], op.infer(t)).flops == 0
