"""What samples of TopK, scattering, determinants and padding do not show: ranks of special values, both ways to rank, indices out of range."""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import KernelFailed, check_kernel, run_kernel
from onnx import helper
from paths import rare

from tileflow.graph import TensorType
from tileflow.kernels.top_k import top_k_calls
from tileflow.onnx_backend import Backend
from tileflow.ops.determinant import Det, DetGrad
from tileflow.ops.einsum import Einsum
from tileflow.ops.pad import Pad
from tileflow.ops.random import RandomUniform
from tileflow.ops.scatter import ScatterAlong, ScatterRows
from tileflow.ops.top_k import TopK
from tileflow.system.errors import OptionError, ShapeError

rng = np.random.default_rng(3)


def test_nan_is_above_all_and_zeros_are_one() -> None:
    x = np.array([0.0, np.nan, -0.0, np.inf, -np.inf, np.nan, 0.0], np.float32)
    values, places = run_kernel(TopK(K=7), x)
    assert places.tolist() == [1, 5, 3, 0, 2, 6, 4]
    np.testing.assert_array_equal(values, x[places])
    assert run_kernel(TopK(K=7, largest=0), x)[1].tolist() == [4, 0, 2, 6, 3, 1, 5]


@pytest.mark.parametrize(("n", "k"), [(2000, 1), (2000, 7), (2000, 500), (2000, 2000), (65, 64), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", rare("int64"), rare("float16"), rare("uint8")])
def test_few_and_many_of_any_type(n: int, k: int, dtype: str) -> None:
    """Numbers with many ties, in one line and in columns."""
    x = rng.integers(0, 50, (n, 3)).astype(dtype)
    check_kernel(TopK(K=k, axis=0), x)
    check_kernel(TopK(K=k, largest=0), np.ascontiguousarray(x.T))


@pytest.mark.parametrize("dtype", ["uint64", "int64", "float64", "uint32", "int32", "int8"])
@pytest.mark.parametrize("k", [3, 40, 300])
def test_numbers_of_all_bits_are_ranked(dtype: str, k: int):
    """Keys of 64 bits are compared, and counted by their leading bits, as numbers without sign."""
    bits = np.arange(300, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shift = np.uint64(64 - 8 * np.dtype(dtype).itemsize)
    x = np.cos(np.arange(300.0)) * 1e200 if dtype == "float64" else (bits >> shift).astype(dtype)
    for largest in (0, 1):
        check_kernel(TopK(K=k, largest=largest), x)



def test_both_ways_to_rank_are_taken() -> None:
    assert {top_k_calls("f4", 1, n, 1, k, True)[0].args[-1] for n, k in ((50000, 5), (1000, 1000))} == {0, 1}


def test_of_none_there_is_nothing() -> None:
    assert TopK(K=0).infer(TensorType("float32", (2, 4)))[0].shape == (2, 0)
    with pytest.raises(ShapeError, match="K 5 of the 4 elements"):
        TopK(K=5).infer(TensorType("float32", (2, 4)))


@pytest.mark.parametrize("index", [[4], [-5], [0, 9]])
def test_rows_out_of_range_stop_the_run(index: list[int]) -> None:
    with pytest.raises(KernelFailed):
        run_kernel(ScatterRows(), np.zeros((4, 2), np.float32), np.array(index), np.ones((len(index), 2), np.float32))


def test_of_several_updates_all_count_in_order() -> None:
    data, index, updates = np.ones((3, 2000), np.float32), np.array([1, 1, -2, 0]), rng.standard_normal((4, 2000)).astype(np.float32)
    for reduction in ("none", "add", "mul", "min", "max"):
        check_kernel(ScatterRows(reduction=reduction), data, index, updates)
    np.testing.assert_array_equal(run_kernel(ScatterRows(), data, index, updates)[0][1], updates[2])
    with pytest.raises(OptionError, match="'mean' is unknown"):
        ScatterRows(reduction="mean").infer(*(TensorType("float32", (2, 2)), TensorType("int64", (1,)), TensorType("float32", (1, 2))))


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("inner", [1, 31, 70])
def test_elements_stay_in_their_lanes(inner: int, reduction: str) -> None:
    """Of more columns than a unit of work has, of one, and of odd numbers; several updates for one place count in
    order."""
    data, index = np.ones((2, 3, inner), np.float32), rng.integers(-3, 3, (2, 9, inner))
    check_kernel(ScatterAlong(reduction=reduction), data, index, rng.standard_normal(index.shape).astype(np.float32))
    for beyond in (3, -4):
        index[1, 8, inner - 1] = beyond
        with pytest.raises(KernelFailed):
            run_kernel(ScatterAlong(reduction=reduction), data, index, np.ones(index.shape, np.float32))


def test_determinants_are_numpys() -> None:
    x = rng.standard_normal((5, 6, 6))
    np.testing.assert_allclose(run_kernel(Det(), x)[0], np.linalg.det(x), rtol=1e-10)
    g = rng.standard_normal(5)
    wanted = g[:, None, None] * np.linalg.det(x)[:, None, None] * np.linalg.inv(x).transpose(0, 2, 1)
    np.testing.assert_allclose(run_kernel(DetGrad(), g, x)[0], wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 3, 1, 2), (7, 0, 0, 9), (1, 300, 2, 400), (-1, 2, 1, -2)])
def test_padding_that_repeats(mode: str, pads: tuple[int, ...]) -> None:
    """By boxes, and where it goes round too often by passes."""
    check_kernel(Pad(pads=pads, mode=mode), rng.standard_normal((4, 5)).astype(np.float32))


@pytest.mark.parametrize(("equation", "shapes"), [("ij->k", [(2, 2)]), ("i,j", [(2,)]), ("i1", [(2, 2)]), ("ij->ii", [(2, 2)]), ("i->->i", [(2,)])])
def test_equations_that_are_none(equation: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(OptionError):
        Einsum(equation=equation).infer(*(TensorType("float32", s) for s in shapes))


def test_large_random_tensors_are_typed_without_memory() -> None:
    assert RandomUniform(shape=(1 << 20, 1 << 20)).infer()[0].nbytes == 1 << 42


def test_old_masks_of_dropout_have_the_type_of_its_input() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "mask"], ratio=0.5)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [3])],
                              [helper.make_tensor_value_info(name, 1, [3]) for name in ("y", "mask")])
    x = np.array([1, 2, 3], np.float32)
    y, mask = Backend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)).run([x])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(mask, np.ones(3, np.float32))
