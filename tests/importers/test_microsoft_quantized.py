"""Quantised operators of com.microsoft against ONNX Runtime: attention, channels-last convolutions and pools, softmax, choices, means."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from microsoft import by_runtime, f4, fused, whole
from onnx_models import imported, run

from tileflow.system.errors import ShapeError, UnsupportedError

F, U8 = np.float32, np.uint8


def one(x: Any) -> np.ndarray:
    """A number as an array of no dimensions."""
    return np.asarray(x)


SCALE, POINT = {"sx": one(F(0.05))}, {"zx": one(U8(120))}


def same(op: str, feeds: dict[str, np.ndarray | None], outputs: tuple[str, ...], *, steps: float = 0, tolerance: float = 1e-4,
         weights: tuple[str, ...] = (), **attributes: Any) -> list[np.ndarray]:
    """The node gives what ONNX Runtime's gives: quantised numbers up to `steps`, and not even so often. Scales and zero points are stored."""
    stored = [n for n, a in feeds.items() if a is not None and (n[0] in "sz" or n in weights)]
    proto = fused(op, feeds, outputs, stored, **attributes)
    fed = {n: a for n, a in feeds.items() if a is not None and n not in stored}
    found, wanted = run(imported(proto), fed), by_runtime(proto, fed)
    for got, right in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance)
        else:
            apart = np.abs(got.astype(int) - right.astype(int))
            assert apart.max() <= steps
            assert (apart > 0).mean() <= 0.1
    return found


# ---- attention

BYTES, WEIGHTS = whole("uint8", 2, 3, 8), whole("int8", 8, 24)
COLUMNS = np.linspace(0.01, 0.03, 24, dtype=F)


@pytest.mark.parametrize(("changes", "outputs", "attributes"), [
    ({}, 1, {}), ({}, 1, {"unidirectional": 1}), ({"mask": np.array([3, 2], np.int32)}, 1, {}),
    ({"mask": np.array([[1, 1, 0], [1, 0, 1]], np.int32)}, 1, {"unidirectional": 1}), ({"past": f4(2, 2, 2, 5, 4)}, 2, {"unidirectional": 1}),
    ({"sw": COLUMNS, "zw": np.zeros(24, np.int8)}, 1, {"scale": 0.3}), ({"zx": None, "zw": None}, 1, {}),
    ({"w": whole("uint8", 8, 24), "zw": one(U8(131))}, 1, {}),
])
def test_attention_on_bytes(changes: dict[str, Any], outputs: int, attributes: dict[str, Any]) -> None:
    feeds: dict[str, Any] = {"x": BYTES, "w": WEIGHTS, "b": f4(24), **SCALE, "sw": one(F(0.02)), "mask": None, **POINT, "zw": one(np.int8(2))}
    same("QAttention", {**feeds, **changes}, ("float32",) * outputs, weights=("w",), num_heads=2, **attributes)


def test_attention_refuses_by_name_and_by_shape() -> None:
    feeds = {"x": BYTES, "w": WEIGHTS, "b": f4(24), **SCALE, "sw": one(F(0.02))}
    with pytest.raises(UnsupportedError, match="the attribute do_rotary=1"):
        imported(fused("QAttention", feeds, num_heads=2, do_rotary=1))
    with pytest.raises(ShapeError, match="do not give queries, keys and values"):
        imported(fused("QAttention", {**feeds, "w": whole("int8", 8, 25), "b": f4(25)}, num_heads=2))


# ---- images with their channels last

IMAGE = whole("uint8", 2, 7, 6, 4)
ENDS = {"sy": one(F(9.5)), "zy": one(U8(100))}


@pytest.mark.parametrize(("last", "group", "bias", "attributes"), [
    (1, 1, True, {"pads": [1, 0, 1, 1]}), (1, 2, False, {"strides": [2, 1]}), (1, 4, True, {"dilations": [2, 1]}),
    (0, 1, True, {"auto_pad": "SAME_UPPER"})])
def test_convolutions_of_images_with_their_channels_last(last: int, group: int, bias: bool, attributes: dict[str, Any]) -> None:
    x = IMAGE if last else np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))
    feeds = {"x": x, **SCALE, **POINT, "w": whole("uint8", 8, 4 // group, 3, 2), "sw": np.linspace(0.5, 2, 8, dtype=F), "zw": np.full(8, 7, U8),
             **ENDS, "b": np.arange(-4, 4, dtype=np.int32) * 300 if bias else None}
    found, = same("QLinearConv", feeds, ("uint8",), steps=1, weights=("w", "b") if bias else ("w",), channels_last=last, group=group, **attributes)
    assert len(np.unique(found)) > 20
    assert found.shape[3 if last else 1] == 8


def test_pools_of_images_with_their_channels_last() -> None:
    ends = {"sy": one(F(0.04)), "zy": one(U8(120))}
    same("QLinearAveragePool", {"x": IMAGE, **SCALE, **POINT, **ends}, ("uint8",), steps=1, channels_last=1, kernel_shape=[2, 3], strides=[2, 1],
         pads=[1, 0, 0, 1])
    same("QLinearGlobalAveragePool", {"x": IMAGE, **SCALE, **POINT, **ends}, ("uint8",), steps=1, channels_last=1)
    for image in (IMAGE, whole("int8", 2, 7, 6, 4)):
        same("NhwcMaxPool", {"x": image}, (image.dtype.name,), kernel_shape=[2, 3], strides=[2, 1], pads=[1, 0, 0, 1])


# ---- the rest

@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12), (2, 12)])
def test_softmax_of_bytes(axis: int, opset: int) -> None:
    feeds = {"x": whole("uint8", 2, 3, 4), "sx": one(F(0.03)), "zx": one(U8(7)), "sy": one(F(1 / 256)), "zy": one(U8(0))}
    same("QLinearSoftmax", feeds, ("uint8",), steps=1, axis=axis, opset=opset)


def test_a_choice_between_bytes() -> None:
    condition = whole("uint8", 4, 6, seed=3) > 120
    same("QLinearWhere", {"c": condition, "x": whole("uint8", 4, 6), **SCALE, **POINT, "y": whole("uint8", 1, 6, seed=1), "sy": one(F(0.03)),
                          "zy": one(U8(7)), "sz": one(F(0.06)), "zz": one(U8(99))}, ("uint8",), steps=1)


@pytest.mark.parametrize(("axes", "keepdims"), [([1], 1), ([-1, 0], 0)])
def test_means_of_bytes(axes: list[int], keepdims: int) -> None:
    """Which ONNX Runtime declares and does not have; by NumPy."""
    x = whole("uint8", 2, 3, 4)
    feeds = {"x": x, **SCALE, **POINT, "sy": one(F(0.04)), "zy": one(U8(100))}
    found, = run(imported(fused("QLinearReduceMean", feeds, ("uint8",), ("sx", "zx", "sy", "zy"), axes=axes, keepdims=keepdims)), {"x": x})
    mean = ((x.astype(F) - 120) * F(0.05)).mean(tuple(axes), keepdims=bool(keepdims))
    wanted = np.clip(np.rint(mean / F(0.04)) + 100, 0, 255)
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1
