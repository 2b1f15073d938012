"""MatMul, FusedMatMul and Gemm: types, kernels against NumPy and ONNX, gradients."""
import numpy as np
import onnx
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, run_kernel, run_reference
from onnx.reference import ReferenceEvaluator
from paths import rare

from tileflow.graph import OPS, Op, TensorType, type_of
from tileflow.graph.work import Contraction
from tileflow.system.errors import ShapeError, TypeMismatchError


def make(name: str, **attributes: float) -> Op:
    return OPS[name](**attributes)


def normal(*shape: int, dtype: str = "f8") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


MATMULS = [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
           ((2, 1, 3, 4), (1, 6, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (7, 4, 5)), ((1, 4), (4, 1)), ((2, 3, 0), (0, 5)),
           ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((2, 1, 2, 1, 3, 4), (1, 3, 1, 2, 4, 2))]


def run_onnx(op_type: str, arrays: list[np.ndarray], **attributes: float) -> np.ndarray:
    names = [f"x{i}" for i in range(len(arrays))]
    infos = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, arrays, strict=True)]
    out = onnx.helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node(op_type, names, ["y"], **attributes)], "g", infos, [out])
    return ReferenceEvaluator(onnx.helper.make_model(graph)).run(None, dict(zip(names, arrays, strict=True)))[0]


@pytest.mark.parametrize(("a", "b"), MATMULS)
@pytest.mark.parametrize(("dtype", "rtol"), [("f4", 1e-5), rare("f8", 1e-13)])
def test_matmul_is_numpys_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: str, rtol: float) -> None:
    x, y = normal(*a, dtype=dtype), normal(*b, dtype=dtype)
    z, = check_kernel(make("MatMul"), x, y, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(z, np.matmul(x, y), rtol=rtol, atol=rtol)
    assert z.shape == np.matmul(x, y).shape == make("MatMul").infer(type_of(x), type_of(y))[0].shape


@pytest.mark.parametrize(("a", "b"), [case for case in MATMULS if 0 not in case[0] + case[1]])
def test_matmul_gradients(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_gradient(make("MatMul"), normal(*a), normal(*b))


def test_matmul_gradients_of_empty_sums() -> None:
    check_gradient_kernels(make("MatMul"), normal(2, 3, 0), normal(0, 5))
    check_gradient_kernels(make("MatMul"), normal(0, 4), normal(4, 5))


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fused_matmul(flags: tuple[int, int]) -> None:
    op = make("FusedMatMul", transA=flags[0], transB=flags[1], alpha=0.25)
    x = normal(2, 1, *((4, 3) if flags[0] else (3, 4)))
    y = normal(5, *((6, 4) if flags[1] else (4, 6)))
    z, = check_kernel(op, x, y, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(z, 0.25 * np.matmul(x.swapaxes(2, 3) if flags[0] else x, y.swapaxes(1, 2) if flags[1] else y), atol=1e-13)
    check_gradient(op, x, y)
    check_gradient_kernels(op, x, y, rtol=1e-12, atol=1e-12)
    check_gradient(op, normal(4), y)


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (5,), (3, 5), (3, 1), (1, 5), (1,), ()])
def test_gemm(flags: tuple[int, int], c: tuple[int, ...] | None) -> None:
    op = make("Gemm", transA=flags[0], transB=flags[1], alpha=0.5, beta=3.0)
    inputs = [normal(*((4, 3) if flags[0] else (3, 4))), normal(*((5, 4) if flags[1] else (4, 5)))]
    if c is not None:
        inputs.append(normal(*c))
    z, = check_kernel(op, *inputs, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(z, run_onnx("Gemm", inputs, **op.attributes()), rtol=1e-12, atol=1e-12)
    check_gradient(op, *inputs)
    check_gradient_kernels(op, *inputs, rtol=1e-12, atol=1e-12)


def test_gemm_of_a_linear_layer_in_float32() -> None:
    x, w, bias = normal(40, 320, dtype="f4"), normal(256, 320, dtype="f4"), normal(256, dtype="f4")
    check_kernel(make("Gemm", transB=1), x, w, bias, rtol=1e-5, atol=1e-4)
    check_gradient_kernels(make("Gemm", transB=1), x, w, bias, rtol=1e-5, atol=1e-4)
    check_kernel(make("Gemm", transB=1), x[:, :256], normal(10, 256, dtype="f4"), None, rtol=1e-5, atol=1e-4)


def test_gemm_with_beta_zero_hides_c() -> None:
    c = np.full((2, 5), np.nan)
    op = make("Gemm", beta=0.0)
    z, = check_kernel(op, normal(2, 3), normal(3, 5), c, rtol=1e-13)
    assert np.isfinite(z).all()
    np.testing.assert_allclose(run_onnx("Gemm", [normal(2, 3), normal(3, 5), c], beta=0.0), z, rtol=1e-13)
    check_gradient(op, normal(2, 3), normal(3, 5), normal(2, 5))


def test_gemm_with_an_empty_sum_is_the_bias() -> None:
    bias = normal(5)
    z, = run_kernel(make("Gemm"), np.zeros((3, 0)), np.zeros((0, 5)), bias)
    np.testing.assert_array_equal(z, np.broadcast_to(bias, (3, 5)))


def test_zero_times_nan_and_infinity_is_nan() -> None:
    x, y = np.zeros((3, 4), "f4"), np.ones((4, 5), "f4")
    y[1, 2], y[2, 3] = np.nan, np.inf
    z, = run_kernel(make("MatMul"), x, y)
    assert np.isnan(z[:, 2:4]).all()
    assert (z[:, [0, 1, 4]] == 0).all()


def infer(name: str, *shapes: tuple[int, ...], dtype: str = "float32", **attributes: float) -> TensorType:
    return make(name, **attributes).infer(*[TensorType(dtype, s) for s in shapes])[0]


def test_errors_name_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"float32\[3, 4\].*float32\[5, 6\].*4 columns.*5 rows"):
        infer("MatMul", (3, 4), (5, 6))
    with pytest.raises(ShapeError, match=r"batch dimensions \[2\] and \[3\]"):
        infer("MatMul", (2, 3, 4), (3, 4, 5))
    with pytest.raises(ShapeError, match="at least one dimension"):
        infer("MatMul", (), (4, 5))
    with pytest.raises(ShapeError, match="two dimensions"):
        infer("Gemm", (2, 3, 4), (4, 5))
    with pytest.raises(ShapeError, match=r"transposed.*3 columns.*4 rows"):
        infer("Gemm", (3, 4), (4, 5), transA=1)
    with pytest.raises(ShapeError, match=r"C is float32\[4\].*\[3, 5\]"):
        infer("Gemm", (3, 4), (4, 5), (4,))
    with pytest.raises(ShapeError, match="C is"):
        infer("Gemm", (3, 4), (4, 5), (2, 3, 5))
    with pytest.raises(TypeMismatchError, match="int64"):
        infer("MatMul", (3, 4), (4, 5), dtype="int64")
    with pytest.raises(TypeMismatchError, match="cast"):
        make("Gemm").infer(TensorType("float32", (2, 2)), TensorType("float64", (2, 2)))


def test_work_counts_two_operations_a_product() -> None:
    op = make("MatMul")
    types = [TensorType("float32", (6, 1, 3, 4)), TensorType("float32", (2, 4, 5))]
    work = op.work(types, op.infer(*types))
    assert isinstance(work, Contraction)
    assert work.flops == 2 * 6 * 2 * 3 * 4 * 5
    assert [o.dims for o in work.inputs] == [("b0", None, "m", "k"), ("b1", "k", "n")]
    assert work.outputs[0].dims == ("b0", "b1", "m", "n")
    gemm = make("Gemm", transB=1)
    types = [TensorType("float32", s) for s in ((40, 320), (256, 320), (256,))]
    work = gemm.work(types, gemm.infer(*types))
    assert [o.dims for o in work.inputs] == [("m", "k"), ("n", "k"), ("n",)]
    assert work.flops == 2 * 40 * 320 * 256


def test_references_keep_the_element_type() -> None:
    x = normal(3, 3, dtype="f4")
    assert run_reference(make("Gemm", alpha=0.1), x, x, x)[0].dtype == np.float32
    assert run_reference(make("FusedMatMul", alpha=0.1), x, x)[0].dtype == np.float32
