"""Trained weights back into ONNX files: the original model with new payloads, written all or nothing."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import expected, imported, mnist_cnn, model_of, node, port, run
from peers import needs

from tileflow.importers.onnx import export_model, import_graph, load_model, wrap_model
from tileflow.system.errors import CheckpointError, ModelError

RNG = np.random.default_rng(3)


def changed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: (a + 0.01 * RNG.standard_normal(a.shape)).astype(a.dtype) for name, a in weights.items()}


def save(proto: ModelProto, path: Path, **options: Any) -> Path:
    onnx.save(proto, path, **options)
    return path


def rich_model() -> ModelProto:
    """A model with everything an export must keep."""
    proto = mnist_cnn(13)
    proto.doc_string, proto.domain, proto.model_version = "a model", "org.example", 7
    helper.set_model_props(proto, {"classes": "0-9"})
    proto.graph.doc_string = "its graph"
    proto.graph.node[0].doc_string = "first"
    proto.graph.value_info.append(port("c1", ["N", 10, 24, 24]))
    return proto


def without_payloads(proto: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(proto)
    for t in copy.graph.initializer:
        for name in ("raw_data", "float_data", "external_data", "data_location", "int64_data"):
            t.ClearField(name)                                            # type: ignore[arg-type]
    return copy


def test_only_weights_change(tmp_path: Path) -> None:
    model = load_model(save(rich_model(), tmp_path / "in.onnx"))
    weights = changed(import_graph(model, batch=1).weights)
    export_model(model, weights, tmp_path / "out.onnx")
    result = load_model(tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    assert without_payloads(result.proto) == without_payloads(model.proto)
    assert sorted(os.listdir(tmp_path)) == ["in.onnx", "out.onnx"]
    for name, array in weights.items():
        np.testing.assert_array_equal(result.array(name), array)
    np.testing.assert_array_equal(result.array("shape"), model.array("shape"))
    x = RNG.standard_normal((2, 1, 28, 28)).astype(np.float32)
    wanted = expected(result.proto, {"image": x})[0]
    np.testing.assert_allclose(run(import_graph(result, batch=2), {"image": x})[0], wanted, rtol=1e-5, atol=1e-5)


def test_onnxruntime_agrees(tmp_path: Path) -> None:
    ort = needs("onnxruntime")
    model = wrap_model(mnist_cnn(13))
    graph = import_graph(model, batch=3)
    graph.weights.update({n: a * np.float32(0.9) for n, a in graph.weights.items()})
    export_model(model, graph.weights, tmp_path / "out.onnx")
    x = RNG.standard_normal((3, 1, 28, 28)).astype(np.float32)
    session = ort.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run(graph, {"image": x})[0], session.run(None, {"image": x})[0], rtol=1e-5, atol=1e-5)


def test_declared_types_and_typed_payloads(tmp_path: Path) -> None:
    """Weights of a float64 graph go back as the file declares them; float_data becomes raw data."""
    typed = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    half = numpy_helper.from_array(np.ones(2, np.float16), "h")
    proto = model_of([node("MatMul", ["x", "w"], ["m"]), node("Cast", ["h"], ["c"], to=TensorProto.FLOAT), node("Add", ["m", "c"], ["y"])],
                     [port("x", [1, 2])], ["y"])
    proto.graph.initializer.extend([typed, half])
    graph = imported(proto, float_dtype="float64")
    assert {a.dtype.name for a in graph.weights.values()} == {"float64"}
    export_model(wrap_model(proto), {n: a + 0.5 for n, a in graph.weights.items()}, tmp_path / "out.onnx")
    result = load_model(tmp_path / "out.onnx")
    assert result.array("w").dtype == np.float32
    np.testing.assert_array_equal(result.array("w"), [[1.5, 2.5], [3.5, 4.5]])
    np.testing.assert_array_equal(result.array("h"), np.full(2, 1.5, np.float16))
    assert not result.initializers["w"].float_data


def test_constant_nodes(tmp_path: Path) -> None:
    proto = model_of([node("Constant", [], ["w"], value=numpy_helper.from_array(np.zeros(3, np.float32))), node("Mul", ["x", "w"], ["y"])],
                     [port("x", [3])], ["y"])
    model = wrap_model(proto)
    assert set(import_graph(model, trainable=["w"]).weights) == {"w"}
    export_model(model, {"w": np.ones(3)}, tmp_path / "out.onnx")
    np.testing.assert_array_equal(load_model(tmp_path / "out.onnx").array("w"), np.ones(3, np.float32))


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source = save(rich_model(), tmp_path / "a/in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    model = load_model(source)
    weights = changed(import_graph(model, batch=1).weights)
    partly = {n: a for n, a in weights.items() if n != "fc1.weight"}
    export_model(model, partly, tmp_path / "b/out.onnx")
    assert sorted(os.listdir(tmp_path / "b")) == ["out.onnx", "out.onnx.data"]
    (tmp_path / "a/in.bin").unlink()
    result = load_model(tmp_path / "b/out.onnx")
    for name, array in partly.items():
        np.testing.assert_array_equal(result.array(name), array)
    original = {t.name: numpy_helper.to_array(t) for t in rich_model().graph.initializer}
    np.testing.assert_array_equal(result.array("fc1.weight"), original["fc1.weight"])
    for t in result.initializers.values():
        offset = next(int(e.value) for e in t.external_data if e.key == "offset")
        assert offset % 4096 == 0


def test_external_model_over_itself(tmp_path: Path) -> None:
    """The data is read from the file that is replaced."""
    path = save(mnist_cnn(), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    model = load_model(path)
    weights = changed(import_graph(model, batch=1).weights)
    export_model(model, {"fc1.bias": weights["fc1.bias"]}, path)
    result = load_model(path)
    np.testing.assert_array_equal(result.array("fc1.bias"), weights["fc1.bias"])
    np.testing.assert_array_equal(result.array("fc2.weight"), numpy_helper.to_array(mnist_cnn().graph.initializer[6]))
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]


def test_weights_must_belong_to_the_model(tmp_path: Path) -> None:
    model = wrap_model(mnist_cnn())
    with pytest.raises(ModelError, match=r"has no initializer 'conv9\.weight'"):
        export_model(model, {"conv9.weight": np.zeros(1)}, tmp_path / "out.onnx")
    with pytest.raises(ModelError, match=r"'fc2\.bias' is float32\[10\], but the weight has shape \[11\]"):
        export_model(model, {"fc2.bias": np.zeros(11)}, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    model = wrap_model(mnist_cnn())
    (tmp_path / "file").write_text("x")
    for place, match in ((tmp_path / "no/such/out.onnx", "create the folder first"), (tmp_path, "name a file, not a folder"),
                         (tmp_path / "file/out.onnx", "name a file in a folder"), (tmp_path / ("x" * 300), "shorter name"),
                         (Path("/proc/out.onnx"), "create the folder|choose a folder")):
        with pytest.raises(CheckpointError, match=match) as caught:
            export_model(model, {}, place)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(mnist_cnn(), tmp_path / "m.onnx")
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*free some space"):
        export_model(load_model(path), {"fc2.bias": np.zeros(10)}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_links_stay_links(tmp_path: Path) -> None:
    path = save(mnist_cnn(), tmp_path / "real.onnx")
    (tmp_path / "link.onnx").symlink_to("real.onnx")
    export_model(load_model(path), {"fc2.bias": np.ones(10)}, tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    np.testing.assert_array_equal(load_model(path).array("fc2.bias"), np.ones(10, np.float32))


def test_unknown_operators_do_not_stop_an_export(tmp_path: Path) -> None:
    proto = model_of([node("Strange", ["x", "w"], ["y"], domain="other")], [port("x", [2])], ["y"], {"w": np.zeros(2, np.float32)},
                     domains=["other"])
    export_model(wrap_model(proto), {"w": np.ones(2)}, tmp_path / "out.onnx")
    np.testing.assert_array_equal(load_model(tmp_path / "out.onnx").array("w"), np.ones(2, np.float32))
