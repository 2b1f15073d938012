"""Elements of 8 bits and fewer: casts to the last bit, moves, BitCast, and how files pack them."""
from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import pytest
from evaluate import check_kernel
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model_of, node, port
from paths import PATHS

from tileflow.graph import CODES, NARROW, OPS, TensorType
from tileflow.importers.onnx.tensors import check_tensor, packed, tensor_array
from tileflow.kernels.dtypes import ELEMENTS
from tileflow.kernels.isa import cpu
from tileflow.onnx_backend import Backend
from tileflow.system.errors import ModelError, TypeMismatchError

Array = np.ndarray
FLOATS8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def every(dtype: str, more: int = 0) -> Array:
    """Every element of a narrow or 16-bit type; of wider ones some of all sizes, and what lies at the borders of narrow types."""
    rng = np.random.default_rng(3)
    if dtype in NARROW:
        return np.tile(np.arange(1 << (ELEMENTS[CODES[dtype]].bits or 8), dtype=np.uint8), 3)[:-1].view(dtype)
    kind = np.dtype(dtype)
    if kind.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(kind)
    if kind.kind in "biu":
        low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        drawn = rng.integers(low, high, 300 + more, dtype=kind if dtype == "uint64" else np.int64, endpoint=True)
        return np.concatenate([np.arange(-40, 300).astype(kind), drawn.astype(kind)])
    near = [0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 464.1, 57344, 61440, 61439.9, 240, 248, 1e30, 2.0 ** -127, 2.0 ** -128, 1.5 * 2.0 ** -127]
    sized = [rng.normal(size=99 + more) * scale for scale in (1e-39, 1e-5, 1e-3, 0.1, 1, 10, 300, 6e4, 1e5)]
    return np.concatenate([*sized, np.arange(-500, 500) / 16, near]).astype(kind)


def pairs() -> list[tuple[str, str]]:
    return [(a, b) for a, b in itertools.product(CODES, CODES) if a != b and {a, b} & set(NARROW)]


SOME = [("float32", b) for b in NARROW] + [(a, "float32") for a in NARROW] + [("float64", "float8_e4m3fn"), ("float16", "int4"), ("int4", "int64"),
                                                                             ("int2", "float8_e5m2"), ("bool", "uint4"), ("float8_e5m2fnuz", "bool")]
PAIRS = [pytest.param(*pair, marks=() if pair in SOME else pytest.mark.exhaustive) for pair in pairs()]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_casts_have_the_bits_of_the_reference(source: str, target: str, path: str) -> None:
    modes = [(1, "up"), (0, "up")] if target in FLOATS8 else [(1, "up")]
    if target == "float8_e8m0fnu":
        modes = list(itertools.product((0, 1), ("up", "down", "nearest")))
    with cpu.forced(path), np.errstate(all="ignore"):
        for saturate, rounding in modes:
            op, x = OPS["Cast"](to=target, saturate=saturate, round_mode=rounding), every(source)
            found, = check_kernel(op, x)
            if target in NARROW:
                assert np.array_equal(found.view(np.uint8), op.reference(x)[0].view(np.uint8))


@pytest.mark.parametrize("dtype", FLOATS8)
def test_floats_are_those_of_ml_dtypes(dtype: str) -> None:
    x, top = every("float32", 2000), float(ml_dtypes.finfo(dtype).max)
    with np.errstate(all="ignore"):
        inside = np.abs(x.astype(dtype).astype(np.float32)) <= top
        saturated, = OPS["Cast"](to=dtype).reference(x)
        open_, = OPS["Cast"](to=dtype, saturate=0).reference(x)
        assert np.array_equal(saturated[inside].view(np.uint8), x[inside].astype(dtype).view(np.uint8))
        assert np.array_equal(open_.view(np.uint8), x.astype(dtype).view(np.uint8))
        beyond = saturated[~inside & ~np.isnan(x)].astype(np.float32)
    assert beyond.size > 20
    assert set(np.abs(beyond)) == {top}


def test_powers_of_two_round_as_asked() -> None:
    x = np.array([0, 2.0 ** -128, 2.0 ** -127, 1.25 * 2.0 ** -127, 1.5 * 2.0 ** -127, 1, 1.25, 1.5, 1.75, 3.4e38, np.inf, np.nan, -3], np.float32)
    wanted = {"up": [0, 0, 0, 1, 1, 127, 128, 128, 128, 254, 254, 255, 129], "down": [0, 0, 0, 0, 0, 127, 127, 127, 127, 254, 254, 255, 128],
              "nearest": [0, 0, 0, 0, 1, 127, 127, 128, 128, 254, 254, 255, 129]}
    for rounding, codes in wanted.items():
        with np.errstate(all="ignore"):
            found, = OPS["Cast"](to="float8_e8m0fnu", round_mode=rounding).reference(x)
        assert found.view(np.uint8).tolist() == codes, rounding
    found, = OPS["Cast"](to="float8_e8m0fnu", round_mode="nearest", saturate=0).reference(x)
    assert found.view(np.uint8).tolist() == [255, 255, 0, 0, 1, 127, 127, 128, 128, 255, 255, 255, 129]


MOVES = [
    (OPS["Transpose"](perm=(2, 0, 1)), 1), (OPS["Reshape"](shape=(10, 12)), 1), (OPS["Concat"](axis=1), 2), (OPS["Identity"](), 1),
    (OPS["Slice"](starts=(1,), ends=(15,), axes=(1,), steps=(2,)), 1), (OPS["Expand"](shape=(2, 4, 6, 5)), 1), (OPS["Squeeze"](), 1),
    (OPS["Split"](axis=1, sizes=(2, 4)), 1), (OPS["Tile"](repeats=(1, 2, 1)), 1),
]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_elements_are_moved_by_their_bits(dtype: str) -> None:
    x = np.resize(every(dtype), (4, 6, 5))
    for op, count in MOVES:
        for found, wanted in zip(check_kernel(op, *[x] * count), op.reference(*[x.view(np.uint8)] * count), strict=True):
            assert np.array_equal(found.view(np.uint8), wanted), op
    at = np.array([3, -1, 0])
    found, = check_kernel(OPS["Gather"](axis=1), x, at)
    assert np.array_equal(found.view(np.uint8), x.view(np.uint8)[:, at])


@pytest.mark.parametrize("dtype", NARROW)
def test_models_take_and_give_them(dtype: str) -> None:
    x = np.resize(every(dtype), (4, 6, 5))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = model_of([node("Transpose", ["x"], ["t"], perm=[2, 0, 1]), node("Reshape", ["t", "shape"], ["y"])],
                     [helper.make_tensor_value_info("x", kind, x.shape)], [helper.make_tensor_value_info("y", kind, None)],
                     {"shape": np.array([10, 12])}, opset=25, ir_version=13)
    found, = Backend.prepare(model).run([x])
    assert found.dtype == x.dtype
    assert np.array_equal(found.view(np.uint8), x.view(np.uint8).transpose(2, 0, 1).reshape(10, 12))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("stored", ["raw", "typed", "external"])
def test_files_pack_them(dtype: str, stored: str, tmp_path) -> None:      # type: ignore[no-untyped-def]
    x = np.resize(every(dtype), (3, 5))
    tensor = numpy_helper.from_array(x, "w")
    assert tensor.raw_data == packed(x)
    if stored == "typed":
        tensor.int32_data.extend(tensor.raw_data)
        tensor.ClearField("raw_data")
    if stored == "external":
        (tmp_path / "w.bin").write_bytes(b"?" * 7 + tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, "w.bin", 7, len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    found = tensor_array(tensor, (tmp_path,), "the model")
    assert found.dtype == x.dtype
    assert np.array_equal(found.view(np.uint8), x.view(np.uint8))
    tensor.dims[0] = 7
    with pytest.raises(ModelError, match="w"):
        check_tensor(tensor, (tmp_path,), "the model")


def test_stored_ones_are_cast_when_a_model_runs() -> None:
    w = np.arange(-8, 7, dtype=np.int8).astype("int4").reshape(3, 5)
    model = model_of([node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), node("Add", ["x", "f"], ["y"])], [port("x", (3, 5))], ["y"], {"w": w},
                     opset=25, ir_version=13)
    x = np.ones((3, 5), np.float32)
    assert np.array_equal(Backend.prepare(model).run([x])[0], x + w.astype(np.float32))


def test_bit_casts_want_equal_widths() -> None:
    for source, target in (("float32", "int64"), ("int4", "uint8"), ("float8_e5m2", "float4_e2m1fn")):
        with pytest.raises(TypeMismatchError, match="different numbers of bits"):
            OPS["BitCast"](to=target).infer(TensorType(source, (3,)))
    check_kernel(OPS["BitCast"](to="float16"), every("int16"))


def test_nothing_computes_with_them() -> None:
    with pytest.raises(TypeMismatchError, match="float8_e5m2"):
        OPS["Add"]().infer(TensorType("float8_e5m2", (3,)), TensorType("float8_e5m2", (3,)))
