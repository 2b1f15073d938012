"""Operators of ai.onnx.ml but for trees, against ONNX Runtime, and pipelines of scikit-learn against the library."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from onnx_models import node, port
from peers import needs

import tileflow
from tileflow.cli import main
from tileflow.graph import Builder
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.onnx_backend import Backend
from tileflow.passes.autograd import gradients
from tileflow.system.errors import TileflowError

ML = "ai.onnx.ml"


def f4(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def ml(op: str, feeds: Mapping[str, np.ndarray], outputs: Mapping[str, int], version: int = 1, **attributes: Any) -> ModelProto:
    """A model of one node; outputs by ONNX's numbers of element types."""
    graph = helper.make_graph([node(op, list(feeds), list(outputs), "it", domain=ML, **attributes)], "ml",
                              [port(n, a.shape, a.dtype.name) for n, a in feeds.items()],
                              [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ML, version)])


def by_runtime(proto: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    return list(needs("onnxruntime").InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


def same(op: str, feeds: Mapping[str, np.ndarray] | np.ndarray, labels: bool = False, version: int = 1, kind: str = "float32",
         tolerance: float = 1e-5, **attributes: Any) -> None:
    """The node gives what ONNX Runtime's gives."""
    given = {"x": feeds} if isinstance(feeds, np.ndarray) else feeds
    outputs = {**({"label": onnx.TensorProto.INT64} if labels else {}), "y": helper.np_dtype_to_tensor_dtype(np.dtype(kind))}
    proto = ml(op, given, outputs, version, **attributes)
    for a, b in zip(Backend.prepare(proto).run(list(given.values())), by_runtime(proto, given), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


TYPES = ["float32", "float64", "int64", "int32"]


@pytest.mark.parametrize("kind", ["float32"])
def test_binarizer(kind: str) -> None:
    same("Binarizer", np.array([[-1, 0.5, 2], [0, 0.25, 0.75]], kind), kind=kind, threshold=0.5)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("offset", "scale"), [([0.5], [2.0]), ([0.5, -1.0, 3.0], [2.0, 0.25, -1.0])])
def test_scaler(kind: str, offset: list[float], scale: list[float]) -> None:
    same("Scaler", (4 * f4(5, 3)).astype(kind), offset=offset, scale=scale)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("kind", TYPES)
def test_normalizer(norm: str, kind: str) -> None:
    x = (4 * f4(5, 3)).astype(kind)
    x[2] = 0
    x[3, 1] = 9
    same("Normalizer", x, norm=norm)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(transform: str, targets: int) -> None:
    if transform != "NONE" and targets == 1:
        pytest.skip("ONNX Runtime leaves one score alone")
    coefficients = f4(targets * 4).tolist()
    same("LinearRegressor", f4(6, 4), targets=targets, coefficients=coefficients, intercepts=f4(targets).tolist(), post_transform=transform)
    same("LinearRegressor", f4(6, 4), targets=targets, coefficients=coefficients, post_transform=transform)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("kind", TYPES)
def test_linear_classifier(transform: str, kind: str) -> None:
    x = (3 * f4(16, 4)).astype(kind)
    same("LinearClassifier", x, labels=True, coefficients=f4(12).tolist(), intercepts=f4(3).tolist(), classlabels_ints=[7, 3, 5],
         post_transform=transform)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_linear_classifier_of_two_classes(transform: str) -> None:
    same("LinearClassifier", f4(16, 4), labels=True, coefficients=f4(8).tolist(), intercepts=f4(2).tolist(), classlabels_ints=[7, 3],
         post_transform=transform)


KERNELS = [("LINEAR", [0.0, 0.0, 0.0]), ("POLY", [0.5, 1.0, 3.0]), ("RBF", [0.3, 0.0, 0.0]), ("SIGMOID", [0.2, 0.1, 0.0])]


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS, ids=lambda v: v if isinstance(v, str) else "")
def test_support_vectors(kernel: str, parameters: list[float]) -> None:
    """Regression, novelty, and classes by votes of their pairs, whose scores are given."""
    common = {"kernel_type": kernel, **({"kernel_params": parameters} if parameters else {})}
    same("SVMRegressor", f4(6, 3), coefficients=f4(5).tolist(), support_vectors=f4(15).tolist(), n_supports=5, rho=[0.25], **common)
    same("SVMRegressor", f4(6, 3), coefficients=f4(5).tolist(), support_vectors=f4(15).tolist(), n_supports=5, rho=[0.25], one_class=1, **common)
    if kernel == "LINEAR":
        same("SVMRegressor", f4(6, 3), coefficients=f4(3).tolist(), rho=[0.25], **common)
    three = {"vectors_per_class": [2, 1, 3], "coefficients": f4(12).tolist(), "support_vectors": f4(18).tolist(), "rho": [0.1, -0.2, 0.3]}
    same("SVMClassifier", f4(16, 3), labels=True, classlabels_ints=[4, 2, 9], **three, **common)
    two = {"vectors_per_class": [2, 3], "coefficients": f4(5).tolist(), "support_vectors": f4(15).tolist(), "rho": [0.1]}
    same("SVMClassifier", f4(16, 3), labels=True, classlabels_ints=[4, 2], **two, **common)
    same("SVMClassifier", f4(16, 3), labels=True, classlabels_ints=[4, 2], prob_a=[-1.5], prob_b=[0.2], tolerance=5e-3, **two, **common)


def test_imputer() -> None:
    x = f4(4, 3)
    x[1, 2] = x[0, 0] = np.nan
    same("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    same("Imputer", np.round(x), imputed_value_floats=[9.0], replaced_value_float=0.0)
    same("Imputer", np.arange(12).reshape(4, 3) % 5, kind="int64", imputed_value_int64s=[70, 80, 90], replaced_value_int64=3)


def test_features_are_chosen_and_put_together() -> None:
    same("ArrayFeatureExtractor", {"x": f4(4, 5), "at": np.array([[3, 0, 3]])})
    same("ArrayFeatureExtractor", {"x": f4(5), "at": np.array([1, 2])})
    same("FeatureVectorizer", {"a": f4(3, 2), "b": f4(3, 1)}, inputdimensions=[2, 1])


@pytest.mark.parametrize(("keys", "values", "default"), [
    ([3, -7, 5, 0], [10, 20, 30, 40], 99), ([3.5, float("nan"), -0.0, float("inf")], [1.5, 2.5, 3.5, 4.5], -9.5), ([2], [7], 1)], ids=str)
def test_label_encoder_of_numbers(keys: list[Any], values: list[Any], default: Any) -> None:
    kind = "float32" if isinstance(keys[0], float) else "int64"
    ends = ("floats", "float") if kind == "float32" else ("int64s", "int64")
    x = np.array([*keys, 4, -8, 1 << 20, *keys, 0], kind).reshape(-1, 1)
    same("LabelEncoder", x, version=2, kind=kind, **{f"keys_{ends[0]}": keys, f"values_{ends[0]}": values, f"default_{ends[1]}": default})


def test_nan_is_a_key_from_version_4_on() -> None:
    x = np.float32([[np.nan], [1], [2]])
    keys, values = (onnx.numpy_helper.from_array(np.float32(a)) for a in ([np.nan, 1], [5, 6]))
    same("LabelEncoder", x, version=4, keys_tensor=keys, values_tensor=values, default_tensor=onnx.numpy_helper.from_array(np.float32([7])))
    same("LabelEncoder", x, version=2, keys_floats=[np.nan, 1.0], values_floats=[5.0, 6.0], default_float=7.0)


def test_one_hot_encoder() -> None:
    x = np.array([[3, 1], [2, 8]], np.int64)
    same("OneHotEncoder", x, cats_int64s=[1, 2, 3], zeros=1)
    same("OneHotEncoder", x.astype(np.float32), cats_int64s=[1, 2, 3], zeros=1)
    with pytest.raises(TileflowError):
        Backend.prepare(ml("OneHotEncoder", {"x": x}, {"y": 1}, cats_int64s=[1, 2, 3], zeros=0)).run([x])
    same("OneHotEncoder", x, cats_int64s=[1, 2, 3, 8], zeros=0)


# ---- pipelines ----------------------------------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore::FutureWarning")          # the exporter's way to ask whether there are likelihoods
@pytest.mark.parametrize("labels", ["texts", "numbers"])
@pytest.mark.parametrize("kind", ["logistic", "forest", "vectors"])
def test_pipelines_of_scikit_learn(kind: str, labels: str) -> None:
    """As they are exported by default: with maps of likelihoods, and texts as labels where the library has them."""
    x, y = needs("sklearn.datasets").load_iris(return_X_y=True)
    x, names = np.float32(x), np.array(["setosa", "versicolor", "virginica"])
    scaler = needs("sklearn.preprocessing").StandardScaler()
    last = {"logistic": lambda: needs("sklearn.linear_model").LogisticRegression(), "vectors": lambda: needs("sklearn.svm").SVC(),
            "forest": lambda: needs("sklearn.ensemble").RandomForestClassifier(8, random_state=0)}[kind]()
    fitted = needs("sklearn.pipeline").make_pipeline(scaler, last).fit(x, names[y] if labels == "texts" else y)
    proto = needs("skl2onnx").to_onnx(fitted, x[:1], target_opset={"": 17, ML: 3})
    label, maps = Backend.prepare(proto).run([x])
    wanted, scores = by_runtime(proto, {proto.graph.input[0].name: x})
    assert list(label) == list(wanted)
    assert list(label) == list(fitted.predict(x))
    for a, b in zip(maps, scores, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def classifier(labels: list[Any]) -> ModelProto:
    """A linear classifier of three features as scikit-learn's exporter writes it: labels, and maps of scores by label."""
    texts = isinstance(labels[0], str)
    kind = {"classlabels_strings" if texts else "classlabels_ints": labels}
    zipped = {"classlabels_strings" if texts else "classlabels_int64s": labels}
    weights = np.random.default_rng(2).standard_normal((3, 3)).ravel().tolist()
    nodes = [node("LinearClassifier", ["x"], ["label", "scores"], domain=ML, coefficients=weights, intercepts=[0.0, 0.1, 0.2],
                  post_transform="SOFTMAX", **kind), node("ZipMap", ["scores"], ["by_label"], domain=ML, **zipped)]
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(
        onnx.TensorProto.STRING if texts else onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())))
    graph = helper.make_graph(nodes, "ml", [port("x", ["N", 3])], [
        helper.make_tensor_value_info("label", onnx.TensorProto.STRING if texts else onnx.TensorProto.INT64, ["N"]),
        helper.make_value_info("by_label", maps)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)])


@pytest.mark.parametrize("labels", [["no", "perhaps", "yes"], [3, 5, 7]], ids=["texts", "numbers"])
def test_maps_of_all_rows_become_a_table(labels: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several batches; the command measures labels that are predicted, and says where it cannot."""
    x, said = f4(7, 3), list[str]()
    onnx.save(classifier(labels), tmp_path / "m.onnx")
    label, maps = Backend.prepare(classifier(labels)).run([x])
    found = tileflow.infer(tmp_path / "m.onnx", data=x, micro_batch_size=3, say=said.append)
    assert found["label"].tolist() == list(label)
    np.testing.assert_allclose(found["by_label"], [[row[key] for key in labels] for row in maps], rtol=1e-6)
    assert said == [f"The output 'by_label' maps the classes of each row to numbers; here it is an array whose columns are "
                    f"{labels[0]}, {labels[1]}, {labels[2]}."]
    right = np.array(label)
    right[:2] = labels[(labels.index(label[0]) + 1) % 3], labels[(labels.index(label[1]) + 1) % 3]
    np.savez(tmp_path / "d.npz", x=x, y=right.astype(str) if isinstance(labels[0], str) else right)
    np.savez(tmp_path / "other.npz", x=x, y=np.arange(7) % 3 if isinstance(labels[0], str) else np.array(["a", "b", "c", "a", "b", "c", "a"]))
    for data, says in (("d.npz", "accuracy 71.43% of 7 rows"), ("other.npz", "There is no accuracy: The model predicts ")):
        assert main(["infer", str(tmp_path / "m.onnx"), "--data", str(tmp_path / data), "--out", str(tmp_path / "p.npz")]) == 0
        assert says in capsys.readouterr().out
    with np.load(tmp_path / "p.npz") as saved:
        assert saved["label"].tolist() == list(label)
        assert saved["by_label"].shape == (7, 3)


# ---- gradients ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("op", "attributes"), [
    ("Scaler", {"offset": [0.5], "scale": [2.0, 3.0, 4.0]}), ("Normalizer", {"norm": "L2"}), ("Normalizer", {"norm": "L1"}),
    ("LinearRegressor", {"targets": 2, "coefficients": [1.0, 2, 3, 4, 5, 6], "post_transform": "SOFTMAX"}),
    ("LinearRegressor", {"targets": 2, "coefficients": [0.1, 0.2, 0.3, 0.1, 0.1, 0.3], "post_transform": "PROBIT"}),
    ("SVMRegressor", {"coefficients": [1.0, -2.0], "support_vectors": [1.0, 2, 3, 4, 5, 6], "n_supports": 2, "rho": [0.5], "kernel_type": "RBF",
                      "kernel_params": [0.1, 0.0, 0.0]})], ids=str)
def test_gradients_by_features(op: str, attributes: dict[str, Any]) -> None:
    """Against central differences, in float64."""
    from evaluate import evaluate
    x = np.random.default_rng(1).uniform(0.1, 0.9, (4, 3))
    proto = ml(op, {"x": x.astype(np.float32)}, {"y": 1}, **attributes)
    graph = import_graph(wrap_model(proto), float_dtype="float64").graph
    y, (a,) = graph.outputs[0], graph.inputs
    b = Builder(graph)
    weights = np.random.default_rng(2).standard_normal(y.shape)
    loss = b.ReduceSum(b.Mul(y, b.constant(weights)), keepdims=0)
    graph.outputs = [loss, *gradients(graph, loss, [a])]
    names = [v.name for v in graph.outputs]
    found = evaluate(graph, {"x": x})[names[1]]
    for at in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[at] += step
            ends.append(float(evaluate(graph, {"x": moved})[names[0]]))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(found[at], rel=1e-6, abs=1e-7)
